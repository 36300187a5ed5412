"""NumPy arrays, PyTorch tensors and other arrays of the CPU: what they are called, and how they reach the library."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
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


#: What tensors are called that have another name in the library.
KEYWORDS = {
    "query": "q",
    "key": "k",
    "value": "v",
    "softcaps": "softcap",
    "scales": "scale",
    "key_lengths": "kv_lengths",
    "query_offset": "q_offset",
    "query_documents": "document_ids",
    "key_documents": "document_ids",
    "cumulative_query_lengths": "cu_seqlens_q",
    "cumulative_key_lengths": "cu_seqlens_k",
}

#: What may be of NumPy beside tensors of torch, since no tensor there has a gradient: the rest of what `attention` takes.
CONSTANTS = frozenset(("keep_mask", "ignore_mask", "bias", "alibi_slopes", "sinks", "softcaps", "scales", "dropout_keep"))


def to_one_library(q: Array, tensors: dict[str, Array], of: str = "q") -> None:
    """Makes constants of NumPy tensors of torch where q is one.

    Raises TypeError for other tensors of another library than q: what torch does not see gets no gradients.
    """
    wanted, kind = is_torch(q), type(q)
    for name, x in tensors.items():
        if type(x) is kind or is_torch(x) == wanted:
            continue
        if wanted and name in CONSTANTS:
            tensors[name] = in_torch(x, q)
            continue
        name = KEYWORDS.get(name, name)
        of_q, of_x = (
            ("a", f"not one; pass torch.from_numpy({name})") if wanted else ("no", f"one; pass {name}.numpy(), or {of} as one")
        )
        raise TypeError(f"{of} is {of_q} tensor of torch and {name} is {of_x}")


def in_torch(x: np.ndarray[Any, Any], like: Array) -> Array:
    """The array as a tensor in the same memory; a copy only where it runs backwards, which torch does not know."""
    torch = sys.modules["torch"]
    if any(step < 0 for step in x.strides):
        x = x.copy()
    if not x.flags.writeable:
        x = np.asarray(_Unlocked(x))
    if dtype_name(x) == "bfloat16":
        return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16).to(like.device)
    return torch.from_numpy(x).to(like.device)


class _Unlocked:
    """The memory of a read-only array, for torch, which has no such tensors and warns. Nothing writes to it."""

    def __init__(self, x: np.ndarray[Any, Any]) -> None:
        self.kept = x
        self.__array_interface__ = x.__array_interface__ | {"data": (x.__array_interface__["data"][0], False)}


def leave_out_of_graphs(function: Callable[..., Any]) -> None:
    """torch.compile calls it outside of its graphs, as for torch.compiler.disable, which imports torch."""
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = f"qkv.{function.__name__} looks at memory; call it outside"  # type: ignore[attr-defined]


def dtype_name(x: Array) -> str:
    """'float32', 'bfloat16', 'bool', ..."""
    return _numpy_name(x.dtype) if isinstance(x, np.ndarray) else str(x.dtype)[6:]  # without "torch."


@functools.cache
def _numpy_name(dtype: np.dtype[Any]) -> str:
    return str(dtype)


_CPU = 1  # DLPack's number of that device


def accept(name: str, x: Any, kind: str = "np.float32") -> Array:
    """x itself where it is an array of NumPy or torch, else a view of it where its memory can be shared.

    Raises TypeError for lists and numbers, which would become an array of `kind`, and for tensors of another device.
    """
    if not isinstance(x, np.ndarray) and (torch := sys.modules.get("torch")) is not None and isinstance(x, torch.Tensor):
        if not (x.is_cpu or x.is_meta):
            raise TypeError(f"{name} is on {x.device}, and qkv computes on CPUs; pass {name}.cpu()")
        if x.is_nested or x.layout is not torch.strided:
            raise TypeError(f"{name} is nested or sparse; qkv takes plain tensors, and attention_varlen packed ones")
        return x
    if isinstance(x, (list, tuple, int, float, np.generic)):
        advice = f"np.asarray({name}, dtype={kind})"
        if isinstance(x, (list, tuple)) and any(is_torch(part) for part in x):
            advice = f"torch.stack({name})"
        raise TypeError(f"{name} is a {type(x).__name__}, expected an array; pass {advice}")
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
    has_dlpack = hasattr(x, "__dlpack__")
    try:
        return np.from_dlpack(x) if has_dlpack else np.asarray(memoryview(x))
    except (BufferError, RuntimeError, TypeError) as why:
        if hasattr(x, "__array__"):  # DLPack has no word for some types that NumPy knows, such as bfloat16
            return np.asarray(x)
        because = f" ({why})" if has_dlpack else ""
        raise TypeError(f"{name} is a {type(x).__name__}, expected an array of NumPy or PyTorch{because}") from None


def accept_floats(name: str, x: Any) -> Array:
    """The same for a tensor of numbers. Raises TypeError for other types than the four floating ones."""
    x = accept(name, x)
    kind = dtype_name(x)
    if kind in FLOATS:
        return x
    raise TypeError(f"{name} has type {kind}, expected one of {', '.join(FLOATS)}{_to_floats(name, x)}")


def _to_floats(name: str, x: Array) -> str:
    """What makes such numbers of x without losing any, as the end of a message; nothing where nothing does."""
    if is_torch(x):
        return "" if x.dtype.is_complex else f"; pass {name}.float()"
    if x.dtype.names:
        return f"; pass one of its fields, {name}[{x.dtype.names[0]!r}]"
    if x.dtype.kind == "f":
        bits = min(8 * x.itemsize, 64)
        return f"; pass {name}.astype(np.float{bits})"
    return f"; pass {name}.astype(np.float32)" if x.dtype.kind in "biuO" else ""


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
    try:
        values = np.atleast_1d(np.asarray(x))
    except ValueError:
        raise TypeError(f"{name} has rows of different lengths, expected whole numbers") from None
    if values.dtype == np.int32 or values.size == 0:
        return _as_library_of(like, values.astype(np.int32, copy=False))
    if values.dtype == object and all(isinstance(n, int) for n in values.flat):
        raise _beyond(name)
    if values.dtype.kind not in "iu":
        raise TypeError(f"{name} has type {values.dtype}, expected whole numbers")
    if values.max() >= 2**31 or values.min() < -(2**31):
        raise _beyond(name)
    return _as_library_of(like, values.astype(np.int32))


def _beyond(name: str) -> ValueError:
    return ValueError(f"{name} holds numbers beyond int32")


def _integers_of_torch(name: str, x: Any, like: Array) -> Array:
    values = accept(name, x) if is_torch(x) else _tensor_of(name, x, like)
    kind = dtype_name(values)
    if not kind.startswith(("int", "uint")) and values.numel():
        raise TypeError(f"{name} has type {kind}, expected whole numbers")
    if kind != "int32" and values.numel() and not is_traced(values):
        least, most = (int(n) for n in values.long().aminmax())  # of uint64, what is beyond int64 comes out below 0
        if most >= 2**31 or least < (0 if kind == "uint64" else -(2**31)):
            raise _beyond(name)
    return values.reshape(-1).int() if values.ndim == 0 else values.int()


def _tensor_of(name: str, x: Any, like: Array) -> Array:
    """A number or a list as a tensor."""
    try:
        return sys.modules["torch"].tensor(x, device=like.device)
    except (OverflowError, RuntimeError, TypeError, ValueError) as why:
        if "verflow" in str(why):
            raise _beyond(name) from None
        raise TypeError(f"{name} is a {type(x).__name__}, expected whole numbers") from None


def _as_library_of(like: Array, values: Any) -> Array:
    return sys.modules["torch"].from_numpy(values) if is_torch(like) else values


def is_traced(x: Any) -> bool:
    """Whether the numbers in a tensor are not to be seen: by torch.compile, inside torch.vmap, ..."""
    from ._autograd import watched

    return watched([x])
