"""Arrays as they lie: any strides, read-only, of other libraries, never copied, never written to."""

from __future__ import annotations

import array
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import qkv
from cases import BATCH, DTYPES, HEADS, KEYS, QUERIES, masks, random, tensors

REVERSED = (slice(None, None, -1),) * 4


def inside_of_larger(x: np.ndarray) -> np.ndarray:
    """x with other numbers around it."""
    larger = np.full([n + 5 for n in x.shape], 99).astype(x.dtype)
    larger[2:-3, 1:-4, 3:-2, 4:-1] = x
    return larger[2:-3, 1:-4, 3:-2, 4:-1]


def every_third(x: np.ndarray) -> np.ndarray:
    sparse = np.full([3 * n for n in x.shape], 99).astype(x.dtype)
    sparse[::3, ::3, ::3, ::3] = x
    return sparse[::3, ::3, ::3, ::3]


def read_only(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x.flags.writeable = False
    return x


FORMS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "reversed": lambda x: np.ascontiguousarray(x[REVERSED])[REVERSED],
    "transposed": lambda x: np.ascontiguousarray(x.transpose(3, 1, 0, 2)).transpose(2, 1, 3, 0),
    "fortran": np.asfortranarray,
    "part": inside_of_larger,
    "sparse": every_third,
    "read_only": read_only,
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", FORMS)
def test_strides_and_flags_change_no_bit(form: str, dtype: str) -> None:
    q, k, v = tensors(dtype)
    mask, bias = masks((BATCH, HEADS, QUERIES, KEYS)), random((BATCH, HEADS, QUERIES, KEYS), dtype)
    expected = qkv.attention(q, k, v, keep_mask=mask, bias=bias)
    into = FORMS[form]
    got = qkv.attention(into(q), into(k), into(v), keep_mask=into(mask), bias=into(bias))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("dtype", DTYPES)
def test_an_axis_of_stride_zero_is_the_same_for_all(dtype: str) -> None:
    q, k, v = tensors(dtype)
    one_head = (BATCH, HEADS, KEYS, 17), (BATCH, HEADS, KEYS, 9)
    k, v = np.broadcast_to(k[:, :1], one_head[0]), np.broadcast_to(v[:1, :1], one_head[1])
    expected = qkv.attention(q, k.copy(), v.copy())
    np.testing.assert_array_equal(qkv.attention(q, k, v), expected)


def test_broadcast_rows_and_numbers_are_read_in_place() -> None:
    q, k, v = tensors()
    q = np.broadcast_to(q[:, :, :1], q.shape)
    slopes = np.broadcast_to(np.float32(0.5), (HEADS,))
    expected = qkv.attention(q.copy(), k, v, alibi_slopes=slopes.copy(), align="top_left")
    np.testing.assert_array_equal(qkv.attention(q, k, v, alibi_slopes=slopes, align="top_left"), expected)


def test_strided_whole_numbers_and_slopes() -> None:
    q, k, v = tensors()
    lengths, slopes = np.array([9, 1, 8, 1], np.int32)[::-2], np.arange(8, dtype=np.float64)[::-2] / 8
    expected = qkv.attention(q, k, v, kv_lengths=[1, 1], alibi_slopes=slopes.copy(), align="top_left")
    got = qkv.attention(q, k, v, kv_lengths=lengths, alibi_slopes=slopes, align="top_left")
    np.testing.assert_array_equal(got, expected)


def test_inputs_stay_as_they_are() -> None:
    given = tensors()
    before = [x.copy() for x in given]
    qkv.attention(*given, return_weights=True, return_stats=True, causal=True, align="top_left")
    for x, y in zip(given, before):
        np.testing.assert_array_equal(x, y)


def test_outputs_own_their_memory() -> None:
    out, lse = qkv.attention(*tensors(), return_lse=True)
    assert out.flags.owndata and out.flags.writeable and lse.flags.owndata
    assert out.flags.c_contiguous


# ---- no copies ----

LONG = 2**22  # keys: 1 GiB in float32 at 64 numbers each, were there a copy


def test_a_view_of_gigabytes_is_no_copy() -> None:
    k = np.broadcast_to(random((64,)), (1, 1, LONG, 64))
    v = np.broadcast_to(random((8,), seed=1), (1, 1, LONG, 8))
    q = random((1, 1, 1, 64))
    tracemalloc.start()
    try:
        out = qkv.attention(q, k, v, window=(100, 0), align="bottom_right")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(out[0, 0, 0], v[0, 0, 0], rtol=1e-5)
    assert peak < 2**20


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_python_allocates_no_more_than_the_outputs(layout: Any, dtype: str) -> None:
    shape = (1, 8, 512, 64) if layout == "bhld" else (1, 512, 8, 64)
    q, k, v = (random(shape, dtype, seed) for seed in range(3))
    mask, bias = masks((1, 8, 512, 512), 0.9), random((1, 8, 512, 512), dtype)
    qkv.attention(q, k, v, layout=layout, keep_mask=mask, bias=bias)
    tracemalloc.start()
    try:
        out = qkv.attention(q, k, v, layout=layout, keep_mask=mask, bias=bias)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < out.nbytes + 2**16


# ---- arrays of other libraries ----


class OfAnotherLibrary:
    """An array that is known by DLPack alone."""

    def __init__(self, x: np.ndarray) -> None:
        self.x = x

    def __dlpack__(self, **options: Any) -> Any:
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()


def test_dlpack_is_enough() -> None:
    given = tensors()
    np.testing.assert_array_equal(qkv.attention(*map(OfAnotherLibrary, given)), qkv.attention(*given))


def test_an_array_known_by_dlpack_alone_is_no_copy() -> None:
    row = random((64,))
    k = OfAnotherLibrary(np.lib.stride_tricks.as_strided(row, (1, 1, LONG, 64), (0, 0, 0, 4)))
    q = random((1, 1, 1, 64))
    tracemalloc.start()
    try:
        qkv.attention(q, k, k, window=(100, 0), align="bottom_right")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_the_buffer_protocol_is_enough() -> None:
    given = tensors()
    views = [memoryview(x) for x in given]
    np.testing.assert_array_equal(qkv.attention(*views), qkv.attention(*given))
    slopes = array.array("f", [0.5, 0.25, 0.125, 0.0625])
    np.testing.assert_array_equal(
        qkv.attention(*given, alibi_slopes=slopes, align="top_left"),
        qkv.attention(*given, alibi_slopes=np.array(slopes), align="top_left"),
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_jax_arrays(dtype: str) -> None:
    jax = pytest.importorskip("jax")
    given = tensors("float32" if dtype == "float64" else dtype)
    got = qkv.attention(*map(jax.numpy.asarray, given))
    np.testing.assert_array_equal(got, qkv.attention(*given))


def test_an_array_inside_of_a_structure_is_refused_with_what_to_do() -> None:
    q, k, v = tensors()
    packed = np.zeros(q.shape, dtype=[("number", np.float32), ("flag", np.uint8)])
    with pytest.raises(TypeError, match=r"q has elements of 4 bytes in steps of .*; pass q.copy\(\)"):
        qkv.attention(packed["number"], k, v)


def test_an_array_that_begins_between_two_numbers_is_refused() -> None:
    q, k, v = tensors()
    memory = np.zeros(q.nbytes + 1, np.uint8)
    with pytest.raises(ValueError, match="copy it"):
        qkv.attention(memory[1:].view(np.float32).reshape(q.shape), k, v)


def test_the_other_byte_order_is_refused() -> None:
    q, k, v = tensors()
    with pytest.raises(TypeError, match=r"q has type >f4.*; pass q.astype\(np.float32\)"):
        qkv.attention(q.astype(q.dtype.newbyteorder()), k, v)


def test_a_masked_array_is_refused() -> None:
    q, k, v = tensors()
    with pytest.raises(TypeError, match="q is a masked array"):
        qkv.attention(np.ma.masked_array(q, q > 0), k, v)
