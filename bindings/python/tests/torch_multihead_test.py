"""qkv.torch.MultiheadAttention against PyTorch's."""

from __future__ import annotations

import copy
import inspect
import itertools
import pickle
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from qkv.torch import MultiheadAttention
from torch import Tensor, nn
from torch_oracle import random

HEADS, WIDTH, BATCH, QUERIES, KEYS = 4, 16, 3, 7, 9
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-10}

MODULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch first": {"batch_first": True},
    "without bias": {"bias": False, "batch_first": True},
    "other widths": {"kdim": 6, "vdim": 10},
    "other widths without bias": {"kdim": 6, "vdim": 10, "bias": False, "batch_first": True},
    "one more key": {"add_bias_kv": True, "batch_first": True},
    "a zero key": {"add_zero_attn": True},
    "everything": {"kdim": 6, "vdim": 10, "add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
}


def pair(**options: Any) -> tuple[nn.MultiheadAttention, MultiheadAttention]:
    """PyTorch's module and ours with the same parameters, none of which is 0."""
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(WIDTH, HEADS, **options)
    with torch.no_grad():
        for n, p in enumerate(theirs.parameters()):
            p.copy_(0.4 * random(*p.shape, dtype=p.dtype, seed=n))
    ours = MultiheadAttention(WIDTH, HEADS, **options)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def inputs(module: nn.MultiheadAttention, batch: bool = True) -> list[Tensor]:
    """query, key and value of a module, in its layout and type."""
    dtype = module.out_proj.weight.dtype
    made = []
    for n, (length, width) in enumerate([(QUERIES, WIDTH), (KEYS, module.kdim), (KEYS, module.vdim)]):
        x = random(BATCH, length, width, dtype=dtype, seed=n)
        made.append(x[0] if not batch else x if module.batch_first else x.transpose(0, 1).contiguous())
    return made


def masks(batch: bool, dtype: torch.dtype) -> dict[str, dict[str, Tensor]]:
    """What hides keys, in every form. Each query sees a key."""
    lead = (BATCH,) if batch else ()
    padding = torch.arange(KEYS).expand(*lead, KEYS) >= (torch.tensor([[9], [5], [7]]) if batch else 6)
    hidden = random(QUERIES, KEYS, seed=5) > 0.5
    each = random(len(lead or (1,)) and (BATCH if batch else 1) * HEADS, QUERIES, KEYS, seed=6) > 0.5
    hidden[:, 0] = each[..., 0] = False

    def numbers(mask: Tensor) -> Tensor:
        return random(*mask.shape, dtype=dtype, seed=8).masked_fill(mask, -torch.inf)

    def only_hiding(mask: Tensor) -> Tensor:
        return torch.zeros(mask.shape, dtype=dtype).masked_fill(mask, -torch.inf)

    return {
        "none": {},
        "padding": {"key_padding_mask": padding},
        "padding as numbers": {"key_padding_mask": numbers(padding)},
        "mask": {"attn_mask": hidden},
        "mask as numbers": {"attn_mask": numbers(hidden)},
        "mask of each head": {"attn_mask": each},
        "mask of each head as numbers": {"attn_mask": numbers(each)},
        "both": {"key_padding_mask": padding, "attn_mask": hidden},
        "both, each head": {"key_padding_mask": padding, "attn_mask": each},
        "both as numbers": {"key_padding_mask": numbers(padding), "attn_mask": numbers(hidden)},
        "both as numbers that hide": {"key_padding_mask": only_hiding(padding), "attn_mask": numbers(each)},
        "padding and numbers": {"key_padding_mask": padding, "attn_mask": numbers(hidden)},
        "numbers and mask": {"key_padding_mask": numbers(padding), "attn_mask": hidden},
    }


MASKS = list(masks(True, torch.float32))


def run(module: nn.MultiheadAttention, tensors: list[Tensor], options: dict[str, Any]) -> dict[str, Tensor]:
    """What a module gives, and the gradients by all that has one."""
    given = {name: x.detach().clone().requires_grad_() for name, x in zip(("query", "key", "value"), tensors)}
    given |= {n: x.detach().clone().requires_grad_(x.is_floating_point()) for n, x in options.items() if torch.is_tensor(x)}
    out, weights = module(**options | given)
    found = {"out": out} | ({} if weights is None else {"weights": weights})
    upstream = [random(*x.shape, dtype=x.dtype, seed=3 + n) for n, x in enumerate(found.values())]
    by = {n: x for n, x in (*given.items(), *module.named_parameters()) if x.requires_grad}
    made = torch.autograd.grad(list(found.values()), list(by.values()), upstream, allow_unused=True)
    return found | {n: torch.zeros_like(by[n]) if x is None else x for n, x in zip(by, made)}


def compare(theirs: nn.MultiheadAttention, ours: MultiheadAttention, tensors: list[Tensor], options: dict[str, Any]) -> None:
    expected = run(theirs, tensors, options)
    torch.manual_seed(1)
    got = run(ours, tensors, options)
    assert list(got) == list(expected)
    tolerance = TOLERANCE[tensors[0].dtype]
    for name, x in expected.items():
        close = tolerance * max(1.0, x.abs().max().item())
        torch.testing.assert_close(got[name], x, rtol=tolerance, atol=close, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.filterwarnings("ignore:Support for mismatched")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("batch", [True, False], ids=["batch", "no batch"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("module", MODULES)
def test_it_gives_what_pytorch_gives_with_all_gradients(module: str, mask: str, batch: bool, dtype: torch.dtype) -> None:
    theirs, ours = pair(dtype=dtype, **MODULES[module])
    tensors = inputs(theirs, batch)
    hide = masks(batch, dtype)[mask]
    for weights in ({"need_weights": False}, {}, {"average_attn_weights": False}):
        compare(theirs, ours, tensors, hide | weights)


@pytest.mark.parametrize("weights", [True, False])
@pytest.mark.parametrize("padded", [True, False])
@pytest.mark.parametrize("module", ["plain", "batch first", "one more key", "a zero key"])
def test_is_causal_is_a_hint(module: str, padded: bool, weights: bool) -> None:
    theirs, ours = pair(**MODULES[module])
    x = random(BATCH, QUERIES, WIDTH)
    causal = nn.Transformer.generate_square_subsequent_mask(QUERIES)
    options = {"attn_mask": causal, "is_causal": True, "need_weights": weights}
    if padded:
        options["key_padding_mask"] = torch.arange(QUERIES) >= torch.tensor([[7], [4], [6]])
        options["key_padding_mask"] = torch.zeros(BATCH, QUERIES).masked_fill(options["key_padding_mask"], -torch.inf)
    x = x if theirs.batch_first else x.transpose(0, 1)
    compare(theirs, ours, [x, x, x], options)


@pytest.mark.parametrize("kinds", itertools.product([True, False], repeat=2), ids=str)
def test_tensors_that_are_the_same(kinds: tuple[bool, bool]) -> None:
    """Self-attention, and keys that are the values, go through other products."""
    theirs, ours = pair(batch_first=True)
    query, key, value = inputs(theirs)
    value = key if kinds[0] else value
    query = key if kinds[1] else query
    for got, expected in zip(ours(query, key, value), theirs(query, key, value)):
        torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dropout", [0.3, 1.0])
def test_dropout_drops_what_pytorch_drops_where_weights_are_wanted(dropout: float) -> None:
    theirs, ours = pair(dropout=dropout, batch_first=True)
    torch.manual_seed(1)
    compare(theirs, ours, inputs(theirs), {"average_attn_weights": False})


def test_dropout_without_weights_repeats_with_the_seed_and_acts_in_training_only() -> None:
    _, ours = pair(dropout=0.5)
    tensors = inputs(ours)
    torch.manual_seed(2)
    out, other = (ours(*tensors, need_weights=False)[0] for _ in range(2))
    torch.manual_seed(2)
    assert ours(*tensors, need_weights=False)[0].equal(out) and not other.equal(out)
    ours.eval()
    plain = ours(*tensors, need_weights=False)[0]
    assert ours(*tensors, need_weights=False)[0].equal(plain) and not plain.equal(out)


@pytest.mark.parametrize("form", ["bool", "numbers"])
def test_a_query_without_keys_has_weights_of_zero(form: str) -> None:
    _, ours = pair(batch_first=True)
    padding = torch.tensor([[False] * KEYS, [True] * KEYS, [False] * KEYS])
    padding = padding if form == "bool" else torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
    query, key, value = inputs(ours)
    query.requires_grad_()
    out, weights = ours(query, key, value, key_padding_mask=padding)
    assert not weights[1].any() and weights[::2].all()
    torch.testing.assert_close(out[1], ours.out_proj.bias.expand(QUERIES, WIDTH))
    (gradient,) = torch.autograd.grad((out.sum(), weights.square().sum()), query)
    assert gradient.isfinite().all() and not gradient[1].any()


def test_memory_does_not_grow_with_queries_times_keys() -> None:
    ours = MultiheadAttention(8, 1, batch_first=True).eval()
    n = 1024
    x = random(4, n, 8)
    padding = torch.arange(n) >= torch.tensor([[n], [n // 2], [n // 3], [1]])
    causal = torch.ones(n, n, dtype=torch.bool).triu(1)
    float_padding = torch.zeros(padding.shape).masked_fill(padding, -torch.inf)
    for masks in ((padding, None), (padding, causal), (float_padding, causal.float())):
        with torch.no_grad(), torch.autograd.profiler.profile(profile_memory=True) as profile:
            ours(x, x, x, key_padding_mask=masks[0], attn_mask=masks[1], need_weights=False)
        allocated = sum(max(event.cpu_memory_usage, 0) for event in profile.function_events if event.cpu_parent is None)
        assert allocated < n * n


# ---- the module as such ----


@pytest.mark.parametrize("module", MODULES)
def test_state_dicts_go_both_ways(module: str) -> None:
    theirs, ours = (
        nn.MultiheadAttention(WIDTH, HEADS, **MODULES[module]),
        MultiheadAttention(WIDTH, HEADS, **MODULES[module]),
    )
    assert list(theirs.state_dict()) == list(ours.state_dict())
    theirs.load_state_dict(ours.state_dict())
    ours.load_state_dict(theirs.state_dict())


def test_it_starts_as_pytorch_does_from_the_same_seed() -> None:
    for options in MODULES.values():
        torch.manual_seed(4)
        theirs = nn.MultiheadAttention(WIDTH, HEADS, **options).state_dict()
        torch.manual_seed(4)
        ours = MultiheadAttention(WIDTH, HEADS, **options)
        assert all(x.equal(theirs[name]) for name, x in ours.state_dict().items())
        ours._reset_parameters()


def test_it_is_copied_and_pickled() -> None:
    _, ours = pair(batch_first=True)
    tensors = inputs(ours)
    for other in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours))):
        assert other(*tensors)[0].equal(ours(*tensors)[0])


def test_it_takes_the_arguments_of_pytorch() -> None:
    for name in ("__init__", "forward"):
        theirs = inspect.signature(getattr(nn.MultiheadAttention, name)).parameters
        ours = inspect.signature(getattr(MultiheadAttention, name)).parameters
        assert [(p.name, p.default) for p in ours.values()] == [(p.name, p.default) for p in theirs.values()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    theirs, ours = pair(dtype=dtype, batch_first=True)
    expected, truth = theirs(*inputs(theirs)), theirs.double()(*(x.double() for x in inputs(ours)))
    for got, plain, exact in zip(ours(*inputs(ours)), expected, truth):
        assert got.dtype == plain.dtype
        eps = torch.finfo(dtype).eps
        assert (got - exact).abs().max() <= 2 * (plain - exact).abs().max() + 8 * eps * exact.abs().max()


def test_autocast() -> None:
    theirs, ours = pair(batch_first=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got, expected = ours(*inputs(ours), need_weights=False)[0], theirs(*inputs(theirs), need_weights=False)[0]
    assert got.dtype == expected.dtype
    torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)


@pytest.mark.parametrize("training", [True, False])
def test_it_is_called_inside_of_the_encoder_of_pytorch(training: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 32, dropout=0.0, batch_first=True)
    x = random(BATCH, KEYS, WIDTH)
    padding = torch.arange(KEYS) >= torch.tensor([[9], [5], [7]])
    calls = []
    own = MultiheadAttention.forward
    monkeypatch.setattr(MultiheadAttention, "forward", lambda *a, **o: calls.append(1) or own(*a, **o))
    with torch.set_grad_enabled(training):
        layer.train(training)
        expected = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)(x, src_key_padding_mask=padding)
        ours = MultiheadAttention(WIDTH, HEADS, batch_first=True)
        ours.load_state_dict(layer.self_attn.state_dict())
        layer.self_attn = ours.train(training)
        got = nn.TransformerEncoder(layer, 2)(x, src_key_padding_mask=padding)
    assert len(calls) == 2
    torch.testing.assert_close(got[~padding], expected[~padding], rtol=1e-5, atol=1e-5)


# ---- what is refused ----

X = random(BATCH, KEYS, WIDTH)

REFUSED: dict[str, tuple[tuple[Tensor, ...], dict[str, Any], str]] = {
    "four axes": ((X[None], X[None], X[None]), {}, "expected three axes each, or two without a batch"),
    "a batch beside none": ((X, X[0], X[0]), {}, "expected three axes each, or two without a batch"),
    "fewer values": ((X, X, X[:, 1:]), {}, "as many values as keys"),
    "another batch": ((X, X[1:], X[1:]), {}, "expected one batch"),
    "mask of integers": (
        (X, X, X),
        {"attn_mask": torch.ones(9, 9).int()},
        "attn_mask has type torch.int32, expected bool",
    ),
    "padding of integers": (
        (X, X, X),
        {"key_padding_mask": torch.ones(3, 9).int()},
        "key_padding_mask has type torch.int32",
    ),
    "padding of other keys": ((X, X, X), {"key_padding_mask": torch.ones(3, 8).bool()}, r"\(3, 8\), expected \(3, 9\)"),
    "mask of other keys": ((X, X, X), {"attn_mask": torch.ones(9, 8).bool()}, r"expected \(9, 9\) or \(12, 9, 9\)"),
    "mask of each entry": ((X, X, X), {"attn_mask": torch.ones(3, 9, 9).bool()}, r"expected \(9, 9\) or \(12, 9, 9\)"),
    "a hint without a mask": (
        (X, X, X),
        {"is_causal": True},
        "is_causal says that attn_mask is causal, and there is none",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(case: str) -> None:
    tensors, options, message = REFUSED[case]
    ours = MultiheadAttention(WIDTH, HEADS, batch_first=True)
    with pytest.raises(RuntimeError, match="MultiheadAttention: .*" + message):
        ours(*tensors, **options)


def test_it_refuses_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([random(3, WIDTH), random(5, WIDTH)], layout=torch.jagged)
    with pytest.raises(RuntimeError, match="MultiheadAttention: query is nested"):
        MultiheadAttention(WIDTH, HEADS, batch_first=True)(nested, nested, nested)
