"""The rows of docs/coming-from.md about Keras 3, whose backend here is PyTorch."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import qkv
from coming_from import B, D, H, L, S, arrays, keep_some, same

pytest.importorskip("torch")


@pytest.fixture(scope="module")
def keras(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Keras, without writing into the home directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERAS_BACKEND", "torch")
        patch.setenv("KERAS_HOME", str(tmp_path_factory.mktemp("keras")))
        yield pytest.importorskip("keras", minversion="3")


def numpy_of(x: Any) -> np.ndarray:
    return x.detach().numpy()


def one_head() -> tuple[np.ndarray, ...]:
    """{B, L, D}, as layers.Attention takes them."""
    return tuple(x[:, 0] for x in arrays())


def test_attention_layer(keras: Any) -> None:
    q, k, v = one_head()
    layer = keras.layers.Attention(use_scale=False)
    same(qkv.attention(q[:, None], k[:, None], v[:, None], scale=1)[:, 0], numpy_of(layer([q, v, k])))


def test_masks_of_query_and_value(keras: Any) -> None:
    q, k, v = one_head()
    query_mask, value_mask = keep_some(B, L), keep_some(B, S)
    theirs = keras.layers.Attention()([q, v, k], mask=[query_mask, value_mask])
    keep_mask = value_mask[:, None, None]
    ours = qkv.attention(q[:, None], k[:, None], v[:, None], scale=1, keep_mask=keep_mask)[:, 0]
    same(ours * query_mask[..., None], numpy_of(theirs))
    assert not query_mask.all()


def test_causal_mask(keras: Any) -> None:
    q, k, v = one_head()
    theirs = keras.layers.Attention()([q, v, k], use_causal_mask=True)
    ours = qkv.attention(q[:, None], k[:, None], v[:, None], scale=1, causal=True, align="top_left")
    same(ours[:, 0], numpy_of(theirs))


def multihead(keras: Any, theirs: dict[str, Any], ours: dict[str, Any], **made: Any) -> None:
    """MultiHeadAttention and its own projections around `qkv.attention` give the same."""
    width, key_dim = 12, 5
    layer = keras.layers.MultiHeadAttention(num_heads=H, key_dim=key_dim, **made)
    draw = np.random.default_rng(3)
    query, value = (draw.standard_normal((B, n, width), dtype=np.float32) for n in (L, S))
    expected, weights = layer(query, value, return_attention_scores=True, **theirs)
    dense = ((layer.query_dense, query), (layer.key_dense, value), (layer.value_dense, value))
    q, k, v = (numpy_of(project(x)) for project, x in dense)
    assert q.shape == (B, L, H, key_dim)
    out, seen = qkv.attention(q, k, v, layout="blhd", return_weights=True, **ours)
    same(numpy_of(layer.output_dense(out)), numpy_of(expected))
    same(seen, numpy_of(weights))


def test_multi_head_attention(keras: Any) -> None:
    multihead(keras, {}, {})  # key_dim: the scale is 1 / sqrt(key_dim) in both
    keep = keep_some(B, L, S)
    multihead(keras, {"attention_mask": keep}, {"keep_mask": keep[:, None]})
    multihead(keras, {"use_causal_mask": True}, {"causal": True, "align": "top_left"})
    if "sliding_window" in inspect.signature(keras.layers.MultiHeadAttention.__init__).parameters:
        multihead(keras, {}, {"window": (2, 2), "align": "top_left"}, sliding_window=3)


def test_operation(keras: Any) -> None:
    q, k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in arrays())
    keep, bias = keep_some(B, 1, L, S), np.random.default_rng(4).standard_normal((1, H, L, S), dtype=np.float32)

    def both(theirs: dict[str, Any], ours: dict[str, Any], heads: int = H) -> None:
        x = q, k[:, :, :heads], v[:, :, :heads]
        same(qkv.attention(*x, layout="blhd", **ours), numpy_of(keras.ops.dot_product_attention(*x, **theirs)))

    both({}, {})
    both({"mask": keep}, {"keep_mask": keep})
    both({"bias": bias}, {"bias": bias})
    both({"scale": 0.3}, {"scale": 0.3})
    both({"is_causal": True}, {"causal": True, "align": "top_left"})
    both({}, {}, heads=2)


def test_a_query_that_sees_nothing_sees_everything_there(keras: Any) -> None:
    q, k, v = one_head()
    nothing = np.zeros((B, S), bool)
    theirs = numpy_of(keras.layers.Attention()([q, v, k], mask=[None, nothing]))
    assert np.abs(theirs).max() > 0.1
    ours = qkv.attention(q[:, None], k[:, None], v[:, None], scale=1, keep_mask=nothing[:, None, None])
    same(ours, np.zeros((B, 1, L, D)))


# ---- code without a library ----


def plain(q: Any, k: Any, v: Any, scale: float, added: Any = 0.0) -> Any:
    """softmax(scale q k^T + added) v, as tutorials write it."""
    scores = scale * q @ np.swapaxes(k, -1, -2) + added
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ v


def test_a_mask_of_ones_that_hide() -> None:
    q, k, v = arrays()
    hidden = (~keep_some(B, 1, 1, S)).astype(np.float32)
    d_k = D
    theirs = plain(q, k, v, 1 / np.sqrt(d_k), -1e9 * hidden)
    same(qkv.attention(q, k, v, scale=d_k**-0.5, ignore_mask=hidden != 0), theirs)
    everything = np.ones((B, 1, 1, S), np.float32)
    assert np.abs(plain(q, k, v, 1 / np.sqrt(d_k), -1e9 * everything)).max() > 0.1
    same(qkv.attention(q, k, v, ignore_mask=everything != 0), np.zeros((B, H, L, D)))
