"""Sees the attentions of PyTorch code while it runs: fused calls, and products around a softmax."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ._replace import is_replaced, replaced
from ._sdpa import four_axes, is_causal_bias, leading_axes, of_scores

Seen = Callable[..., None]  #: seen(q, k, v, options, out, dropout)


class Watch(TorchFunctionMode):
    """While it is entered, `seen` hears of every attention, with the keywords of `qkv.attention` that say the same.

    q {B, Hq, L, D}, k {B, Hkv, S, D}, v {B, Hkv, S, Dv}, out {B, Hq, L, Dv}, or without B; dropout: the probability that acted.
    Seen are F.scaled_dot_product_attention, FlexAttention, and a product of queries and keys that goes through known steps
    to a softmax and a product with values. As a mode is active, nn.MultiheadAttention and nn.TransformerEncoder take
    their plain ways, which call these.
    """

    def __init__(self, seen: Seen) -> None:
        super().__init__()
        self.seen = seen
        self.told = 0  #: how many attentions of qkv's own were computed meanwhile; these say it themselves

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, told = kwargs or {}, self.told
        if function is torch.nn.functional.multi_head_attention_forward:
            inside = opened(function)
            with self:
                return replaced(function, args, kwargs, inside) if is_replaced() else inside(*args, **kwargs)
        result = function(*args, **kwargs)
        if self.told != told:  # a `replace_sdpa` around the tap computed it
            return result
        if function is torch.nn.functional.scaled_dot_product_attention:
            self.fused(result, *args, **kwargs)
        elif function is torch.ops.higher_order.flex_attention:
            self.flexible(result[0], *args[:6])
        else:
            follow(self.seen, getattr(function, "__name__", ""), args, kwargs, result)
        return result

    def fused(
        self,
        out: Tensor,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> None:
        if query.is_nested:
            warnings.warn("qkv.tap does not record attention of nested tensors", stacklevel=4)
            return
        if is_causal_bias(attn_mask):
            last = attn_mask.variant.name == "LOWER_RIGHT"  # type: ignore[union-attr]
            self.seen(query, key, value, options_of_causal(scale, "bottom_right" if last else "top_left"), out, dropout_p)
            return
        if not 3 <= query.ndim <= 4:
            query, key, value, out, attn_mask = folded(query, key, value, out, attn_mask, enable_gqa)
        options = options_of_causal(scale, "top_left" if is_causal else None)
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            options["keep_mask"] = attn_mask
        elif attn_mask is not None:
            options |= additive(attn_mask)
        self.seen(query, key, value, options, out, dropout_p)

    def flexible(
        self, out: Tensor, query: Tensor, key: Tensor, value: Tensor, score_mod: Any, block_mask: Any, scale: float
    ) -> None:
        """FlexAttention: its functions are asked about every pair."""
        b, h, n, s = *query.shape[:3], key.shape[2]
        with torch.no_grad():
            scores = scale * query @ key.repeat_interleave(h // key.shape[1], 1).transpose(2, 3)
            index = [torch.arange(x) for x in (b, h, n, s)]
            bias = everywhere(score_mod, 1)(scores, *index) - scores
            keep = everywhere(block_mask[-1], 0)(*index)
        options: dict[str, Any] = {"scale": float(scale)}
        if bool(bias.any()):
            options["bias"] = bias
        if not bool(keep.all()):
            options["keep_mask"] = keep
        self.seen(query, key, value, options, out, 0.0)


def options_of_causal(scale: float | None, align: str | None) -> dict[str, Any]:
    options: dict[str, Any] = {} if scale is None else {"scale": float(scale)}
    return options if align is None else options | {"causal": True, "align": align}


def folded(
    query: Tensor, key: Tensor, value: Tensor, out: Tensor, mask: Tensor | None, enable_gqa: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
    """{..., L, D} as {B, H, L, D}."""
    batch, heads, kv_heads = leading_axes(query, key, value, enable_gqa)
    if mask is not None:
        mask = of_scores(mask, query.ndim, batch, (heads, query.shape[-2], key.shape[-2]))
    given = ((query, heads), (key, kv_heads), (value, kv_heads), (out, heads))
    query, key, value, out = (four_axes(x, batch, n) for x, n in given)
    return query, key, value, out, mask


def everywhere(function: Any, scores: int) -> Any:
    """A function of (score,) batch, head, query and key for all of them at once."""
    for axis in (3, 2, 1, 0):
        given = [0 if n == axis else None for n in range(4)]
        function = torch.func.vmap(function, in_dims=(*[0] * scores, *given))
    return function


def opened(function: Any) -> Any:
    """F.multi_head_attention_forward whose inside is seen too: with a has_torch_function() of its own that says no."""
    inside = dict(function.__globals__, has_torch_function=lambda _: False)
    made = types.FunctionType(function.__code__, inside, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def additive(mask: Tensor) -> dict[str, Any]:
    """What is added to scores: a bool mask where it does nothing but hide, and leaves every query something."""
    lowest = torch.finfo(mask.dtype).min
    keep = mask > lowest / 2
    if bool(keep.any(-1).all()) and not bool(torch.where(keep, mask, 0).any()):
        return {} if bool(keep.all()) else {"keep_mask": keep}
    return {"bias": mask}


# ---- from the product of queries and keys to that with values ----


@dataclass
class Scores:
    """How a tensor of scores {..., L, S} came about: cap * tanh(scale * q k^T) or scale * q k^T, and what was added."""

    q: Tensor
    k: Tensor  #: {..., S, D}
    scale: float = 1.0
    cap: float | None = None
    added: list[Tensor] = field(default_factory=list)
    hidden: list[Tensor] = field(default_factory=list)
    sinks: Tensor | None = None  #: {..., L, 1}, appended as a last column
    known: bool = True  #: false: something else happened, so the scores themselves will say what
    final: Tensor | None = None  #: the scores, once they went into the softmax
    dropout: float = 0.0
    plain: bool = True  #: false: the weights were changed after the softmax, so out is not that of an attention

    def changed(self, **changes: Any) -> Scores:
        return replace(self, added=list(self.added), hidden=list(self.hidden), **changes)

    def multiplied(self, factor: float) -> Scores:
        if self.added or self.hidden or self.sinks is not None:
            return self.unknown()
        return self.changed(scale=self.scale * factor) if self.cap is None else self.changed(cap=self.cap * factor)

    def unknown(self) -> Scores:
        return self.changed(known=False)


NAME = "_qkv_scores"  #: where a tensor keeps its Scores: as long as it lives, and no longer

PASSED = {
    "to",
    "float",
    "double",
    "half",
    "bfloat16",
    "type",
    "type_as",
    "contiguous",
    "clone",
    "detach",
    "requires_grad",
}
PRODUCTS = {"matmul", "bmm", "baddbmm"}


def follow(seen: Seen, name: str, args: Any, kwargs: Any, result: Any) -> None:
    """Notes what one function made of scores."""
    if not isinstance(result, Tensor) or result.ndim < 3:
        return
    name = name.strip("_")
    given = [getattr(x, NAME, None) if isinstance(x, Tensor) else None for x in args]
    if name == "cat" and args and isinstance(args[0], (list, tuple)):
        given = [getattr(x, NAME, None) for x in args[0]]
    if all(x is None for x in given):
        if name in PRODUCTS or name == "einsum":
            first_product(name, args, kwargs, result)
        return
    at = next(n for n, x in enumerate(given) if x is not None)
    scores: Scores = given[at]  # type: ignore[assignment]
    if scores.final is None:
        setattr(result, NAME, step(scores, at, name, args, kwargs, result))
    elif name in PRODUCTS or name == "einsum":
        second_product(seen, scores, name, args, result)
    else:
        setattr(result, NAME, weights_step(scores, name, args, kwargs, result))


def first_product(name: str, args: Any, kwargs: Any, result: Tensor) -> None:
    if name == "einsum":
        if (pair := from_einsum(args, last="key")) is not None:
            setattr(result, NAME, Scores(*pair))
        return
    a, b = args[-2:] if len(args) >= 2 else (None, None)
    if not (isinstance(a, Tensor) and isinstance(b, Tensor) and a.ndim == b.ndim == result.ndim):
        return
    scores = Scores(a, b.transpose(-1, -2))
    if name == "baddbmm":
        alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)
        scores.scale = float(alpha)
        if beta == 1:
            scores.added.append(args[0])
        elif beta != 0:
            scores.known = False
    setattr(result, NAME, scores)


def second_product(seen: Seen, scores: Scores, name: str, args: Any, out: Tensor) -> None:
    """The weights meet the values: an attention."""
    if name == "einsum":
        pair = from_einsum(args, last="width", out=out)
        if pair is None:
            return
        v, out = pair
    else:
        v = args[-1]
    weights = args[1] if name in ("einsum", "baddbmm") else args[0]
    if not isinstance(v, Tensor) or getattr(weights, NAME, None) is None or scores.final is None:
        return
    try:
        options = options_of(scores)
    except RuntimeError:  # shapes that are not those of an attention
        return
    seen(scores.q, scores.k, v, options, out if scores.plain else None, scores.dropout)


def step(s: Scores, at: int, name: str, args: Any, kwargs: Any, result: Tensor) -> Scores | None:
    """One step between the product and the softmax."""
    other = args[1 - at] if len(args) > 1 and at < 2 else None
    if name == "softmax":
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if axis not in (-1, result.ndim - 1):
            return None
        return s.changed(final=args[at])
    if name in PASSED:
        return s
    if name in ("mul", "rmul", "imul", "multiply") and (factor := one_number(other)) is not None:
        return s.multiplied(factor)
    if name in ("div", "truediv", "itruediv", "true_divide") and at == 0 and (factor := one_number(other)) is not None:
        return s.multiplied(1 / factor)
    if name in ("add", "radd", "iadd") and isinstance(other, Tensor) and not kwargs and result.shape == args[at].shape:
        return with_added(s, other) if other.is_floating_point() else s.unknown()
    if name in ("sub", "isub") and at == 0 and isinstance(other, Tensor) and other.ndim == result.ndim and other.shape[-1] == 1:
        return s  # the same for all keys of a row: the softmax does not see it
    if name == "tanh" and s.cap is None and not (s.added or s.hidden):
        return s.changed(cap=1.0)
    if name == "masked_fill" and at == 0 and hides(args[2] if len(args) > 2 else kwargs.get("value"), result):
        return with_hidden(s, args[1] if len(args) > 1 else kwargs["mask"])
    if name == "where" and at in (1, 2) and hides(args[3 - at], result):
        return with_hidden(s, ~args[0] if at == 1 else args[0])
    if name == "cat":
        appended = len(args[0]) == 2 and at == 0 and args[0][1].shape[-1] == 1 and result.shape[:-1] == s.q.shape[:-1]
        return s.changed(sinks=args[0][1]) if appended and s.sinks is None else None
    if name in ("view", "reshape", "unflatten", "flatten"):
        return reshaped(s, result)
    return s.unknown() if result.shape == args[at].shape else None


def weights_step(s: Scores, name: str, args: Any, kwargs: Any, result: Tensor) -> Scores | None:
    """One step between the softmax and the product with values."""
    if name in PASSED:
        return s
    if name == "dropout":
        p, training = (
            kwargs.get("p", args[1] if len(args) > 1 else 0.5),
            kwargs.get("training", args[2] if len(args) > 2 else True),
        )
        return s.changed(dropout=float(p) if training else 0.0)
    if name == "getitem" and s.sinks is not None and result.shape[-1] == s.k.shape[-2]:
        return s
    if name in ("view", "reshape", "unflatten", "flatten"):
        return reshaped(s, result)
    return s.changed(plain=False) if result.shape == args[0].shape else None


def one_number(x: Any) -> float | None:
    if isinstance(x, (int, float)):
        return float(x)
    return float(x) if isinstance(x, Tensor) and x.numel() == 1 and not x.requires_grad else None


def hides(value: Any, scores: Tensor) -> bool:
    """Whether a score of this value gets no weight beside any other."""
    number = one_number(value)
    return number is not None and number <= torch.finfo(scores.dtype).min / 2


def with_added(s: Scores, x: Tensor) -> Scores:
    return replace(s, added=[*s.added, x], hidden=list(s.hidden)) if s.sinks is None else s.unknown()


def with_hidden(s: Scores, x: Tensor) -> Scores:
    return replace(s, hidden=[*s.hidden, x], added=list(s.added)) if s.sinks is None else s.unknown()


def reshaped(s: Scores, result: Tensor) -> Scores | None:
    """{B * H, L, S} seen as {B, H, L, S}, and back: queries and keys go along, and what was added is left to `final`."""
    front = result.shape[:-2]
    if result.shape[-2] != s.q.shape[-2] or front.numel() != s.q.shape[:-2].numel():
        return None
    q, k, sinks, final = (None if x is None else x.reshape(*front, *x.shape[-2:]) for x in (s.q, s.k, s.sinks, s.final))
    assert q is not None and k is not None
    known = s.known and not (s.added or s.hidden)
    return replace(s, q=q, k=k, sinks=sinks, final=final, known=known, added=[], hidden=[])


def options_of(s: Scores) -> dict[str, Any]:
    """The keywords of `qkv.attention` for scores that are known; otherwise a bias that makes them what they were."""
    assert s.final is not None
    sinks = None
    if s.sinks is not None:
        sinks = s.sinks[(0,) * (s.sinks.ndim - 3)][:, 0, 0]
        if not torch.equal(sinks[:, None, None].expand_as(s.sinks), s.sinks):
            raise RuntimeError
    ignore = merged(s.hidden, torch.logical_or) if s.hidden else None
    if not s.known or (ignore is not None and bool(ignore.all(-1).any())):
        final = (s.final if sinks is None else s.final[..., :-1]).detach().float()
        bias = final - s.q.detach().float() @ s.k.detach().float().transpose(-1, -2)
        keep = final > torch.finfo(s.final.dtype).min / 2
        options: dict[str, Any] = {"scale": 1.0, "bias": bias}
        if bool(keep.any(-1).all()) and not bool(keep.all()):
            options |= {"bias": torch.where(keep, bias, 0), "keep_mask": keep}
        return options if sinks is None else options | {"sinks": sinks}
    options = {"scale": s.scale} if s.cap is None else {"scale": s.scale * s.cap, "softcap": s.cap}
    if sinks is not None:
        options["sinks"] = sinks
    if ignore is not None:
        options["ignore_mask"] = ignore
    if s.added:
        options |= additive(merged(s.added, torch.add))
    return options


def merged(tensors: list[Tensor], by: Any) -> Tensor:
    result = tensors[0]
    for x in tensors[1:]:
        result = by(result, x)
    return result


def from_einsum(args: Any, last: str, out: Tensor | None = None) -> tuple[Tensor, Tensor] | None:
    """Of "bhld,bhsd->bhls": queries and keys. Of "bhls,bhsd->bhld" (last="width"): values and out, as {..., L or S, width}."""
    if len(args) != 3 or not isinstance(args[0], str) or "..." in args[0] or "->" not in args[0]:
        return None
    left, _, result = args[0].replace(" ", "").partition("->")
    a, _, b = left.partition(",")
    summed = [c for c in a if c in b and c not in result]
    shared = [c for c in result if c in a and c in b]
    rows, columns = [c for c in result if c not in b], [c for c in result if c not in a]
    if len(summed) != 1 or len(rows) != 1 or len(columns) != 1:
        return None

    def ordered(x: Tensor, letters: str, order: list[str]) -> Tensor:
        return x.permute([letters.index(c) for c in order])

    if last == "key":
        if result != "".join(shared + rows + columns):
            return None
        return ordered(args[1], a, shared + rows + summed), ordered(args[2], b, shared + columns + summed)
    assert out is not None
    return ordered(args[2], b, shared + summed + columns), ordered(out, result, shared + rows + columns)
