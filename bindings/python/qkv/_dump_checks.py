"""What the command would refuse in a file of tensors, said before the file is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from . import _core
from ._formula import parsed

Values = np.ndarray[Any, Any]

FLOATING = {"q", "k", "v", "out", "weights", "lse", "dout", "dlse", "bias", "sinks", "alibi_slopes", "scale"}
FLOATING |= {"x", "wq", "wk", "wv", "wo"}
MASKS = {"keep_mask", "ignore_mask"}
WHOLE = {"key_lengths", "document_ids", "query_documents", "key_documents", "q_offset", "key_start", "heads"}
WHOLE |= {"cumulative_query_lengths", "cumulative_key_lengths"}
#: What a formula reads, by its word, and what the library calls positions and lengths.
WORDS = {
    "keep_mask": ("keep_mask",),
    "ignore_mask": ("ignore_mask",),
    "bias": ("bias",),
    "sink_softmax": ("sinks",),
    "alibi": ("alibi_slopes",),
    "documents": ("query_documents", "key_documents"),
}
LENGTHS = {
    "key_lengths": "key_lengths",
    "q_offset": "query_offset",
    "key_start": "key_start",
    "cumulative_query_lengths": "cumulative_query_lengths",
    "cumulative_key_lengths": "cumulative_key_lengths",
}


@dataclass
class Sizes:
    """Of a layer; of a packed one queries and keys are the longest."""

    batch: int
    heads: int
    queries: int
    keys: int


def check(arrays: Mapping[str, Values], narrow: Sequence[str], formula: str | None) -> list[Sizes]:
    """The sizes of layers that have q and k, or weights. Raises ValueError or TypeError for tensors that do not go together.

    narrow: names of those that are bfloat16, kept as float32.
    """
    if not arrays:
        raise ValueError("save_dump: there are no tensors; pass at least one, as in {'q': q, 'k': k, 'v': v}")
    placed: dict[str, dict[str, Values]] = {"": {}}
    for name, x in arrays.items():
        layer, _, tensor = name.rpartition(".")
        expect_type(name, tensor, x)
        placed.setdefault(layer, {})[tensor] = x.view(Narrow) if name in narrow else x
    shared = placed.pop("")
    sizes = []
    for layer, own in (placed or {"": shared}).items():
        try:
            sizes.append(sizes_of(shared | own, formula))
        except (TypeError, ValueError) as error:
            raise type(error)(f"save_dump: {layer + ': ' if layer else ''}{error}") from None
    return [x for x in sizes if x is not None]


class Narrow(np.ndarray[Any, Any]):
    """Numbers of bfloat16, as float32."""


def expect_type(name: str, tensor: str, x: Values) -> None:
    """One that files have, and that a tensor of this name has."""
    kind = x.dtype.kind
    if x.ndim > 4:
        raise ValueError(f"save_dump: {name} has {x.ndim} axes, expected at most four: (B, H, L, D)")
    if tensor in MASKS and kind != "b":
        raise TypeError(f"save_dump: {name} has type {x.dtype}, expected bool; pass {name} != 0, if 1 is true")
    if tensor in WHOLE and (kind not in "iu" or (x.size and not -(2**31) <= x.min() <= x.max() < 2**31)):
        raise TypeError(f"save_dump: {name} has type {x.dtype}, expected whole numbers of 32 bits")
    is_float = kind == "f" and x.dtype.itemsize <= 8
    if not is_float and (tensor in FLOATING or kind not in "biu"):
        raise TypeError(f"save_dump: {name} has type {x.dtype}, expected float32, float64, float16 or bfloat16")


def sizes_of(t: dict[str, Values], formula: str | None) -> Sizes | None:
    """Of the tensors of one layer, which are checked; None where they are a part of one."""
    for name in ("q", "k", "v", "bias", "sinks", "alibi_slopes"):
        if name in t and t[name].size and np.isnan(t[name]).all():
            raise ValueError(f"{name} holds no number: all its values are NaN")
    if "scale" in t and (t["scale"].size != 1 or not np.isfinite(t["scale"]).all()):
        raise ValueError(f"scale is {t['scale']}, expected one finite number")
    if "q" in t and "k" in t:
        return sizes_of_problem(t, formula)
    for name in ("q", "k", "v"):
        if name in t and t[name].ndim < 2:
            four_axes(name, t[name])
    if "x" in t and "wq" in t:
        return sizes_of_projections(t)
    return sizes_of_weights(t["weights"]) if "weights" in t and "q" not in t else None


def four_axes(name: str, x: Values) -> Values:
    if x.ndim not in (2, 3, 4):
        raise ValueError(f"{name} has {x.ndim} axes, expected (B, H, L, D), (H, L, D) or (L, D)")
    return x[(None,) * (4 - x.ndim)]


# ---- q, k, v and what acts on them ----


def sizes_of_problem(t: dict[str, Values], formula: str | None) -> Sizes:
    """As the library says what does not fit."""
    packed = "cumulative_query_lengths" in t
    q, k, v = t["q"], t["k"], t.get("v")
    if not packed:
        q, k, v = four_axes("q", q), four_axes("k", k), None if v is None else four_axes("v", v)
    inputs: dict[str, Values] = {"query": q, "key": k, "value": k[..., :0] if v is None else v}
    inputs |= {name: np.atleast_1d(t[n]).astype(np.int32) for n, name in LENGTHS.items() if n in t}
    _core.forward(parsed("softmax"), lent(inputs), {})  # before what is read off them
    sizes = Sizes(q.shape[0], q.shape[1], q.shape[-2], k.shape[-2])
    if packed:
        longest = [int(np.diff(inputs[f"cumulative_{n}_lengths"]).max(initial=0)) for n in ("query", "key")]
        sizes = Sizes(len(inputs["cumulative_query_lengths"]) - 1, q.shape[1], *longest)
    there = tables(t, sizes)
    text = formula_of(there) if formula is None else parsed(formula).text
    words = text.replace(" | ", " ").split(" ")
    named = {name: there[name] for word in words for name in WORDS.get(word, ()) if name in there}
    if "alibi" in words and "alibi_slopes" not in there:
        named["alibi_slopes"] = np.asarray(_core.alibi_slopes(sizes.heads), np.float32)
    _core.forward(parsed(text), lent(inputs | named), {})
    expect_outputs(t, q.shape[:-1], sizes, None if v is None else v.shape[-1])
    return sizes


def tables(t: dict[str, Values], sizes: Sizes) -> dict[str, Values]:
    """Masks, bias, documents and numbers a head that there are, with the axes that the library wants."""
    found: dict[str, Values] = {name: t[name] for name in ("sinks", "alibi_slopes") if name in t}
    found |= {name: of_scores(name, t[name], sizes) for name in ("keep_mask", "ignore_mask", "bias") if name in t}
    for name in ("query_documents", "key_documents"):
        x = t.get(name, t.get("document_ids"))
        if x is not None:
            found[name] = np.atleast_2d(x).astype(np.int32)
    return found


def of_scores(name: str, x: Values, s: Sizes) -> Values:
    """{B, H, L, S} of a mask or bias that may lack axes. Raises ValueError where that can mean two things."""
    readings = None
    if x.ndim == 2:
        padding, square = name != "bias" and x.shape == (s.batch, s.keys), x.shape == (s.queries, s.keys)
        if not (padding and square and s.batch > 1):
            return x[:, None, None] if padding and not square else x[None, None]
        readings = "(B, S) and (L, S)"
    if x.ndim == 3:
        if s.batch != s.heads or s.batch == 1:
            return x[:, None] if x.shape[0] == s.batch > 1 else x[None]
        readings = "(B, L, S) and (H, L, S)"
    if readings:
        raise ValueError(f"{name} {x.shape} can mean {readings}; save it with four axes (B, H, L, S), 1 where it is shared")
    return x


def formula_of(there: dict[str, Values]) -> str:
    """What the command makes of the names, but that its options may still say where the queries stand."""
    words = [word for word, names in WORDS.items() if any(name in there for name in names)]
    visible = [w for w in words if w in ("documents", "keep_mask", "ignore_mask")]
    score = [w for w in words if w in ("alibi", "bias")]
    weights = [w for w in words if w == "sink_softmax"]
    return " | ".join(" ".join(stage) for stage in ([*visible, "align:top_left"], score, weights) if stage)


def expect_outputs(t: dict[str, Values], rows: tuple[int, ...], s: Sizes, width: int | None) -> None:
    """What another program computed: out, weights, lse and gradients by them. rows: {B, H, L}, packed {total, H}."""
    full = {"weights": (s.batch, s.heads, s.queries, s.keys), "lse": rows, "dlse": rows}
    if width is not None:
        full |= {"out": (*rows, width), "dout": (*rows, width)}
    for name, shape in full.items():
        if name not in t:
            continue
        given = (1,) * (len(shape) - t[name].ndim) + t[name].shape
        free = name in ("dout", "dlse")  # each axis 1 or full
        if len(given) != len(shape) or any(n != m and not (free and n == 1) for n, m in zip(given, shape)):
            raise ValueError(f"{name} is {t[name].shape}, and q, k and v give {shape}; are they of the same layer and call?")


def lent(inputs: dict[str, Values]) -> dict[str, Any]:
    return {name: as_bfloat16(x) if isinstance(x, Narrow) else x for name, x in inputs.items()}


def as_bfloat16(x: Values) -> tuple[Values, str]:
    """The upper halves of the numbers, as the extension module takes them."""
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) >> 16).astype(np.uint16), "bfloat16"


# ---- what comes instead of q and k ----


def sizes_of_weights(weights: Values) -> Sizes:
    w = four_axes("weights", weights)
    most = 1.02 if w.dtype.itemsize == 2 or isinstance(w, Narrow) else 1.001  # each weight of 16 bits is rounded
    sums = w.sum(-1, dtype=np.float64)
    if not bool((w >= 0).all()) or bool((sums > most).any()):
        raise ValueError("weights are not those of an attention: each row is a softmax, is not negative, and sums to at most 1")
    b, h, n, s = w.shape
    return Sizes(b, h, n, s)


def sizes_of_projections(t: dict[str, Values]) -> Sizes:
    """x {B, L, E}, wq {E, H D} or {H D, E}, ..."""
    x = t["x"]
    if x.ndim not in (2, 3):
        raise ValueError(f"x has {x.ndim} axes, expected (B, L, E) or (L, E)")
    for name in ("wq", "wk", "wv"):
        if name in t and (t[name].ndim != 2 or x.shape[-1] not in t[name].shape):
            raise ValueError(f"{name} is {t[name].shape}, expected two axes, one of them {x.shape[-1]}, the width of x")
    heads = t.get("heads", np.ones(1, np.int32))
    if heads.size != 1 or heads.min() < 1:
        raise ValueError(f"heads is {heads}, expected one number, 1 or more")
    return Sizes(x.shape[0] if x.ndim == 3 else 1, int(heads.reshape(())), x.shape[-2], x.shape[-2])


# ---- tokens ----


def expect_tokens(lists: list[list[str]], layers: list[Sizes]) -> None:
    """Raises ValueError where they are not as many as the queries or keys of any layer."""
    for tokens in lists:
        if layers and all(len(tokens) not in (s.queries, s.keys) for s in layers):
            there = " or ".join(dict.fromkeys(f"{s.queries} queries and {s.keys} keys" for s in layers))
            raise ValueError(f"save_dump: tokens has {len(tokens)} texts, and there are {there}")
