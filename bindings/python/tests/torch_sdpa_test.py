"""qkv.torch.scaled_dot_product_attention against PyTorch's."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from qkv.torch import scaled_dot_product_attention
from torch import Tensor
from torch.nn import functional
from torch_oracle import DTYPES, agree, random

#: Sizes of query, key and value, with what else they need.
SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "four axes": ((2, 4, 17, 8), (2, 4, 19, 8), (2, 4, 19, 5), {}),
    "one query": ((2, 4, 1, 8), (2, 4, 65, 8), (2, 4, 65, 8), {}),
    "more queries than keys": ((1, 3, 33, 8), (1, 3, 7, 8), (1, 3, 7, 8), {}),
    "three axes": ((6, 17, 8), (6, 19, 8), (6, 19, 8), {}),
    "two axes": ((33, 8), (35, 8), (35, 8), {}),
    "five axes": ((2, 3, 2, 9, 8), (2, 3, 2, 11, 8), (2, 3, 2, 11, 8), {}),
    "batch of one": ((1, 2, 17, 8), (3, 2, 19, 8), (3, 2, 19, 8), {}),
    "keys for the whole batch": ((3, 2, 17, 8), (1, 2, 19, 8), (2, 19, 8), {}),
    "one head of keys": ((2, 4, 17, 8), (2, 1, 19, 8), (2, 1, 19, 8), {}),
    "one head of queries": ((2, 1, 17, 8), (2, 4, 19, 8), (2, 4, 19, 8), {}),
    "one head of values": ((2, 4, 17, 8), (2, 4, 19, 8), (2, 1, 19, 8), {}),
    "grouped": ((2, 6, 17, 8), (2, 2, 19, 8), (2, 2, 19, 8), {"enable_gqa": True}),
    "grouped, three axes": ((6, 17, 8), (2, 19, 8), (2, 19, 8), {"enable_gqa": True}),
    "grouped, five axes": ((2, 1, 4, 9, 8), (2, 3, 2, 11, 8), (2, 3, 2, 11, 8), {"enable_gqa": True}),
    "grouped in two ways": ((2, 6, 17, 8), (2, 2, 19, 8), (2, 3, 19, 8), {"enable_gqa": True}),
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"is_causal": True},
    "scale": {"scale": 0.3},
    "negative scale": {"scale": -1, "is_causal": True},
}


#: Where a query sees one key, gradients by both are 0, and what is compared is what rounding leaves of it.
SEES_ONE_KEY = ("one query", ("causal", "negative scale"))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("shape", "option"), [(s, o) for s in SHAPES for o in OPTIONS if s != SEES_ONE_KEY[0] or o not in SEES_ONE_KEY[1]]
)
def test_it_is_as_near_to_the_truth_as_pytorch(shape: str, option: str, dtype: torch.dtype) -> None:
    *sizes, needs = SHAPES[shape]
    inputs = [random(*n, dtype=dtype, seed=i) for i, n in enumerate(sizes)]

    def of(attention: Any) -> Any:
        return lambda q, k, v: attention(q, k, v, **OPTIONS[option], **needs)

    agree(of(scaled_dot_product_attention), of(functional.scaled_dot_product_attention), inputs)


MASKS = {
    "four axes": [(17, 19), (1, 19), (4, 17, 19), (4, 1, 19), (2, 1, 1, 19), (2, 4, 17, 19), (1, 1, 17, 19)],
    "three axes": [(17, 19), (1, 17, 19), (6, 1, 19)],
    "two axes": [(33, 35), (1, 35)],
    "five axes": [(9, 11), (2, 1, 11), (3, 1, 1, 11), (2, 1, 1, 9, 11), (2, 3, 2, 9, 11)],
    "grouped": [(17, 19), (6, 17, 19), (2, 6, 1, 19)],
    "batch of one": [(3, 1, 1, 19), (2, 17, 19)],
}


def case_of_mask(shape: str, mask: tuple[int, ...], dtype: torch.dtype) -> tuple[list[Tensor], Any]:
    *sizes, needs = SHAPES[shape]
    inputs = [random(*n, dtype=dtype, seed=i) for i, n in enumerate(sizes)]

    def of(attention: Any) -> Any:
        return lambda q, k, v, m: attention(q, k, v, attn_mask=m, **needs)

    return [*inputs, random(*mask, seed=9)], of


@pytest.mark.parametrize("kind", ["bool", "float32", "own"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("shape", "mask"), [(shape, mask) for shape, masks in MASKS.items() for mask in masks], ids=str)
def test_masks_broadcast(shape: str, mask: tuple[int, ...], dtype: torch.dtype, kind: str) -> None:
    (*inputs, numbers), of = case_of_mask(shape, mask, dtype)
    if kind == "bool":
        inputs.append(numbers > -1)
        inputs[-1][..., 0] = True  # rows without a key are another matter
    else:
        inputs.append(numbers.to(torch.float32 if kind == "float32" else dtype))
    agree(of(scaled_dot_product_attention), of(functional.scaled_dot_product_attention), inputs)


@pytest.mark.parametrize("mask", [(17, 1), (1, 1), (2, 1, 17, 1)], ids=str)
def test_what_is_added_to_a_whole_row_changes_nothing(mask: tuple[int, ...]) -> None:
    (q, k, v, numbers), of = case_of_mask("four axes", mask, torch.float32)
    attend = of(scaled_dot_product_attention)
    torch.testing.assert_close(attend(q, k, v, numbers), attend(q, k, v, None))
    hidden = numbers.expand(*mask[:-2], 17, 1) < 0
    assert attend(q, k, v, ~hidden).equal(attend(q, k, v, None).where(~hidden, 0.0))


def test_minus_infinity_hides() -> None:
    (*inputs, numbers), of = case_of_mask("four axes", (4, 17, 19), torch.float32)
    numbers[numbers < -0.5] = -torch.inf
    agree(of(scaled_dot_product_attention), of(functional.scaled_dot_product_attention), [*inputs, numbers])


@pytest.mark.parametrize("mask", ["bool", "float"])
def test_a_row_without_keys_is_zero_and_has_no_gradient(mask: str) -> None:
    q, k, v = (random(2, 3, 5, 4, seed=i).requires_grad_() for i in range(3))
    keep = torch.ones(5, 5, dtype=torch.bool)
    keep[2] = False
    hidden = keep if mask == "bool" else torch.zeros(5, 5).masked_fill(~keep, -torch.inf)
    out = scaled_dot_product_attention(q, k, v, attn_mask=hidden)
    assert out.equal(out.where(keep[:, :1], 0.0))
    (dq,) = torch.autograd.grad(out.sum(), q)
    assert dq.isfinite().all() and not dq[:, :, 2].any() and dq[:, :, 1].all()


def test_a_hidden_key_has_no_influence_even_as_nan() -> None:
    q, k, v = (random(1, 2, 5, 4, seed=i) for i in range(3))
    keep = torch.arange(5) < 3
    expected = scaled_dot_product_attention(q, k[..., :3, :], v[..., :3, :])
    k[..., 3:, :], v[..., 3:, :] = torch.nan, torch.inf
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, attn_mask=keep[None]), expected)


@pytest.mark.parametrize("name", ["causal_upper_left", "causal_lower_right"])
def test_causal_biases_of_pytorch(name: str) -> None:
    from torch.nn.attention import bias as biases

    variant = getattr(biases, name)
    q, k, v = random(2, 3, 5, 8), random(2, 3, 9, 8, seed=1), random(2, 3, 9, 8, seed=2)
    bias = variant(5, 9)
    expected = functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, attn_mask=bias), expected)
    with pytest.raises(RuntimeError, match="attn_mask is for 4 queries and 9 keys"):
        scaled_dot_product_attention(q, k, v, attn_mask=variant(4, 9))


@pytest.mark.parametrize("size", [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0)], ids=str)
def test_sizes_of_zero(size: tuple[int, ...]) -> None:
    x = random(*size)
    for keys in {size[2], 0, 5}:
        k = random(*size[:2], keys, size[3])
        expected = functional.scaled_dot_product_attention(x, k, k)
        torch.testing.assert_close(scaled_dot_product_attention(x, k, k), expected)


# ---- dropout ----


def test_dropout_acts_always_and_repeats_with_the_seed() -> None:
    q = torch.zeros(1, 1, 64, 8)
    v = torch.ones(1, 1, 256, 1)
    k = torch.zeros(1, 1, 256, 8)
    with torch.no_grad():
        torch.manual_seed(3)
        out, other = (scaled_dot_product_attention(q, k, v, dropout_p=0.25) for _ in range(2))
        torch.manual_seed(3)
        assert scaled_dot_product_attention(q, k, v, dropout_p=0.25).equal(out)
    assert not out.equal(other)
    assert abs(out.mean() - 1) < 0.02 and 0.02 < out.std() < 0.06  # sqrt(p / (1 - p) / 256) = 0.036


def test_dropout_of_everything_is_zero_with_gradients_of_zero() -> None:
    q = random(2, 3, 5, 4).requires_grad_()
    out = scaled_dot_product_attention(q, q, q, dropout_p=1)
    assert not out.any()
    assert not torch.autograd.grad(out.sum(), q)[0].any()


def test_gradients_know_what_was_dropped() -> None:
    q, k, v = (random(2, 3, 5, 4, dtype=torch.float64, seed=i).requires_grad_() for i in range(3))

    def dropped(*inputs: Tensor) -> Tensor:
        torch.manual_seed(1)
        return scaled_dot_product_attention(*inputs, dropout_p=0.3)

    assert torch.autograd.gradcheck(dropped, (q, k, v))


# ---- memory ----


def test_results_lie_as_the_query_does() -> None:
    for q in (random(2, 4, 5, 8), random(2, 5, 4, 8).transpose(1, 2), random(4, 5, 8), random(5, 4, 8).transpose(0, 1)):
        out = scaled_dot_product_attention(q, q, q)
        assert out.stride() == q.stride()


ALIKE = {
    "transposed": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "every third": lambda x: x.repeat_interleave(3, 3)[..., ::3],
    "a part": lambda x: functional.pad(x, (1, 2, 3, 4, 5, 6))[:, 5:-6, 3:-4, 1:-2],
    "keys inside out": lambda x: x.mT.contiguous().mT,
    "negated lazily": lambda x: torch.complex(x, -x).conj().imag,
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("form", ALIKE)
def test_strides_change_no_bit(form: str, grad: bool) -> None:
    q, k, v, mask = random(2, 4, 17, 8), random(2, 4, 19, 8), random(2, 4, 19, 8, seed=1), random(2, 4, 17, 19)
    expected = scaled_dot_product_attention(q, k, v, attn_mask=mask)
    like = ALIKE[form]
    got = scaled_dot_product_attention(like(q).requires_grad_(grad), like(k), like(v), attn_mask=like(mask))
    assert got.equal(expected)


@pytest.mark.parametrize("grad", [False, True])
def test_nothing_is_copied(grad: bool) -> None:
    base = random(64, 4, 32, 16)
    q = base.transpose(1, 2).requires_grad_(grad)  # {64, 32, 4, 16}
    k = random(1, 1, 7, 16).expand(64, 32, 7, 16)
    mask = random(4, 1).expand(64, 32, 4, 7)
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        out = scaled_dot_product_attention(q, k, k, attn_mask=mask)
    allocated = sum(max(event.cpu_memory_usage, 0) for event in profile.function_events if event.cpu_parent is None)
    rows = 3 * 64 * 32 * 4 * 4 if grad else 0  # lse, row_max, row_sum
    assert allocated <= out.numel() * 4 + rows + 1024


# ---- what is refused ----

Q, K, V = random(2, 4, 5, 8), random(2, 4, 7, 8, seed=1), random(2, 4, 7, 8, seed=2)

REFUSED: dict[str, tuple[tuple[Any, ...], dict[str, Any], str]] = {
    "one axis": ((Q[0, 0, 0], K, V), {}, "query has 1 axes, expected two at least"),
    "two types": ((Q, K.double(), V), {}, "types torch.float32, torch.float64 and torch.float32"),
    "integers": ((Q.int(), K.int(), V.int()), {}, "expected one floating type"),
    "complex numbers": ((Q.cfloat(), K.cfloat(), V.cfloat()), {}, "expected one floating type"),
    "an array": ((Q.numpy(), K, V), {}, "query is a ndarray, expected a tensor"),
    "mask and causal": (
        (Q, K, V),
        {"attn_mask": torch.ones(5, 7), "is_causal": True},
        "attn_mask and is_causal are both given",
    ),
    "mask of integers": (
        (Q, K, V),
        {"attn_mask": torch.ones(5, 7).int()},
        "attn_mask has type torch.int32, expected bool",
    ),
    "mask of a wider type": ((Q, K, V), {"attn_mask": torch.ones(5, 7).double()}, "attn_mask has type torch.float64"),
    "mask elsewhere": ((Q, K, V), {"attn_mask": torch.ones(5, 7, device="meta")}, "attn_mask is on meta and query on cpu"),
    "keys elsewhere": ((Q, K.to("meta"), V), {}, "key is on meta and query on cpu"),
    "mask of five axes": ((Q, K, V), {"attn_mask": torch.ones(1, 2, 4, 5, 7)}, "does not broadcast to the scores"),
    "mask of other queries": (
        (Q, K, V),
        {"attn_mask": torch.ones(3, 7)},
        r"attn_mask is \(3, 7\), which does not broadcast",
    ),
    "mask of a larger batch": ((Q[:1], K[:1], V[:1]), {"attn_mask": torch.ones(2, 1, 5, 7)}, "does not broadcast"),
    "other width": ((Q, K[..., :3], V), {}, r"key \(2, 4, 7, 3\)"),
    "other number of values": ((Q, K, V[:, :, :3]), {}, r"value \(2, 4, 3, 8\)"),
    "other batch": ((Q, K.repeat(3, 1, 1, 1), V.repeat(3, 1, 1, 1)), {}, "do not broadcast"),
    "fewer heads": ((Q, K[:, :2], V[:, :2]), {}, "do not broadcast; enable_gqa=True"),
    "heads that do not divide": ((Q, K[:, :3], V[:, :3]), {"enable_gqa": True}, "3 and 3 heads, query 4"),
    "more heads of keys": ((Q[:, :2], K, V), {"enable_gqa": True}, "4 and 4 heads, query 2"),
    "groups without heads": ((Q[0, 0], K[0, 0], V[0, 0]), {"enable_gqa": True}, "there is no axis of heads"),
    "dropout above 1": ((Q, K, V), {"dropout_p": 1.5}, "dropout_p is 1.5, expected 0 to 1"),
    "dropout below 0": ((Q, K, V), {"dropout_p": -0.5}, "dropout_p is -0.5"),
    "dropout that is none": ((Q, K, V), {"dropout_p": float("nan")}, "dropout_p is nan"),
    "infinite scale": ((Q, K, V), {"scale": float("inf")}, "scale is inf, expected a finite number"),
    "sparse": ((Q.to_sparse(), K, V), {}, "query is nested, sparse or made of other tensors"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_refuses(case: str) -> None:
    arguments, options, message = REFUSED[case]
    with pytest.raises(RuntimeError, match="scaled_dot_product_attention: .*" + message):
        scaled_dot_product_attention(*arguments, **options)


@pytest.mark.parametrize(
    "mask", [torch.ones(1).bool(), torch.arange(7) % 2 == 0, torch.arange(7.0), torch.tensor(True)], ids=str
)
def test_a_mask_may_have_less_than_two_axes(mask: Tensor) -> None:
    expected = functional.scaled_dot_product_attention(Q, K, V, attn_mask=mask.expand(5, 7))
    torch.testing.assert_close(scaled_dot_product_attention(Q, K, V, attn_mask=mask), expected)


def test_it_refuses_nested_tensors() -> None:
    nested = torch.nested.nested_tensor([random(4, 3, 8), random(4, 5, 8)], layout=torch.jagged)
    with pytest.raises(RuntimeError, match="nested"):
        scaled_dot_product_attention(nested, nested, nested)


def test_it_refuses_derivatives_in_forward_mode() -> None:
    with pytest.raises(RuntimeError, match="forward mode"):
        torch.func.jvp(lambda q: scaled_dot_product_attention(q, K, V), (Q,), (Q,))


def test_tensors_without_memory_give_one_without_memory() -> None:
    out = scaled_dot_product_attention(*(x.to("meta") for x in (Q, K, V)), is_causal=True)
    assert out.shape == Q.shape and out.is_meta


def test_it_takes_the_arguments_of_pytorch() -> None:
    named = "query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False"
    documented = functional.scaled_dot_product_attention.__doc__
    assert documented is not None and " ".join(documented.split()).startswith(f"scaled_dot_product_attention({named})")
    ours = inspect.signature(scaled_dot_product_attention).parameters.values()
    assert ", ".join(p.name if p.default is p.empty else f"{p.name}={p.default}" for p in ours) == named
