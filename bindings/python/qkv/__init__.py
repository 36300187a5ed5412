"""Attention of every kind on CPUs: exact, fast, with gradients, weights and statistics.

>>> import numpy as np
>>> import qkv
>>> q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 5, 8), dtype=np.float32)
>>> out, lse = qkv.attention(q, k, v, causal=True, return_lse=True)
>>> out.shape, lse.shape
((1, 2, 5, 8), (1, 2, 5))
"""

from ._attention import attention, attention_backward, attention_varlen, explain_path, merge, observe, visible
from ._core import __version__, num_threads, set_num_threads
from ._dump import save_dump
from ._explain import Explanation, explain
from ._formula import Attention
from ._results import Gradients, Observation, Statistics, Top
from ._see import Picture, see
from ._small import alibi_slopes

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
