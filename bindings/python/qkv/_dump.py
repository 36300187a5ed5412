"""Files that the command `qkv` reads."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from . import _core
from ._arrays import Array, accept, dtype_name, is_torch
from ._formula import Attention
from ._screen import whole
from ._tokens import Tokens

#: What makes a .json beside tensors theirs.
KEYS = ("tokens", "scale", "attention", "bfloat16")


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

    Both files are complete before the first appears. Raises ValueError for other names, and where a .json of something else
    lies beside path; TypeError for what is no array; OSError where they cannot be written.

    >>> import tempfile
    >>> q = np.ones((1, 2, 3, 4), np.float32)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save_dump(f"{folder}/model.npz", {"layer0.q": q, "layer0.k": q}, attention="causal | softmax")
    ...     sorted(os.listdir(folder))
    ['model.json', 'model.npz']
    """
    name = os.fspath(path)
    if not name.endswith(".npz"):
        raise ValueError(f"save_dump: {name!r} does not end in .npz")
    for tensor in tensors:
        _expect_name(tensor)
    beside: dict[str, Any] = {}
    if tokens is not None:
        beside["tokens"] = tokens
    if scale is not None:
        beside["scale"] = float(scale)
    if attention is not None:
        beside["attention"] = Attention(str(attention)).text
    arrays = {tensor: _array(tensor, x) for tensor, x in tensors.items()}
    if narrow := [tensor for tensor, x in tensors.items() if hasattr(x, "dtype") and dtype_name(x) == "bfloat16"]:
        beside["bfloat16"] = narrow
    sidecar = name.removesuffix(".npz") + ".json"
    text = json.dumps(beside, ensure_ascii=False, indent=1) + "\n"
    with whole(*([name, sidecar] if _writes(sidecar, beside) else [name])) as temporary:
        with open(temporary[0], "wb") as file:
            np.savez(file, **arrays)
        if len(temporary) > 1:
            with open(temporary[1], "w", encoding="utf-8") as beside_it:
                beside_it.write(text)


def _expect_name(name: str) -> None:
    known = _core.dump_name(name)
    if known is None:
        raise ValueError(f"save_dump: no tensor is called {name!r}; docs/dumps.md has the names: q, k, v, layer0.q, ...")
    if known[1]:
        return
    raise ValueError(f"save_dump: no tensor is called {name!r}; write {known[0]!r}, if that is meant")


def _array(name: str, x: Any) -> Any:
    """A NumPy array of what files can hold."""
    if isinstance(x, (int, float)):
        return np.asarray(x)
    x = accept(name, x)
    if is_torch(x):
        x = x.detach()
        return (x.float() if dtype_name(x) == "bfloat16" else x).numpy()
    return x.astype(np.float32) if dtype_name(x) == "bfloat16" else x


def _writes(sidecar: str, beside: dict[str, Any]) -> bool:
    """Whether there is something to say, or something to replace that would say it of other tensors."""
    try:
        with open(sidecar, encoding="utf-8") as file:
            there = json.load(file)
    except FileNotFoundError:
        return bool(beside)
    except (OSError, ValueError):
        there = None
    if isinstance(there, dict) and any(key in there for key in KEYS):
        return True
    if beside:
        raise ValueError(
            f"save_dump: {sidecar} would be replaced by what belongs to the tensors, and is something else; choose another name"
        )
    return False
