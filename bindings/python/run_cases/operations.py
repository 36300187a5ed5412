"""The operations of the schema that the Python package has: attention, partial results, slopes."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import qkv
from values import Malformed, NotSupported, Refused, Values, read_shape, read_values, values_of

Json = dict[str, Any]
Answer = dict[str, Values]

OPTIONS = (
    *("scale", "align", "q_offset", "causal", "window_left", "window_right", "softcap", "add_zero_attn"),
    *("dropout_p", "training", "storage"),
)
INPUTS = (
    *("shapes", "q", "k", "v", "keep_mask", "bias", "kv_lens", "doc_ids", "sinks", "alibi_slopes", "dropout_keep"),
    "dout",
)

#: Names of the schema for the gradients.
GRADIENTS = {"q": "dq", "k": "dk", "v": "dv", "bias": "dbias", "alibi_slopes": "dalibi_slopes", "sinks": "dsinks"}


def call(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Calls the package. Raises Refused where it refuses the arguments."""
    try:
        return function(*arguments, **options)
    except (TypeError, ValueError) as e:
        raise Refused(str(e)) from e
    except NotImplementedError as e:
        raise NotSupported(str(e)) from e


def required(json: Any, key: str) -> Any:
    if not isinstance(json, dict) or key not in json:
        raise Malformed(f'"{key}" is missing')
    return json[key]


def only_known(json: Any, kind: str, known: Collection[str]) -> None:
    """Nothing that a file asks for is passed over in silence."""
    names = sorted(json) if isinstance(json, dict) else [] if json is None else [""]
    for name in names:
        if name not in known:
            raise NotSupported(f'{kind} "{name}"')


def option(options: Any, key: str, otherwise: Any) -> Any:
    """An option of the type of what stands for it where it is absent or null."""
    value = options.get(key) if isinstance(options, dict) else None
    if value is None:
        return otherwise
    takes: dict[type, tuple[type, ...]] = {bool: (bool,), int: (bool, int, float), float: (int, float), str: (str,)}
    if not isinstance(value, takes[type(otherwise)]) or (isinstance(value, bool) and type(otherwise) is float):
        raise Malformed(f'"{key}" is {value!r}')
    return type(otherwise)(value)


def storage_of(options: Json) -> Any:
    name = option(options, "storage", "f32")
    types = {"f32": np.float32, "f16": np.float16}
    if name not in types:
        raise NotSupported(f"storage {name}")
    return types[name]


def check_axes(q: Any, k: Any, v: Any, keywords: Json) -> None:
    """The package takes fewer axes than four too, and the schema does not."""
    given: Json = {"q": q, "k": k, "v": v} | keywords
    for name in ("q", "k", "v", "keep_mask", "bias", "dropout_keep"):
        if name in given and given[name].ndim != 4:
            raise Refused(f"{name} has {given[name].ndim} axes, expected four")


def keywords_of(options: Json) -> Json:
    """The keywords of qkv.attention for the options of an entry."""
    keywords: Json = {
        "causal": option(options, "causal", False),
        "align": option(options, "align", "top_left"),
        "window": (option(options, "window_left", -1), option(options, "window_right", -1)),
        "zero_key": option(options, "add_zero_attn", False),
        "dropout": option(options, "dropout_p", 0.0),
    }
    if keywords["align"] not in ("top_left", "bottom_right"):
        raise Malformed(f'align is "{keywords["align"]}"')
    if (cap := option(options, "softcap", 0.0)) != 0:
        keywords["softcap"] = cap
    if isinstance(options, dict) and options.get("scale") is not None:
        scale = read_values(options["scale"]).array(np.float64).ravel()
        if scale.size == 0:
            raise Malformed("0 numbers where more are needed")
        keywords["scale"] = float(scale[0])
    if isinstance(options, dict) and options.get("q_offset") is not None:
        keywords["q_offset"] = read_values(options["q_offset"]).array(np.int32).ravel()
    return keywords


def documents(inputs: Json, options: Json, keywords: Json) -> tuple[Any, Any]:
    """All of doc_ids belongs to the keys; query i has the document of the key at its position, and none outside."""
    keys = read_values(inputs["doc_ids"]).array(np.int32)
    query_shape = read_shape(required(required(inputs, "shapes"), "q"))
    if keys.ndim != 2 or len(query_shape) != 4:
        raise Malformed("doc_ids is not a list of lists")
    (batch, length), queries = keys.shape, query_shape[2]
    valid = keywords.get("kv_lengths", np.full(batch, length))
    offset = keywords.get("q_offset", valid - queries if keywords["align"] == "bottom_right" else np.zeros(batch, int))
    at = np.broadcast_to(offset, (batch,))[:, None] + np.arange(queries)
    inside = (at >= 0) & (at < length)
    found = np.take_along_axis(keys, np.where(inside, at, 0), 1) if length else np.zeros_like(at)
    return np.where(inside, found, -1).astype(np.int32), keys


def attend(q: Any, k: Any, v: Any, keywords: Json, dout: Any = None) -> Answer:
    check_axes(q, k, v, keywords)
    out, lse, weights = call(qkv.attention, q, k, v, return_lse=True, return_weights=True, **keywords)
    answer = {"out": values_of(out), "weights": values_of(weights), "lse": values_of(lse)}
    wide = weights.astype(np.longdouble)
    answer["avg_weights"] = values_of(wide.sum(1) / wide.shape[1]) if wide.shape[1] else values_of(wide.sum(1))
    if dout is not None:
        made = call(qkv.attention_backward, dout, q, k, v, out, lse, **keywords)._asdict()
        answer |= {ours: values_of(made[name]) for name, ours in GRADIENTS.items() if made[name] is not None}
    return answer


def sdpa(inputs: Json, options: Json) -> Answer:
    only_known(options, "option", OPTIONS)
    only_known(inputs, "input", INPUTS)
    storage, keywords = storage_of(options), keywords_of(options)
    shapes = {name: read_shape(required(required(inputs, "shapes"), name)) for name in "qkv"}
    q, k, v = (read_values(required(inputs, name), shapes[name]).array(storage) for name in shapes)
    dout = None
    if "dout" in inputs:
        shape = (*(*q.shape, 1, 1, 1, 1)[:3], (*v.shape, 1, 1, 1, 1)[3])
        dout = read_values(inputs["dout"], shape).array(storage)

    def read(ours: str, name: str, dtype: Any) -> None:
        if ours in inputs:
            keywords[name] = read_values(inputs[ours]).array(dtype)

    for name, dtype in (("keep_mask", bool), ("bias", storage), ("dropout_keep", bool)):
        if name != "dropout_keep" or drops(options):
            read(name, name, dtype)
    read("sinks", "sinks", np.float32)
    read("alibi_slopes", "alibi_slopes", np.float32)
    read("kv_lens", "kv_lengths", np.int32)
    if drops(options):
        if "dropout_keep" not in keywords:
            raise NotSupported('dropout in training without "dropout_keep"')
        keywords["training"] = True
    if "doc_ids" in inputs:
        keywords["document_ids"] = documents(inputs, options, keywords)
    return attend(q, k, v, keywords, dout)


def drops(options: Json) -> bool:
    return bool(option(options, "training", False)) and option(options, "dropout_p", 0.0) != 0


def strided_view(inputs: Json, name: str, storage: Any) -> np.ndarray[Any, Any]:
    """The view of one tensor; every element of it lies in the buffer."""
    buffer = read_values(required(required(inputs, "buffer"), name)).array(storage).ravel()
    shape, strides = (read_shape(required(required(inputs, key), name)) for key in ("shape", "strides"))
    offset = required(required(inputs, "offset"), name)
    if len(shape) != len(strides) or min(shape, default=0) < 0:
        raise Refused(f"{name} has the shape {shape} and the strides {strides}")
    if 0 in shape:
        return np.empty(shape, storage)
    reach = [(n - 1) * step for n, step in zip(shape, strides)]
    first, last = offset + sum(r for r in reach if r < 0), offset + sum(r for r in reach if r > 0)
    if first < 0 or last >= buffer.size:
        raise Malformed(f"{name} reaches from element {first} to {last} of a buffer of {buffer.size}")
    steps = [step * buffer.itemsize for step in strides]
    return np.lib.stride_tricks.as_strided(buffer[offset:], shape, steps, writeable=False)


def sdpa_strided(inputs: Json, options: Json) -> Answer:
    only_known(options, "option", OPTIONS)
    only_known(inputs, "input", ("shape", "strides", "offset", "buffer"))
    if drops(options):
        raise NotSupported('dropout in training without "dropout_keep"')
    q, k, v = (strided_view(inputs, name, storage_of(options)) for name in "qkv")
    return attend(q, k, v, keywords_of(options))


def sdpa_error(inputs: Json, options: Json) -> Answer:
    only_known(options, "option", OPTIONS)
    only_known(inputs, "input", ("shapes", "keep_mask_shape", "bias_shape"))
    storage, keywords = storage_of(options), keywords_of(options)
    shapes = [read_shape(required(required(inputs, "shapes"), name)) for name in "qkv"]
    masks = {name: read_shape(inputs[f"{name}_shape"]) for name in ("keep_mask", "bias") if f"{name}_shape" in inputs}
    q, k, v = (zeros_of(shape, storage) for shape in shapes)
    keywords |= {name: zeros_of(shape, bool if name == "keep_mask" else storage) for name, shape in masks.items()}
    check_axes(q, k, v, keywords)
    call(qkv.explain_path, q, k, v, **keywords)  # checks as `attention` does, and computes nothing
    return {}


def zeros_of(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """A tensor of any shape: every element is the same zero."""
    try:
        return np.broadcast_to(np.zeros((), dtype), shape)
    except ValueError as e:
        raise Refused(f"no array has the shape {shape}: {e}") from e


def merge_partials(inputs: Json, options: Json) -> Answer:
    only_known(inputs, "input", ("out", "lse", "sink"))
    only_known(options, "option", ())
    outs = read_values(required(inputs, "out")).array(np.float64)
    lses = read_values(required(inputs, "lse")).array(np.float64)
    if outs.ndim != 2 or lses.ndim != 1 or outs.shape[0] != lses.shape[0]:
        raise Malformed("expected out [parts][Dv] and lse [parts]")
    keywords = {}
    if "sink" in inputs:
        keywords["sinks"] = read_values(inputs["sink"]).array(np.float64).ravel()
    parts = [x[None, None, None] for x in outs], [x.reshape(1, 1, 1) for x in lses]
    out, lse = call(qkv.merge, *parts, **keywords)
    return {"out": values_of(out), "lse": values_of(lse[0, 0, 0])}


def alibi_slopes(inputs: Json, options: Json) -> Answer:
    only_known(inputs, "input", ("n_heads",))
    only_known(options, "option", ())
    heads = required(inputs, "n_heads")
    if not isinstance(heads, int) or abs(heads) > 1_000_000:
        raise Malformed(f"expected a number up to 1000000, got {heads}")
    return {"slopes": values_of(call(qkv.alibi_slopes, heads))}


OPERATIONS: dict[str, Callable[[Json, Json], Answer]] = {
    "sdpa": sdpa,
    "sdpa_strided": sdpa_strided,
    "sdpa_error": sdpa_error,
    "merge_partials": merge_partials,
    "merge_partials_sink": merge_partials,
    "alibi_slopes": alibi_slopes,
}
