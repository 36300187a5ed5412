"""What attention computes, over every keyword, type and layout."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import qkv
from cases import BATCH, CASES, DTYPES, HEADS, KEYS, QUERIES, masks, random, tensors
from oracle import Expected, assert_close, attend

OUTPUTS = dict(return_lse=True, return_weights=True, return_stats=True)


def check(got: Any, q: Any, k: Any, v: Any, options: dict[str, Any]) -> Expected:
    """Compares out, lse and weights with the oracle."""
    wide = q.dtype == np.float64
    expected = attend(q, k, v, np.longdouble if wide else np.float64, **options)
    plain = attend(q, k, v, np.float64 if wide else np.float32, **options)
    assert got.out.dtype == q.dtype
    for name in ("out", "lse", "weights"):
        assert_close(getattr(got, name), getattr(plain, name), getattr(expected, name))
    return expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", CASES)
def test_every_keyword_is_what_the_equation_says(case: str, dtype: str) -> None:
    q, k, v = tensors(dtype)
    options = CASES[case](QUERIES, KEYS)
    got = qkv.attention(q, k, v, **options, **OUTPUTS)
    expected = check(got, q, k, v, options)
    assert got.lse.dtype == got.weights.dtype == (np.float64 if dtype == "float64" else np.float32)
    check_statistics(got, expected)


def check_statistics(got: Any, expected: Expected) -> None:
    np.testing.assert_array_equal(got.stats.visible_keys, expected.stats["visible_keys"])
    for name in ("entropy", "effective_keys", "max_weight", "mean_distance", "sink_share"):
        np.testing.assert_allclose(getattr(got.stats, name), expected.stats[name], rtol=2e-5, atol=2e-5)
    seen = expected.visible.any(-1)
    np.testing.assert_array_equal(got.stats.max_index[~seen], -1)
    at = got.stats.max_index[seen]
    largest = np.take_along_axis(expected.weights[seen], at[:, None], -1)[:, 0]
    np.testing.assert_allclose(largest, expected.stats["max_weight"][seen], rtol=2e-5)


def test_there_is_a_case_for_every_keyword() -> None:
    outputs_and_form = {"return_lse", "return_weights", "return_stats", "top", "layout", "attention", "seed", "unknown"}
    known = set(inspect.signature(qkv.attention).parameters) - {"q", "k", "v"} - outputs_and_form
    assert known == set().union(*(make(QUERIES, KEYS) for make in CASES.values()))


@pytest.mark.parametrize("case", ["plain", "causal_bottom_right", "everything"])
@pytest.mark.parametrize("queries, keys", [(1, 1), (1, 129), (63, 63), (65, 3), (129, 257)])
def test_odd_lengths(case: str, queries: int, keys: int) -> None:
    q, k, v = tensors(queries=queries, keys=keys)
    options = CASES[case](queries, keys)
    if case == "everything":
        options["kv_lengths"] = [keys, keys // 2]
    check(qkv.attention(q, k, v, **options, **OUTPUTS), q, k, v, options)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("case", ["plain", "everything"])
def test_layout_blhd_has_the_same_bits(case: str, dtype: str) -> None:
    q, k, v = tensors(dtype)
    options = CASES[case](QUERIES, KEYS)
    one = qkv.attention(q, k, v, **options, **OUTPUTS)
    swapped = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    other = qkv.attention(*swapped, layout="blhd", **options, **OUTPUTS)
    assert other.out.flags.c_contiguous
    np.testing.assert_array_equal(other.out, one.out.swapaxes(1, 2))
    np.testing.assert_array_equal(other.lse, one.lse)
    np.testing.assert_array_equal(other.weights, one.weights)


@pytest.mark.parametrize("layout", ["bhld", "blhd"])
def test_three_axes_are_one_batch_entry(layout: str) -> None:
    q, k, v = (x[:1] if layout == "bhld" else x[:1].swapaxes(1, 2) for x in tensors())
    options = dict(layout=layout, keep_mask=masks((HEADS, QUERIES, KEYS)), top=3, **OUTPUTS)
    batch = qkv.attention(q, k, v, **options)
    one = qkv.attention(q[0], k[0], v[0], **options)
    np.testing.assert_array_equal(one.out, batch.out[0])
    np.testing.assert_array_equal(one.lse, batch.lse[0])
    np.testing.assert_array_equal(one.weights, batch.weights[0])
    np.testing.assert_array_equal(one.top.indices, batch.top.indices[0])
    for a, b in zip(one.stats, batch.stats):
        np.testing.assert_array_equal(a, b[0])


def test_a_formula_is_the_same_as_its_keywords() -> None:
    q, k, v = tensors()
    sinks, bias = random((HEADS,)), random((QUERIES, KEYS))
    words = dict(causal=True, window=(20, 0), align="bottom_right", softcap=3.0, scale=0.2, zero_key=True)
    by_words = qkv.attention(q, k, v, sinks=sinks, bias=bias, **words)
    text = "causal window:20,0 align:bottom_right | scale:0.2 softcap:3 bias | sink_softmax zero_key"
    np.testing.assert_array_equal(qkv.attention(q, k, v, attention=text, sinks=sinks, bias=bias), by_words)
    np.testing.assert_array_equal(qkv.attention(q, k, v, attention=qkv.Attention(text), sinks=sinks, bias=bias), by_words)


def test_a_formula_takes_tensors_of_scales_and_softcaps() -> None:
    q, k, v = tensors()
    scale, cap = random((HEADS,), seed=5), np.linspace(1, 2, HEADS, dtype=np.float32)
    by_words = qkv.attention(q, k, v, scale=scale, softcap=cap)
    by_text = qkv.attention(q, k, v, attention="scale:1 scales softcaps | softmax", scale=scale, softcap=cap)
    np.testing.assert_array_equal(by_text, by_words)


def test_one_number_in_an_array_stands_for_every_head() -> None:
    q, k, v = tensors()
    for name, number in dict(softcap=1.5, scale=0.25, sinks=0.5, alibi_slopes=0.125).items():
        options = dict(align="top_left") | {name: np.full(HEADS, number, np.float32)}
        expected = qkv.attention(q, k, v, **options)
        for one in (np.float32([number]), np.array(number, np.float16)):
            np.testing.assert_array_equal(qkv.attention(q, k, v, **options | {name: one}), expected)


def test_document_ids_of_one_array_belong_to_queries_and_keys() -> None:
    q, k, v = tensors(queries=KEYS)
    ids = np.arange(KEYS) // 7
    expected = qkv.attention(q, k, v, document_ids=(ids[None], ids[None]))
    np.testing.assert_array_equal(qkv.attention(q, k, v, document_ids=ids), expected)
    np.testing.assert_array_equal(qkv.attention(q, k, v, document_ids=[list(ids)] * BATCH), expected)


def test_hidden_keys_and_values_have_no_influence_whatever_they_hold() -> None:
    q, k, v = tensors()
    keep = masks((BATCH, 1, 1, KEYS))
    expected = qkv.attention(q, k, v, keep_mask=keep)
    hidden = np.broadcast_to(~keep[:, 0, 0, :, None], k.shape[:1] + k.shape[2:])[:, None]
    k, v = np.where(hidden, np.float32(np.nan), k), np.where(hidden[..., :1], np.float32(np.inf), v)
    np.testing.assert_array_equal(qkv.attention(q, k, v, keep_mask=keep), expected)


@pytest.mark.parametrize("queries, keys, batch", [(0, 5, 2), (3, 0, 2), (0, 0, 2), (3, 5, 0)])
def test_sizes_of_zero(queries: int, keys: int, batch: int) -> None:
    q, k, v = (random((batch, 2, n, 4)) for n in (queries, keys, keys))
    lengths = np.zeros(batch, np.int32) + keys
    for options in ({}, dict(kv_lengths=list(lengths)), dict(sinks=np.ones(2, np.float32))):
        got = qkv.attention(q, k, v, top=2, **options, **OUTPUTS)
        expected = attend(q, k, v, **options)
        assert got.out.shape == q.shape and got.weights.shape == (batch, 2, queries, keys)
        np.testing.assert_array_equal(got.out, expected.out.astype(np.float32))
        np.testing.assert_allclose(got.lse, expected.lse.astype(np.float32))
        np.testing.assert_array_equal(got.top.indices, np.where(keys, got.top.indices, -1))


def test_a_head_size_of_zero_gives_the_mean_of_the_values() -> None:
    q, k, v = random((1, 2, 3, 0)), random((1, 2, 5, 0)), random((1, 2, 5, 4))
    mean = np.broadcast_to(v.mean(2, keepdims=True), (1, 2, 3, 4))
    np.testing.assert_allclose(qkv.attention(q, k, v), mean, rtol=1e-6, atol=1e-6)
    assert qkv.attention(q, k, v[..., :0]).shape == (1, 2, 3, 0)


# ---- dropout ----


def kept_by(seed: int | None, p: float = 0.5) -> np.ndarray:
    """Which weights are kept, read off from values that are unit vectors."""
    q = np.zeros((BATCH, HEADS, 16, 4), np.float32)
    v = np.broadcast_to(np.eye(64, dtype=np.float32), (BATCH, HEADS, 64, 64))
    k = np.zeros((BATCH, HEADS, 64, 4), np.float32)
    return qkv.attention(q, k, v, dropout=p, seed=seed, training=True) > 0


def test_a_seed_is_drawn_again_and_another_one_differs() -> None:
    np.testing.assert_array_equal(kept_by(7), kept_by(7))
    assert (kept_by(7) != kept_by(8)).mean() > 0.4
    assert abs(kept_by(7).mean() - 0.5) < 0.02
    assert abs(kept_by(2**64 - 1, 0.1).mean() - 0.9) < 0.02


def test_without_a_seed_numpys_generator_draws_one() -> None:
    np.random.seed(3)
    one, other = kept_by(None), kept_by(None)
    assert (one != other).any()
    np.random.seed(3)
    np.testing.assert_array_equal(kept_by(None), one)


def test_a_seed_is_the_same_as_what_it_keeps() -> None:
    q, k = random((BATCH, HEADS, 16, 4)), random((BATCH, HEADS, 64, 4))
    v = random((BATCH, HEADS, 64, 8))
    by_seed = qkv.attention(q, k, v, dropout=0.5, seed=7, training=True)
    by_tensor = qkv.attention(q, k, v, dropout=0.5, dropout_keep=kept_by(7), training=True)
    np.testing.assert_array_equal(by_seed, by_tensor)


def test_dropout_leaves_lse_weights_and_statistics_alone() -> None:
    q, k, v = tensors()
    plain = qkv.attention(q, k, v, **OUTPUTS)
    dropped = qkv.attention(q, k, v, dropout=0.3, seed=1, training=True, **OUTPUTS)
    assert (plain.out != dropped.out).any()
    np.testing.assert_array_equal(dropped.lse, plain.lse)
    np.testing.assert_array_equal(dropped.weights, plain.weights)
    for a, b in zip(dropped.stats, plain.stats):
        np.testing.assert_array_equal(a, b)
