"""What tests of the rows of docs/coming-from.md share: inputs, and what the same means."""

from __future__ import annotations

from typing import Any

import numpy as np

B, H, L, S, D = 2, 4, 5, 7, 8


def arrays(queries: int = L, keys: int = S, key_heads: int = H) -> tuple[np.ndarray, ...]:
    """q, k, v as {B, H, L, D}, float32."""
    draw = np.random.default_rng(0)
    sizes = ((H, queries), (key_heads, keys), (key_heads, keys))
    return tuple(draw.standard_normal((B, *size, D), dtype=np.float32) for size in sizes)


def keep_some(*shape: int) -> np.ndarray:
    """Bool, with true at column 0, so that every query sees something."""
    keep = np.random.default_rng(1).random(shape) < 0.6
    keep[..., 0] = True
    return keep


def same(ours: Any, theirs: Any) -> None:
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=2e-5, atol=2e-6)
