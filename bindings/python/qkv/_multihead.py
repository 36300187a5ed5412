"""PyTorch's multi-head attention: the same module, the same arguments and parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor
from torch.nn import functional

from ._attention import tell
from ._autograd import has_tangent, watched
from ._operators import run
from ._prepare import Problem, number, random_seed
from ._sdpa import refuse, refuse_composed, sizes


class MultiheadAttention(torch.nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention`, computed by qkv: the same arguments, parameters and `state_dict`.

    Masks are taken as they are: with need_weights=False nothing grows with L * S, but where attn_mask and key_padding_mask are
    both numbers, and the latter not 0 and -inf alone, their sum (N, 1, L, S) is made. need_weights costs another pass over the
    scores, and a gradient by weights one over values of width S.

    A query whose keys are all hidden has weights and values of 0; PyTorch has NaN there with need_weights=True. Weights are
    those after dropout, as PyTorch's. nn.TransformerEncoderLayer calls the module in inference too, where it passes by
    PyTorch's own for a fused kernel.

    >>> layer = MultiheadAttention(64, 4, batch_first=True)
    >>> x = torch.randn(2, 10, 64)
    >>> out, _ = layer(x, x, x, key_padding_mask=torch.arange(10) >= torch.tensor([[10], [7]]), need_weights=False)
    >>> out.shape
    torch.Size([2, 10, 64])
    """

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # nn.TransformerEncoderLayer and nn.TransformerEncoder look at this before they pass the module by.
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As `torch.nn.MultiheadAttention.forward`.

        query: (L, N, E), with batch_first (N, L, E), or (L, E); key: (S, N, kdim), value: (S, N, vdim) in the same way.
        key_padding_mask: (N, S) or (S,), attn_mask: (L, S) or (N * heads, L, S): bool, true is hidden, or numbers to add.
        is_causal: says that attn_mask is the causal mask. It has to be there, and is looked at only where weights are wanted or
            keys are padded.
        Returns out, like query, and weights (N, L, S), with average_attn_weights=False (N, heads, L, S), or None.
        """
        parameters = Parameters(
            self.num_heads,
            self.in_proj_weight,
            (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight),
            self.in_proj_bias,
            (self.bias_k, self.bias_v),
            self.add_zero_attn,
            self.dropout if self.training else 0.0,
            (self.out_proj.weight, self.out_proj.bias),
            1 if self.batch_first else 0,
        )
        out, weights = multi_head(parameters, query, key, value, Masks(key_padding_mask, attn_mask, is_causal), need_weights)
        return out, weights.mean(-3) if weights is not None and average_attn_weights else weights


def multi_head_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Tensor | None,
    in_proj_bias: Tensor | None,
    bias_k: Tensor | None,
    bias_v: Tensor | None,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Tensor,
    out_proj_bias: Tensor | None,
    training: bool = True,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    use_separate_proj_weight: bool = False,
    q_proj_weight: Tensor | None = None,
    k_proj_weight: Tensor | None = None,
    v_proj_weight: Tensor | None = None,
    static_k: Tensor | None = None,
    static_v: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """`torch.nn.functional.multi_head_attention_forward`, computed by qkv. Raises RuntimeError for keys that are static."""
    if static_k is not None or static_v is not None:
        fault("static_k and static_v are not for qkv; pass keys and values")
    if query.shape[-1] != embed_dim_to_check:
        fault(f"query has a width of {query.shape[-1]}, expected {embed_dim_to_check}")
    parameters = Parameters(
        num_heads,
        None if use_separate_proj_weight else in_proj_weight,
        (q_proj_weight, k_proj_weight, v_proj_weight),
        in_proj_bias,
        (bias_k, bias_v),
        add_zero_attn,
        dropout_p if training else 0.0,
        (out_proj_weight, out_proj_bias),
    )
    out, weights = multi_head(parameters, query, key, value, Masks(key_padding_mask, attn_mask, is_causal), need_weights)
    return out, weights.mean(-3) if weights is not None and average_attn_weights else weights


def fault(why: str) -> NoReturn:
    refuse(why, "MultiheadAttention")


@dataclass
class Parameters:
    """The parameters of a multi-head attention."""

    heads: int
    in_proj: Tensor | None  #: {3 E, E}; None: separate ones
    separate: tuple[Tensor | None, Tensor | None, Tensor | None]  #: of query, key, value: {E, E}, {E, kdim}, {E, vdim}
    in_proj_bias: Tensor | None  #: {3 E}
    more: tuple[Tensor | None, Tensor | None]  #: one more key and value, {1, 1, E} each
    zero_key: bool
    dropout: float  #: 0 outside of training
    out_proj: tuple[Tensor, Tensor | None]  #: weight {E, E}, bias {E}
    length_axis: int = 0  #: of a query with a batch: 0 {L, N, E}, 1 {N, L, E}


@dataclass
class Masks:
    """What hides keys, as the caller gave it: {N, S} or {S}, and {L, S} or {N * heads, L, S}."""

    padding: Tensor | None
    attn: Tensor | None
    is_causal: bool


def multi_head(
    parameters: Parameters, query: Tensor, key: Tensor, value: Tensor, masks: Masks, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """out like query; weights {N, heads, L, S}, of a query without a batch {heads, L, S}, or None."""
    check(parameters, query, key, value, masks)
    batched, axis = query.ndim == 3, parameters.length_axis if query.ndim == 3 else 0
    q, k, v = project(parameters, query, key, value)
    if not batched:
        q, k, v = q[:, None], k[:, None], v[:, None]
    padding, attn = fold(masks, q.shape[1 - axis], parameters.heads, q.shape[axis], k.shape[axis])
    causal = masks.is_causal and padding is None and not need_weights
    # A zero key is a word of the formula, but where it has a place among the keys.
    write_zero = parameters.zero_key and (need_weights or causal)
    k, v = (lengthen(x, more, write_zero, axis) for x, more in zip((k, v), parameters.more))
    columns = (parameters.more[0] is not None) + write_zero
    visible = {} if causal else masks_found(pad(attn, columns), pad(padding, columns))
    tensors = {name: split(x, parameters.heads, axis) for name, x in (("query", q), ("key", k), ("value", v))}
    words = [["causal align:top_left"] if causal else [name for name in visible if name != "bias"]]
    words.append(["bias"] if "bias" in visible else [])
    words.append(["zero_key"] if parameters.zero_key and not write_zero else [])
    out, weights = attend(words, tensors | visible, parameters.dropout, need_weights)

    out = out.transpose(1, 2).flatten(2)  # {N, L, E}
    out = functional.linear(out if axis == 1 else out.transpose(0, 1), *parameters.out_proj)
    if batched:
        return out, weights
    return out[:, 0], None if weights is None else weights[0]


def attend(
    words: list[list[str]], tensors: dict[str, Tensor], dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """out {N, heads, L, E / heads}, with the heads inside of L in memory, and the weights that it was made with."""
    q, kept, seed = tensors["query"], None, None
    if dropout:
        words[2].append(f"dropout:{number('dropout', dropout)}")
    if dropout and need_weights:
        kept = functional.dropout(q.new_ones(*q.shape[:3], tensors["key"].shape[2]), dropout)  # 0 or 1 / (1 - p)
        tensors["dropout_keep"] = kept != 0
    elif dropout:
        seed = random_seed(q)
    formula = " | ".join(" ".join(stage) for stage in words if stage) or "softmax"
    problem = Problem(formula, tensors, seed, "blhd")
    got = run(problem, ("out", "weights") if need_weights else ("out",), 0)
    tell(problem, got["out"])
    if not need_weights:
        return got["out"], None
    weights = got["weights"].to(q.dtype)
    return got["out"], weights if kept is None else weights * kept


def check(parameters: Parameters, query: Tensor, key: Tensor, value: Tensor, masks: Masks) -> None:
    """Raises RuntimeError for what does not fit."""
    given = {"query": query, "key": key, "value": value, "key_padding_mask": masks.padding, "attn_mask": masks.attn}
    for name, x in given.items():
        if x is not None:
            refuse_composed(name, x, "MultiheadAttention")
            if name.endswith("mask") and x.dtype != torch.bool and not x.is_floating_point():
                fault(f"{name} has type {x.dtype}, expected bool (true is hidden) or numbers to add")
    if has_tangent((query, key, value)):
        fault("qkv has no derivative in forward mode")
    shapes = f"query {sizes(query)}, key {sizes(key)}, value {sizes(value)}"
    if not query.ndim == key.ndim == value.ndim or query.ndim not in (2, 3):
        fault(f"{shapes}; expected three axes each, or two without a batch")
    batch_axis = 1 - parameters.length_axis
    if key.shape[:-1] != value.shape[:-1] or (query.ndim == 3 and query.shape[batch_axis] != key.shape[batch_axis]):
        fault(f"{shapes}; expected one batch, and as many values as keys")
    if masks.is_causal and masks.attn is None:
        fault("is_causal says that attn_mask is causal, and there is none; pass it too")


def project(parameters: Parameters, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    """Queries, keys and values of all heads; one product for tensors that are the same."""
    together, bias = parameters.in_proj, parameters.in_proj_bias
    if together is not None and query is key and key is value:
        return functional.linear(query, together, bias).chunk(3, -1)
    weights = parameters.separate if together is None else together.chunk(3)
    biases = (None, None, None) if bias is None else bias.chunk(3)
    return tuple(functional.linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases) if w is not None)


def split(x: Tensor, heads: int, axis: int) -> Tensor:
    """{L, N, E} or {N, L, E} as {N, heads, L, E / heads}."""
    x = x.reshape(*x.shape[:-1], heads, x.shape[-1] // heads)
    return x.permute(1, 2, 0, 3) if axis == 0 else x.permute(0, 2, 1, 3)


def lengthen(x: Tensor, more: Tensor | None, zero: bool, axis: int) -> Tensor:
    """Keys or values with one more, and with one of zeros."""
    parts = [x]
    if more is not None:
        parts.append(more.to(x.dtype).expand(*(1 if n == axis else x.shape[n] for n in (0, 1)), -1))
    if zero:
        parts.append(x.new_zeros(*(1 if n == axis else x.shape[n] for n in (0, 1)), x.shape[-1]))
    return x if len(parts) == 1 else torch.cat(parts, axis)


def fold(masks: Masks, n: int, heads: int, length: int, keys: int) -> tuple[Tensor | None, Tensor | None]:
    """Padding {N, 1, 1, S} and the other mask, {1, 1, L, S} or {N, heads, L, S}. Raises RuntimeError for other shapes."""
    padding, attn = masks.padding, masks.attn
    if padding is not None:
        padding = padding[None] if padding.ndim == 1 else padding
        if padding.shape != (n, keys):
            fault(f"key_padding_mask is {sizes(padding)}, expected {(n, keys)}")
        padding = padding[:, None, None]
    if attn is not None:
        if attn.shape not in ((length, keys), (n * heads, length, keys)):
            fault(f"attn_mask is {sizes(attn)}, expected {(length, keys)} or {(n * heads, length, keys)}")
        attn = attn[None, None] if attn.ndim == 2 else attn.reshape(n, heads, length, keys)
    return padding, attn


def pad(mask: Tensor | None, columns: int) -> Tensor | None:
    """With keys after the last that every query sees."""
    return functional.pad(mask, (0, columns)) if mask is not None and columns else mask


def masks_found(attn: Tensor | None, padding: Tensor | None) -> dict[str, Tensor]:
    """As tensors of attention, if possible without writing out what both hide."""
    found: dict[str, Tensor] = {}
    for mask in (attn, padding):
        if mask is None:
            continue
        name = "ignore_mask" if mask.dtype == torch.bool else "bias"
        if name not in found:
            found[name] = mask
        elif name == "ignore_mask":
            found["keep_mask"] = ~mask
        elif hides_only(mask):
            found["keep_mask"] = mask == 0
        else:
            found["bias"] = found["bias"] + mask
    return found


def hides_only(mask: Tensor) -> bool:
    """Whether there is nothing but 0 and -inf in it. False where its numbers are not to be seen, or learn."""
    return not watched([mask]) and not mask.requires_grad and bool(((mask == 0) | (mask == -torch.inf)).all())
