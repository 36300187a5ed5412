"""For PyTorch: its attention under its own names, and in the place of its own.

`qkv.attention` and the other functions take tensors as they are; this module is for code that is there already.
"""

from __future__ import annotations

from ._multihead import MultiheadAttention
from ._replace import replace_sdpa
from ._sdpa import scaled_dot_product_attention

__all__ = ["MultiheadAttention", "replace_sdpa", "scaled_dot_product_attention"]
