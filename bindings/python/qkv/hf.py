"""Hugging Face transformers with qkv: attn_implementation="qkv".

>>> import qkv.hf
>>> qkv.hf.register()

From here on from_pretrained(name, attn_implementation="qkv") loads models with it; a small one of random weights:

>>> config = GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=100)
>>> model = AutoModel.from_config(config, attn_implementation="qkv").eval()
>>> [tuple(x.shape) for x in model(input_ids=torch.tensor([[1, 2, 3]]), output_attentions=True).attentions]
[(1, 4, 3, 3), (1, 4, 3, 3)]
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from ._attention import tell
from ._hf_families import prepare_families
from ._hf_masks import Words, make_mask, visible_words
from ._operators import run
from ._prepare import Problem, fill

__all__ = ["attention_forward", "make_mask", "register"]


def register(name: str = "qkv") -> None:
    """Makes attn_implementation=name available to the models of transformers, for inference and training on the CPU.

    Masks, windows, soft-caps, sinks, grouped heads, head masks, caches and packed sequences mean what they mean with "eager";
    output_attentions=True gives the weights, before dropout, though transformers may warn that only "eager" does. A query
    that sees no key, which is padding, gets 0.
    Most models take it from set_attn_implementation(name) too; BERT and the like only when they are made. Models that compute
    their attention themselves, such as T5, raise ValueError when they are made with it; from set_attn_implementation they stay
    as they are, and transformers logs that. save_pretrained does not keep the name: say it again when the model is loaded.
    Raises ValueError for a name that is taken, such as "sdpa".

    >>> register("qkv")
    >>> config = GPT2Config(n_embd=32, n_layer=1, n_head=4, vocab_size=100)
    >>> AutoModel.from_config(config, attn_implementation="qkv").config._attn_implementation
    'qkv'
    """
    if not isinstance(name, str):
        raise TypeError(f"name is {name!r}, expected a text")
    taken = ALL_ATTENTION_FUNCTIONS.get(name)
    if name in ("", "eager") or (taken is not None and taken.__module__ != __name__):
        raise ValueError(f"name is {name!r}, which stands for another attention of transformers; take one that is free")
    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, make_mask)
    prepare_families(name, attend)


def attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    is_causal: bool | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    head_mask: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function that transformers calls. query {B, Hq, L, D}, key and value {B, Hkv, S, D}.

    Returns out {B, L, Hq, Dv}, and the weights {B, Hq, L, S} where output_attentions asks for them. Raises ValueError for
    packed sequences over a cache, and as `qkv.attention` does.

    >>> q = torch.ones(1, 4, 3, 8)
    >>> out, weights = attention_forward(torch.nn.Module(), q, q, q, None, is_causal=True, output_attentions=True)
    >>> out.shape, weights[0, 0, 1]
    (torch.Size([1, 3, 4, 8]), tensor([0.5000, 0.5000, 0.0000]))
    """
    if head_mask is None and attention_mask is not None and is_head_mask(attention_mask, key):
        attention_mask, head_mask = None, attention_mask
        is_causal = bool(is_causal)
    words = visible_words(module, query, key, attention_mask, is_causal, sliding_window)
    words |= packed_words(words, query, key, kwargs)
    return attend(
        query,
        key,
        value,
        words,
        scale=scale_of(module, scaling, value),
        softcap=softcap,
        sinks=s_aux,
        dropout=dropout,
        head_mask=head_mask,
        weights=asks_for_weights(kwargs),
    )


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    words: Words,
    *,
    dropout: float = 0.0,
    head_mask: Tensor | None = None,
    weights: bool = False,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """Attention as transformers lays it out. words, options: keywords of `qkv.attention`."""
    options |= words
    if dropout > 0:
        options |= {"dropout": dropout, "training": True}
    # What qkv.attention does, without its checks: a small model spends as long on those as on its attention.
    problem = Problem("", {"query": query, "key": key, "value": value}, None, "blhd")
    fill(problem, options)  # type: ignore[arg-type]
    made = run(problem, ("out", "weights") if weights else ("out",), 0)
    out = made["out"].transpose(1, 2)
    tell(problem, made["out"])
    looked = made["weights"].to(query.dtype) if weights else None
    if head_mask is not None:
        of_heads = head_factors(head_mask)
        out = out * of_heads.transpose(1, 2)
        looked = None if looked is None else looked * of_heads
    return out, looked


# ---- what transformers says, in the words of `qkv.attention` ----


def packed_words(words: Words, query: Tensor, key: Tensor, kwargs: dict[str, Any]) -> Words:
    """Documents for sequences packed one after the other, which cu_seq_lens_q and cu_seq_lens_k delimit."""
    ends, ends_of_keys = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if ends is None:
        return {}
    n = query.shape[2]
    if ends_of_keys is not None and not torch.equal(ends, ends_of_keys):
        raise ValueError("cu_seq_lens_q and cu_seq_lens_k differ: packed sequences over a cache are not supported")
    if query.shape[0] != 1 or key.shape[2] != n or int(ends[-1]) != n:
        raise ValueError(f"cu_seq_lens_q ends with {int(ends[-1])}, expected {n}, the length of one packed row")
    ids = torch.bucketize(torch.arange(n), ends[1:].to(torch.int64), right=True)[None]
    if "document_ids" in words:  # the same document by both
        of_queries, of_keys = words["document_ids"]
        both = torch.stack([torch.cat([of_queries, of_keys], 1)[0].long(), ids.repeat(1, 2)[0]])
        ids = torch.unique(both, dim=1, return_inverse=True)[1][None]
        return {"document_ids": (ids[:, :n], ids[:, n:])}
    return {"document_ids": ids}


def is_head_mask(mask: Tensor, key: Tensor) -> bool:
    """Whether this is no mask of keys: ViT and others pass their head mask, {1, Hq, 1, 1} of numbers, in its place."""
    return (
        isinstance(mask, Tensor)
        and mask.ndim == 4
        and mask.is_floating_point()
        and mask.shape[2:] == (1, 1) < (1, key.shape[2])
    )


def head_factors(head_mask: Tensor) -> Tensor:
    """{1 or B, Hq, 1, 1}, by which weights are multiplied after the softmax."""
    factors = head_mask.view(1, -1, 1, 1) if head_mask.ndim == 1 else head_mask
    if factors.ndim != 4 or factors.shape[2:] != (1, 1):
        raise ValueError(f"head_mask has shape {tuple(head_mask.shape)}, expected one number a head: {{Hq}} or {{B, Hq, 1, 1}}")
    return factors


def scale_of(module: torch.nn.Module, scaling: float | None, value: Tensor) -> float | None:
    """The factor of the scores. GPT-2 and Decision Transformer keep theirs in the module."""
    if scaling is not None:
        return float(scaling)
    if not hasattr(module, "scale_attn_weights"):
        return None
    scale = float(value.shape[-1]) ** -0.5 if module.scale_attn_weights else 1.0
    return scale / (int(module.layer_idx) + 1) if module.scale_attn_by_inverse_layer_idx else scale  # type: ignore[arg-type, operator]


def asks_for_weights(kwargs: dict[str, Any]) -> bool:
    """Whether output_attentions is on. Where the module does not pass it, the nearest caller that has it says."""
    told = kwargs.get("output_attentions")
    if told is not None or torch.compiler.is_compiling():
        return bool(told)
    frame = sys._getframe(2)
    while frame is not None:
        names = frame.f_code.co_varnames + frame.f_code.co_cellvars
        if "output_attentions" in names:
            told = frame.f_locals.get("output_attentions")
            if isinstance(told, bool):
                return told
        elif "recordable_keys" in names:  # what transformers' check_model_inputs records
            return bool(frame.f_locals.get("recordable_keys", {}).get("output_attentions"))
        frame = frame.f_back  # type: ignore[assignment]
    return False
