"""Attention of every kind on CPUs: exact, fast, with gradients, weights and statistics.

>>> import numpy as np
>>> import qkv
>>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 8), dtype=np.float32)
>>> out, lse = qkv.attention(q, k, v, causal=True, return_lse=True)
>>> out.shape, lse.shape
((1, 2, 5, 8), (1, 2, 5))

With PyTorch there are `qkv.tap`, which looks on while a model runs, and `qkv.torch`, its attention under its own names; with
transformers `qkv.hf`. They are imported when they are used.
"""

from __future__ import annotations

import importlib as _importlib
import importlib.util as _util
from typing import TYPE_CHECKING

from ._core import __version__, num_threads
from ._dump import save_dump
from ._explain import Explanation, explain
from ._formula import Attention
from ._results import Gradients, Observation, Statistics, Top
from ._see import Picture, see
from ._small import alibi_slopes, set_num_threads

if TYPE_CHECKING:  # the same functions, with types of what comes back
    from ._signatures import attention, attention_backward, attention_varlen, explain_path, merge, observe, visible
    from ._tap import tap as tap
else:
    from ._attention import attention, attention_backward, attention_varlen, explain_path, merge, observe, visible

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


if _util.find_spec("torch") is not None:
    __all__ += ["tap"]


def __getattr__(name: str) -> object:
    """What needs PyTorch or transformers is imported when it is used."""
    if name == "tap":
        return _importlib.import_module("._tap", __name__).tap
    if name in ("hf", "torch"):
        return _importlib.import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    hidden = {"TYPE_CHECKING", "annotations"}
    return sorted({*globals(), "hf", "tap", "torch"} - hidden)
