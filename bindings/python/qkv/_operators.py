"""Attention on tensors of PyTorch, with gradients: operators that torch.compile and torch.export see through."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import _core
from ._arrays import lend
from ._attention import PARAMETERS, compute, empty_gradient, empty_output, gradients
from ._prepare import Problem

#: What has a gradient.
DIFFERENTIABLE = ("query", "key", "value", *PARAMETERS)


def run(p: Problem, wanted: Sequence[str], top: int) -> dict[str, Tensor]:
    """The outputs of these names; out, lse and weights have gradients."""
    autocast(p)
    tensors = list(p.tensors.values())
    refuse_tangents(tensors)
    if watched(tensors):
        attend: Callable[..., Any] = forward
    elif torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
        attend = directly
    else:
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
        made = look([x.detach() for x in seen.values()], ",".join(seen), p.formula, ",".join(looks), top)
        got.update(zip(looks, made))
    return got


def autocast(p: Problem) -> None:
    """Inside torch.autocast q, k and v are taken in its type, as F.scaled_dot_product_attention does."""
    if torch.is_autocast_enabled("cpu"):
        for name in ("query", "key", "value"):
            p.tensors[name] = p.tensors[name].to(dtype_taken(p.tensors[name]))


def dtype_taken(x: Tensor) -> torch.dtype:
    """The type in which x is computed with."""
    return torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") and x.dtype != torch.float64 else x.dtype


def watched(tensors: Iterable[Tensor]) -> bool:
    """Whether somebody beside autograd looks on: a compiler, vmap, a mode. Otherwise the tensors are just memory."""
    if (
        torch.compiler.is_compiling()
        or torch._C._functorch.peek_interpreter_stack() is not None
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    ):
        return True
    for x in tensors:
        if (type(x) is not Tensor and type(x) is not torch.nn.Parameter) or x.is_meta:
            return True
    return False


def has_tangent(tensors: Iterable[Tensor]) -> bool:
    """Whether one of them is differentiated in forward mode."""
    if forward_ad._current_level < 0:
        return False
    return any(forward_ad.unpack_dual(x).tangent is not None for x in tensors)  # type: ignore[no-untyped-call]


def refuse_tangents(tensors: Iterable[Tensor]) -> None:
    if has_tangent(tensors):
        raise NotImplementedError(
            "qkv has no forward-mode derivative (torch.func.jvp, jacfwd, hessian); use backward, vjp or jacrev"
        )


def seed_tensor(p: Problem) -> Tensor | None:
    """{1} int64: a tensor, so that a compiled function draws anew each time."""
    if p.seed is None or isinstance(p.seed, Tensor):
        return p.seed
    return torch.tensor([p.seed - 2**64 if p.seed >= 2**63 else p.seed], dtype=torch.int64)


def problem_of(
    tensors: Sequence[Tensor], names: str, formula: str, seed: Tensor | None, heads_inside: bool = False
) -> Problem:
    """The arguments of an operator as a problem."""
    named = dict(zip(names.split(","), tensors))
    layout: Any = "blhd" if heads_inside else "bhld"
    return Problem(formula, named, seed, layout, packed="cumulative_query_lengths" in named)


# ---- operators: their tensors come as a list, with their names in a text ----
# Each has a fake, which makes the outputs without computing them. Both make them with empty_output(), so shapes and strides
# are said in one place.


@torch.library.custom_op("qkv::forward", mutates_args=())
def forward(
    tensors: Sequence[Tensor], names: str, formula: str, seed: Tensor | None, heads_inside: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """out, lse, row_max, row_sum; the last two are for backward."""
    made = compute(problem_of(tensors, names, formula, seed, heads_inside), ("out", "lse", "row_max", "row_sum"))
    return made["out"], made["lse"], made["row_max"], made["row_sum"]


@forward.register_fake
def _(
    tensors: Sequence[Tensor], names: str, formula: str, seed: Tensor | None, heads_inside: bool
) -> tuple[Tensor, ...]:
    p = problem_of(tensors, names, formula, seed, heads_inside)
    return tuple(empty_output(p, name) for name in ("out", "lse", "row_max", "row_sum"))


@torch.library.custom_op("qkv::backward", mutates_args=())
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


@backward.register_fake
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


@torch.library.custom_op("qkv::weights", mutates_args=())
def weights(tensors: Sequence[Tensor], names: str, formula: str) -> tuple[Tensor, Tensor, Tensor]:
    """The weights before dropout, {B, Hq, L, S}; row_max and row_sum are for backward."""
    made = compute(problem_of(tensors, names, formula, None), ("weights", "row_max", "row_sum"))
    return made["weights"], made["row_max"], made["row_sum"]


@weights.register_fake
def _(tensors: Sequence[Tensor], names: str, formula: str) -> tuple[Tensor, ...]:
    p = problem_of(tensors, names, formula, None)
    return tuple(empty_output(p, name) for name in ("weights", "row_max", "row_sum"))


@torch.library.custom_op("qkv::look", mutates_args=())
def look(tensors: Sequence[Tensor], names: str, formula: str, wanted: str, top: int) -> list[Tensor]:
    """Outputs without gradients: statistics, the largest weights."""
    made = compute(problem_of(tensors, names, formula, None), wanted.split(","), top)
    return list(made.values())


@look.register_fake
def _(tensors: Sequence[Tensor], names: str, formula: str, wanted: str, top: int) -> list[Tensor]:
    p = problem_of(tensors, names, formula, None)
    return [empty_output(p, name, top) for name in wanted.split(",")]


@torch.library.custom_op("qkv::merge", mutates_args=())
def merge_op(outs: Sequence[Tensor], lses: Sequence[Tensor], sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """out and lse of the whole from those of the parts."""
    out, lse = torch.empty_like(outs[0]), torch.empty_like(lses[0])
    _core.merge([lend(x) for x in outs], [lend(x) for x in lses], lend(sinks), out, lse)
    return out, lse


@merge_op.register_fake
def _(outs: Sequence[Tensor], lses: Sequence[Tensor], sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(outs[0]), torch.empty_like(lses[0])


@torch.library.custom_op("qkv::merge_backward", mutates_args=())
def merge_backward(
    outs: Sequence[Tensor], lses: Sequence[Tensor], sinks: Tensor | None, dout: Tensor, dlse: Tensor | None
) -> list[Tensor]:
    """dout of each part, dlse of each part, dsinks where there are sinks."""
    made: list[Tensor] = _empty_merge_gradients(outs, lses, sinks)
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


@merge_backward.register_fake
def _empty_merge_gradients(
    outs: Sequence[Tensor], lses: Sequence[Tensor], sinks: Tensor | None, *_: Tensor | None
) -> list[Tensor]:
    return [torch.empty_like(x) for x in (*outs, *lses, *([] if sinks is None else [sinks]))]


def merge(outs: list[Tensor], lses: list[Tensor], sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """`qkv.merge` of tensors."""
    made: tuple[Tensor, Tensor] = merge_op(outs, lses, sinks)
    return made


# ---- autograd ----


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.names, ctx.formula, seed, _ = inputs
    ctx.count = len(tensors)
    ctx.has_seed = seed is not None
    ctx.save_for_backward(*tensors, *([seed] if ctx.has_seed else []), *output)
    ctx.mark_non_differentiable(output[2], output[3])
    ctx.set_materialize_grads(False)


def _back(ctx: Any, *upstream: Tensor | None) -> tuple[Any, ...]:
    return _by_all(ctx, ctx.needs_input_grad[0], *upstream[:2]), None, None, None, None


def _by_all(ctx: Any, needed: Sequence[bool], dout: Tensor | None, dlse: Tensor | None) -> list[Tensor | None]:
    if dout is None and dlse is None:
        return [None] * ctx.count
    saved = ctx.saved_tensors
    tensors, seed = saved[: ctx.count], saved[ctx.count] if ctx.has_seed else None
    out, _, row_max, row_sum = saved[-4:]
    upstream = {"dout": torch.zeros_like(out) if dout is None else dout, "out": out}
    if dlse is not None:
        upstream["dlse"] = dlse
    upstream.update(row_max=row_max, row_sum=row_sum)
    return _by_tensors(ctx, needed, tensors, upstream, seed)


def _keep_weights(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    tensors, ctx.names, ctx.formula = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1], output[2])
    ctx.set_materialize_grads(False)


def _back_weights(ctx: Any, dweights: Tensor | None, *_: Any) -> tuple[Any, ...]:
    """Weights are what attention gives for values that are the unit vectors, {S, S}: so its backward pass gives theirs."""
    *tensors, made, row_max, row_sum = ctx.saved_tensors
    if dweights is None:
        return [None] * len(tensors), None, None
    names = ctx.names.split(",")
    key = tensors[names.index("key")]
    unit = torch.eye(key.shape[2], dtype=key.dtype, device=key.device)
    tensors[names.index("value")] = unit.expand(*key.shape[:2], *unit.shape)
    upstream = {"dout": dweights.to(key.dtype), "out": made.to(key.dtype), "row_max": row_max, "row_sum": row_sum}
    needed = [yes and n != "value" for n, yes in zip(names, ctx.needs_input_grad[0])]
    return _by_tensors(ctx, needed, tensors, upstream, None), None, None


def _by_tensors(
    ctx: Any, needed: Sequence[bool], tensors: Sequence[Tensor], upstream: dict[str, Tensor], seed: Tensor | None
) -> list[Tensor | None]:
    """The gradients by the tensors that need one, None for the others."""
    names = ctx.names.split(",")
    wanted = [n for n, yes in zip(names, needed) if yes and n in DIFFERENTIABLE]
    if not wanted:
        return [None] * len(names)
    if torch.is_grad_enabled() or watched((*tensors, *upstream.values())):
        made = backward(
            tensors, list(upstream.values()), ctx.names, ",".join(upstream), ctx.formula, seed, ",".join(wanted)
        )
        found = dict(zip(wanted, made))
    else:
        found = gradients(problem_of(tensors, ctx.names, ctx.formula, seed), upstream, wanted)
    return [found[n].to(x.dtype) if n in found else None for n, x in zip(names, tensors)]


class Direct(torch.autograd.Function):
    """The operator `forward` without the dispatcher, whose way through Python costs more than a small attention."""

    @staticmethod
    def forward(ctx: Any, names: str, formula: str, seed: Tensor | None, heads_inside: bool, *tensors: Tensor) -> Any:
        made = compute(problem_of(tensors, names, formula, seed, heads_inside), ("out", "lse", "row_max", "row_sum"))
        output = made["out"], made["lse"], made["row_max"], made["row_sum"]
        _keep(ctx, (tensors, names, formula, seed, heads_inside), output)
        return output

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor | None) -> Any:
        return None, None, None, None, *_by_all(ctx, ctx.needs_input_grad[4:], *upstream[:2])


def directly(tensors: Sequence[Tensor], names: str, formula: str, seed: Tensor | None, heads_inside: bool) -> Any:
    return Direct.apply(names, formula, seed, heads_inside, *tensors)  # type: ignore[no-untyped-call]


def _keep_merge(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    outs, lses, sinks = inputs
    ctx.parts, ctx.has_sinks = len(outs), sinks is not None
    ctx.save_for_backward(*outs, *lses, *([sinks] if ctx.has_sinks else []))


def _back_merge(ctx: Any, dout: Tensor, dlse: Tensor) -> tuple[Any, ...]:
    n, saved = ctx.parts, list(ctx.saved_tensors)
    outs, lses, sinks = saved[:n], saved[n : 2 * n], saved[2 * n] if ctx.has_sinks else None
    made = merge_backward(outs, lses, sinks, dout, dlse)
    return made[:n], made[n : 2 * n], made[2 * n] if ctx.has_sinks else None


def _no_second(ctx: Any, *_: Any) -> NoReturn:
    raise RuntimeError(
        "qkv has no second derivative: its backward pass cannot be differentiated; use create_graph=False"
    )


forward.register_autograd(_back, setup_context=_keep)
weights.register_autograd(_back_weights, setup_context=_keep_weights)
merge_op.register_autograd(_back_merge, setup_context=_keep_merge)
for _operator in (backward, merge_backward):
    _operator.register_autograd(_no_second, setup_context=lambda ctx, inputs, output: None)


# ---- vmap ----


def _each(operator: Callable[..., Any]) -> Callable[..., Any]:
    """The rule of vmap: one call after the other. Each uses all threads, so nothing is lost."""

    def rule(info: Any, in_dims: tuple[Any, ...], *arguments: Any) -> tuple[Any, Any]:
        def one(x: Any, dim: Any, n: int) -> Any:
            if isinstance(x, (list, tuple)):
                return [one(y, d, n) for y, d in zip(x, dim)]
            return x if dim is None else x.select(dim, n)

        calls = [operator(*(one(x, d, n) for x, d in zip(arguments, in_dims))) for n in range(info.batch_size)]
        stacked = [torch.stack(parts) for parts in zip(*calls)]
        if isinstance(calls[0], tuple):
            return tuple(stacked), tuple(0 for _ in stacked)
        return stacked, [0] * len(stacked)

    return rule


for _operator in (forward, backward, weights, look, merge_op, merge_backward):
    _operator.register_vmap(_each(_operator))
