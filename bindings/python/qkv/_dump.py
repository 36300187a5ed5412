"""Files that the command `qkv` reads."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core
from ._arrays import Array, accept, dtype_name, is_torch
from ._dump_checks import Sizes, check, expect_tokens
from ._formula import Attention
from ._prepare import is_number
from ._screen import whole
from ._tokens import Tokens, are_lists, token_lists

#: What makes a .json beside tensors theirs.
KEYS = ("tokens", "scheme", "scale", "attention", "bfloat16")


def save_dump(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Array | float],
    *,
    tokens: Tokens | None = None,
    attention: Attention | str | None = None,
    scale: float | None = None,
) -> None:
    """Writes tensors into an .npz, and what they cannot say into the .json beside it, for `qkv see`, `explain`, `compare`.

    path: ends in .npz. tensors: by the names of docs/dumps.md, q, k, v, out, weights, bias, keep_mask, ..., of layers
        layer0.q, ...; {B, H, L, D} or {H, L, D}. bfloat16 is written as float32, and marked so that nothing is lost.
    tokens: a list of texts, or one for each batch entry. attention: the formula. scale: factor of the scores.

    Both files are complete before the first appears. What the command would refuse is refused here: other names, tensors of a
    layer that do not go together, another number of tokens than of queries or keys. Raises ValueError for these, and where a
    .json of something else lies beside path; TypeError for what is no array of a type that files have; OSError where they
    cannot be written.

    >>> import tempfile
    >>> q = np.ones((1, 2, 3, 4), np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_dump(f"{folder}/model.npz", {"layer0.q": q, "layer0.k": q}, attention="causal | softmax")
    ...     sorted(os.listdir(folder))
    ['model.json', 'model.npz']
    """
    name = os.fsdecode(path)
    if not name.endswith(".npz"):
        raise ValueError(f"save_dump: {name!r} does not end in .npz")
    if not isinstance(tensors, Mapping):
        raise TypeError(f"save_dump: tensors is a {type(tensors).__name__}, expected them by name, as in {{'q': q, 'k': k}}")
    for tensor in tensors:
        _expect_name(tensor)
    beside: dict[str, Any] = {}
    if scale is not None:
        beside["scale"] = _finite(scale)
    if attention is not None:
        beside["attention"] = (attention if isinstance(attention, Attention) else Attention(attention)).text
    arrays = {tensor: _array(tensor, x) for tensor, x in tensors.items()}
    if narrow := [tensor for tensor, x in tensors.items() if hasattr(x, "dtype") and dtype_name(x) == "bfloat16"]:
        beside["bfloat16"] = narrow
    layers = check(arrays, narrow, beside.get("attention"))
    if tokens is not None:
        beside["tokens"] = _lists(tokens, layers)
    sidecar = name.removesuffix(".npz") + ".json"
    text = json.dumps(beside, ensure_ascii=False, indent=1) + "\n"
    with whole(*([name, sidecar] if _writes(sidecar, beside) else [name])) as temporary:
        with open(temporary[0], "wb") as file:
            np.savez(file, **arrays)
        if len(temporary) > 1:
            with open(temporary[1], "w", encoding="utf-8") as beside_it:
                beside_it.write(text)


def _expect_name(name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"save_dump: a name of tensors is a {type(name).__name__}, expected a text: 'q', 'k', 'layer0.q', ...")
    known = _core.dump_name(name)
    if known is None:
        raise ValueError(f"save_dump: no tensor is called {name!r}; docs/dumps.md has the names: q, k, v, layer0.q, ...")
    if known[1]:
        return
    raise ValueError(f"save_dump: no tensor is called {name!r}; write {known[0]!r}, if that is meant")


def _finite(scale: Any) -> float:
    if not is_number(scale):
        raise TypeError(f"save_dump: scale is a {type(scale).__name__}, expected a number; one of each layer is 'layer0.scale'")
    if not math.isfinite(scale):
        raise ValueError(f"save_dump: scale is {scale}, expected a finite number")
    return float(scale)


def _lists(tokens: Any, layers: list[Sizes]) -> Any:
    """One list of texts, or one for each batch entry, as many as there are queries or keys."""
    batches = max((s.batch for s in layers), default=None)
    lists = token_lists("tokens", tokens, batches)
    expect_tokens(lists, layers)
    return lists if are_lists(list(tokens)) else lists[0]


def _array(name: str, x: Any) -> Any:
    """A NumPy array of what files can hold."""
    if is_number(x):
        return np.asarray(int(x), np.int32) if name.endswith("heads") else np.asarray(float(x))
    x = accept(name, x)
    if is_torch(x):
        if x.is_meta or x.layout != sys.modules["torch"].strided or x.is_nested:
            raise TypeError(f"{name} has no numbers in one piece of memory; pass a plain tensor of the CPU")
        x = (x.float() if dtype_name(x) == "bfloat16" else x).detach().resolve_conj().resolve_neg().numpy()
    if x.dtype.isnative:
        return x.astype(np.float32) if dtype_name(x) == "bfloat16" else x
    return x.astype(x.dtype.newbyteorder("="))


def _writes(sidecar: str, beside: dict[str, Any]) -> bool:
    """Whether there is something to say, or something to replace that would say it of other tensors."""
    try:
        with open(sidecar, encoding="utf-8") as file:
            there = json.load(file)
    except FileNotFoundError:
        return bool(beside)
    except (OSError, ValueError):
        there = None
    known = isinstance(there, dict) and any(key in there for key in KEYS)
    if known and all(key in KEYS for key in there):
        return True
    if beside or known:
        raise ValueError(
            f"save_dump: {sidecar} would be replaced by what belongs to the tensors, and is something else; choose another name"
        )
    return False
