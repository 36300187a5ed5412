"""qkv in the place of PyTorch's attention, inside of code that does not know it."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

from ._multihead import multi_head_attention_forward
from ._sdpa import Refused, scaled_dot_product_attention


class replace_sdpa(TorchFunctionMode):
    """`with replace_sdpa():` computes PyTorch's scaled_dot_product_attention by qkv, in this thread.

    Every call is meant: by any name under which code imported the function, of nn.MultiheadAttention, of the layers of
    nn.Transformer (which take no fused path of their own meanwhile), inside torch.compile, and of programs from torch.export.
    Not meant are torch.jit.script, which is beyond Python, flex_attention, and what happens elsewhere: other threads, and the
    backward pass, where torch.utils.checkpoint computes forward again. A `with` inside of these functions does it.

    What qkv does not take (other devices, nested tensors, derivatives in forward mode) is left to PyTorch, with a warning that
    says why.

    >>> q = torch.ones(1, 2, 3, 4)
    >>> with replace_sdpa():
    ...     out = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    >>> out.shape
    torch.Size([1, 2, 3, 4])
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return replaced(func, args, kwargs or {}, func)


def replaced(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], otherwise: Callable[..., Any]) -> Any:
    """func by qkv, where it is an attention that qkv takes, else `otherwise`."""
    replacement = replacement_of(func)
    if replacement is None:
        return otherwise(*args, **kwargs)
    try:
        return replacement(*args, **kwargs)
    except Refused as why:
        say(why.args[0])
    return otherwise(*args, **kwargs)


def is_replaced() -> bool:
    """Whether a `replace_sdpa` is entered in this thread, and not the one that handles a call now."""
    modes = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    return any(isinstance(mode, replace_sdpa) for mode in modes)


def replacement_of(func: Callable[..., Any]) -> Callable[..., Any] | None:
    if (
        func is functional.scaled_dot_product_attention
        or func is torch.ops.aten.scaled_dot_product_attention
        or func is torch.ops.aten.scaled_dot_product_attention.default
    ):
        return scaled_dot_product_attention
    return multi_head_attention_forward if func is functional.multi_head_attention_forward else None


def say(why: str) -> None:
    warnings.warn(f"left to PyTorch: {why}", stacklevel=4)


# torch.compile calls it while it compiles, as for torch.compiler.assume_constant_result, which imports a compiler.
say._dynamo_marked_constant = True  # type: ignore[attr-defined]
