"""What type checkers and editors see of the functions that take options: no other names, and what comes back.

`attention` itself takes any name, to say which one may be meant.
"""

from typing import Any, Literal, TypedDict, overload

from typing_extensions import Unpack

from ._arrays import Array
from ._formula import Attention
from ._prepare import Layout
from ._results import (
    Gradients,
    Observation,
    ResultLse,
    ResultLseStats,
    ResultLseStatsTop,
    ResultLseTop,
    ResultLseWeights,
    ResultLseWeightsStats,
    ResultLseWeightsStatsTop,
    ResultLseWeightsTop,
    ResultStats,
    ResultStatsTop,
    ResultTop,
    ResultWeights,
    ResultWeightsStats,
    ResultWeightsStatsTop,
    ResultWeightsTop,
)

class Options(TypedDict, total=False):
    keep_mask: Array | None
    ignore_mask: Array | None
    bias: Array | None
    kv_lengths: Array | None
    document_ids: Array | tuple[Array, Array] | None
    causal: bool
    align: Literal["top_left", "bottom_right"] | None
    q_offset: Array | int | None
    key_start: Array | int | None
    window: tuple[int, int]
    softcap: float | Array | None
    alibi_slopes: Array | None
    sinks: Array | None
    scale: float | Array | None
    zero_key: bool
    heads: Literal["grouped", "tiled"]
    dropout: float
    dropout_keep: Array | None
    seed: int | None
    training: bool
    layout: Layout
    attention: Attention | str | None

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_weights: Literal[False] = False,
    return_stats: Literal[False] = False,
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> Array: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_weights: Literal[False] = False,
    return_stats: Literal[False] = False,
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> ResultLse: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_weights: Literal[True],
    return_stats: Literal[False] = False,
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> ResultWeights: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_weights: Literal[False] = False,
    return_stats: Literal[True],
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> ResultStats: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_weights: Literal[False] = False,
    return_stats: Literal[False] = False,
    top: int,
    **options: Unpack[Options],
) -> ResultTop: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_weights: Literal[True],
    return_stats: Literal[False] = False,
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> ResultLseWeights: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_weights: Literal[False] = False,
    return_stats: Literal[True],
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> ResultLseStats: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_weights: Literal[False] = False,
    return_stats: Literal[False] = False,
    top: int,
    **options: Unpack[Options],
) -> ResultLseTop: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_weights: Literal[True],
    return_stats: Literal[True],
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> ResultWeightsStats: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_weights: Literal[True],
    return_stats: Literal[False] = False,
    top: int,
    **options: Unpack[Options],
) -> ResultWeightsTop: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_weights: Literal[False] = False,
    return_stats: Literal[True],
    top: int,
    **options: Unpack[Options],
) -> ResultStatsTop: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_weights: Literal[True],
    return_stats: Literal[True],
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> ResultLseWeightsStats: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_weights: Literal[True],
    return_stats: Literal[False] = False,
    top: int,
    **options: Unpack[Options],
) -> ResultLseWeightsTop: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_weights: Literal[False] = False,
    return_stats: Literal[True],
    top: int,
    **options: Unpack[Options],
) -> ResultLseStatsTop: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[False] = False,
    return_weights: Literal[True],
    return_stats: Literal[True],
    top: int,
    **options: Unpack[Options],
) -> ResultWeightsStatsTop: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: Literal[True],
    return_weights: Literal[True],
    return_stats: Literal[True],
    top: int,
    **options: Unpack[Options],
) -> ResultLseWeightsStatsTop: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    return_lse: bool = False,
    return_weights: bool = False,
    return_stats: bool = False,
    top: int = 0,
    **options: Unpack[Options],
) -> Any: ...
@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    return_lse: Literal[False] = False,
    return_stats: Literal[False] = False,
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> Array: ...
@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    return_lse: Literal[True],
    return_stats: Literal[False] = False,
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> ResultLse: ...
@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    return_lse: Literal[False] = False,
    return_stats: Literal[True],
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> ResultStats: ...
@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    return_lse: Literal[False] = False,
    return_stats: Literal[False] = False,
    top: int,
    **options: Unpack[Options],
) -> ResultTop: ...
@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    return_lse: Literal[True],
    return_stats: Literal[True],
    top: Literal[0] = 0,
    **options: Unpack[Options],
) -> ResultLseStats: ...
@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    return_lse: Literal[True],
    return_stats: Literal[False] = False,
    top: int,
    **options: Unpack[Options],
) -> ResultLseTop: ...
@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    return_lse: Literal[False] = False,
    return_stats: Literal[True],
    top: int,
    **options: Unpack[Options],
) -> ResultStatsTop: ...
@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    return_lse: Literal[True],
    return_stats: Literal[True],
    top: int,
    **options: Unpack[Options],
) -> ResultLseStatsTop: ...
@overload
def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    return_lse: bool = False,
    return_stats: bool = False,
    top: int = 0,
    **options: Unpack[Options],
) -> Any: ...
def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    dlse: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    **options: Unpack[Options],
) -> Gradients: ...
def observe(q: Array, k: Array, v: Array, *, cell: int = 0, **options: Unpack[Options]) -> Observation: ...
def merge(outs: list[Array], lses: list[Array], *, sinks: Array | None = None) -> ResultLse: ...
def explain_path(q: Array, k: Array, v: Array, **options: Unpack[Options]) -> str: ...
def visible(q: Array, k: Array, v: Array, **options: Unpack[Options]) -> Array: ...
