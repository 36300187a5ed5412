"""qkv.torch.replace_sdpa: in the place of PyTorch's attention, wherever that is called."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from qkv import _replace
from qkv._sdpa import Refused
from qkv.torch import replace_sdpa, scaled_dot_product_attention
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.functional import scaled_dot_product_attention as imported
from torch.utils.checkpoint import checkpoint
from torch_oracle import plainly, random

Q, K, V = random(2, 4, 5, 8), random(2, 4, 7, 8, seed=1), random(2, 4, 7, 8, seed=2)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The calls of PyTorch's attention that qkv took."""
    taken: list[str] = []
    for name in ("scaled_dot_product_attention", "multi_head_attention_forward"):
        own = getattr(_replace, name)

        def noted(*arguments: Any, own: Callable[..., Any] = own, name: str = name, **options: Any) -> Any:
            taken.append(name)
            try:
                return own(*arguments, **options)
            except Refused:
                taken.pop()
                raise

        monkeypatch.setattr(_replace, name, noted)
    yield taken


NAMES: dict[str, Callable[..., Tensor]] = {
    "functional": functional.scaled_dot_product_attention,
    "imported": imported,
    "operator": torch.ops.aten.scaled_dot_product_attention,
    "overload": torch.ops.aten.scaled_dot_product_attention.default,
}


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_replaced(name: str, calls: list[str]) -> None:
    expected = scaled_dot_product_attention(Q, K, V, scale=0.5, is_causal=True)
    with replace_sdpa():
        assert NAMES[name](Q, K, V, is_causal=True, scale=0.5).equal(expected)
    assert len(calls) == 1
    NAMES[name](Q, K, V)
    assert len(calls) == 1


def test_it_nests_and_ends_with_an_exception(calls: list[str]) -> None:
    with replace_sdpa() as outer:
        with replace_sdpa(), outer:
            imported(Q, K, V)
        imported(Q, K, V)
        with pytest.raises(ZeroDivisionError), replace_sdpa():
            raise ZeroDivisionError
        imported(Q, K, V)
    assert len(calls) == 3
    with pytest.raises(ZeroDivisionError), replace_sdpa():
        raise ZeroDivisionError
    imported(Q, K, V)
    assert len(calls) == 3


def test_each_thread_has_its_own(calls: list[str]) -> None:
    def in_a_thread(replaced: bool) -> None:
        if not replaced:
            imported(Q, K, V)
            return
        with replace_sdpa():
            meet.wait()
            imported(Q, K, V)

    with ThreadPoolExecutor(4) as threads:
        with replace_sdpa():
            threads.submit(in_a_thread, False).result()
            assert calls == []
        meet = threading.Barrier(4)
        list(threads.map(in_a_thread, [True] * 4))
    assert len(calls) == 4
    imported(Q, K, V)
    assert len(calls) == 4


# ---- modules of PyTorch ----


def padding() -> Tensor:
    return torch.arange(7) >= torch.tensor([[7], [4]])


MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor], int]] = {
    "attention": (
        lambda: nn.MultiheadAttention(16, 4, batch_first=True),
        lambda m: m(X, X, X, need_weights=False)[0],
        1,
    ),
    "attention with weights": (lambda: nn.MultiheadAttention(16, 4, batch_first=True), lambda m: m(X, X, X)[1], 1),
    "layer": (lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), lambda m: m(X), 1),
    "layer with padding": (
        lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True),
        lambda m: m(X, src_key_padding_mask=padding())[~padding()],
        1,
    ),
    "encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), 2),
        lambda m: m(X, src_key_padding_mask=padding())[~padding()],
        2,
    ),
    "causal encoder": (
        lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True), 2),
        lambda m: m(X, mask=nn.Transformer.generate_square_subsequent_mask(7), is_causal=True),
        2,
    ),
    "transformer": (
        lambda: nn.Transformer(16, 4, 2, 2, 32, dropout=0.0),
        lambda m: m(X, X, tgt_mask=nn.Transformer.generate_square_subsequent_mask(2)),
        6,
    ),
}
X = random(2, 7, 16)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("module", MODULES)
def test_modules_of_pytorch_call_it(module: str, training: bool, calls: list[str]) -> None:
    torch.manual_seed(0)
    make, run, expected_calls = MODULES[module]
    made = make().train(training)
    with torch.set_grad_enabled(training), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about nested tensors, of PyTorch's own path
        expected = run(made)
        with replace_sdpa():
            got = run(made)
    assert len(calls) == expected_calls
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    if training:
        theirs, ours = (
            torch.autograd.grad(x.square().sum(), list(made.parameters()), allow_unused=True) for x in (expected, got)
        )
        for x, y in zip(ours, theirs):
            torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_dropout_of_modules(calls: list[str]) -> None:
    module = nn.MultiheadAttention(16, 4, dropout=0.5, batch_first=True)
    outs = []
    with replace_sdpa():
        for _ in range(2):
            torch.manual_seed(3)
            outs.append(module(X, X, X, need_weights=False)[0])
        module.eval()
        torch.testing.assert_close(module(X, X, X)[0], module(X, X, X, need_weights=False)[0])
    assert outs[0].equal(outs[1]) and len(calls) == 4


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints_of_functions_with_it_inside(reentrant: bool, calls: list[str]) -> None:
    def attend(q: Tensor) -> Tensor:
        with replace_sdpa():
            return imported(q, K, V)

    q = Q.clone().requires_grad_()
    upstream = random(*Q.shape, seed=5)
    checkpoint(attend, q, use_reentrant=reentrant).backward(upstream)
    assert len(calls) == 2
    (expected,) = torch.autograd.grad(scaled_dot_product_attention(q, K, V), q, upstream)
    assert q.grad is not None and q.grad.equal(expected)


# ---- what is left to PyTorch ----

NESTED = torch.nested.nested_tensor([random(5, 16), random(3, 16)], layout=torch.jagged)


def nested_heads() -> Tensor:
    return NESTED.unflatten(-1, (4, 4)).transpose(1, 2)


LEFT: dict[str, tuple[Callable[[], Any], str]] = {
    "nested": (lambda: imported(nested_heads(), nested_heads(), nested_heads()).values(), "nested"),
    "mask and causal": (lambda: imported(Q, K, V, torch.ones(5, 7), is_causal=True), "attn_mask and is_causal"),
    "forward mode": (lambda: torch.func.jvp(lambda v: plainly(imported)(Q, K, v), (V,), (V,))[1], "forward mode"),
    "infinite scale": (lambda: imported(Q, K, V, scale=float("inf")), "scale is inf"),
    "static keys": (lambda: static_keys()[0], "static_k"),
}


def static_keys() -> Any:
    weights = torch.eye(16).repeat(3, 1)
    return functional.multi_head_attention_forward(
        X,
        X,
        X,
        16,
        4,
        weights,
        None,
        None,
        None,
        False,
        0.0,
        torch.eye(16),
        None,
        static_k=random(28, 7, 4),
        static_v=random(28, 7, 4),
    )


@pytest.mark.parametrize("case", LEFT)
def test_what_qkv_does_not_take_is_left_to_pytorch_with_a_warning(case: str, calls: list[str]) -> None:
    call, message = LEFT[case]
    expected = call()
    with replace_sdpa(), pytest.warns(UserWarning, match=f"left to PyTorch: .*{message}"):
        got = call()
    torch.testing.assert_close(got, expected, equal_nan=True)
    assert calls == []


def test_the_error_is_that_of_pytorch() -> None:
    with pytest.raises(RuntimeError) as expected:
        imported(Q, K.double(), V)
    with replace_sdpa(), pytest.warns(UserWarning, match="left to PyTorch"), pytest.raises(RuntimeError) as got:
        imported(Q, K.double(), V)
    assert str(got.value) == str(expected.value)


# ---- compilers ----


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    torch.compiler.reset()
    made: Callable[..., Any] = torch.compile(function, fullgraph=True, backend="aot_eager")
    return made


def test_a_function_compiled_inside_or_outside() -> None:
    ours, theirs = scaled_dot_product_attention(Q, K, V), imported(Q, K, V)
    function = compiled(lambda q, k, v: imported(q, k, v))
    assert function(Q, K, V).equal(theirs)
    with replace_sdpa():
        assert function(Q, K, V).equal(ours)
    assert function(Q, K, V).equal(theirs)

    def inside(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        with replace_sdpa():
            first = imported(q, k, v)
        return first, imported(q, k, v)

    first, second = compiled(inside)(Q, K, V)
    assert first.equal(ours) and second.equal(theirs)


def test_a_compiled_module() -> None:
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    with replace_sdpa():
        got = compiled(layer)(X, src_key_padding_mask=padding())
        expected = layer(X, src_key_padding_mask=padding())
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    theirs, ours = (torch.autograd.grad(x.square().sum(), list(layer.parameters())) for x in (expected, got))
    for x, y in zip(ours, theirs):
        torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-5)


def test_a_compiler_says_what_it_leaves_to_pytorch() -> None:
    function = compiled(lambda q, k, v: imported(q, k, v, torch.ones(5, 7), is_causal=True))
    with replace_sdpa(), pytest.warns(UserWarning, match="left to PyTorch: .*attn_mask and is_causal"):
        got = function(Q, K, V)
    assert got.equal(imported(Q, K, V, torch.ones(5, 7), is_causal=True))


class Module(nn.Module):
    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return imported(q, k, v, is_causal=True)


@pytest.mark.parametrize("strict", [True, False])
def test_exported_programs(strict: bool, calls: list[str]) -> None:
    expected = scaled_dot_product_attention(Q, K, V, is_causal=True)
    program = torch.export.export(Module(), (Q, K, V), strict=strict)
    with replace_sdpa():
        assert program.module()(Q, K, V).equal(expected)
        assert len(calls) == 1
        program = torch.export.export(Module(), (Q, K, V), strict=strict)
    assert "qkv.forward" in str(program.graph)
    assert program.module()(Q, K, V).equal(expected)
