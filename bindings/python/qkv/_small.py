"""Small pieces around attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import _core
from ._prepare import whole

MOST_THREADS = 4096


def set_num_threads(threads: int) -> None:
    """How many threads calls use from now on, the caller's included: 1 to 4096. Raises ValueError and TypeError for others.

    >>> qkv.set_num_threads(2)
    >>> qkv.num_threads()
    2
    """
    number = whole("threads", threads)
    if not 1 <= number <= MOST_THREADS:
        raise ValueError(f"threads is {number}, expected 1 to {MOST_THREADS}, the caller's thread included")
    _core.set_num_threads(number)


def alibi_slopes(heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """ALiBi's slopes of so many heads, (heads,) float32. Press, Smith, Lewis 2022.

    2^(-8k/n), k = 1..n, for n a power of two; for others those of the next smaller power, then every other one of twice
    that power. Raises ValueError below 1. `attention` takes them beside tensors of torch too.

    >>> qkv.alibi_slopes(4)
    array([0.25      , 0.0625    , 0.015625  , 0.00390625], dtype=float32)
    """
    number = whole("heads", heads)
    if not 1 <= number < 2**31:
        raise ValueError(f"heads is {number}, expected 1 to 2**31 - 1")
    return np.asarray(_core.alibi_slopes(number), dtype=np.float32)


# torch.compile calls it instead of looking into it, as for torch.compiler.assume_constant_result, which imports a compiler.
alibi_slopes._dynamo_marked_constant = True  # type: ignore[attr-defined]
