"""NumPy arrays, PyTorch tensors and other arrays of the CPU: what they are called, and how they reach the library."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

Array = Any  # a NumPy array or a torch tensor; a call gives back what it got

FLOATS = ("float32", "float64", "float16", "bfloat16")


def is_torch(x: object) -> bool:
    """Whether x is a torch tensor. Does not import torch."""
    if isinstance(x, np.ndarray):  # the other question takes long to deny
        return False
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


KEYWORDS = {"key": "k", "value": "v", "softcaps": "softcap", "scales": "scale"}  #: for tensors of other names


def expect_one_library(q: Array, tensors: Mapping[str, Array]) -> None:
    """Raises TypeError for tensors of another library than q: what torch does not see gets no gradients."""
    wanted = is_torch(q)
    for name, x in tensors.items():
        if is_torch(x) != wanted:
            name = KEYWORDS.get(name, name)
            of_q, of_x = (
                ("a", f"none; pass torch.from_numpy({name})") if wanted else ("no", f"one; pass {name}.numpy(), or q as one")
            )
            raise TypeError(f"q is {of_q} tensor of torch and {name} is {of_x}")


def dtype_name(x: Array) -> str:
    """'float32', 'bfloat16', 'bool', ..."""
    return _numpy_name(x.dtype) if isinstance(x, np.ndarray) else str(x.dtype).removeprefix("torch.")


@functools.cache
def _numpy_name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


_CPU = 1  # DLPack's number of that device


def accept(name: str, x: Any, kind: str = "np.float32") -> Array:
    """x itself where it is an array of NumPy or torch, else a view of it where its memory can be shared.

    Raises TypeError for lists and numbers, which would become an array of `kind`, and for tensors of another device.
    """
    if is_torch(x):
        if not (x.is_cpu or x.is_meta):
            raise TypeError(f"{name} is on {x.device}, and qkv computes on CPUs; pass {name}.cpu()")
        return x
    if isinstance(x, (list, tuple, int, float, np.generic)):
        raise TypeError(f"{name} is a {type(x).__name__}, expected an array; pass np.asarray({name}, dtype={kind})")
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask qkv would not see; pass {name}.data, and the mask by its name")
    if not isinstance(x, np.ndarray):
        x = _shared(name, x)
    if any(step % x.itemsize for step in x.strides):
        raise TypeError(f"{name} has elements of {x.itemsize} bytes in steps of {x.strides}; pass {name}.copy()")
    return x


def _shared(name: str, x: Any) -> np.ndarray[Any, Any]:
    """The array of another library as one of NumPy, in the same memory."""
    if hasattr(x, "__dlpack_device__") and x.__dlpack_device__()[0] != _CPU:
        raise TypeError(f"{name} is on another device, and qkv computes on CPUs; bring it there")
    try:
        return np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(memoryview(x))
    except (BufferError, RuntimeError, TypeError) as why:
        if hasattr(x, "__array__"):  # DLPack has no word for some types that NumPy knows, such as bfloat16
            return np.asarray(x)
        raise TypeError(f"{name} is a {type(x).__name__}, expected an array of NumPy or PyTorch ({why})") from None


def accept_floats(name: str, x: Any) -> Array:
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
        x = x.detach() if x.requires_grad else x
        return x.resolve_neg() if x.is_neg() else x  # memory of the opposite sign
    if _numpy_name(x.dtype) == "bfloat16":
        return (x.view(np.uint16), "bfloat16")
    return x


def empty(like: Array, shape: tuple[int, ...], dtype: str | None = None) -> Array:
    """An array of the library that `like` is of, in C order; of its type, or another one by name."""
    if is_torch(like):
        kind = like.dtype if dtype is None else getattr(sys.modules["torch"], dtype)
        return like.new_empty(shape, dtype=kind)
    return np.empty(shape, dtype=like.dtype if dtype is None else dtype)


def sum_type(q: Array) -> str:
    """The type of lse, weights and gradients by parameters."""
    return "float64" if dtype_name(q) == "float64" else "float32"


def integers(name: str, x: Any, like: Array) -> Array:
    """Whole numbers as int32, in an array of the library that `like` is of. Numbers and lists are taken too.

    Raises TypeError where they are none, ValueError where they do not fit.
    """
    if is_torch(like) and not isinstance(x, np.ndarray):
        return _integers_of_torch(name, x, like)
    values = np.atleast_1d(np.asarray(x))
    if values.dtype == np.int32 or values.size == 0:
        return _as_library_of(like, values.astype(np.int32, copy=False))
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name} has type {values.dtype}, expected whole numbers")
    if values.size and (values.max() >= 2**31 or values.min() < -(2**31)):
        raise ValueError(f"{name} holds numbers beyond int32")
    return _as_library_of(like, values.astype(np.int32))


def _integers_of_torch(name: str, x: Any, like: Array) -> Array:
    values = x if is_torch(x) else sys.modules["torch"].tensor(x, device=like.device)
    kind = dtype_name(values)
    if not kind.startswith(("int", "uint")):
        raise TypeError(f"{name} has type {kind}, expected whole numbers")
    if kind != "int32" and values.numel() and not is_traced(values) and int(values.abs().max()) >= 2**31:
        raise ValueError(f"{name} holds numbers beyond int32")
    return values.reshape(-1).int() if values.ndim == 0 else values.int()


def _as_library_of(like: Array, values: Any) -> Array:
    return sys.modules["torch"].from_numpy(values) if is_torch(like) else values


def is_traced(x: Any) -> bool:
    """Whether the numbers in a tensor are not to be seen: by torch.compile, inside torch.vmap, ..."""
    from ._autograd import watched

    return watched([x])
