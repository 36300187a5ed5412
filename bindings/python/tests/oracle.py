"""Attention in plain NumPy, written from docs/semantics.md: what the tests compare with.

Sums run in index order, one term after the other, so that the same code in a narrow type is the plain evaluation of the
error bound (section 6), and in a wide one the reference.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Wider than float64 where the machine has it.
WIDE = np.longdouble

INF = np.inf


@dataclass
class Rows:
    """Query i of batch entry b stands at offset[b] + i, column c at start[b] + c; `keys[b]` columns exist."""

    offset: list[int]
    start: list[int]
    keys: list[int]


@dataclass
class Expected:
    """In {B, Hq, L, ...}; see `qkv.attention` for the names."""

    out: np.ndarray
    lse: np.ndarray
    weights: np.ndarray
    scores: np.ndarray  #: after the modifiers, -inf where hidden
    visible: np.ndarray
    stats: dict[str, np.ndarray]


def per_entry(x: Any, batch: int) -> list[int]:
    return [int(n) for n in np.broadcast_to(np.asarray(x), (batch,))]


def rows_of(batch: int, queries: int, stored: int, o: dict[str, Any]) -> Rows:
    start = per_entry(o.get("key_start", 0), batch)
    keys = per_entry(o.get("kv_lengths", stored), batch)
    if o.get("q_offset") is not None:
        offset = per_entry(o["q_offset"], batch)
    elif o.get("align") == "bottom_right":
        offset = [s + n - queries for s, n in zip(start, keys)]
    else:
        offset = [0] * batch
    return Rows(offset, start, keys)


def visible_pairs(shape: tuple[int, int, int, int], o: dict[str, Any], at: Rows) -> np.ndarray:
    """bool {B, Hq, L, S}: a key is visible where every rule sees it."""
    batch, _, queries, stored = shape
    keep = np.ones(shape, bool)
    left, right = o.get("window", (-1, -1))
    for b in range(batch):
        p = at.offset[b] + np.arange(queries)[:, None]
        j = at.start[b] + np.arange(stored)[None, :]
        keep[b] &= np.arange(stored) < at.keys[b]
        if o.get("causal"):
            keep[b] &= j <= p
        if left >= -1 and left != -1:
            keep[b] &= j >= p - left
        if right != -1:
            keep[b] &= j <= p + right
    if (ids := o.get("document_ids")) is not None:
        of_q, of_k = ids if isinstance(ids, tuple) else (ids, ids)
        of_q, of_k = np.atleast_2d(of_q), np.atleast_2d(of_k)
        keep &= (of_q[:, :, None] == of_k[:, None, :])[:, None]
    if (mask := o.get("keep_mask")) is not None:
        keep &= mask
    if (mask := o.get("ignore_mask")) is not None:
        keep &= ~mask
    if (bias := o.get("bias")) is not None:
        keep &= np.asarray(bias, np.float64) != -INF
    return keep


def heads_first(x: Any) -> np.ndarray:
    """{Hq, 1, 1} of a number, {1} or {Hq}."""
    return np.reshape(x, (-1, 1, 1))


def scores_of(q: np.ndarray, k: np.ndarray, o: dict[str, Any], at: Rows) -> np.ndarray:
    """{B, Hq, L, S}: scaled products through the modifiers, hidden or not. k {B, Hq, S, D}."""
    batch, heads, queries, width = q.shape
    kind = q.dtype.type
    s = np.zeros((batch, heads, queries, k.shape[2]), kind)
    for d in range(width):
        s += q[..., :, None, d] * k[..., None, :, d]
    scale = o.get("scale")
    if scale is None:
        scale = 1 / np.sqrt(kind(width)) if width else 1.0
    s *= heads_first(scale).astype(kind)
    if (cap := o.get("softcap")) is not None:
        c = heads_first(cap).astype(kind)
        s = c * np.tanh(s / c)
    if (slopes := o.get("alibi_slopes")) is not None:
        for b in range(batch):
            p = at.offset[b] + np.arange(queries)[:, None]
            j = at.start[b] + np.arange(k.shape[2])[None, :]
            s[b] -= heads_first(slopes).astype(kind) * np.abs(p - j).astype(kind)
    if (bias := o.get("bias")) is not None:
        s = s + np.asarray(bias).astype(kind)
    return s


def in_order(terms: np.ndarray) -> np.ndarray:
    """The sum over the last axis, first to last."""
    total = np.zeros(terms.shape[:-1], terms.dtype)
    for n in range(terms.shape[-1]):
        total += terms[..., n]
    return total


def attend(q: Any, k: Any, v: Any, kind: type = WIDE, **o: Any) -> Expected:
    """q {B, Hq, L, D}, k {B, Hkv, S, D}, v {B, Hkv, S, Dv} and the keywords of `qkv.attention`, computed in `kind`."""
    q, k, v = (np.asarray(x).astype(kind) for x in (q, k, v))
    batch, heads, queries, _ = q.shape
    stored, shared = k.shape[2], heads // max(k.shape[1], 1)
    reads = [h % k.shape[1] if o.get("heads") == "tiled" else h // shared for h in range(heads)]
    k, v = k[:, reads], v[:, reads]
    at = rows_of(batch, queries, stored, o)
    keep = visible_pairs((batch, heads, queries, stored), o, at)

    with np.errstate(over="ignore", invalid="ignore"):
        s = np.where(keep, scores_of(q, k, o, at), -INF)
    sinks = np.full((heads, 0), 0, kind)
    if o.get("sinks") is not None:
        sinks = np.broadcast_to(np.asarray(o["sinks"]).astype(kind)[:, None], (heads, 1))
    if o.get("zero_key"):
        sinks = np.concatenate([sinks, np.zeros((heads, 1), kind)], 1)
    sinks = np.broadcast_to(sinks[None, :, None, :], (batch, heads, queries, sinks.shape[1]))
    everything = np.concatenate([s, sinks], -1)  # {B, Hq, L, S + sinks}

    m = everything.max(-1, initial=-INF)
    safe = np.where(m == -INF, 0, m)
    e = np.exp(everything - safe[..., None])
    total = in_order(e)
    with np.errstate(divide="ignore"):
        lse = np.where(total > 0, safe + np.log(total), -INF)
    w = e[..., :stored] / np.where(total > 0, total, 1)[..., None]
    kept = w
    if o.get("training") and o.get("dropout"):
        p = o["dropout"]
        kept = np.where(o["dropout_keep"], w / kind(1 - p), 0) if p < 1 else np.zeros_like(w)
    out = np.zeros((batch, heads, queries, v.shape[3]), kind)
    for j in range(stored):
        out += np.where(keep[..., j, None], kept[..., j, None] * v[..., None, j, :], 0)
    return Expected(out, lse, w, s, s > -INF, statistics(w, s, at, sinks.shape[-1] > 0))


def statistics(w: np.ndarray, s: np.ndarray, at: Rows, has_sink: bool) -> dict[str, np.ndarray]:
    batch, _, queries, stored = w.shape
    visible = s > -INF
    some = visible.any(-1)
    total = w.sum(-1)
    u = w / np.where(total > 0, total, 1)[..., None]
    entropy = -np.sum(u * np.log(np.where(u > 0, u, 1)), -1)
    distance = np.zeros(w.shape)
    for b in range(batch):
        distance[b] = np.abs(at.offset[b] + np.arange(queries)[:, None] - at.start[b] - np.arange(stored)[None, :])
    return {
        "entropy": entropy,
        "effective_keys": np.where(some, np.exp(entropy), 0),
        "max_weight": w.max(-1, initial=0),
        "max_index": np.where(some, w.argmax(-1), -1) if stored else np.full(w.shape[:-1], -1),
        "mean_distance": np.sum(u * distance, -1),
        "sink_share": np.where(some, 1 - total, 1) if has_sink else np.zeros_like(total),
        "visible_keys": visible.sum(-1),
    }


def attend_packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, kind: type = WIDE, **o: Any) -> list[Expected]:
    """One sequence after the other; tensors with axes of queries and keys are cut to each sequence's length."""
    cuts = zip(cu_q[:-1], cu_q[1:], cu_k[:-1], cu_k[1:])
    results = []
    for b, (q0, q1, k0, k1) in enumerate(cuts):
        mine = {name: one_sequence(name, x, b, q1 - q0, k1 - k0) for name, x in o.items()}
        one = [x.swapaxes(0, 1)[None] for x in (q[q0:q1], k[k0:k1], v[k0:k1])]
        results.append(attend(*one, kind, **mine))
    return results


def one_sequence(name: str, x: Any, b: int, queries: int, keys: int) -> Any:
    if name in ("keep_mask", "ignore_mask", "bias", "dropout_keep"):
        x = x[b : b + 1] if x.shape[0] > 1 else x
        return x[:, :, : queries if x.shape[2] > 1 else 1, : keys if x.shape[3] > 1 else 1]
    if name == "document_ids":
        return x[0][b : b + 1, :queries], x[1][b : b + 1, :keys]
    if name in ("q_offset", "key_start"):
        return [x[b]]
    return x


# ---- the error bound ----

EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


def as_wide(x: Any) -> np.ndarray:
    return np.asarray(x).astype(np.float64).astype(WIDE)


def assert_close(got: Any, plain: Any, expected: Any, dtype: str | None = None) -> None:
    """max|x - ref| <= 2 max|plain - ref| + 8 eps max|ref|; infinities, NaN and zeros agree exactly."""
    expected, plain = np.asarray(expected), np.asarray(plain)
    assert got.shape == expected.shape
    eps = EPSILON[dtype or got.dtype.name]
    x = as_wide(got)
    exact = ~np.isfinite(expected) | (expected == 0)
    np.testing.assert_array_equal(x[exact].astype(np.float64), expected[exact].astype(np.float64))
    if exact.all():
        return
    ref = expected[~exact]
    limit = 2 * np.abs(plain[~exact] - ref).max() + 8 * eps * np.abs(ref).max()
    worst = np.abs(x[~exact] - ref).max()
    assert worst <= limit, f"off by {worst:.3g}, limit {limit:.3g}"
