"""PyTorch as a second opinion: its plain attention in float64 is the truth, in the type itself the measure of error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

#: Takes tensors, gives tensors.
Function = Callable[..., "Tensor | tuple[Tensor, ...]"]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed + sum(n * 31**i for i, n in enumerate(shape)))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def plainly(function: Function) -> Function:
    """PyTorch's attention without its fused kernels."""

    def call(*arguments: Any, **options: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH):
            return function(*arguments, **options)

    return call


def leaf(x: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """x itself, whatever its strides are, as what gradients are taken by."""
    x = x.detach() if dtype is None else x.detach().to(dtype)
    return x.requires_grad_(x.is_floating_point())


def results(function: Function, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The outputs, and the gradients of a sum of their products with random numbers by all inputs that have one."""
    out = function(*inputs)
    outs = [out] if isinstance(out, Tensor) else [x for x in out if x is not None]
    by = [x for x in inputs if x.requires_grad]
    upstream = [random(*x.shape, seed=7 + n).to(x.dtype) for n, x in enumerate(outs)]
    return [*outs, *torch.autograd.grad(outs, by, upstream)]


def assert_close(got: Tensor, plain: Tensor, truth: Tensor, eps: float) -> None:
    """max|got - truth| <= 2 max|plain - truth| + 8 eps max|truth|: docs/semantics.md, section 6."""
    assert got.shape == truth.shape
    if truth.numel() == 0:
        return
    truth = truth.double()
    error, allowed = (got.double() - truth).abs().max(), 2 * (plain.double() - truth).abs().max()
    bound = allowed + 8 * max(eps, torch.finfo(got.dtype).eps) * truth.abs().max()
    assert error <= bound, f"{error:.3e} is beyond {bound:.3e}"


def agree(ours: Function, theirs: Function, inputs: Sequence[Tensor]) -> None:
    """Outputs and gradients of ours are as near to the truth as theirs are. The first input's type is that of the attention."""
    theirs = plainly(theirs)
    got = results(ours, [leaf(x) for x in inputs])
    plain = results(theirs, [leaf(x) for x in inputs])
    truth = results(theirs, [leaf(x, torch.float64 if x.is_floating_point() else x.dtype) for x in inputs])
    assert [x.dtype for x in got] == [x.dtype for x in plain]
    # In float64 plain is the truth, which itself is as far off as the rest.
    eps = torch.finfo(inputs[0].dtype).eps * (8 if inputs[0].dtype == torch.float64 else 1)
    for parts in zip(got, plain, truth, strict=True):
        assert_close(*parts, eps)
