"""What calls give back beside `out`."""

from __future__ import annotations

import itertools
from collections import namedtuple
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


def _results() -> dict[tuple[str, ...], Any]:
    """A named tuple for each choice of what may be asked for: made here, so that they can be pickled and traced."""
    made: dict[tuple[str, ...], Any] = {}
    for n in range(5):
        for more in itertools.combinations(("lse", "weights", "stats", "top"), n):
            fields = ("out", *more)
            name = "Result" + "".join(field.capitalize() for field in more)
            made[fields] = namedtuple(name, fields, module=__name__)
            made[fields].__doc__ = "What qkv.attention gave: " + ", ".join(fields)
            globals()[name] = made[fields]
    return made


RESULTS = _results()
