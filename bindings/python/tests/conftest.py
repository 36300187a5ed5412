"""Tests of what is known to be open. Each fails today; one that begins to pass fails the run, so that its line here goes."""

from __future__ import annotations

import pytest

OPEN = {
    "torch_operators_test.py::test_derivatives_in_forward_mode_are_refused": "PyTorch's own message, not ours",
    "torch_operators_test.py::test_operators_keep_the_rules_of_pytorch[backward]": "opcheck differentiates backward twice",
    "torch_operators_test.py::test_it_maps_over_gradients_and_the_other_way": "a tensor without memory",
    "torch_replace_test.py::test_checkpoints_whose_backward_pass_is_inside[True]": "recomputation saves fewer tensors",
    "torch_replace_test.py::test_checkpoints_whose_backward_pass_is_inside[False]": "recomputation saves fewer tensors",
    "torch_replace_test.py::test_what_qkv_does_not_take_is_left_to_pytorch_with_a_warning[forward mode]": "raises",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for test, reason in OPEN.items():
            if item.nodeid.endswith(test):
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
