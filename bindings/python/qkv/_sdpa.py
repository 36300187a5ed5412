"""PyTorch's scaled_dot_product_attention: the same arguments, the same results."""

from __future__ import annotations

import sys
from typing import Any, NoReturn

import torch
from torch import Tensor

from ._arrays import FLOATS, dtype_name
from ._attention import tell
from ._autograd import has_tangent
from ._operators import dtype_taken, run
from ._prepare import Problem, number, random_seed

Sizes = tuple[int, ...]


class Refused(RuntimeError):
    """A call that qkv does not take; PyTorch may."""


def refuse(why: str, function: str = "scaled_dot_product_attention") -> NoReturn:
    raise Refused(f"{function}: {why}")


def refuse_composed(name: str, x: Tensor, function: str = "scaled_dot_product_attention") -> None:
    """Raises Refused where x is no tensor in the memory of the CPU."""
    if not isinstance(x, Tensor):
        refuse(f"{name} is a {type(x).__name__}, expected a tensor", function)
    if x.device.type not in ("cpu", "meta"):
        refuse(f"{name} is on {x.device}, and qkv computes on CPUs; pass {name}.cpu()", function)
    if x.is_nested or x.layout != torch.strided or hasattr(x, "__tensor_flatten__"):
        refuse(
            f"{name} is nested, sparse or made of other tensors; qkv takes plain ones, and attention_varlen packed ones",
            function,
        )


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """`torch.nn.functional.scaled_dot_product_attention`, computed by qkv.

    query: (..., L, D), key: (..., S, D), value: (..., S, Dv); leading axes broadcast. enable_gqa: the last of them, the heads,
        may be fewer in key and value, where each then serves several heads of query, one after the other.
    attn_mask: bool, true may attend, or numbers that are added; broadcasts to (..., L, S).
    is_causal: query i sees keys 0 to i, whatever L and S are. dropout_p acts always: pass 0 outside of training.

    Returns (..., L, Dv), with its axes in memory in the order that query's have. Gradients by all tensors, but no second
    derivative. Nothing is copied, but where five axes or more do not fold into four without it. What is hidden has no
    influence even where it is NaN, which PyTorch lets through.
    Raises RuntimeError where PyTorch does, is_causal beside attn_mask included, and for what qkv does not do: tensors of other
    devices, nested ones, derivatives in forward mode.

    >>> q = torch.randn(2, 8, 5, 64)
    >>> scaled_dot_product_attention(q, q, q, is_causal=True).shape
    torch.Size([2, 8, 5, 64])
    """
    mask: Any = attn_mask
    check(query, key, value, mask, dropout_p, is_causal, scale)
    batch, heads, kv_heads = leading_axes(query, key, value, enable_gqa)
    if enable_gqa:
        key, value = (x if x.shape[-3] == kv_heads else x.repeat_interleave(kv_heads // x.shape[-3], -3) for x in (key, value))
    tensors = {
        "query": four_axes(query, batch, heads),
        "key": four_axes(key, batch, kv_heads),
        "value": four_axes(value, batch, kv_heads),
    }
    visible: list[str] = []
    score: list[str] = []
    weights: list[str] = []
    if is_causal_bias(mask):
        if (mask.seq_len_q, mask.seq_len_kv) != (query.shape[-2], key.shape[-2]):
            refuse(f"attn_mask is for {mask.seq_len_q} queries and {mask.seq_len_kv} keys")
        visible.append("causal align:" + ("bottom_right" if mask.variant.name == "LOWER_RIGHT" else "top_left"))
    elif mask is not None:
        axes = max(query.ndim, key.ndim, value.ndim)
        name, words = ("keep_mask", visible) if mask.dtype == torch.bool else ("bias", score)
        tensors[name] = of_scores(mask, axes, batch, (heads, query.shape[-2], key.shape[-2]))
        words.append(name)
    elif is_causal:
        visible.append("causal align:top_left")
    if scale is not None:
        score.append(f"scale:{number('scale', scale)}")
    if dropout_p:
        weights.append(f"dropout:{number('dropout', dropout_p)}")

    formula = " | ".join(" ".join(stage) for stage in (visible, score, weights) if stage) or "softmax"
    heads_inside = query.ndim > 2 and query.stride(-3) < query.stride(-2)
    seed = random_seed(query) if dropout_p else None
    problem = Problem(formula, tensors, seed, "blhd" if heads_inside else "bhld", query.ndim > 3)
    out: Tensor = run(problem, ("out",), 0)["out"]
    tell(problem, out)
    return as_given(out, max(query.ndim, key.ndim, value.ndim), batch)


def check(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Any,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> None:
    """Raises Refused for all but shapes."""
    given = {"query": query, "key": key, "value": value}
    if attn_mask is not None and not is_causal_bias(attn_mask):
        given["attn_mask"] = attn_mask
    for name, x in given.items():
        refuse_composed(name, x)
        if x.is_meta != query.is_meta:
            refuse(f"{name} is on {x.device} and query on {query.device}; pass tensors of one device")
        if x.ndim < 2 and name != "attn_mask":
            refuse(f"{name} has {x.ndim} axes, expected two at least")
    if has_tangent(given.values()):
        refuse("qkv has no derivative in forward mode")

    types = [dtype_taken(x) for x in (query, key, value)]
    if dtype_name(query) not in FLOATS or types[1:] != types[:-1]:
        refuse(f"query, key and value have types {query.dtype}, {key.dtype} and {value.dtype}, expected one floating type")
    if attn_mask is not None and is_causal:
        refuse("attn_mask and is_causal are both given; put the causal mask into attn_mask")
    if "attn_mask" in given and given["attn_mask"].dtype not in (torch.bool, torch.float32, query.dtype, types[0]):
        refuse(f"attn_mask has type {given['attn_mask'].dtype}, expected bool, float32 or {types[0]}")
    if not 0 <= dropout_p <= 1:
        refuse(f"dropout_p is {dropout_p}, expected 0 to 1")
    if scale is not None and not -float("inf") < scale < float("inf"):
        refuse(f"scale is {scale}, expected a finite number")


def leading_axes(query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool) -> tuple[Sizes, int, int]:
    """The axes before the heads, the heads of query, and those of key and value, all after broadcasting. Raises Refused."""
    if key.shape[-1] != query.shape[-1] or value.shape[-2] != key.shape[-2]:
        refuse(
            f"query is {sizes(query)}, key {sizes(key)}, value {sizes(value)}; the last axis of query and key has to agree, "
            "and the one before it of key and value"
        )
    every = (query, key, value)
    if not enable_gqa:
        one = all(x.ndim < 3 or x.shape[-3] == 1 for x in (key, value))
        *batch, heads = broadcast(every, -2) or (1,)
        return tuple(batch), heads, 1 if one else heads
    if any(x.ndim < 3 for x in every):
        refuse("enable_gqa is given, and there is no axis of heads")
    heads, of_key, of_value = (x.shape[-3] for x in every)
    if not of_key or not of_value or heads % of_key or heads % of_value:
        refuse(f"key and value have {of_key} and {of_value} heads, query {heads}, which has to be a multiple of both")
    return broadcast(every, -3), heads, of_key if of_key == of_value else heads


def broadcast(tensors: tuple[Tensor, Tensor, Tensor], end: int) -> Sizes:
    """What the axes before `end` broadcast to."""
    first, second, third = (x.shape[:end] for x in tensors)
    if first == second == third:
        return tuple(first)
    try:
        return tuple(torch.broadcast_shapes(first, second, third))  # type: ignore[no-untyped-call]
    except RuntimeError:
        refuse(f"the leading axes of {', '.join(sizes(x) for x in tensors)} do not broadcast; enable_gqa=True groups heads")


def four_axes(x: Tensor, batch: Sizes, heads: int) -> Tensor:
    """{B, heads, L, D}, where B is the product of batch: a view, if the axes of batch allow one."""
    if x.shape[:-2] == (*batch, heads) and len(batch) == 1:
        return x
    x = x.expand(*batch, heads, *x.shape[-2:])
    return x[None] if not batch else x.flatten(0, -4)


def of_scores(mask: Tensor, axes: int, batch: Sizes, rest: tuple[int, int, int]) -> Tensor:
    """{B or 1, Hq or 1, L or 1, S or 1} of a mask that broadcasts to the scores, which have so many axes. Raises Refused."""
    full = (*batch, *rest)[-axes:]
    if mask.ndim > axes or any(n not in (1, m) for n, m in zip(mask.shape[::-1], full[::-1])):
        refuse(f"attn_mask is {sizes(mask)}, which does not broadcast to the scores, {full}")
    while mask.ndim < 3 + len(batch):
        mask = mask[None]
    if len(batch) > 1 and any(n != 1 for n in mask.shape[: len(batch)]):
        mask = mask.expand(*batch, *mask.shape[-3:])
    return mask[None] if not batch else mask.flatten(0, -4)


def as_given(out: Tensor, axes: int, batch: Sizes) -> Tensor:
    """{B, Hq, L, Dv} with the axes that the caller has."""
    if axes < 4:
        return out[(0,) * (4 - axes)]
    return out if axes == 4 else out.reshape(*batch, *out.shape[1:])


def is_causal_bias(mask: Any) -> bool:
    """Whether it is what torch.nn.attention.bias makes: a formula that looks like a tensor. Imports nothing."""
    module = sys.modules.get("torch.nn.attention.bias")
    return module is not None and isinstance(mask, module.CausalBias)


def sizes(x: Tensor) -> str:
    return str(tuple(x.shape))
