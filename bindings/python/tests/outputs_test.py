"""What calls give back beside `out`, and packed batches."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import qkv
from cases import HEADS, KEYS, QUERIES, hiding_bias, masks, random, tensors
from oracle import assert_close, attend, attend_packed

ALL = dict(return_lse=True, return_weights=True, return_stats=True, top=4)


def test_out_alone_is_an_array_and_more_is_a_named_tuple_in_the_order_of_the_documentation() -> None:
    given = tensors()
    assert isinstance(qkv.attention(*given), np.ndarray)
    got = qkv.attention(*given, **ALL)
    assert got._fields == ("out", "lse", "weights", "stats", "top")
    out, *_, stats, top = got
    assert out is got.out and top is got.top
    assert isinstance(stats, qkv.Statistics) and isinstance(top, qkv.Top)
    assert qkv.attention(*given, return_stats=True)._fields == ("out", "stats")


def test_asking_for_more_changes_no_bit() -> None:
    given = tensors()
    everything = qkv.attention(*given, **ALL)
    np.testing.assert_array_equal(qkv.attention(*given), everything.out)
    np.testing.assert_array_equal(qkv.attention(*given, return_lse=True).lse, everything.lse)
    np.testing.assert_array_equal(qkv.attention(*given, top=4).top.weights, everything.top.weights)


def test_a_result_can_be_pickled() -> None:
    got = qkv.attention(*tensors(), **ALL)
    again = pickle.loads(pickle.dumps(got))
    assert again._fields == got._fields and type(again) is type(got)
    np.testing.assert_array_equal(again.top.indices, got.top.indices)


def test_top_holds_the_largest_weights_falling() -> None:
    q, k, v = tensors()
    got = qkv.attention(q, k, v, top=5, return_weights=True)
    order = np.argsort(-got.weights, axis=-1, kind="stable")[..., :5]
    np.testing.assert_array_equal(got.top.indices, order)
    np.testing.assert_allclose(got.top.weights, np.take_along_axis(got.weights, order, -1), rtol=1e-5)
    assert got.top.weights.dtype == np.float32 and got.top.indices.dtype == np.int32


def test_where_there_are_fewer_keys_top_is_filled_with_nothing() -> None:
    q, k, v = tensors()
    top = qkv.attention(q, k, v, top=3, kv_lengths=[2, 0]).top
    assert (np.sort(top.indices[0], -1) == [-1, 0, 1]).all() and (top.indices[1] == -1).all()
    assert (top.weights[..., 2] == 0).all()


def test_statistics_of_uniform_weights_by_hand() -> None:
    q, k = np.zeros((1, 1, 2, 4), np.float32), np.zeros((1, 1, 4, 4), np.float32)
    stats = qkv.attention(q, k, k, causal=True, align="bottom_right", return_stats=True).stats
    np.testing.assert_array_equal(stats.visible_keys, [[[3, 4]]])
    np.testing.assert_allclose(stats.entropy, [[[np.log(3), np.log(4)]]], rtol=1e-6)
    np.testing.assert_allclose(stats.effective_keys, [[[3, 4]]], rtol=1e-6)
    np.testing.assert_allclose(stats.max_weight, [[[1 / 3, 1 / 4]]], rtol=1e-6)
    np.testing.assert_array_equal(stats.max_index, [[[0, 0]]])
    np.testing.assert_allclose(stats.mean_distance, [[[1, 1.5]]], rtol=1e-6)
    assert (stats.sink_share == 0).all()


def test_a_sink_takes_its_share() -> None:
    q = k = v = np.zeros((1, 1, 1, 2), np.float32)
    got = qkv.attention(q, k, v, sinks=np.zeros(1), return_stats=True, return_weights=True)
    assert got.stats.sink_share == 0.5 and got.weights == 0.5 and got.stats.effective_keys == 1


def test_a_row_without_a_key() -> None:
    q, k, v = tensors()
    got = qkv.attention(q, k, v, keep_mask=np.zeros((1, 1, 1, 1), bool), **ALL)
    assert (got.out == 0).all() and (got.weights == 0).all() and (got.lse == -np.inf).all()
    assert (got.stats.visible_keys == 0).all() and (got.stats.max_index == -1).all()


# ---- visible ----


def test_visible_is_the_mask_of_all_rules_together() -> None:
    q, k, v = tensors()
    rules = dict(
        causal=True,
        window=(30, 0),
        align="bottom_right",
        kv_lengths=[KEYS, 40],
        ignore_mask=masks((1, HEADS, 1, KEYS), 0.2),
        bias=hiding_bias((QUERIES, KEYS)),
    )
    seen = qkv.visible(q, k, v, **rules)
    assert seen.dtype == bool
    np.testing.assert_array_equal(seen, attend(q, k, v, **rules).visible)
    np.testing.assert_array_equal(qkv.attention(q, k, v, return_weights=True, **rules).weights > 0, seen)


def test_visible_of_three_axes() -> None:
    q, k, v = (x[0] for x in tensors())
    assert qkv.visible(q, k, v, causal=True, align="top_left").shape == (HEADS, QUERIES, KEYS)


# ---- packed ----

CU_Q, CU_K = [0, 5, 5, 38, 40], [0, 7, 11, 76, 76]
PACKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": dict(causal=True, align="bottom_right"),
    "window": dict(window=(3, 2), align="top_left"),
    "causal_offset": dict(causal=True, q_offset=[0, 1, 2, 3]),
    "keep_mask": dict(keep_mask=masks((4, HEADS, 33, 65))),
    "bias": dict(bias=random((1, HEADS, 33, 65))),
    "documents": dict(document_ids=(np.arange(33)[None] // 9 + np.zeros((4, 1), int), np.arange(65)[None].repeat(4, 0) // 9)),
    "heads": dict(sinks=random((HEADS,)), alibi_slopes=np.full(HEADS, 0.5), align="top_left", softcap=np.full(HEADS, 2.0)),
}


@pytest.mark.parametrize("case", PACKED)
def test_packed_sequences_are_those_of_the_oracle(case: str) -> None:
    q, k, v = random((40, HEADS, 8)), random((76, 2, 8)), random((76, 2, 6))
    options = PACKED[case]
    out, lse, stats, top = qkv.attention_varlen(
        q, k, v, np.array(CU_Q), CU_K, return_lse=True, return_stats=True, top=2, **options
    )
    assert top.indices.shape == (40, HEADS, 2)
    expected = attend_packed(q, k, v, CU_Q, CU_K, **options)
    plain = attend_packed(q, k, v, CU_Q, CU_K, np.float32, **options)
    together = [
        (np.concatenate([e.out[0].swapaxes(0, 1) for e in x]), np.concatenate([e.lse[0].T for e in x]))
        for x in (plain, expected)
    ]
    assert_close(out, together[0][0], together[1][0])
    assert_close(lse, together[0][1], together[1][1])
    seen = np.concatenate([e.visible[0].sum(-1).T for e in expected])
    np.testing.assert_array_equal(stats.visible_keys, seen)


def test_packed_has_the_bits_of_padded() -> None:
    q, k, v = tensors(queries=KEYS)
    lengths = [KEYS, 12]
    cu = [0, KEYS, KEYS + 12]
    packed = [np.concatenate([x[b, :, :n].swapaxes(0, 1) for b, n in enumerate(lengths)]) for x in (q, k, v)]
    out = qkv.attention_varlen(*packed, cu, cu, causal=True)
    padded = qkv.attention(q, k, v, causal=True, kv_lengths=lengths, align="top_left")
    for b, n in enumerate(lengths):
        np.testing.assert_array_equal(out[cu[b] : cu[b + 1]], padded[b, :, :n].swapaxes(0, 1))


# ---- merge ----


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_parts_merge_into_the_whole(dtype: str) -> None:
    q, k, v = tensors(dtype)
    cuts = [(0, 20), (20, 20), (20, 65)]
    parts = [qkv.attention(q, k[:, :, a:b], v[:, :, a:b], return_lse=True) for a, b in cuts]
    sinks = random((HEADS,), dtype)
    for options in ({}, {"sinks": sinks}):
        out, lse = qkv.merge([p.out for p in parts], [p.lse for p in parts], **options)
        whole = qkv.attention(q, k, v, return_lse=True, **options)
        tolerance = 1e-14 if dtype == "float64" else 2e-6
        np.testing.assert_allclose(out, whole.out, rtol=tolerance, atol=tolerance)
        np.testing.assert_allclose(lse, whole.lse, rtol=tolerance, atol=tolerance)


def test_a_part_that_saw_nothing_adds_nothing() -> None:
    q, k, v = tensors()
    some = qkv.attention(q, k, v, return_lse=True)
    nothing = np.full_like(some.out, np.nan), np.full_like(some.lse, -np.inf)
    got = qkv.merge([some.out, nothing[0]], [some.lse, nothing[1]])
    assert got._fields == ("out", "lse")
    np.testing.assert_array_equal(got.out, some.out)
    np.testing.assert_array_equal(got.lse, some.lse)


def test_merge_refuses_what_is_no_set_of_parts() -> None:
    out, lse = qkv.attention(*tensors(), return_lse=True)
    with pytest.raises(ValueError, match="outs has no parts"):
        qkv.merge([], [])
    with pytest.raises(TypeError, match="^outs is a ndarray, expected a list of arrays, one for each part"):
        qkv.merge(out, lse)
    with pytest.raises(TypeError, match="^lses is a ndarray, expected a list"):
        qkv.merge([out], lse)
    with pytest.raises(TypeError, match=r"lse has type float16, expected.*, as attention\(return_lse=True\) gives it"):
        qkv.merge([out], [lse.astype(np.float16)])
    with pytest.raises(ValueError, match="2 outs and 1 lses"):
        qkv.merge([out, out], [lse])
    with pytest.raises(ValueError, match="shape"):
        qkv.merge([out, out[:, :, 1:]], [lse, lse[:, :, 1:]])
    with pytest.raises(TypeError, match=r"outs\[0\] is a list"):
        qkv.merge([[1.0]], [lse])


# ---- observe ----


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
def test_observe_sums_what_weights_hold(dtype: str) -> None:
    q, k, v = tensors(dtype)
    options = dict(causal=True, align="bottom_right", sinks=np.ones(HEADS, np.float32))
    weights = qkv.attention(q, k, v, return_weights=True, **options).weights.astype(np.float64)
    seen = qkv.observe(q, k, v, cell=4, **options)
    assert seen.cell == 4 and seen.received.dtype == np.float64 and seen.mean.dtype == np.float32
    np.testing.assert_allclose(seen.received, weights.sum(2), rtol=1e-5)
    padded = np.full((*weights.shape[:2], 36, 68), np.nan)
    padded[:, :, :QUERIES, :KEYS] = weights
    cells = padded.reshape(*weights.shape[:2], 9, 4, 17, 4)
    np.testing.assert_allclose(seen.largest, np.nanmax(cells, (3, 5)), rtol=1e-5)
    np.testing.assert_allclose(seen.mean, np.nanmean(cells, (3, 5)), rtol=1e-5)


def test_observe_chooses_a_cell_and_gives_three_axes_for_three() -> None:
    q, k, v = (x[0] for x in tensors())
    assert qkv.observe(q, k, v).cell == 1
    assert qkv.observe(q, k, v).received.shape == (HEADS, KEYS)
    q = k = v = np.zeros((1, 1, 1025, 1), np.float32)
    seen = qkv.observe(q, k, v)
    assert seen.cell == 4 and seen.largest.shape == (1, 1, 257, 257)


@pytest.mark.parametrize("cell", [-1, 3, 4096])
def test_observe_refuses_a_cell_that_is_no_power_of_two(cell: int) -> None:
    with pytest.raises(ValueError, match="cell"):
        qkv.observe(*tensors(), cell=cell)


def test_observe_refuses_what_it_does_not_do() -> None:
    q, k, v = tensors()
    with pytest.raises(ValueError, match="weights before dropout; leave training out"):
        qkv.observe(q, k, v, dropout=0.5, training=True)
    with pytest.raises(TypeError, match="cell is 2.0, expected a whole number"):
        qkv.observe(q, k, v, cell=2.0)


def test_observe_of_nothing() -> None:
    seen = qkv.observe(random((1, 2, 0, 4)), random((1, 2, 3, 4)), random((1, 2, 3, 4)))
    assert (seen.received == 0).all() and seen.largest.shape == (1, 2, 0, 3)
