"""Attention on arrays: forward, backward, packed, in parts, observed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

from . import _core
from ._arrays import Array, accept, accept_floats, empty, is_torch, leave_out_of_graphs, lend, sum_type, to_one_library
from ._formula import Attention, parsed
from ._prepare import NO_DROPOUT, NO_WINDOW, Layout, Problem, flag, prepare, prepare_in_memory, prepare_packed, shown, whole
from ._results import RESULTS, Gradients, Observation, Statistics, Top

#: What _core.forward can write beside out: name of the output, and of its type where that is not the type of lse.
INTEGERS = ("max_index", "visible_keys", "top_indices")

#: Called with each problem that an entry point of the package computed, and out {B, Hq, L, Dv}, packed {total, Hq, Dv}.
#: `qkv.tap` adds itself here while it records.
watchers: list[Callable[[Problem, Array], None]] = []


def tell(p: Problem, out: Array) -> None:
    for watch in watchers:
        watch(p, out)


def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    keep_mask: Array | None = None,
    ignore_mask: Array | None = None,
    bias: Array | None = None,
    kv_lengths: Array | None = None,
    document_ids: Array | tuple[Array, Array] | None = None,
    causal: bool = False,
    align: Literal["top_left", "bottom_right"] | None = None,
    q_offset: Array | int | None = None,
    key_start: Array | int | None = None,
    window: tuple[int, int] = NO_WINDOW,
    softcap: float | Array | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    scale: float | Array | None = None,
    zero_key: bool = False,
    heads: Literal["grouped", "tiled"] = "grouped",
    dropout: float = NO_DROPOUT,
    dropout_keep: Array | None = None,
    seed: int | None = None,
    training: bool = False,
    layout: Layout = "bhld",
    attention: Attention | str | None = None,
    return_lse: bool = False,
    return_weights: bool = False,
    return_stats: bool = False,
    top: int = 0,
    **unknown: Any,
) -> Any:
    """softmax(modify(scale * q k^T), over the visible keys) v.

    Arrays of NumPy or PyTorch (CPU), float32, float64, float16 or bfloat16, any strides, nothing is copied; beside
    tensors of torch the rest may be of NumPy. out, lse and weights have gradients, by q, k, v, bias, alibi_slopes, sinks,
    and by softcap and scale where those are tensors; stats and top have none.

    q: (B, Hq, L, D), k: (B, Hkv, S, D), v: (B, Hkv, S, Dv) with Hkv dividing Hq; layout="blhd": (B, L, H, D); all three
        may lack B.
    keep_mask: bool, true may attend; ignore_mask: bool, true is hidden; each broadcasts to (B, Hq, L, S).
    bias: numbers added to the scores, -inf hides; broadcasts to (B, Hq, L, S).
    kv_lengths: (B,), how many keys exist. document_ids: (B, L), or a tuple of two arrays,
        (of q, of k): only the same document is seen.
    causal: keys up to the query's own position.
    window: (left, right), how many keys to each side besides the query's own; -1: all.
    align: where query 0 stands if L != S: "top_left" at key 0, "bottom_right" so that the last query stands at the last
        key; q_offset: (B,) or one number, its position; key_start: the position of key 0, where a cache dropped the
        oldest.
    scale: 1 / sqrt(D) unless given; a number or (Hq,). softcap: scores become c tanh(score / c); a number or (Hq,).
    alibi_slopes: (Hq,), see `qkv.alibi_slopes`. sinks: (Hq,), logits in the denominator only. zero_key: one more, of 0.
    dropout: the probability that a weight is dropped; acts where training is true, with seed, or a seed drawn from the
        library's generator, or dropout_keep (bool, broadcasts).
    heads: which key head query head h reads: "grouped", h // (Hq // Hkv), or "tiled", h % Hkv.
    attention: a formula instead of these words; the tensors that it names are given by keyword.

    Returns out like q with v's width, (B, Hq, L, Dv); with more asked for a named tuple of out, lse (B, Hq, L), weights
    (B, Hq, L, S) (before dropout), stats (`Statistics`), top (`Top`).
    Raises ValueError for shapes and options, TypeError for types; the text says what to do. docs/semantics.md has the
    whole.

    >>> q = k = v = np.eye(2, dtype=np.float32)[None, None]
    >>> qkv.attention(q, k, v, causal=True, align="top_left")[0, 0, 0]
    array([1., 0.], dtype=float32)
    """
    options = dict(
        keep_mask=keep_mask,
        ignore_mask=ignore_mask,
        bias=bias,
        kv_lengths=kv_lengths,
        document_ids=document_ids,
        causal=causal,
        align=align,
        q_offset=q_offset,
        key_start=key_start,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        scale=scale,
        zero_key=zero_key,
        heads=heads,
        dropout=dropout,
        dropout_keep=dropout_keep,
        seed=seed,
        training=training,
        layout=layout,
        attention=attention,
        **unknown,
    )
    return finish(prepare(q, k, v, options), return_lse, return_weights, return_stats, top)


def attention_varlen(
    q: Array,
    k: Array,
    v: Array,
    cu_seqlens_q: Array,
    cu_seqlens_k: Array,
    *,
    return_lse: bool = False,
    return_stats: bool = False,
    top: int = 0,
    **options: Any,
) -> Any:
    """`attention` for sequences of different lengths, packed one after the other.

    q: (total queries, Hq, D), k: (total keys, Hkv, D), v: (total keys, Hkv, Dv); cu_seqlens_*: (B + 1,) from 0 to the
    total: sequence b is rows cu[b] to cu[b + 1]. Options as in `attention`, but kv_lengths and layout.
    Returns out (total queries, Hq, Dv), lse (total queries, Hq).
    Raises ValueError and TypeError as `attention` does.

    >>> q = k = v = np.eye(5, 8, dtype=np.float32)[:, None]
    >>> qkv.attention_varlen(q, k, v, [0, 2, 5], [0, 2, 5]).shape
    (5, 1, 8)
    """
    p = prepare_packed(q, k, v, cu_seqlens_q, cu_seqlens_k, options)
    return finish(p, return_lse, False, return_stats, top)


def finish(p: Problem, return_lse: bool, return_weights: bool, return_stats: bool, top: int) -> Any:
    """Runs a problem and names what came."""
    wanted = ["out"]
    wanted += ["lse"] if flag("return_lse", return_lse) else []
    wanted += ["weights"] if flag("return_weights", return_weights) else []
    wanted += Statistics._fields if flag("return_stats", return_stats) else ()
    if top != 0 and whole("top", top) < 0:
        raise ValueError(f"top is {top}, expected 0 or more")
    wanted += ["top_weights", "top_indices"] if top else []
    if is_torch(p.query):
        from . import _operators

        got = _operators.run(p, wanted, top)
    else:
        got = compute(p, wanted, top)
    if watchers:
        tell(p, got["out"])

    out = p.give_back(got["out"])
    parts: dict[str, Any] = {"out": out}
    rows = p.give_back_rows
    if return_lse:
        parts["lse"] = rows(got["lse"])
    if return_weights:
        parts["weights"] = rows(got["weights"])
    if return_stats:
        parts["stats"] = Statistics(*(rows(got[name]) for name in Statistics._fields))
    if top:
        parts["top"] = Top(rows(got["top_weights"]), rows(got["top_indices"]))
    return out if len(parts) == 1 else RESULTS[tuple(parts)](*parts.values())


def compute(p: Problem, wanted: Sequence[str], top: int = 0) -> dict[str, Array]:
    """Allocates and computes the outputs of these names, without gradients."""
    outputs = {name: empty_output(p, name, top) for name in wanted}
    _core.forward(parsed(p.formula), lent(p.tensors), lent(outputs), p.number())
    return outputs


def empty_output(p: Problem, name: str, top: int = 0) -> Array:
    q = p.query
    if name == "out":
        return p.empty_out()
    if name == "weights":
        return empty(q, (*q.shape[:3], p.tensors["key"].shape[2]), sum_type(q))
    shape = (*p.rows(), top) if name.startswith("top_") else p.rows()
    if name in ("lse", "row_max", "row_sum"):
        return empty(q, shape, sum_type(q))
    return empty(q, shape, "int32" if name in INTEGERS else "float32")


def lent(tensors: dict[str, Array]) -> dict[str, Any]:
    return {name: lend(x) for name, x in tensors.items()}


def attention_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    dlse: Array | None = None,
    cu_seqlens_q: Array | None = None,
    cu_seqlens_k: Array | None = None,
    **options: Any,
) -> Gradients:
    """The gradients of a loss by what `attention` was given, from those by out and lse. PyTorch does this by itself.

    dout: like out. out, lse: as `attention(..., return_lse=True)` gave them, with the same options (dropout: the same
    seed). dlse: like lse, absent: 0. cu_seqlens_*: of a packed batch, as `attention_varlen` had them. Weights are made
    again from lse: see docs/semantics.md, section 7, for how close that is.
    Returns `Gradients`: those by q, k, v like these, those by parameters float32 (of float64 q float64).
    Raises ValueError and TypeError as `attention` does.

    >>> q = k = v = np.ones((1, 2, 3, 4), np.float32)
    >>> out, lse = qkv.attention(q, k, v, return_lse=True)
    >>> qkv.attention_backward(np.ones_like(out), q, k, v, out, lse).v[0, 0, 0]
    array([1., 1., 1., 1.], dtype=float32)
    """
    if cu_seqlens_q is None and cu_seqlens_k is None:
        p = prepare(q, k, v, options)
    else:
        p = prepare_packed(q, k, v, cu_seqlens_q, cu_seqlens_k, options)
    if p.seed is not None and options.get("seed") is None:
        raise ValueError("seed is None, and dropout is drawn by a seed; pass the one that `attention` had, also to `attention`")

    def inside(name: str, x: Any) -> Array:
        x = accept_floats(name, x)
        x = x if p.batched else x[None]
        return x.swapaxes(1, 2) if p.layout == "blhd" and x.ndim == 4 else x

    upstream = {"dout": inside("dout", dout), "out": inside("out", out), "lse": inside("lse", lse)}
    if dlse is not None:
        upstream["dlse"] = inside("dlse", dlse)
    to_one_library(p.query, upstream)
    if is_torch(p.query):
        from . import _autograd, _operators

        _autograd.expect_memory("attention_backward", [*p.tensors.values(), *upstream.values()])
        _operators.autocast(p, upstream)
    found = gradients(p, upstream)
    if is_torch(p.query):  # autocast may have changed their types
        found |= {tensor: found[tensor].to(x.dtype) for tensor, x in (("query", q), ("key", k), ("value", v))}
    back = {name: p.give_back(found[tensor]) for name, tensor in (("q", "query"), ("k", "key"), ("v", "value"))}
    names = {"softcap": "softcaps", "scale": "scales"}
    for name in ("bias", "alibi_slopes", "sinks", "softcap", "scale"):
        made = found.get(names.get(name, name))
        back[name] = None if made is None else as_given(made, accept(name, options[name]))
    return Gradients(**back)


def as_given(gradient: Array, given: Array) -> Array:
    """A gradient in the shape of its tensor, which got axes of size 1, or was one number that stood for all heads."""
    if math.prod(given.shape) == 1 != math.prod(gradient.shape):
        gradient = gradient.sum()
    return gradient.reshape(tuple(given.shape))


#: Tensors that have gradients, beside query, key and value.
PARAMETERS = ("bias", "alibi_slopes", "sinks", "softcaps", "scales")


def gradients(p: Problem, upstream: dict[str, Array], wanted: Sequence[str] | None = None) -> dict[str, Array]:
    """By the tensors of these names; by all that have gradients unless told. Of the shapes in {B, H, L, D}."""
    if wanted is None:
        wanted = [name for name in ("query", "key", "value", *PARAMETERS) if name in p.tensors]
    made = {name: empty_gradient(p, name) for name in wanted}
    _core.backward(parsed(p.formula), lent(p.tensors), lent(upstream), lent(made), p.number())
    return made


def empty_gradient(p: Problem, name: str) -> Array:
    return empty(p.query, tuple(p.tensors[name].shape), sum_type(p.query) if name in PARAMETERS else None)


def observe(q: Array, k: Array, v: Array, *, cell: int = 0, **options: Any) -> Observation:
    """Sums over the weights that need no matrix of them: how much each key gets, and a picture of the whole.

    cell: queries and keys of a cell of the picture, a power of two up to 2048; 0: so that it has at most 512 rows and
    columns.
    Options as in `attention`, but no dropout: training=True is an error. Nothing of this has a gradient.
    Returns `Observation`. Raises ValueError and TypeError as `attention` does.

    >>> q = k = v = np.ones((1, 1, 2, 4), np.float32)
    >>> qkv.observe(q, k, v, causal=True).received[0, 0]
    array([1.5, 0.5])
    """
    if whole("cell", cell) not in (0, *(2**n for n in range(12))):
        raise ValueError(f"cell is {cell}, expected a power of two up to 2048, or 0")
    if options.get("training"):
        raise ValueError("observe: the sums are of the weights before dropout; leave training out")
    p = prepare_in_memory("observe", q, k, v, options)
    b, h, n, s = *p.rows(), p.tensors["key"].shape[2]
    if cell == 0:
        cell = 1
        while max(n, s) > 512 * cell and cell < 2048:
            cell *= 2
    sums = compute(p, ["row_max", "row_sum"])
    cells = (b, h, -(-n // cell), -(-s // cell))
    received = empty(p.query, (b, h, s), "float64")
    largest, mean = empty(p.query, cells, "float32"), empty(p.query, cells, "float32")
    _core.observe(parsed(p.formula), lent(p.tensors), lent(sums), lend(received), lend(largest), lend(mean), cell)
    rows = p.give_back_rows
    return Observation(rows(received), rows(largest), rows(mean), cell)


def merge(outs: list[Array], lses: list[Array], *, sinks: Array | None = None) -> Any:
    """The attention over all parts of the keys, from that over each.

    lse = log(sum exp(lse_n)), out = sum exp(lse_n - lse) out_n.

    outs: a list of (B, H, L, Dv), lses: one of (B, H, L), as `attention(..., return_lse=True)` gave them without sinks;
    sinks: (H,), counted once, here. Torch tensors have gradients. Returns a named tuple of out and lse.
    Raises ValueError for shapes, TypeError for types. Milakov, Gimelshein 2018, the rule for two parts.

    >>> q = k = v = np.eye(4, dtype=np.float32)[None, None]
    >>> parts = [qkv.attention(q, k[:, :, s], v[:, :, s], return_lse=True) for s in (slice(0, 1), slice(1, 4))]
    >>> whole = qkv.merge([p.out for p in parts], [p.lse for p in parts])
    >>> bool(np.allclose(whole.out, qkv.attention(q, k, v)))
    True
    """
    outs, lses = parts_of("outs", outs), parts_of("lses", lses)
    outs = [accept_floats(f"outs[{n}]", x) for n, x in enumerate(outs)]
    lses = [accept_floats(f"lses[{n}]", x) for n, x in enumerate(lses)]
    tensors = {f"outs[{n}]": x for n, x in enumerate(outs)} | {f"lses[{n}]": x for n, x in enumerate(lses)}
    if sinks is not None:
        tensors["sinks"] = accept_floats("sinks", sinks)
    to_one_library(outs[0], tensors, "outs[0]")
    sinks = tensors.get("sinks")
    if is_torch(outs[0]):
        from . import _operators

        out, lse = _operators.merged(tensors, outs, lses, sinks)
    else:
        out, lse = empty(outs[0], tuple(outs[0].shape)), empty(lses[0], tuple(lses[0].shape))
        _core.merge([lend(x) for x in outs], [lend(x) for x in lses], lend(sinks), lend(out), lend(lse))
    return RESULTS["out", "lse"](out, lse)


def parts_of(name: str, parts: Any) -> list[Array]:
    """A list of arrays. Raises TypeError for one array, which would count as a list along its first axis."""
    if not isinstance(parts, (list, tuple)):
        raise TypeError(f"{name} is {shown(parts)}, expected a list of arrays, one for each part of the keys")
    if not parts:
        raise ValueError(f"{name} has no parts")
    return list(parts)


def explain_path(q: Array, k: Array, v: Array, **options: Any) -> str:
    """Which path a call of `attention` takes, with which tiles and how much scratch, and why, as a text of three lines.

    q: (B, Hq, L, D), k: (B, Hkv, S, D), v: (B, Hkv, S, Dv); arguments as in `attention`. Raises
    ValueError and TypeError as that does.

    >>> q = np.ones((1, 8, 100, 64), np.float32)
    >>> print(qkv.explain_path(q, q, q, causal=True).splitlines()[0])  # doctest: +ELLIPSIS
    prefill on ...: 100 queries a head fill tiles of ...
    """
    p = prepare_in_memory("explain_path", q, k, v, options)
    return _core.explain_path(parsed(p.formula), lent(p.tensors), p.number())


def visible(q: Array, k: Array, v: Array, **options: Any) -> Array:
    """Which keys each query sees: bool (B, Hq, L, S). Arguments as in `attention`.

    Raises ValueError and TypeError as that does.

    >>> q = k = np.ones((1, 1, 3, 4), np.float32)
    >>> qkv.visible(q, k, k, causal=True, window=(1, 0))[0, 0].astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [0, 1, 1]])
    """
    p = prepare_in_memory("visible", q, k, v, options)
    keep = empty(p.query, (*p.rows(), p.tensors["key"].shape[2]), "bool")
    _core.keep_mask(parsed(p.formula), lent(p.tensors), lend(keep))
    return p.give_back_rows(keep)


for _function in (attention_backward, observe, explain_path, visible):
    leave_out_of_graphs(_function)
