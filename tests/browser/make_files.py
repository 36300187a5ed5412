"""Writes the files that page_test.mjs makes pages of, and what their weights are: computed here in double with NumPy, so
that neither qkv nor the page is asked what is right. Usage: make_files.py FOLDER"""
import json
import sys
from pathlib import Path

import numpy as np

folder = Path(sys.argv[1])
random = np.random.default_rng(7)
expected = {}


def weights_of(q, k, hidden=None, cap=None, scale=None, sink=None):
    """softmax(q k^T scale) of one head in double; `hidden` {L, S} is True where a pair is hidden, `sink` one more term below."""
    scores = q.astype(np.float64) @ k.astype(np.float64).T * (scale if scale is not None else q.shape[-1] ** -.5)
    if cap:
        scores = cap * np.tanh(scores / cap)
    if hidden is not None:
        scores[hidden] = -np.inf
    largest = scores.max(axis=-1, keepdims=True)
    largest = np.where(np.isfinite(largest), largest, 0)
    e = np.exp(scores - largest)
    below = e.sum(axis=-1, keepdims=True) + (np.exp(sink - largest) if sink is not None else 0)
    return e / np.maximum(below, 1e-300)


def causal(rows, keys):
    return np.arange(keys)[None, :] > np.arange(rows)[:, None]


def normal(*shape):
    return random.normal(size=shape).astype(np.float32)


def remember(name, weights, cells):
    """The weights of some cells, and of every row that they lie in the strongest keys."""
    expected[name] = {
        "cells": [[i, j, float(weights[i, j])] for i, j in cells],
        "strongest": {str(i): np.argsort(-weights[i], kind="stable")[:3].tolist() for i in {c[0] for c in cells}},
    }


def some_cells(rows, keys, count, seen=lambda i, j: True):
    cells = []
    while len(cells) < count:
        i, j = int(random.integers(rows)), int(random.integers(keys))
        if seen(i, j):
            cells.append((i, j))
    return cells


# A causal head of 2,048 tokens: recomputed in the page.
q, k = normal(1, 2, 2048, 64) * 1.5, normal(1, 2, 2048, 64)
np.savez(folder / "long.npz", q=q, k=k)
(folder / "long.json").write_text(json.dumps({"tokens": [f"word{n}" for n in range(2048)]}))
remember("long", weights_of(q[0, 1], k[0, 1], causal(2048, 2048)), [*some_cells(2048, 2048, 12, lambda i, j: j <= i), (2047, 2047), (0, 0)])

# 12 layers x 12 heads x 128 tokens.
layers = {}
for n in range(12):
    layers[f"layer{n}.q"], layers[f"layer{n}.k"] = normal(1, 12, 128, 64) * (.5 + n / 3), normal(1, 12, 128, 64)
np.savez(folder / "many.npz", **layers)
remember("many", weights_of(layers["layer7.q"][0, 3], layers["layer7.k"][0, 3], causal(128, 128)), some_cells(128, 128, 8, lambda i, j: j <= i))

# Weights only, with an exact 0 and a weight too small for float16.
w = random.dirichlet(np.ones(20), size=(2, 20)).astype(np.float32)
w[1, 3, 5], w[1, 3, 6] = 0, 1e-12
np.save(folder / "weights.npy", w)
remember("weights", w[1].astype(np.float64), [*some_cells(20, 20, 8), (3, 5), (3, 6)])

# A query with a NaN: short, and long enough to be recomputed.
for name, rows in (("nan", 20), ("nan_long", 400)):
    q, k = normal(1, 1, rows, 8), normal(1, 1, rows, 8)
    q[0, 0, 4, 2] = np.nan
    np.savez(folder / f"{name}.npz", q=q, k=k)

# Tokens that a page can trip over.
tokens = ["<script>document.title='run'</script>", "</script>", "<!--", "&amp;", "你好", "👩‍👩‍👧", "עברית", "a\u2028b", "<img src=x onerror=alert(1)>", "'\""]
n = len(tokens)
q, k = normal(1, 1, n, 8), normal(1, 1, n, 8)
np.savez(folder / "odd.npz", q=q, k=k)
(folder / "odd.json").write_text(json.dumps({"tokens": tokens}))
remember("odd", weights_of(q[0, 0], k[0, 0]), some_cells(n, n, 4))

# Not plain: a window and a soft-cap, too long to hold every weight as float16: 8-bit tiles.
q, k = normal(1, 1, 400, 16) * 3, normal(1, 1, 400, 16)
np.savez(folder / "capped.npz", q=q, k=k)
i, j = np.indices((400, 400))
outside = (j > i) | (j < i - 64)
remember("capped", weights_of(q[0, 0], k[0, 0], outside, cap=5), some_cells(400, 400, 10, lambda i, j: i - 64 <= j <= i))

# Everything that a page recomputes at once: a window, causal, a length, a scale, a sink of each head.
q, k = normal(1, 2, 700, 32), normal(1, 2, 700, 32)
np.savez(folder / "masked.npz", q=q, k=k, key_lengths=np.array([650], np.int32), sinks=np.array([.5, 2], np.float32))
i, j = np.indices((700, 700))
hidden = (j > i) | (j < i - 100) | (j >= 650)
remember("masked", weights_of(q[0, 1], k[0, 1], hidden, scale=.3, sink=2), some_cells(700, 700, 12, lambda i, j: not hidden[i, j]))

# Cross-attention: other keys than queries, in a batch of two; entry 1 has 30 keys.
q, k = normal(2, 2, 5, 16), normal(2, 2, 40, 16)
np.savez(folder / "cross.npz", q=q, k=k, key_lengths=np.array([40, 30], np.int32))
hidden = np.broadcast_to(np.arange(40) >= 30, (5, 40))
remember("cross", weights_of(q[1, 1], k[1, 1], hidden), [(0, 0), (4, 29), (2, 17)])

# A packed batch of sequences of 3, 0 and 300 tokens, grouped heads.
q, k = normal(303, 4, 16), normal(303, 2, 16)
starts = np.array([0, 3, 3, 303], np.int32)
np.savez(folder / "packed.npz", q=q, k=k, cumulative_query_lengths=starts, cumulative_key_lengths=starts)
remember("packed", weights_of(q[3:, 3], k[3:, 1], causal(300, 300)), some_cells(300, 300, 8, lambda i, j: j <= i))

(folder / "expected.json").write_text(json.dumps(expected))
