"""attention_backward against central differences of the oracle, in the widest type of the machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import qkv
from cases import masks, random
from oracle import WIDE, attend

Options = dict[str, Any]
SHAPES = dict(q=(2, 2, 3, 5), k=(2, 1, 4, 5), v=(2, 1, 4, 3))
HEADS = 2


def float64(*shape: int, seed: int = 0) -> np.ndarray:
    return random(shape, "float64", seed)


#: The names of Gradients that are given as arrays have gradients.
CASES: dict[str, Callable[[], Options]] = {
    "plain": lambda: {},
    "causal_top_left": lambda: dict(causal=True, align="top_left"),
    "causal_bottom_right": lambda: dict(causal=True, align="bottom_right"),
    "window": lambda: dict(window=(1, 0), q_offset=1),
    "keep_mask": lambda: dict(keep_mask=masks((2, 1, 3, 4))),
    "ignore_mask": lambda: dict(ignore_mask=masks((3, 4))),
    "kv_lengths": lambda: dict(kv_lengths=[3, 0]),
    "documents": lambda: dict(document_ids=(np.array([0, 0, 1]), np.array([0, 1, 1, 2]))),
    "scale": lambda: dict(scale=-0.7),
    "scale_of_heads": lambda: dict(scale=float64(HEADS)),
    "scale_of_all_heads": lambda: dict(scale=float64(1)),
    "softcap": lambda: dict(softcap=0.8),
    "softcap_of_heads": lambda: dict(softcap=1 + float64(HEADS) ** 2),
    "alibi": lambda: dict(alibi_slopes=float64(HEADS), align="top_left"),
    "bias": lambda: dict(bias=float64(2, HEADS, 3, 4)),
    "bias_of_two_axes": lambda: dict(bias=float64(3, 4)),
    "bias_of_keys": lambda: dict(bias=float64(HEADS, 1, 4)),
    "sinks": lambda: dict(sinks=float64(HEADS)),
    "sink_of_all_heads": lambda: dict(sinks=float64(1)),
    "zero_key": lambda: dict(zero_key=True),
    "dropout": lambda: dict(dropout=0.4, training=True, dropout_keep=masks((2, HEADS, 3, 4))),
    "everything": lambda: dict(
        causal=True,
        align="bottom_right",
        kv_lengths=[4, 3],
        scale=float64(HEADS),
        softcap=1 + float64(HEADS, seed=1) ** 2,
        alibi_slopes=float64(HEADS, seed=2),
        bias=float64(HEADS, 3, 4),
        sinks=float64(HEADS, seed=3),
        zero_key=True,
        dropout=0.4,
        training=True,
        dropout_keep=masks((1, 1, 3, 4), 0.8),
    ),
}


def loss(tensors: Options, dout: np.ndarray, dlse: np.ndarray, options: Options) -> Any:
    e = attend(kind=WIDE, **tensors, **options)
    return (e.out * dout).sum() + (np.where(np.isfinite(e.lse), e.lse, 0) * dlse).sum()


def central_difference(name: str, tensors: Options, of: Callable[[Options], Any], step: float = 1e-6) -> np.ndarray:
    x = tensors[name].astype(WIDE)
    found = np.zeros(x.shape)
    for at in np.ndindex(*x.shape):
        sides = []
        for sign in (1, -1):
            moved = x.copy()
            moved[at] += sign * WIDE(step)
            sides.append(of(tensors | {name: moved}))
        found[at] = (sides[0] - sides[1]) / (2 * WIDE(step))
    return found


@pytest.mark.parametrize("case", CASES)
def test_gradients_are_central_differences(case: str) -> None:
    options = CASES[case]()
    tensors = {name: float64(*shape, seed=n) for n, (name, shape) in enumerate(SHAPES.items())}
    dout, dlse = float64(2, HEADS, 3, 3, seed=8), float64(2, HEADS, 3, seed=9)
    out, lse = qkv.attention(*tensors.values(), return_lse=True, **options)
    got = qkv.attention_backward(dout, *tensors.values(), out, lse, dlse=dlse, **options)

    learned = {n: options.pop(n) for n in ("bias", "alibi_slopes", "sinks", "softcap", "scale") if is_array(options, n)}
    given = tensors | learned
    for name, gradient in got._asdict().items():
        if name not in given:
            assert gradient is None
            continue
        expected = central_difference(name, given, lambda x: loss(x, dout, dlse, options))
        assert gradient.shape == given[name].shape and gradient.dtype == np.float64
        np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-10, err_msg=name)


def is_array(options: Options, name: str) -> bool:
    return isinstance(options.get(name), np.ndarray)


def some_gradients(dtype: str, layout: str = "bhld", **options: Any) -> Any:
    shapes = [(2, 4, 33, 16), (2, 2, 65, 16), (2, 2, 65, 8), (2, 4, 33, 8)]
    given = [random(shape, dtype, n) for n, shape in enumerate(shapes)]
    if layout == "blhd":
        given = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in given]
    q, k, v, dout = given
    out, lse = qkv.attention(q, k, v, layout=layout, return_lse=True, **options)
    return qkv.attention_backward(dout, q, k, v, out, lse, layout=layout, **options)


def test_layout_blhd_has_the_same_gradients() -> None:
    one, other = some_gradients("float32"), some_gradients("float32", "blhd")
    for a, b in zip(one[:3], other[:3]):
        np.testing.assert_array_equal(a.swapaxes(1, 2), b)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 2e-6), ("float16", 4e-3), ("bfloat16", 3e-2)])
def test_narrow_types_have_gradients_of_their_type(dtype: str, tolerance: float) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    bias = random((4, 33, 65), "float32", 9)
    got, wide = some_gradients(dtype, bias=bias), some_gradients("float64", bias=bias)
    assert got.q.dtype.name == got.v.dtype.name == dtype
    assert got.bias.dtype == np.float32
    for a, b in zip((got.q, got.k, got.v, got.bias), (wide.q, wide.k, wide.v, wide.bias)):
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=tolerance, atol=tolerance * np.abs(b).max())


def test_three_axes_have_the_gradients_of_one_batch_entry() -> None:
    q, k, v, dout = (random(s, "float32", n) for n, s in enumerate([(2, 5, 4), (2, 6, 4), (2, 6, 3), (2, 5, 3)]))
    bias = random((2, 5, 6))
    out, lse = qkv.attention(q, k, v, bias=bias, return_lse=True)
    one = qkv.attention_backward(dout, q, k, v, out, lse, bias=bias)
    batch = qkv.attention_backward(*(x[None] for x in (dout, q, k, v, out, lse)), bias=bias)
    for a, b in zip(one[:3], batch[:3]):
        np.testing.assert_array_equal(a, b[0])
    np.testing.assert_array_equal(one.bias, batch.bias)


def test_packed_sequences_have_the_gradients_of_each() -> None:
    cu_q, cu_k = [0, 3, 3, 8], [0, 4, 6, 13]
    q, k, v, dout = (random((n, 2, 4), seed=s) for s, n in enumerate((8, 13, 13, 8)))
    options: Options = dict(causal=True, align="bottom_right", sinks=random((2,), seed=5))
    out, lse = qkv.attention_varlen(q, k, v, cu_q, cu_k, return_lse=True, **options)
    got = qkv.attention_backward(dout, q, k, v, out, lse, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, **options)
    sinks = np.zeros(2)
    for n in range(3):
        of_q, of_k = slice(*cu_q[n : n + 2]), slice(*cu_k[n : n + 2])
        one = [x[rows].swapaxes(0, 1) for x, rows in ((dout, of_q), (q, of_q), (k, of_k), (v, of_k), (out, of_q))]
        alone = qkv.attention_backward(*one, lse[of_q].T, **options)
        for packed, rows, expected in ((got.q, of_q, alone.q), (got.k, of_k, alone.k), (got.v, of_k, alone.v)):
            np.testing.assert_array_equal(packed[rows], expected.swapaxes(0, 1))
        sinks += alone.sinks
    np.testing.assert_allclose(got.sinks, sinks, rtol=1e-6)
    with pytest.raises(TypeError, match="cu_seqlens_k has type object, expected whole numbers"):
        qkv.attention_backward(dout, q, k, v, out, lse, cu_seqlens_q=cu_q)


def test_dropout_by_a_seed_is_drawn_again() -> None:
    by_seed = some_gradients("float32", dropout=0.5, seed=11, training=True)
    again = some_gradients("float32", dropout=0.5, seed=11, training=True)
    other = some_gradients("float32", dropout=0.5, seed=12, training=True)
    np.testing.assert_array_equal(by_seed.q, again.q)
    assert (by_seed.q != other.q).any()


def test_dropout_without_a_seed_has_no_gradients_that_fit() -> None:
    q = random((1, 1, 4, 4))
    out, lse = qkv.attention(q, q, q, return_lse=True, dropout=0.5, training=True)
    with pytest.raises(ValueError, match="seed"):
        qkv.attention_backward(out, q, q, q, out, lse, dropout=0.5, training=True)


def test_strides_change_no_gradient() -> None:
    q, k, v, dout = (random((2, 2, 8, 4), "float32", n) for n in range(4))
    out, lse = qkv.attention(q, k, v, return_lse=True)
    expected = qkv.attention_backward(dout, q, k, v, out, lse)
    turned = [np.ascontiguousarray(x[..., ::-1, :])[..., ::-1, :] for x in (dout, q, k, v, out)]
    got = qkv.attention_backward(*turned, np.asfortranarray(lse))
    for a, b in zip(got[:3], expected[:3]):
        np.testing.assert_array_equal(a, b)
    constant = np.broadcast_to(np.float32(1), dout.shape)
    np.testing.assert_array_equal(
        qkv.attention_backward(constant, q, k, v, out, lse).v,
        qkv.attention_backward(constant.copy(), q, k, v, out, lse).v,
    )


def test_what_does_not_fit_is_refused() -> None:
    q, k, v = (random((1, 2, 4, 4), seed=n) for n in range(3))
    out, lse = qkv.attention(q, k, v, return_lse=True)
    with pytest.raises(ValueError, match="dout has shape"):
        qkv.attention_backward(out[..., :3], q, k, v, out, lse)
    with pytest.raises(ValueError, match="lse has"):
        qkv.attention_backward(out, q, k, v, out, lse[0, 0])
    with pytest.raises(TypeError, match="dout is a float"):
        qkv.attention_backward(1.0, q, k, v, out, lse)
