"""How operators are called: by whoever looks on, be that autograd, a compiler, torch.func, a mode, or nobody."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.autograd import forward_ad

from ._arrays import KEYWORDS

#: Tensors, lists of tensors, and what is no tensor.
Arguments = Sequence[Any]


def is_transformed() -> bool:
    """Whether this is called inside torch.func.vmap, grad, ..."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def watched(tensors: Iterable[Tensor]) -> bool:
    """Whether somebody beside autograd looks on: a compiler, torch.func, a mode. Otherwise the tensors are just memory."""
    if (
        torch.compiler.is_compiling()
        or is_transformed()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._get_tracing_state() is not None
    ):
        return True
    return any((type(x) is not Tensor and type(x) is not torch.nn.Parameter) or x.is_meta for x in tensors)


def expect_one_place(tensors: Mapping[str, Tensor]) -> None:
    """Raises TypeError where some tensors have no numbers and others have: nothing could be made of both."""
    on_meta = [name for name, x in tensors.items() if x.is_meta]
    others = [name for name, x in tensors.items() if not x.is_meta]
    if on_meta and others:
        one, other = (KEYWORDS.get(names[0], names[0]) for names in (on_meta, others))
        raise TypeError(f"{one} is on meta and {other} is not; pass tensors of one device")


def expect_memory(function: str, tensors: Iterable[Tensor]) -> None:
    """Raises NotImplementedError where the numbers in a tensor are not there, for a function that is no operator."""
    if is_transformed() or any(x.is_meta or isinstance(x, FakeTensor) for x in tensors):
        raise NotImplementedError(
            f"{function} looks at numbers in memory, and there are none inside torch.func and torch.export, nor in meta tensors"
        )


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


def differentiable(
    compute: Callable[..., Any],
    operator: Any,
    keep: Callable[..., None],
    back: Callable[..., tuple[Any, ...]],
) -> Callable[..., Any]:
    """A function that computes on memory as all who look on understand it.

    operator: the same as torch.library.custom_op made it. keep(ctx, inputs, output) and back(ctx, needed, *upstream) are as
    for its register_autograd, needed being ctx.needs_input_grad.
    """

    class Function(torch.autograd.Function):
        """For torch.func, which differentiates no operators."""

        @staticmethod
        def forward(counts: tuple[int, ...], *leaves: Any) -> tuple[Tensor, ...]:
            call = operator if watched(x for x in leaves if isinstance(x, Tensor)) else compute
            return tuple(call(*nested(counts, leaves)))

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.counts = inputs[0]
            keep(ctx, nested(ctx.counts, inputs[1:]), output)

        @staticmethod
        def backward(ctx: Any, *upstream: Tensor | None) -> Any:
            return None, *flat(back(ctx, nested(ctx.counts, ctx.needs_input_grad[1:]), *upstream))[1]

        @staticmethod
        def vmap(info: Any, in_dims: tuple[Any, ...], counts: tuple[int, ...], *leaves: Any) -> Any:
            return one_by_one(info, nested(counts, in_dims[1:]), *nested(counts, leaves))

    class Direct(torch.autograd.Function):
        """For autograd alone: the other one, and the operator, take longer to call than a small attention takes."""

        @staticmethod
        def forward(ctx: Any, counts: tuple[int, ...], *leaves: Any) -> tuple[Tensor, ...]:
            arguments = nested(counts, leaves)
            output = tuple(compute(*arguments))
            ctx.counts = counts
            keep(ctx, arguments, output)
            return output

        backward = Function.backward

    def call(*arguments: Any) -> Any:
        if torch.compiler.is_compiling():
            return operator(*arguments)
        counts, leaves = flat(arguments)
        if is_transformed():
            return Function.apply(counts, *leaves)  # type: ignore[no-untyped-call]
        tensors = [x for x in leaves if isinstance(x, Tensor)]
        if watched(tensors):
            return operator(*arguments)
        if torch.is_grad_enabled() and any(x.requires_grad for x in tensors):
            return Direct.apply(counts, *leaves)  # type: ignore[no-untyped-call]
        return compute(*arguments)

    def one_by_one(info: Any, in_dims: Arguments, *arguments: Any) -> tuple[Any, Any]:
        """The rule of vmap: one call after the other. Each uses all threads, so nothing is lost."""
        calls = [call(*(entry(x, d, n) for x, d in zip(arguments, in_dims))) for n in range(info.batch_size)]
        made = [torch.stack(parts) for parts in zip(*calls)]
        return (tuple(made), (0,) * len(made)) if isinstance(calls[0], tuple) else (made, [0] * len(made))

    operator.register_autograd(lambda ctx, *upstream: back(ctx, ctx.needs_input_grad, *upstream), setup_context=keep)
    operator.register_vmap(one_by_one)
    return call


def entry(x: Any, dim: Any, n: int) -> Any:
    """The n-th of what vmap goes over."""
    if isinstance(x, (list, tuple)):
        return [entry(y, d, n) for y, d in zip(x, dim)]
    return x if dim is None else x.select(dim, n)


def flat(arguments: Arguments) -> tuple[tuple[int, ...], list[Any]]:
    """The arguments without lists, and how long each list was; -1 for what was none."""
    counts = tuple(len(x) if isinstance(x, (list, tuple)) else -1 for x in arguments)
    return counts, [y for x, n in zip(arguments, counts) for y in (x if n >= 0 else (x,))]


def nested(counts: tuple[int, ...], leaves: Iterable[Any]) -> list[Any]:
    """The arguments that they were."""
    leaf = iter(leaves)
    return [list(islice(leaf, n)) if n >= 0 else next(leaf) for n in counts]
