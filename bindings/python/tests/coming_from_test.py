"""The rows of docs/coming-from.md about PyTorch, JAX and transformers: what is written there and here gives the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import qkv
from coming_from import B, D, H, L, S, arrays, keep_some, same

torch = pytest.importorskip("torch")
F = torch.nn.functional


def tensors(queries: int = L, keys: int = S, key_heads: int = H) -> tuple[Any, ...]:
    return tuple(torch.from_numpy(x) for x in arrays(queries, keys, key_heads))


def mask(*shape: int) -> Any:
    return torch.from_numpy(keep_some(*shape))


# ---- PyTorch ----


def test_scaled_dot_product_attention() -> None:
    q, k, v = tensors()
    keep, bias = mask(B, 1, L, S), torch.randn(1, H, L, S)
    sdpa = F.scaled_dot_product_attention
    same(qkv.attention(q, k, v, keep_mask=keep), sdpa(q, k, v, attn_mask=keep))
    same(qkv.attention(q, k, v, bias=bias), sdpa(q, k, v, attn_mask=bias))
    same(qkv.attention(q, k, v, causal=True, align="top_left"), sdpa(q, k, v, is_causal=True))
    same(qkv.attention(q, k, v, scale=0.3), sdpa(q, k, v, scale=0.3))
    k, v = k[:, :2], v[:, :2]
    same(qkv.attention(q, k, v), sdpa(q, k, v, enable_gqa=True))
    keep[:, :, 2] = False
    same(qkv.attention(q, k, v, keep_mask=keep)[:, :, 2], torch.zeros(B, H, D))
    same(sdpa(q, k, v, attn_mask=keep, enable_gqa=True)[:, :, 2], torch.zeros(B, H, D))


def test_dropout() -> None:
    """With the identity as values out is the weights; each is 0, or divided by the share that is kept."""
    torch.manual_seed(0)
    n, p = 64, 0.25
    q, k, _ = tensors(n, n)
    v = torch.eye(n).expand(B, H, n, n)
    weights = qkv.attention(q, k, v)
    ours = qkv.attention(q, k, v, dropout=p, training=True, seed=3)
    for out in (ours, F.scaled_dot_product_attention(q, k, v, dropout_p=p)):
        same(torch.where(out == 0, 0, out), torch.where(out == 0, 0, weights / (1 - p)))
        deviation = (p * (1 - p) / out.numel()) ** 0.5
        assert abs((out == 0).float().mean().item() - p) < 5 * deviation
    same(qkv.attention(q, k, v, dropout=p), weights)


def multihead(q: Any, k: Any, v: Any, made: dict[str, Any] | None = None, **options: Any) -> tuple[Any, Any]:
    """nn.MultiheadAttention without projections: its out as {B, H, L, D}, and its mean weights."""
    module = torch.nn.MultiheadAttention(H * D, H, batch_first=True, **(made or {}))
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(H * D).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(H * D))
        for bias in (module.in_proj_bias, module.out_proj.bias):
            bias.zero_()
        if module.bias_k is not None:
            module.bias_k.fill_(0.3)
            module.bias_v.fill_(-0.5)
        joined = [x.transpose(1, 2).reshape(B, x.shape[2], H * D) for x in (q, k, v)]
        out, weights = module.eval()(*joined, **options)
    return out.view(B, -1, H, D).transpose(1, 2), weights


def test_multihead_attention() -> None:
    q, k, v = tensors()
    padding, pairs, each = ~mask(B, S), ~mask(L, S), ~mask(B * H, L, S)
    same(qkv.attention(q, k, v, ignore_mask=padding[:, None, None]), multihead(q, k, v, key_padding_mask=padding)[0])
    same(qkv.attention(q, k, v, ignore_mask=pairs), multihead(q, k, v, attn_mask=pairs)[0])
    same(qkv.attention(q, k, v, ignore_mask=each.view(B, H, L, S)), multihead(q, k, v, attn_mask=each)[0])
    same(qkv.attention(q, k, v, return_weights=True).weights.mean(1), multihead(q, k, v)[1])
    same(qkv.attention(q, k, v, zero_key=True), multihead(q, k, v, {"add_zero_attn": True})[0])
    causal = torch.ones(L, S, dtype=torch.bool).triu(1)
    theirs = multihead(q, k, v, attn_mask=causal, is_causal=True, need_weights=False)[0]
    same(qkv.attention(q, k, v, causal=True, align="top_left"), theirs)
    longer = (torch.cat([x, x.new_full((B, H, 1, D), more)], 2) for x, more in ((k, 0.3), (v, -0.5)))
    same(qkv.attention(q, *longer), multihead(q, k, v, {"add_bias_kv": True})[0])


@pytest.mark.filterwarnings("ignore")
def test_flex_attention() -> None:
    flex = pytest.importorskip("torch.nn.attention.flex_attention")
    q, k, v = tensors(6, 6)
    slopes, documents = torch.tensor(qkv.alibi_slopes(H)), torch.tensor([0, 0, 0, 1, 1, 1])

    def capped(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return 2 * torch.tanh(score / 2)

    def alibi(score: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return score - slopes[h] * (i - j).abs()

    same(qkv.attention(q, k, v, softcap=2.0), flex.flex_attention(q, k, v, score_mod=capped))
    same(qkv.attention(q, k, v, alibi_slopes=slopes), flex.flex_attention(q, k, v, score_mod=alibi))
    patterns: list[tuple[Any, dict[str, Any]]] = [
        (lambda b, h, i, j: i >= j, {"causal": True, "align": "top_left"}),
        (lambda b, h, i, j: documents[i] == documents[j], {"document_ids": documents}),
        (lambda b, h, i, j: (i >= j) & (i - j <= 2), {"causal": True, "window": (2, 0)}),
    ]
    for rule, options in patterns:
        block_mask = flex.create_block_mask(rule, None, None, 6, 6, device="cpu")
        same(qkv.attention(q, k, v, **options), flex.flex_attention(q, k, v, block_mask=block_mask))
    for ours, theirs in zip(qkv.attention(q, k, v, return_lse=True), flex.flex_attention(q, k, v, return_lse=True)):
        same(ours, theirs)


# ---- JAX ----


def test_jax() -> None:
    jax = pytest.importorskip("jax")
    q, k, v = (x.transpose(1, 2).contiguous().numpy() for x in tensors())
    keep, bias = mask(B, 1, L, S).numpy(), np.random.default_rng(0).standard_normal((1, H, L, S), dtype=np.float32)

    def both(theirs: dict[str, Any], ours: dict[str, Any], key_heads: int = H) -> None:
        x = (q, k[:, :, :key_heads], v[:, :, :key_heads])
        same(qkv.attention(*x, layout="blhd", **ours), jax.nn.dot_product_attention(*x, **theirs))

    both({}, {})
    both({"mask": keep}, {"keep_mask": keep})
    both({"bias": bias}, {"bias": bias})
    both({"is_causal": True}, {"causal": True, "align": "top_left"})
    both({"local_window_size": (2, 1)}, {"window": (2, 1), "align": "top_left"})
    both({"local_window_size": 2}, {"window": (2, 2), "align": "top_left"})
    lengths = np.array([3, 6], np.int32)
    both({"key_value_seq_lengths": lengths}, {"kv_lengths": lengths})
    both({"scale": 0.2}, {"scale": 0.2})
    both({}, {}, key_heads=2)
    keep[:, :, 2] = False
    theirs = jax.nn.dot_product_attention(q, k, v, mask=keep)
    same(theirs[:, 2], v.mean(1))
    same(qkv.attention(q, k, v, layout="blhd", keep_mask=keep)[:, 2], np.zeros((B, H, D)))


# ---- transformers ----


class Layer(torch.nn.Module):
    """What an attention function of transformers looks at."""

    num_key_value_groups = 2
    is_causal = True


def test_transformers() -> None:
    pytest.importorskip("transformers")
    from transformers.masking_utils import eager_mask, sliding_window_causal_mask_function
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward as gemma
    from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward as gpt_oss
    from transformers.models.llama.modeling_llama import eager_attention_forward as llama

    q, k, v = tensors(7, 7, key_heads=2)
    layer = Layer().eval()
    positions = torch.arange(7)
    behind, front = torch.ones(B, 7, dtype=torch.int64), torch.ones(B, 7, dtype=torch.int64)
    behind[1, 4:], front[1, :3] = 0, 0

    def check(theirs: Any, real: Any, **options: Any) -> None:
        ours = qkv.attention(q, k, v, **options)
        same(ours.transpose(1, 2)[real != 0], theirs[0][real != 0])

    causal, everywhere = {"causal": True}, torch.ones(B, 7)

    def made(**more: Any) -> Any:
        return eager_mask(B, positions, 7, **more)

    def padded(exists: Any) -> Any:
        return made(attention_mask=exists.bool())

    check(llama(layer, q, k, v, padded(behind), D**-0.5), behind, kv_lengths=behind.sum(1), align="top_left", **causal)
    check(llama(layer, q, k, v, padded(front), D**-0.5), front, keep_mask=front[:, None, None] != 0, **causal)
    check(llama(layer, q, k, v, padded(front), D**-0.5), front, document_ids=(torch.ones(B, 7).int(), front), **causal)
    window = made(mask_function=sliding_window_causal_mask_function(3))
    check(llama(layer, q, k, v, window, D**-0.5), everywhere, window=(2, 0), **causal)
    check(llama(layer, q, k, v, None, 0.3), everywhere, scale=0.3)
    check(gemma(layer, q, k, v, None, scaling=0.3, softcap=2.0), everywhere, scale=0.3, softcap=2.0)
    layer.sinks = torch.nn.Parameter(torch.randn(H), requires_grad=False)
    check(gpt_oss(layer, q, k, v, None, scaling=0.3), everywhere, scale=0.3, sinks=layer.sinks)
    weights = llama(layer, q, k, v, None, 0.3)[1]
    same(qkv.attention(q, k, v, scale=0.3, return_weights=True).weights, weights)
    lowest = padded(front)  # what is hidden has the lowest number; in the entry with padding the first rows see nothing
    assert lowest[1, 0, 0].unique().tolist() == [torch.finfo(torch.float32).min]
    theirs = llama(layer, q, k, v, lowest, D**-0.5)
    check(theirs, everywhere, bias=lowest)
    check(theirs, front, keep_mask=lowest == 0)


def test_repeat_kv() -> None:
    pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import repeat_kv

    q, k, v = tensors(key_heads=2)
    same(qkv.attention(q, k, v), qkv.attention(q, repeat_kv(k, 2), repeat_kv(v, 2)))


def test_transformers_chunks_and_restarting_positions() -> None:
    m = pytest.importorskip("transformers.masking_utils")
    q, k, v = tensors(7, 7)
    positions = torch.arange(7)
    rule = m.chunked_causal_mask_function(3, torch.tensor([0]))
    chunks = m.sdpa_mask(1, positions, 7, mask_function=rule, allow_is_causal_skip=False)
    same(qkv.visible(q, k, v, causal=True, document_ids=positions // 3), chunks.expand(B, H, 7, 7))
    restarting = m.find_packed_sequence_indices(torch.tensor([[0, 1, 2, 0, 1, 2, 3]]))
    same(restarting[0], [0, 0, 0, 1, 1, 1, 1])
    packed = m.and_masks(m.causal_mask_function, m.packed_sequence_mask_function(restarting))
    theirs = m.sdpa_mask(1, positions, 7, mask_function=packed, allow_is_causal_skip=False).expand(B, H, 7, 7)
    same(qkv.visible(q, k, v, causal=True, document_ids=restarting[0]), theirs)


def test_t5s_position_bias() -> None:
    transformers = pytest.importorskip("transformers")
    from transformers.models.t5.modeling_t5 import T5Attention

    config = transformers.T5Config(d_model=H * D, d_kv=D, num_heads=H, relative_attention_num_buckets=8)
    layer = T5Attention(config, has_relative_attention_bias=True).eval()
    x = torch.randn(B, 6, H * D)
    with torch.no_grad():
        theirs = layer(x, cache_position=torch.arange(6))[0]
        q, k, v = (project(x).view(B, 6, H, D).transpose(1, 2) for project in (layer.q, layer.k, layer.v))
        ours = qkv.attention(q, k, v, bias=layer.compute_bias(6, 6), scale=1)
        same(layer.o(ours.transpose(1, 2).reshape(B, 6, H * D)), theirs)
