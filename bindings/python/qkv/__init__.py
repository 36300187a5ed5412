"""Attention of every kind on CPUs: exact, fast, with gradients, weights and statistics.

>>> import numpy as np
>>> import qkv
>>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 8), dtype=np.float32)
>>> out, lse = qkv.attention(q, k, v, causal=True, return_lse=True)
>>> out.shape, lse.shape
((1, 2, 5, 8), (1, 2, 5))
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ._attention import attention, attention_backward, attention_varlen, explain_path, merge, observe, visible
from ._core import __version__, num_threads, set_num_threads
from ._dump import save_dump
from ._explain import Explanation, explain
from ._formula import Attention
from ._results import Gradients, Observation, Statistics, Top
from ._see import Picture, see
from ._small import alibi_slopes

if TYPE_CHECKING:
    from ._tap import tap as tap

__all__ = [
    "Attention",
    "Explanation",
    "Gradients",
    "Observation",
    "Picture",
    "Statistics",
    "Top",
    "__version__",
    "alibi_slopes",
    "attention",
    "attention_backward",
    "attention_varlen",
    "explain",
    "explain_path",
    "merge",
    "num_threads",
    "observe",
    "save_dump",
    "see",
    "set_num_threads",
    "visible",
]


def __getattr__(name: str) -> Any:
    """What needs PyTorch or transformers is imported when it is used."""
    if name == "tap":
        return importlib.import_module("._tap", __name__).tap
    if name in ("hf", "torch"):
        return importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
