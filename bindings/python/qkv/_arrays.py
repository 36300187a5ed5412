"""NumPy arrays, PyTorch tensors and other arrays of the CPU: what they are called, and how they reach the library."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

Array = Any  # a NumPy array or a torch tensor; a call gives back what it got

FLOATS = ("float32", "float64", "float16", "bfloat16")


def is_torch(x: object) -> bool:
    """Whether x is a torch tensor. Does not import torch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def dtype_name(x: Array) -> str:
    """'float32', 'bfloat16', 'bool', ..."""
    return str(x.dtype).removeprefix("torch.")


def accept(name: str, x: object) -> Array:
    """x itself where it is an array of NumPy or torch, else a view of it where its memory can be shared.

    Raises TypeError for lists and numbers, and tensors of another device.
    """
    if isinstance(x, np.ndarray):
        return x
    if is_torch(x):
        if x.device.type not in ("cpu", "meta"):  # type: ignore[attr-defined]
            raise TypeError(f"{name} is on {x.device}, and qkv computes on CPUs; pass {name}.cpu()")  # type: ignore[attr-defined]
        return x
    if isinstance(x, (list, tuple, int, float, np.generic)):
        raise TypeError(f"{name} is a {type(x).__name__}, expected an array; pass np.asarray({name}, dtype=np.float32)")
    if hasattr(x, "__dlpack__"):
        return np.from_dlpack(x)  # type: ignore[arg-type]
    try:
        return np.asarray(memoryview(x))  # type: ignore[arg-type]
    except TypeError:
        raise TypeError(f"{name} is a {type(x).__name__}, expected an array of NumPy or PyTorch") from None


def accept_floats(name: str, x: object) -> Array:
    """The same for a tensor of numbers. Raises TypeError for other types than the four floating ones."""
    x = accept(name, x)
    kind = dtype_name(x)
    if kind in FLOATS:
        return x
    convert = f"{name}.float()" if is_torch(x) else f"{name}.astype(np.float32)"
    raise TypeError(f"{name} has type {kind}, expected one of {', '.join(FLOATS)}; pass {convert}")


def lend(x: Array | None) -> Any:
    """What the extension module takes for x: NumPy has no word for bfloat16, so that goes as uint16 with a tag."""
    if x is None:
        return None
    if is_torch(x):
        return x.detach() if x.requires_grad else x
    if x.dtype.name == "bfloat16":
        return (x.view(np.uint16), "bfloat16")
    return x


def empty(like: Array, shape: tuple[int, ...], dtype: str | None = None) -> Array:
    """An array of the library that `like` is of, in C order; of its type, or another one by name."""
    if is_torch(like):
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=like.dtype if dtype is None else getattr(torch, dtype))
    return np.empty(shape, dtype=like.dtype if dtype is None else dtype)


def sum_type(q: Array) -> str:
    """The type of lse, weights and gradients by parameters."""
    return "float64" if dtype_name(q) == "float64" else "float32"


def integers(name: str, x: object, like: Array) -> Array:
    """Whole numbers as int32, in an array of the library that `like` is of. Numbers and lists are taken too.

    Raises TypeError where they are none, ValueError where they do not fit.
    """
    if is_torch(x):
        values = x
    else:
        values = np.atleast_1d(np.asarray(x))
        if values.dtype == np.int32:
            return _as_library_of(like, values)
    kind = dtype_name(values)
    if not kind.startswith(("int", "uint")):
        raise TypeError(f"{name} has type {kind}, expected whole numbers")
    if is_torch(values):
        if kind != "int32" and values.numel() and not is_traced(values) and int(values.abs().max()) >= 2**31:
            raise ValueError(f"{name} holds numbers beyond int32")
        return values.reshape(-1).int() if values.ndim == 0 else values.int()
    if values.size and (values.max() >= 2**31 or values.min() < -(2**31)):
        raise ValueError(f"{name} holds numbers beyond int32")
    return _as_library_of(like, values.astype(np.int32))


def _as_library_of(like: Array, values: Any) -> Array:
    return sys.modules["torch"].from_numpy(values) if is_torch(like) else values


def is_traced(x: Any) -> bool:
    """Whether torch.compile or export looks at x without its numbers."""
    return bool(sys.modules["torch"].compiler.is_compiling()) or x.device.type == "meta"
