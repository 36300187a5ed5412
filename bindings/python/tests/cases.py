"""Inputs of the tests: random tensors, and every keyword of `qkv.attention`, alone and with others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

try:
    from ml_dtypes import bfloat16
except ImportError:
    bfloat16 = None

DTYPES = ["float32", "float64", "float16"] + (["bfloat16"] if bfloat16 else [])

BATCH, HEADS, KV_HEADS, QUERIES, KEYS, WIDTH, VALUE_WIDTH = 2, 4, 2, 33, 65, 17, 9


def dtype_of(name: str) -> Any:
    return bfloat16 if name == "bfloat16" else np.dtype(name)


def random(shape: tuple[int, ...], dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(dtype_of(dtype))


def tensors(dtype: str = "float32", queries: int = QUERIES, keys: int = KEYS) -> tuple[np.ndarray, ...]:
    """q, k, v as {B, H, L, D}."""
    return (
        random((BATCH, HEADS, queries, WIDTH), dtype, 1),
        random((BATCH, KV_HEADS, keys, WIDTH), dtype, 2),
        random((BATCH, KV_HEADS, keys, VALUE_WIDTH), dtype, 3),
    )


Options = dict[str, Any]


def masks(shape: tuple[int, ...], share: float = 0.5) -> np.ndarray:
    return np.random.default_rng(4).random(shape) < share


def hiding_bias(shape: tuple[int, ...]) -> np.ndarray:
    return np.where(masks(shape), random(shape), np.float32(-np.inf))


#: Options by name, made anew for each test. Of L queries and S keys.
CASES: dict[str, Callable[[int, int], Options]] = {
    "plain": lambda n, s: {},
    "causal_top_left": lambda n, s: dict(causal=True, align="top_left"),
    "causal_bottom_right": lambda n, s: dict(causal=True, align="bottom_right"),
    "causal_offset_each": lambda n, s: dict(causal=True, q_offset=np.array([3, -5])),
    "causal_offset_one": lambda n, s: dict(causal=True, q_offset=7),
    "causal_dropped_keys": lambda n, s: dict(causal=True, q_offset=[40, 44], key_start=[10, 0]),
    "window": lambda n, s: dict(window=(5, 2), align="top_left"),
    "window_left": lambda n, s: dict(window=(8, -1), align="bottom_right"),
    "window_right": lambda n, s: dict(window=(-1, 0), align="bottom_right"),
    "window_causal": lambda n, s: dict(window=(7, 0), causal=True, align="bottom_right"),
    "keep_mask": lambda n, s: dict(keep_mask=masks((BATCH, HEADS, n, s))),
    "keep_mask_of_keys": lambda n, s: dict(keep_mask=masks((BATCH, 1, 1, s))),
    "keep_mask_two_axes": lambda n, s: dict(keep_mask=masks((n, s))),
    "ignore_mask": lambda n, s: dict(ignore_mask=masks((1, HEADS, n, s))),
    "both_masks": lambda n, s: dict(keep_mask=masks((n, s)), ignore_mask=masks((s,), 0.3)),
    "bias": lambda n, s: dict(bias=random((BATCH, HEADS, n, s))),
    "bias_of_heads": lambda n, s: dict(bias=random((HEADS, n, s))),
    "bias_that_hides": lambda n, s: dict(bias=hiding_bias((BATCH, 1, n, s))),
    "bias_float64": lambda n, s: dict(bias=random((n, s), "float64")),
    "kv_lengths": lambda n, s: dict(kv_lengths=np.array([s - 4, 0])),
    "kv_lengths_int64": lambda n, s: dict(kv_lengths=np.array([5, s], np.int64), causal=True, align="bottom_right"),
    "documents": lambda n, s: dict(document_ids=(np.arange(2 * n).reshape(2, n) // 9, np.arange(s)[None] // 9)),
    "softcap": lambda n, s: dict(softcap=1.5),
    "softcap_of_heads": lambda n, s: dict(softcap=np.linspace(0.5, 3, HEADS, dtype=np.float32)),
    "alibi": lambda n, s: dict(alibi_slopes=np.linspace(0.01, 1, HEADS, dtype=np.float32), align="bottom_right"),
    "sinks": lambda n, s: dict(sinks=np.array([0, 1, -2, 3], np.float32)),
    "zero_key": lambda n, s: dict(zero_key=True),
    "sinks_and_zero_key": lambda n, s: dict(zero_key=True, sinks=np.ones(HEADS)),
    "scale": lambda n, s: dict(scale=0.37),
    "scale_zero": lambda n, s: dict(scale=0),
    "scale_negative_numpy": lambda n, s: dict(scale=np.float32(-0.5)),
    "scale_of_heads": lambda n, s: dict(scale=np.array([1, 0.5, -0.25, 0.1], np.float32)),
    "tiled_heads": lambda n, s: dict(heads="tiled"),
    "dropout_not_training": lambda n, s: dict(dropout=0.5),
    "dropout": lambda n, s: dict(dropout=0.25, training=True, dropout_keep=masks((BATCH, HEADS, n, s), 0.75)),
    "dropout_of_all": lambda n, s: dict(dropout=1.0, training=True, dropout_keep=masks((1, 1, n, s))),
    "sees_nothing": lambda n, s: dict(keep_mask=np.zeros((1, 1, n, 1), bool)),
    "sees_nothing_but_sinks": lambda n, s: dict(keep_mask=np.arange(n)[:, None] % 2 > 0, sinks=np.ones(HEADS)),
    "everything": lambda n, s: dict(
        causal=True,
        window=(40, 3),
        align="bottom_right",
        kv_lengths=[s, s - 9],
        keep_mask=masks((1, 1, n, s), 0.9),
        ignore_mask=masks((BATCH, HEADS, 1, s), 0.1),
        document_ids=(np.arange(n)[None] // 20, np.arange(s)[None] // 40),
        scale=0.3,
        softcap=2.5,
        alibi_slopes=np.array([0.5, 0.25, 0.125, 0.0625]),
        bias=random((HEADS, n, s)),
        sinks=np.array([0.5, -1, 2, 0]),
        zero_key=True,
        heads="tiled",
        dropout=0.5,
        dropout_keep=masks((1, HEADS, n, s)),
        training=True,
    ),
}
