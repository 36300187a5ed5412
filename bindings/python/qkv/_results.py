"""What calls give back beside `out`."""

from __future__ import annotations

from typing import Any, NamedTuple

from ._arrays import Array


class Statistics(NamedTuple):
    """Facts about each query's weights, {B, Hq, L} each (packed {total, Hq}).

    Of a query that sees nothing: 0, index -1. A sink is left out and the rest renormalised, but for max_weight and
    sink_share. Without gradients.

    >>> q = k = np.zeros((1, 1, 4, 8), np.float32)
    >>> out, stats = qkv.attention(q, k, k, causal=True, return_stats=True)
    >>> stats.effective_keys[0, 0]
    array([1., 2., 3., 4.], dtype=float32)
    """

    entropy: Array  #: -sum w ln w, in nats
    effective_keys: Array  #: exp(entropy): between 1 and the number of visible keys
    max_weight: Array  #: the largest weight
    max_index: Array  #: its key; ties to the lowest
    mean_distance: Array  #: sum w |position of query - position of key|
    sink_share: Array  #: what sink and zero key take, 0 to 1
    visible_keys: Array  #: how many keys the query sees


class Top(NamedTuple):
    """The largest weights of each query, falling, {B, Hq, L, n}; 0 and -1 where there are fewer keys. Without gradients.

    >>> q, k = np.ones((1, 1, 1, 2), np.float32), np.array([[[[0, 0], [9, 9], [3, 3]]]], np.float32)
    >>> qkv.attention(q, k, k, top=2).top.indices[0, 0, 0]
    array([1, 2], dtype=int32)
    """

    weights: Array
    indices: Array


class Gradients(NamedTuple):
    """d loss / d input, each of the shape of its input; None where that was not given.

    >>> q = k = v = np.ones((1, 2, 3, 4), np.float32)
    >>> out, lse = qkv.attention(q, k, v, return_lse=True)
    >>> g = qkv.attention_backward(out, q, k, v, out, lse)
    >>> g.k.shape, g.bias
    ((1, 2, 3, 4), None)
    """

    q: Array
    k: Array
    v: Array
    bias: Array | None
    alibi_slopes: Array | None
    sinks: Array | None
    softcap: Array | None  #: {Hq}, where it was given as an array
    scale: Array | None  #: {Hq}, where it was given as an array


class Observation(NamedTuple):
    """Sums over the weights that need no matrix of them, from `qkv.observe`.

    >>> q = k = v = np.ones((1, 1, 4, 8), np.float32)
    >>> qkv.observe(q, k, v, cell=2).largest[0, 0]
    array([[0.25, 0.25],
           [0.25, 0.25]], dtype=float32)
    """

    received: Array  #: {B, Hq, S} float64: sum over the queries of the weight that each key gets
    largest: Array  #: {B, Hq, ceil(L / cell), ceil(S / cell)}: the largest weight of each cell
    mean: Array  #: the same: the mean weight, hidden pairs as 0
    cell: int  #: queries and keys of a cell


class ResultLse(NamedTuple):
    """What `attention` gave: out, lse."""

    out: Array
    lse: Array


class ResultWeights(NamedTuple):
    """What `attention` gave: out, weights."""

    out: Array
    weights: Array


class ResultStats(NamedTuple):
    """What `attention` gave: out, stats."""

    out: Array
    stats: Statistics


class ResultTop(NamedTuple):
    """What `attention` gave: out, top."""

    out: Array
    top: Top


class ResultLseWeights(NamedTuple):
    """What `attention` gave: out, lse, weights."""

    out: Array
    lse: Array
    weights: Array


class ResultLseStats(NamedTuple):
    """What `attention` gave: out, lse, stats."""

    out: Array
    lse: Array
    stats: Statistics


class ResultLseTop(NamedTuple):
    """What `attention` gave: out, lse, top."""

    out: Array
    lse: Array
    top: Top


class ResultWeightsStats(NamedTuple):
    """What `attention` gave: out, weights, stats."""

    out: Array
    weights: Array
    stats: Statistics


class ResultWeightsTop(NamedTuple):
    """What `attention` gave: out, weights, top."""

    out: Array
    weights: Array
    top: Top


class ResultStatsTop(NamedTuple):
    """What `attention` gave: out, stats, top."""

    out: Array
    stats: Statistics
    top: Top


class ResultLseWeightsStats(NamedTuple):
    """What `attention` gave: out, lse, weights, stats."""

    out: Array
    lse: Array
    weights: Array
    stats: Statistics


class ResultLseWeightsTop(NamedTuple):
    """What `attention` gave: out, lse, weights, top."""

    out: Array
    lse: Array
    weights: Array
    top: Top


class ResultLseStatsTop(NamedTuple):
    """What `attention` gave: out, lse, stats, top."""

    out: Array
    lse: Array
    stats: Statistics
    top: Top


class ResultWeightsStatsTop(NamedTuple):
    """What `attention` gave: out, weights, stats, top."""

    out: Array
    weights: Array
    stats: Statistics
    top: Top


class ResultLseWeightsStatsTop(NamedTuple):
    """What `attention` gave: out, lse, weights, stats, top."""

    out: Array
    lse: Array
    weights: Array
    stats: Statistics
    top: Top


#: By the names of their fields.
RESULTS: dict[tuple[str, ...], Any] = {
    kind._fields: kind
    for kind in (
        ResultLse,
        ResultWeights,
        ResultStats,
        ResultTop,
        ResultLseWeights,
        ResultLseStats,
        ResultLseTop,
        ResultWeightsStats,
        ResultWeightsTop,
        ResultStatsTop,
        ResultLseWeightsStats,
        ResultLseWeightsTop,
        ResultLseStatsTop,
        ResultWeightsStatsTop,
        ResultLseWeightsStatsTop,
    )
}
