"""From keywords to what the library takes: a formula and tensors by name, in the layout {B, H, L, D}."""

from __future__ import annotations

import math
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
    integers,
    is_torch,
    is_traced,
    to_one_library,
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

#: What these are where they are not given.
NO_WINDOW = (-1, -1)
NO_DROPOUT = 0.0


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
    layout: Any = one_of("layout", o.get("layout", "bhld"), ("bhld", "blhd"))
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


def prepare_in_memory(function: str, q: Any, k: Any, v: Any, options: dict[str, Any]) -> Problem:
    """For functions that are no operators of torch, whose tensors have to be there."""
    p = prepare(q, k, v, options)
    if is_torch(p.query):
        from . import _autograd

        _autograd.expect_memory(function, p.tensors.values())
    return p


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
    given = o.get("attention")
    words: dict[str, list[str]] = {"visible": [], "score": [], "weights": []}
    fill_visible(p, o, words["visible"])
    fill_score(p, o, words["score"])
    dropout = fill_weights(p, o, words["weights"])
    if given is None:
        p.formula = " | ".join(" ".join(w) for w in words.values() if w) or "softmax"
    else:
        p.formula = with_formula(given, words)

    for name, keyword in (("key_lengths", "kv_lengths"), ("query_offset", "q_offset"), ("key_start", "key_start")):
        if (x := o.get(keyword)) is not None:
            p.tensors[name] = integers(keyword, x, p.query)
    training(p, o, dropout if given is None else facts(given)[1])
    to_one_library(p.query, p.tensors)


def fill_visible(p: Problem, o: Options, words: list[str]) -> None:
    if (causal := o.get("causal", False)) is not False and flag("causal", causal):
        words.append("causal")
    if (window := o.get("window", NO_WINDOW)) is not NO_WINDOW and (sides := window_of(window)) != NO_WINDOW:
        words.append(f"window:{sides[0]},{sides[1]}")
    if (ids := o.get("document_ids")) is not None:
        words.append("documents")
        for name, x in zip(("query_documents", "key_documents"), both_documents(ids)):
            x = integers("document_ids", x, p.query)
            p.tensors[name] = x[None] if x.ndim == 1 else x
    for name in ("keep_mask", "ignore_mask"):
        if (x := o.get(name)) is not None:
            words.append(name)
            p.tensors[name] = of_scores(p, name, mask(name, traceable(x, p.query)))
    if (align := o.get("align")) is not None:
        words.append("align:" + one_of("align", align, ("top_left", "bottom_right", None)))
    if (heads := o.get("heads", "grouped")) != "grouped":
        words.append("heads:" + one_of("heads", heads, ("grouped", "tiled")))


def fill_score(p: Problem, o: Options, words: list[str]) -> None:
    if (scale := o.get("scale")) is not None:
        if is_number(scale):
            words.append(f"scale:{number('scale', scale)}")
        else:
            if o.get("attention") is None:
                words.append("scale:1")
            words.append("scales")
            p.tensors["scales"] = of_heads("scale", scale, p.query)
    if (cap := o.get("softcap")) is not None:
        if is_number(cap):
            words.append(f"softcap:{number('softcap', cap)}")
        else:
            words.append("softcaps")
            p.tensors["softcaps"] = of_heads("softcap", cap, p.query)
    if (slopes := o.get("alibi_slopes")) is not None:
        words.append("alibi")
        p.tensors["alibi_slopes"] = of_heads("alibi_slopes", slopes, p.query)
    if (bias := o.get("bias")) is not None:
        words.append("bias")
        p.tensors["bias"] = of_scores(p, "bias", additive(traceable(bias, p.query)))


def fill_weights(p: Problem, o: Options, words: list[str]) -> float:
    """Returns the probability of dropout."""
    if (sinks := o.get("sinks")) is not None:
        words.append("sink_softmax")
        p.tensors["sinks"] = of_heads("sinks", sinks, p.query)
    if (zero_key := o.get("zero_key", False)) is not False and flag("zero_key", zero_key):
        words.append("zero_key")
    dropout = o.get("dropout", NO_DROPOUT)
    if not is_number(dropout):
        raise TypeError(f"dropout is {shown(dropout)}, expected {RANGES['dropout'][2]}")
    if dropout != 0:
        words.append(f"dropout:{number('dropout', dropout)}")
    return float(dropout)


def training(p: Problem, o: Options, dropout: float) -> None:
    """The seed of dropout, or what it keeps; neither where nothing is trained."""
    keep, seed = o.get("dropout_keep"), o.get("seed")
    seed = None if seed is None else seed_of(seed)
    if (on := o.get("training", False)) is False or not flag("training", on):
        if keep is not None:
            raise ValueError("dropout_keep is given without training=True; dropout acts in training only")
        return
    if keep is not None:
        p.tensors["dropout_keep"] = of_scores(p, "dropout_keep", mask("dropout_keep", traceable(keep, p.query)))
    if seed is not None:
        p.seed = seed
    elif keep is None and dropout != 0:
        p.seed = random_seed(p.query)


def seed_of(seed: Any) -> int:
    number = whole("seed", seed)
    if not 0 <= number < 2**64:
        raise ValueError(f"seed is {number}, expected 0 to 2**64 - 1")
    return number


def random_seed(like: Array) -> Any:
    """A number from the generator that the array's library uses: torch.manual_seed or np.random.seed repeat it."""
    if is_torch(like):
        import torch

        return torch.randint(0, 2**62, (1,), dtype=torch.int64, device=like.device)
    return int(np.random.randint(0, 2**62, dtype=np.int64))


def with_formula(given: Attention | str, words: dict[str, list[str]]) -> str:
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


def traceable(x: Any, q: Array) -> Any:
    """x, which torch.compile sees through: of arrays of NumPy it knows little."""
    if isinstance(x, np.ndarray) and is_torch(q) and (torch := sys.modules["torch"]).compiler.is_compiling():
        return torch.from_numpy(x)
    return x


def flag(name: str, x: Any) -> bool:
    """x, which is true or false. Raises TypeError for other things: "False" is a text, and would count as true."""
    if x is True or x is False:
        return x
    if isinstance(x, (bool, np.bool_)) or (isinstance(x, int) and x in (0, 1)):
        return bool(x)
    raise TypeError(f"{name} is {shown(x)}, expected True or False")


def whole(name: str, x: Any) -> int:
    """x as an int. Raises TypeError for what is no whole number, True and False included."""
    if isinstance(x, (bool, np.bool_)) or not hasattr(x, "__index__"):
        raise TypeError(f"{name} is {shown(x)}, expected a whole number")
    try:
        return operator.index(x)
    except TypeError:  # arrays of several numbers, or of other ones
        raise TypeError(f"{name} is {shown(x)}, expected a whole number") from None


def shown(x: Any) -> str:
    """For messages: what is short as it is, of other things their type."""
    if x is None or isinstance(x, (bool, int, float, str, tuple)):
        text = repr(x)
        if len(text) <= 40:
            return text
    kind = type(x).__name__
    return f"{'an' if kind[0] in 'aeiouAEIOU' else 'a'} {kind}"


def one_of(name: str, x: Any, words: tuple[str | None, ...]) -> str:
    if isinstance(x, str) and x in words:
        return x
    *first, last = map(repr, words)
    raise ValueError(f"{name} is {shown(x)}, expected {', '.join(first)} or {last}")


def window_of(window: Any) -> tuple[int, int]:
    """(left, right). Raises ValueError for other things, with what is usually meant."""
    try:
        left, right = (operator.index(n) for n in window)
    except (TypeError, ValueError):
        raise ValueError(
            f"window is {window}, expected (left, right), how many keys to each side besides the query's own; a causal "
            "window of W keys with its own is (W - 1, 0)"
        ) from None
    if not (-1 <= left < 2**31 and -1 <= right < 2**31):
        raise ValueError(f"window is {window}, expected (left, right) of 0 to 2**31 - 1 each, or -1 for all keys to that side")
    return left, right


def both_documents(ids: Any) -> tuple[Any, Any]:
    """Those of q and those of k."""
    if not isinstance(ids, tuple):
        return ids, ids
    if len(ids) != 2:
        raise ValueError(f"document_ids is a tuple of {len(ids)}, expected one array, or a tuple of two: (of q, of k)")
    if any(isinstance(x, (list, tuple, int)) for x in ids):
        raise TypeError(
            "document_ids is a tuple, which means (of q, of k), and holds no arrays; pass np.asarray(document_ids) if they are "
            "the rows of a batch, else arrays in it"
        )
    return ids


def is_number(x: object) -> bool:
    return isinstance(x, (int, float, np.integer, np.floating)) and not isinstance(x, bool)


#: The numbers that a keyword takes, from and to, and how to say it.
RANGES = {
    "scale": (-sys.float_info.max, sys.float_info.max, "a finite number, or None for 1 / sqrt(D)"),
    "softcap": (2.0**-149, 3.4028234663852886e38, "a number above 0, within float32, or None for no cap"),
    "dropout": (0.0, 1.0, "0 to 1, the share of weights that is dropped"),
}


def number(name: str, x: Any) -> str:
    """As short as it reads back: the text form takes no more digits than a number has.

    Raises ValueError for what is none of the numbers that `name` may be.
    """
    least, most, expected = RANGES[name]
    try:
        value = float(x)
    except OverflowError:
        value = math.inf
    if not least <= value <= most:
        raise ValueError(f"{name} is {shown(x)}, expected {expected}")
    return f"{value!r}"  # torch.compile knows this, and no call of repr


def of_heads(name: str, x: Any, q: Array) -> Array:
    """{Hq} of a tensor {Hq}, {1} or {}: what one number is for all heads is seen {Hq} times."""
    if name in RANGES and isinstance(x, (bool, str)):
        raise TypeError(f"{name} is {shown(x)}, expected a number, or an array of one a head")
    x = accept_floats(name, traceable(x, q))
    heads = q.shape[-3 if q.ndim == 4 else 1]
    if dtype_name(x) not in ("float32", "float64"):
        x = x.float() if is_torch(x) else x.astype(np.float32)
    if x.ndim == 0 or tuple(x.shape) == (1,):
        x = x.reshape(1)
        return x.expand(heads) if is_torch(x) else np.broadcast_to(x, (heads,))
    return x


def of_scores(p: Problem, name: str, x: Array) -> Array:
    """With axes of size 1 in front: {S}, {L, S}, {Hq, L, S} as NumPy broadcasts."""
    if x.ndim == 4:
        return x
    if x.ndim > 4:
        raise ValueError(f"{name} has {x.ndim} axes, expected at most four: (batch, heads, queries, keys)")
    if not p.packed and not (is_torch(x) and is_traced(x)):  # of what is traced, sizes may be symbols
        full = (*p.rows(), p.tensors["key"].shape[2])
        if x.shape != full[-x.ndim :] and any(n not in (1, m) for n, m in zip(x.shape[::-1], full[::-1])):
            raise ValueError(f"{name} has shape {tuple(x.shape)}, expected one that broadcasts to {full}")
    return x[(None,) * (4 - x.ndim)]


TWO_MASKS = "keep_mask (true: may attend) or ignore_mask (true: is hidden)"


def mask(name: str, x: Any) -> Array:
    """A bool array. Raises TypeError for integers and floats, with the conversion."""
    x = accept(name, x, "bool")
    kind = dtype_name(x)
    if kind == "bool":
        return x
    if is_whole(x):
        raise TypeError(f"{name} has type {kind}, expected bool; pass {name} != 0 (of {TWO_MASKS})")
    if kind == "object":
        raise TypeError(f"{name} has type object, expected bool; pass {name}.astype(bool)")
    raise TypeError(f"{name} has type {kind}, expected bool; what is added to the scores is called bias")


def is_whole(x: Array) -> bool:
    return x.dtype.kind in "iu" if isinstance(x, np.ndarray) else dtype_name(x).startswith(("int", "uint"))


_warned = False


def additive(x: Any) -> Array:
    """The bias. Raises TypeError for bool and integers; warns once where it looks like a mask."""
    x = accept("bias", x)
    kind = dtype_name(x)
    if kind == "bool":
        raise TypeError(f"bias is bool, and it is unclear what true means; pass it as {TWO_MASKS}")
    if is_whole(x):
        raise TypeError(f"bias has type {kind}; if it is a mask of 0 and 1, pass x != 0 as {TWO_MASKS}")
    x = accept_floats("bias", x)
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
    "logits_soft_cap": "softcap",
    "window_size": "window=(left, right), the query's own key not counted",
    "return_logsumexp": "return_lse",
    "return_softmax_lse": "return_lse",
    "return_attn_probs": "return_weights",
    "need_weights": "return_weights",
    "output_attentions": "return_weights",
    "seqlen": "kv_lengths, how many keys each batch entry has",
    "seqlens": "kv_lengths, how many keys each batch entry has",
    "seqused_k": "kv_lengths, how many keys each batch entry has",
    "cache_seqlens": "kv_lengths, how many keys each batch entry has",
    "cu_seqlens": "cu_seqlens_q and cu_seqlens_k of attention_varlen",
    "cu_seqlens_q": "an argument of attention_varlen",
    "cu_seqlens_k": "an argument of attention_varlen",
    "max_seqlen": "nothing: the cu_seqlens of attention_varlen say it",
    "max_seqlen_q": "nothing: cu_seqlens_q of attention_varlen says it",
    "max_seqlen_k": "nothing: cu_seqlens_k of attention_varlen says it",
}


def options_of(options: dict[str, Any]) -> Options:
    """Raises TypeError for a keyword that `attention` does not have, with the one that it has."""
    if options.keys() <= OPTIONS:
        return options  # type: ignore[return-value]
    name = next(name for name in options if name not in OPTIONS)
    hint = f"; here it is {MEANT[name]}" if name in MEANT else ""
    raise TypeError(f"attention() has no parameter {name!r}{hint}")


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
