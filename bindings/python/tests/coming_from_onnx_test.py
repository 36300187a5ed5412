"""The rows of docs/coming-from.md about ONNX, against the reference implementation that comes with the specification."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import qkv
from coming_from import B, D, H, L, S, arrays, keep_some, same

onnx = pytest.importorskip("onnx")
from onnx import helper
from onnx.reference import ReferenceEvaluator

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


def values_of(names: Any, feeds: dict[str, np.ndarray]) -> list[Any]:
    return [helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(feeds[n].dtype), feeds[n].shape) for n in names]


def attention_node(opset: int, feeds: dict[str, np.ndarray], attributes: dict[str, Any]) -> Any:
    inputs = [name if name in feeds else "" for name in INPUTS[: 6 if opset == 23 else 7]]
    return helper.make_node("Attention", inputs, OUTPUTS, **attributes)


def onnx_attention(opset: int, feeds: dict[str, np.ndarray], **attributes: Any) -> list[np.ndarray]:
    """The outputs of the operator."""
    node = attention_node(opset, feeds, attributes)
    outputs = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in OUTPUTS]
    graph = helper.make_graph([node], "attention", values_of(feeds, feeds), outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model).run(None, feeds)


def function_body(opset: int, feeds: dict[str, np.ndarray], **attributes: Any) -> np.ndarray:
    """The same out by the function of simpler operators that the specification gives as its meaning."""
    node = attention_node(opset, feeds, attributes)
    types = [value.type.SerializeToString() for value in values_of([name for name in node.input if name], feeds)]
    body = onnx.FunctionProto()
    schema = onnx.defs.get_schema("Attention", opset)
    body.ParseFromString(schema.get_context_dependent_function(node.SerializeToString(), types))
    return ReferenceEvaluator(body).run(None, feeds, attributes=attributes)[0]


def feeds_of(q: np.ndarray, k: np.ndarray, v: np.ndarray, **more: Any) -> dict[str, np.ndarray]:
    return dict(zip("QKV", (q, k, v))) | more


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(2).standard_normal(shape, dtype=np.float32)


#: Row of the table: opset, inputs and attributes there, keywords here.
ROWS: dict[str, tuple[int, dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "nothing": (23, {}, {}, {}),
    "bool mask": (23, {"attn_mask": keep_some(B, 1, L, S)}, {}, {"keep_mask": keep_some(B, 1, L, S)}),
    "bool mask of three axes": (23, {"attn_mask": keep_some(H, L, S)}, {}, {"keep_mask": keep_some(H, L, S)}),
    "float mask": (23, {"attn_mask": numbers(H, L, S)}, {}, {"bias": numbers(H, L, S)}),
    "causal": (23, {}, {"is_causal": 1}, {"causal": True, "align": "top_left"}),
    "scale": (23, {}, {"scale": 0.3}, {"scale": 0.3}),
    "softcap": (23, {}, {"softcap": 0.7}, {"softcap": 0.7}),
    "softcap of nothing": (23, {}, {"softcap": 0.0}, {"softcap": None}),
    "softcap and mask": (
        23,
        {"attn_mask": keep_some(L, S)},
        {"softcap": 0.7},
        {"softcap": 0.7, "keep_mask": keep_some(L, S)},
    ),
    "lengths": (24, {"nonpad_kv_seqlen": np.array([3, 6])}, {}, {"kv_lengths": [3, 6]}),
    "lengths and causal": (
        24,
        {"nonpad_kv_seqlen": np.array([5, 6])},
        {"is_causal": 1},
        {"kv_lengths": [5, 6], "causal": True, "align": "bottom_right"},
    ),
    "window": (
        25,
        {},
        {"left_window_size": 2, "right_window_size": 1},
        {"window": (2, 1), "align": "top_left"},
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_a_row_gives_the_same(row: str) -> None:
    opset, inputs, attributes, ours = ROWS[row]
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip(f"this ONNX has no opset {opset}")
    q, k, v = arrays()
    same(qkv.attention(q, k, v, **ours), onnx_attention(opset, feeds_of(q, k, v, **inputs), **attributes)[0])


@pytest.mark.parametrize("opset", [23, 24])
def test_the_specification_soft_caps_before_the_mask(opset: int) -> None:
    q, k, v = arrays()
    feeds = feeds_of(q, k, v, attn_mask=keep_some(L, S))
    ours = qkv.attention(q, k, v, softcap=0.7, keep_mask=feeds["attn_mask"])
    same(ours, function_body(opset, feeds, softcap=0.7))


def test_a_query_that_sees_nothing_gets_0() -> None:
    q, k, v = arrays()
    keep = keep_some(L, S)
    keep[2] = False
    theirs = onnx_attention(23, feeds_of(q, k, v, attn_mask=keep))[0]
    same(qkv.attention(q, k, v, keep_mask=keep), theirs)
    assert not theirs[:, :, 2].any()


def test_causal_over_a_cache_is_bottom_right() -> None:
    q, k, v = arrays()
    past, new = slice(0, S - L), slice(S - L, S)
    feeds = feeds_of(q, k[:, :, new], v[:, :, new], past_key=k[:, :, past], past_value=v[:, :, past])
    out, all_keys, *_ = onnx_attention(23, feeds, is_causal=1)
    same(qkv.attention(q, k, v, causal=True, align="bottom_right"), out)
    same(all_keys, k)
    if onnx.defs.onnx_opset_version() >= 25:
        out = onnx_attention(25, feeds, left_window_size=2, right_window_size=0)[0]
        same(qkv.attention(q, k, v, window=(2, 0), align="bottom_right"), out)


def test_a_short_mask_hides_the_keys_behind_its_end() -> None:
    q, k, v = arrays()
    short = keep_some(L, S - 2)
    ours = qkv.attention(q, k, v, keep_mask=np.pad(short, ((0, 0), (0, 2))))
    same(ours, onnx_attention(24, feeds_of(q, k, v, attn_mask=short))[0])
    short = numbers(L, S - 2)
    ours = qkv.attention(q, k, v, bias=np.pad(short, ((0, 0), (0, 2)), constant_values=-np.inf))
    same(ours, onnx_attention(24, feeds_of(q, k, v, attn_mask=short))[0])


def test_packed_hidden_axes_are_split_first() -> None:
    q, k, v = arrays(key_heads=2)
    q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)).reshape(B, x.shape[2], -1) for x in (q, k, v))
    theirs = onnx_attention(23, feeds_of(q, k, v), q_num_heads=H, kv_num_heads=2)[0]
    split = q.reshape(B, L, H, D), k.reshape(B, S, 2, D), v.reshape(B, S, 2, D)
    same(qkv.attention(*split, layout="blhd").reshape(B, L, H * D), theirs)


def test_fewer_key_heads_are_shared_in_groups() -> None:
    q, k, v = arrays(key_heads=2)
    same(qkv.attention(q, k, v), onnx_attention(23, feeds_of(q, k, v))[0])


def test_output_mode_3_is_the_weights() -> None:
    q, k, v = arrays()
    keep = keep_some(L, S)
    theirs = onnx_attention(23, feeds_of(q, k, v, attn_mask=keep), qk_matmul_output_mode=3)[3]
    same(qkv.attention(q, k, v, keep_mask=keep, return_weights=True).weights, theirs)
