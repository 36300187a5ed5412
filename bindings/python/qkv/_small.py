"""Small pieces around attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core


def alibi_slopes(heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """ALiBi's slopes of so many heads, (heads,) float32. Press, Smith, Lewis 2022.

    2^(-8k/n), k = 1..n, for n a power of two; for others those of the next smaller power, then every other one of twice
    that power. Raises ValueError below 1.

    >>> qkv.alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    """
    return np.asarray(_core.alibi_slopes(heads), dtype=np.float32)
