"""Attention on tensors of PyTorch, with gradients: operators that torch.compile and torch.export see through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import _register_namedtuple

from . import _core
from ._arrays import lend
from ._attention import PARAMETERS, compute, empty_gradient, empty_output, gradients
from ._autograd import differentiable, expect_one_place, refuse_tangents, watched
from ._prepare import Problem
from ._results import RESULTS, Statistics, Top

#: What has a gradient.
DIFFERENTIABLE = ("query", "key", "value", *PARAMETERS)


def run(p: Problem, wanted: Sequence[str], top: int) -> dict[str, Tensor]:
    """The outputs of these names; out, lse and weights have gradients."""
    autocast(p)
    tensors = list(p.tensors.values())
    refuse_tangents(tensors)
    if watched(tensors):
        expect_one_place(p.tensors)
    elif not (torch.is_grad_enabled() and any(x.requires_grad for x in tensors)):
        return compute(p, wanted, top)
    got: dict[str, Tensor] = {}
    if "out" in wanted or "lse" in wanted:
        made = attend(tensors, ",".join(p.tensors), p.formula, seed_tensor(p), p.layout == "blhd")
        got.update(zip(("out", "lse"), made))
    # What else there is to see is as without dropout.
    seen = {name: x for name, x in p.tensors.items() if name != "dropout_keep"}
    if "weights" in wanted:
        got["weights"] = weights(list(seen.values()), ",".join(seen), p.formula)[0]
    looks = [name for name in wanted if name not in ("out", "lse", "weights")]
    if looks:
        made = statistics([x.detach() for x in seen.values()], ",".join(seen), p.formula, ",".join(looks), top)
        got.update(zip(looks, made))
    return got


def autocast(p: Problem, upstream: dict[str, Tensor] | None = None) -> None:
    """Inside torch.autocast q, k and v are taken in its type, as F.scaled_dot_product_attention does; dout and out too."""
    if torch.is_autocast_enabled("cpu"):
        for tensors, names in ((p.tensors, ("query", "key", "value")), (upstream or {}, ("dout", "out"))):
            tensors.update({name: tensors[name].to(dtype_taken(tensors[name])) for name in names if name in tensors})


def dtype_taken(x: Tensor) -> torch.dtype:
    """The type in which x is computed with."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") and x.dtype != torch.float64 else x.dtype


def seed_tensor(p: Problem) -> Tensor | None:
    """{1} int64: a tensor, so that a compiled function draws anew each time."""
    if p.seed is None or isinstance(p.seed, Tensor):
        return p.seed
    signed = p.seed - 2**64 if p.seed >= 2**63 else p.seed
    return torch.tensor([signed], dtype=torch.int64, device=p.query.device)


def problem_of(tensors: Sequence[Tensor], names: str, formula: str, seed: Tensor | None, heads_inside: bool = False) -> Problem:
    """The arguments of an operator as a problem."""
    named = dict(zip(names.split(","), tensors))
    layout: Any = "blhd" if heads_inside else "bhld"
    return Problem(formula, named, seed, layout, packed="cumulative_query_lengths" in named)


# ---- operators ----
# Their tensors come as a list, with their names in a text. Each has a fake, which makes the outputs without computing them;
# both make them with empty_output(), so shapes and strides are said in one place.


def forward(
    tensors: Sequence[Tensor], names: str, formula: str, seed: Tensor | None, heads_inside: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out, lse, row_max, row_sum; the last two are for backward."""
    made = compute(problem_of(tensors, names, formula, seed, heads_inside), ("out", "lse", "row_max", "row_sum"))
    return made["out"], made["lse"], made["row_max"], made["row_sum"]


def backward(
    tensors: Sequence[Tensor],
    upstream: Sequence[Tensor],
    names: str,
    given: str,
    formula: str,
    seed: Tensor | None,
    wanted: str,
) -> list[Tensor]:
    """The gradients by the tensors named in `wanted`, in this order. upstream: the tensors named in `given`."""
    p = problem_of(tensors, names, formula, seed)
    made = gradients(p, dict(zip(given.split(","), upstream)), wanted.split(","))
    return [made[name] for name in wanted.split(",")]


def weigh(tensors: Sequence[Tensor], names: str, formula: str) -> tuple[Tensor, Tensor, Tensor]:
    """The weights before dropout, {B, Hq, L, S}; row_max and row_sum are for backward."""
    made = compute(problem_of(tensors, names, formula, None), ("weights", "row_max", "row_sum"))
    return made["weights"], made["row_max"], made["row_sum"]


def look(tensors: Sequence[Tensor], names: str, formula: str, wanted: str, top: int) -> list[Tensor]:
    """Outputs without gradients: statistics, the largest weights."""
    return list(compute(problem_of(tensors, names, formula, None), wanted.split(","), top).values())


def merge(outs: Sequence[Tensor], lses: Sequence[Tensor], sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """out and lse of the whole from those of the parts."""
    out, lse = torch.empty_like(outs[0]), torch.empty_like(lses[0])
    _core.merge([lend(x) for x in outs], [lend(x) for x in lses], lend(sinks), out, lse)
    return out, lse


def merge_backward(
    outs: Sequence[Tensor], lses: Sequence[Tensor], sinks: Tensor | None, dout: Tensor, dlse: Tensor | None
) -> list[Tensor]:
    """dout of each part, dlse of each part, dsinks where there are sinks."""
    made = _empty_merge_gradients(outs, lses, sinks)
    n = len(outs)
    _core.merge_backward(
        [lend(x) for x in outs],
        [lend(x) for x in lses],
        lend(sinks),
        lend(dout),
        lend(dlse),
        made[:n],
        made[n : 2 * n],
        made[2 * n] if sinks is not None else None,
    )
    return made


def _empty_merge_gradients(
    outs: Sequence[Tensor], lses: Sequence[Tensor], sinks: Tensor | None, *_: Tensor | None
) -> list[Tensor]:
    return [torch.empty_like(x) for x in (*outs, *lses, *([] if sinks is None else [sinks]))]


_operator = {
    function.__name__: torch.library.custom_op(f"qkv::{function.__name__}", function, mutates_args=())
    for function in (forward, backward, weigh, look, merge, merge_backward)
}


@_operator["forward"].register_fake
def _(tensors: Sequence[Tensor], names: str, formula: str, seed: Tensor | None, heads_inside: bool) -> tuple[Tensor, ...]:
    p = problem_of(tensors, names, formula, seed, heads_inside)
    return tuple(empty_output(p, name) for name in ("out", "lse", "row_max", "row_sum"))


@_operator["backward"].register_fake
def _(
    tensors: Sequence[Tensor],
    upstream: Sequence[Tensor],
    names: str,
    given: str,
    formula: str,
    seed: Tensor | None,
    wanted: str,
) -> list[Tensor]:
    p = problem_of(tensors, names, formula, seed)
    return [empty_gradient(p, name) for name in wanted.split(",")]


@_operator["weigh"].register_fake
def _(tensors: Sequence[Tensor], names: str, formula: str) -> tuple[Tensor, ...]:
    p = problem_of(tensors, names, formula, None)
    return tuple(empty_output(p, name) for name in ("weights", "row_max", "row_sum"))


@_operator["look"].register_fake
def _(tensors: Sequence[Tensor], names: str, formula: str, wanted: str, top: int) -> list[Tensor]:
    p = problem_of(tensors, names, formula, None)
    return [empty_output(p, name, top) for name in wanted.split(",")]


@_operator["merge"].register_fake
def _(outs: Sequence[Tensor], lses: Sequence[Tensor], sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(outs[0]), torch.empty_like(lses[0])


_operator["merge_backward"].register_fake(_empty_merge_gradients)


# ---- their gradients ----


def _keep(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.names, ctx.formula, seed, _ = inputs
    ctx.count = len(tensors)
    ctx.has_seed = seed is not None
    ctx.save_for_backward(*tensors, *([seed] if ctx.has_seed else []), *output)
    ctx.mark_non_differentiable(output[2], output[3])
    ctx.set_materialize_grads(False)


def _back(ctx: Any, needed: Sequence[Any], dout: Tensor | None, dlse: Tensor | None, *_: None) -> tuple[Any, ...]:
    if dout is None and dlse is None:
        return [None] * ctx.count, None, None, None, None
    saved = ctx.saved_tensors
    tensors, seed = saved[: ctx.count], saved[ctx.count] if ctx.has_seed else None
    out, _lse, row_max, row_sum = saved[-4:]
    upstream = {"dout": torch.zeros_like(out) if dout is None else dout, "out": out}
    if dlse is not None:
        upstream["dlse"] = dlse
    upstream.update(row_max=row_max, row_sum=row_sum)
    return _by_tensors(ctx, needed[0], tensors, upstream, seed), None, None, None, None


def _keep_weights(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.names, ctx.formula = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)


def _back_weights(ctx: Any, needed: Sequence[Any], dweights: Tensor | None, *_: None) -> tuple[Any, ...]:
    """Weights are what attention gives for values that are the unit vectors, {S, S}: so its backward pass gives theirs."""
    *tensors, made, row_max, row_sum = ctx.saved_tensors
    if dweights is None:
        return [None] * len(tensors), None, None
    names = ctx.names.split(",")
    key = tensors[names.index("key")]
    unit = torch.eye(key.shape[2], dtype=key.dtype, device=key.device)
    tensors[names.index("value")] = unit.expand(*key.shape[:2], *unit.shape)
    upstream = {"dout": dweights.to(key.dtype), "out": made.to(key.dtype), "row_max": row_max, "row_sum": row_sum}
    but_value = [yes and name != "value" for name, yes in zip(names, needed[0])]
    return _by_tensors(ctx, but_value, tensors, upstream, None), None, None


def _by_tensors(
    ctx: Any, needed: Sequence[bool], tensors: Sequence[Tensor], upstream: dict[str, Tensor], seed: Tensor | None
) -> list[Tensor | None]:
    """The gradients by the tensors that need one, None for the others."""
    names = ctx.names.split(",")
    wanted = [n for n, yes in zip(names, needed) if yes and n in DIFFERENTIABLE]
    if not wanted:
        return [None] * len(names)
    if torch._C._functorch.is_legacy_batchedtensor(upstream["dout"]):
        raise NotImplementedError(
            "qkv has no gradients for many upstream gradients at once (is_grads_batched, jacobian(vectorize=True)); "
            "torch.func.jacrev and vmap do that"
        )
    made = attend_backward(
        list(tensors), list(upstream.values()), ctx.names, ",".join(upstream), ctx.formula, seed, ",".join(wanted)
    )
    found = dict(zip(wanted, made))
    return [found[n].to(x.dtype) if n in found else None for n, x in zip(names, tensors)]


def _keep_merge(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    outs, lses, sinks = inputs
    ctx.parts, ctx.has_sinks = len(outs), sinks is not None
    ctx.save_for_backward(*outs, *lses, *([sinks] if ctx.has_sinks else []))


def _back_merge(ctx: Any, needed: Sequence[Any], dout: Tensor, dlse: Tensor) -> tuple[Any, ...]:
    n, saved = ctx.parts, list(ctx.saved_tensors)
    outs, lses, sinks = saved[:n], saved[n : 2 * n], saved[2 * n] if ctx.has_sinks else None
    made = merge_parts_backward(outs, lses, sinks, dout, dlse)
    return list(made[:n]), list(made[n : 2 * n]), made[2 * n] if ctx.has_sinks else None


def _keep_nothing(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    pass


def _no_second(ctx: Any, *_: Any) -> NoReturn:
    raise RuntimeError("qkv has no second derivative: its backward pass cannot be differentiated; use create_graph=False")


attend = differentiable(forward, _operator["forward"], _keep, _back)
attend_backward = differentiable(backward, _operator["backward"], _keep_nothing, _no_second)
weights = differentiable(weigh, _operator["weigh"], _keep_weights, _back_weights)
statistics = differentiable(look, _operator["look"], _keep_nothing, _no_second)

merge_parts = differentiable(merge, _operator["merge"], _keep_merge, _back_merge)
merge_parts_backward = differentiable(merge_backward, _operator["merge_backward"], _keep_nothing, _no_second)


def merged(
    tensors: dict[str, Tensor], outs: Sequence[Tensor], lses: Sequence[Tensor], sinks: Tensor | None
) -> tuple[Tensor, Tensor]:
    """out and lse of parts. tensors: all of them, by their names."""
    refuse_tangents(tensors.values())
    expect_one_place(tensors)
    made: tuple[Tensor, Tensor] = merge_parts(outs, lses, sinks)
    return made


# So that torch.export.save writes programs that give them back.
for _result in (*RESULTS.values(), Statistics, Top):
    _register_namedtuple(_result, serialized_type_name=f"qkv.{_result.__name__}")
