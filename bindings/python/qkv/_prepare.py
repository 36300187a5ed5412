"""From keywords to what the library takes: a formula and tensors by name, in the layout {B, H, L, D}."""

from __future__ import annotations

import operator
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import numpy as np

from ._arrays import (
    Array,
    accept,
    accept_floats,
    dtype_name,
    empty,
    expect_one_library,
    integers,
    is_torch,
    is_traced,
)
from ._formula import Attention, facts

Layout = Literal["bhld", "blhd"]


class Options(TypedDict, total=False):
    """The keywords of `attention` that say what is computed."""

    keep_mask: Array | None
    ignore_mask: Array | None
    bias: Array | None
    kv_lengths: Array | None
    document_ids: Array | tuple[Array, Array] | None
    causal: bool
    align: Literal["top_left", "bottom_right"] | None
    q_offset: Array | int | None
    key_start: Array | int | None
    window: tuple[int, int]
    softcap: float | Array | None
    alibi_slopes: Array | None
    sinks: Array | None
    scale: float | Array | None
    zero_key: bool
    heads: Literal["grouped", "tiled"]
    dropout: float
    dropout_keep: Array | None
    seed: int | None
    training: bool
    layout: Layout
    attention: Attention | str | None


OPTIONS = frozenset(Options.__annotations__)


@dataclass
class Problem:
    """One attention with its tensors, as the library takes them."""

    formula: str
    tensors: dict[str, Array]  #: by the names of Inputs: query {B, Hq, L, D}, key {B, Hkv, S, D}, ...
    seed: Any  #: of dropout: an int, or an int64 tensor {1}; None: no dropout
    layout: Layout = "bhld"
    batched: bool = True  #: q had a batch axis
    packed: bool = field(default=False)  #: query {total, Hq, D}

    @property
    def query(self) -> Array:
        """{B, Hq, L, D}, packed {total, Hq, D}."""
        return self.tensors["query"]

    def number(self) -> int | None:
        """The seed as the library takes it."""
        return None if self.seed is None else int(self.seed) % 2**64

    def rows(self) -> tuple[int, ...]:
        """{B, Hq, L}, packed {total, Hq}."""
        return tuple(self.query.shape[:-1])

    def empty_out(self) -> Array:
        """A new `out`, which lies in memory as the caller's layout has it, seen as {B, Hq, L, Dv}."""
        q, width = self.query, self.tensors["value"].shape[-1]
        if self.packed or self.layout == "bhld":
            return empty(q, (*self.rows(), width))
        b, h, n = self.rows()
        return empty(q, (b, n, h, width)).swapaxes(1, 2)

    def give_back(self, x: Array) -> Array:
        """{B, H, L, D} as the caller's layout has it."""
        if self.packed:
            return x
        if self.layout == "blhd":
            x = x.swapaxes(1, 2)
        return x if self.batched else x[0]

    def give_back_rows(self, x: Array) -> Array:
        """{B, H, ...} without the batch axis, where q had none."""
        return x if self.batched or self.packed else x[0]


def prepare(q: Any, k: Any, v: Any, options: dict[str, Any]) -> Problem:
    """Checks what only Python can know (the library checks the rest) and gives every tensor its name and four axes."""
    o = options_of(options)
    q, k, v = accept_floats("q", q), accept_floats("k", k), accept_floats("v", v)
    layout = o.get("layout", "bhld")
    if layout not in ("bhld", "blhd"):
        raise ValueError(f"layout is {layout!r}, expected 'bhld' or 'blhd'")
    if not q.ndim == k.ndim == v.ndim or q.ndim not in (3, 4):
        raise ValueError(
            f"q, k and v have {q.ndim}, {k.ndim} and {v.ndim} axes, expected four each, {layout}, or three without a batch"
        )
    batched = q.ndim == 4
    tensors: dict[str, Array] = {}
    for name, x in (("query", q), ("key", k), ("value", v)):
        x = x if batched else x[None]
        tensors[name] = x.swapaxes(1, 2) if layout == "blhd" else x
    problem = Problem("", tensors, None, layout, batched)
    fill(problem, o)
    return problem


def prepare_packed(q: Any, k: Any, v: Any, cu_q: Any, cu_k: Any, options: dict[str, Any]) -> Problem:
    """The same for sequences of different lengths, one after the other: q {total, Hq, D}."""
    o = options_of(refuse_unpacked(options))
    q, k, v = accept_floats("q", q), accept_floats("k", k), accept_floats("v", v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim != 3:
            raise ValueError(f"{name} has {x.ndim} axes, expected three: (total length, heads, width)")
    tensors = {
        "query": q,
        "key": k,
        "value": v,
        "cumulative_query_lengths": integers("cu_seqlens_q", cu_q, q),
        "cumulative_key_lengths": integers("cu_seqlens_k", cu_k, q),
    }
    problem = Problem("", tensors, None, packed=True)
    fill(problem, o)
    return problem


def fill(p: Problem, o: Options) -> None:
    """The formula, and the tensors beside q, k and v."""
    q, t, given = p.query, p.tensors, o.get("attention")
    words: dict[str, list[str]] = {"visible": [], "score": [], "weights": []}

    def tensor(name: str, x: Array, word: str, stage: str) -> None:
        t[name] = x
        if word not in words[stage]:
            words[stage].append(word)

    if o.get("causal"):
        words["visible"].append("causal")
    left, right = window_of(o.get("window", (-1, -1)))
    if (left, right) != (-1, -1):
        words["visible"].append(f"window:{left},{right}")
    if (ids := o.get("document_ids")) is not None:
        of_q, of_k = ids if isinstance(ids, tuple) else (ids, ids)
        for name, x in (("query_documents", of_q), ("key_documents", of_k)):
            x = integers("document_ids", x, q)
            tensor(name, x[None] if x.ndim == 1 else x, "documents", "visible")
    for name in ("keep_mask", "ignore_mask"):
        if (x := o.get(name)) is not None:
            tensor(name, four_axes(name, mask(name, x)), name, "visible")
    if (align := o.get("align")) is not None:
        if align not in ("top_left", "bottom_right"):
            raise ValueError(f"align is {align!r}, expected 'top_left', 'bottom_right' or None")
        words["visible"].append(f"align:{align}")
    if (heads := o.get("heads", "grouped")) != "grouped":
        words["visible"].append(f"heads:{heads}")

    if (scale := o.get("scale")) is not None:
        if is_number(scale):
            words["score"].append(f"scale:{number(scale)}")
        else:
            if given is None:
                words["score"].append("scale:1")
            tensor("scales", of_heads("scale", scale, q), "scales", "score")
    if (cap := o.get("softcap")) is not None:
        if is_number(cap):
            words["score"].append(f"softcap:{number(cap)}")
        else:
            tensor("softcaps", of_heads("softcap", cap, q), "softcaps", "score")
    if (slopes := o.get("alibi_slopes")) is not None:
        tensor("alibi_slopes", of_heads("alibi_slopes", slopes, q), "alibi", "score")
    if (bias := o.get("bias")) is not None:
        tensor("bias", four_axes("bias", additive(bias)), "bias", "score")

    if (sinks := o.get("sinks")) is not None:
        tensor("sinks", of_heads("sinks", sinks, q), "sink_softmax", "weights")
    if o.get("zero_key"):
        words["weights"].append("zero_key")
    dropout = float(o.get("dropout", 0.0))
    if dropout != 0:
        words["weights"].append(f"dropout:{number(dropout)}")

    if given is None:
        p.formula = " | ".join(" ".join(w) for w in words.values() if w) or "softmax"
    else:
        p.formula = with_formula(given, words, o)

    for name, keyword in (("key_lengths", "kv_lengths"), ("query_offset", "q_offset"), ("key_start", "key_start")):
        if (x := o.get(keyword)) is not None:
            t[name] = integers(keyword, x, q)
            if t[name].ndim == 0:
                t[name] = t[name][None]
    training(p, o, dropout if given is None else facts(given)[1])
    expect_one_library(q, t)


def training(p: Problem, o: Options, dropout: float) -> None:
    """The seed of dropout, or what it keeps; neither where nothing is trained."""
    keep, seed = o.get("dropout_keep"), o.get("seed")
    if not o.get("training"):
        if keep is not None:
            raise ValueError("dropout_keep is given without training=True; dropout acts in training only")
        return
    if keep is not None:
        p.tensors["dropout_keep"] = four_axes("dropout_keep", mask("dropout_keep", keep))
    if seed is not None:
        p.seed = seed_of(seed)
    elif keep is None and dropout != 0:
        p.seed = random_seed(p.query)


def seed_of(seed: Any) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        raise TypeError(f"seed is a {type(seed).__name__}, expected a whole number") from None
    if not 0 <= number < 2**64:
        raise ValueError(f"seed is {number}, expected 0 to 2**64 - 1")
    return number


def random_seed(like: Array) -> Any:
    """A number from the generator that the array's library uses: torch.manual_seed or np.random.seed repeat it."""
    if is_torch(like):
        import torch

        return torch.randint(0, 2**62, (1,), dtype=torch.int64, device=like.device)
    return int(np.random.randint(0, 2**62, dtype=np.int64))


def with_formula(given: Attention | str, words: dict[str, list[str]], o: Options) -> str:
    """The formula given, to which keywords may bring the tensors that it names, and nothing else."""
    text, _ = facts(given)
    known = [word.split(":")[0] for word in text.replace(" | ", " ").split(" ")]
    for stage in words.values():
        for word in stage:
            if word.split(":")[0] not in known or ":" in word:
                raise ValueError(
                    f"attention={text!r} says what is computed, and a keyword adds '{word}' to it; write it into the text"
                )
    return text


# ---- single arguments ----


def window_of(window: Any) -> tuple[int, int]:
    """(left, right). Raises ValueError for other things, with what is usually meant."""
    try:
        left, right = (operator.index(n) for n in window)
    except (TypeError, ValueError):
        raise ValueError(
            f"window is {window}, expected (left, right), how many keys to each side besides the query's own; a causal "
            "window of W keys with its own is (W - 1, 0)"
        ) from None
    return left, right


def is_number(x: object) -> bool:
    return isinstance(x, (int, float, np.number)) and not isinstance(x, bool)


def number(x: Any) -> str:
    """As short as it reads back: the text form takes no more digits than a number has."""
    return f"{float(x)!r}"  # torch.compile knows this, and no call of repr


def of_heads(name: str, x: Any, q: Array) -> Array:
    """{Hq} of a tensor {Hq}, {1} or {}: what one number is for all heads is seen {Hq} times."""
    x = accept_floats(name, x)
    heads = q.shape[-3 if q.ndim == 4 else 1]
    if dtype_name(x) not in ("float32", "float64"):
        x = x.float() if is_torch(x) else x.astype(np.float32)
    if x.ndim == 0 or tuple(x.shape) == (1,):
        x = x.reshape(1)
        return x.expand(heads) if is_torch(x) else np.broadcast_to(x, (heads,))
    return x


def four_axes(name: str, x: Array) -> Array:
    """With axes of size 1 in front: {S}, {L, S}, {Hq, L, S} as NumPy broadcasts."""
    if x.ndim > 4:
        raise ValueError(f"{name} has {x.ndim} axes, expected at most four: (batch, heads, queries, keys)")
    return x[(None,) * (4 - x.ndim)] if x.ndim < 4 else x


TWO_MASKS = "keep_mask (true: may attend) or ignore_mask (true: is hidden)"


def mask(name: str, x: Any) -> Array:
    """A bool array. Raises TypeError for integers and floats, with the conversion."""
    x = accept(name, x, "bool")
    kind = dtype_name(x)
    if kind == "bool":
        return x
    if kind.startswith(("int", "uint")):
        raise TypeError(f"{name} has type {kind}, expected bool; pass {name} != 0 (of {TWO_MASKS})")
    raise TypeError(f"{name} has type {kind}, expected bool; what is added to the scores is called bias")


_warned = False


def additive(x: Any) -> Array:
    """The bias. Raises TypeError for bool and integers; warns once where it looks like a mask."""
    x = accept("bias", x)
    kind = dtype_name(x)
    if kind == "bool":
        raise TypeError(f"bias is bool, and it is unclear what true means; pass it as {TWO_MASKS}")
    if kind.startswith(("int", "uint")):
        raise TypeError(f"bias has type {kind}; if it is a mask of 0 and 1, pass x != 0 as {TWO_MASKS}")
    if not _warned and looks_like_mask(x):
        warn_of_mask()
    return x


def warn_of_mask() -> None:
    global _warned
    _warned = True
    warnings.warn(
        f"bias holds nothing but 0 and 1 and is added to the scores as it is, which hides nothing; a mask is {TWO_MASKS}",
        stacklevel=frames_of_the_package(),
    )


def frames_of_the_package() -> int:
    """How far up the stack the first caller from outside is, as warnings.warn counts it from where this is called."""
    frame, n = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_globals.get("__package__") == __package__:
        frame, n = frame.f_back, n + 1
    return n


def looks_like_mask(x: Array) -> bool:
    """Nothing but 0 and 1, and both. A look at some rows spares most tensors the rest."""
    if is_torch(x) and (x.requires_grad or is_traced(x)):
        return False
    if x.ndim == 0 or 0 in x.shape:
        return False
    some = x[tuple(slice(None, None, max(1, n // most)) for n, most in zip(x.shape, (2, 2, 8, 256)[-x.ndim :]))]
    if not zeros_and_ones(some):
        return False
    steps = x.stride() if is_torch(x) else x.strides
    return zeros_and_ones(x[tuple(slice(1) if step == 0 else slice(None) for step in steps)])


def zeros_and_ones(x: Array) -> bool:
    zero, one = x == 0, x == 1
    return bool((zero | one).all()) and bool(zero.any()) and bool(one.any())


MEANT = {
    "mask": TWO_MASKS,
    "attn_mask": f"{TWO_MASKS}, or bias (added to the scores)",
    "attention_mask": f"{TWO_MASKS}, or bias (added to the scores)",
    "key_padding_mask": "ignore_mask (true: is hidden) of shape (batch, 1, 1, keys), or kv_lengths",
    "is_causal": "causal",
    "dropout_p": "dropout, with training=True",
    "enable_gqa": "nothing: key heads are shared where there are fewer of them",
    "sliding_window": "window=(W - 1, 0)",
    "softmax_scale": "scale",
}


def options_of(options: dict[str, Any]) -> Options:
    """Raises TypeError for a keyword that `attention` does not have, with the one that it has."""
    for name in options:
        if name in OPTIONS:
            continue
        hint = f"; here it is {MEANT[name]}" if name in MEANT else ""
        raise TypeError(f"attention() has no parameter {name!r}{hint}")
    return options  # type: ignore[return-value]


#: What a packed batch does not have, and why.
UNPACKED = {
    "layout": "it is (total, heads, width)",
    "kv_lengths": "cu_seqlens_k has them",
    "return_weights": "sequences have matrices of different sizes; call attention for each",
}


def refuse_unpacked(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name in UNPACKED:
            raise TypeError(f"a packed batch has no {name}: {UNPACKED[name]}")
    return options
