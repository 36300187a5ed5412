"""Tiny models of many families of transformers, with random weights."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED = dict(SIZES, num_key_value_heads=2)
MIXTURE = {"num_experts_per_tok": 2}
BART = {
    "vocab_size": 64,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 16,
    "patch_size": 4,
}


@dataclass
class Family:
    """A model, and which of the options of attention it brings."""

    model: str
    config: str
    options: dict[str, Any]
    has: str  #: what is tried with it
    kind: str = "decoder"  #: or "encoder", "vision", "seq2seq"
    sub: dict[str, Any] = field(default_factory=dict)

    def make(self, implementation: str, dtype: torch.dtype = torch.float32, **more: Any) -> Any:
        config = getattr(transformers, self.config)(**(self.options | more))
        config._attn_implementation = implementation
        torch.manual_seed(1)
        model = getattr(transformers, self.model)(config).to(dtype)
        return spread(model).eval()


def spread(model: Any) -> Any:
    """Weights large enough that attention is far from a mean over all keys."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for p in model.parameters():
            x = torch.randn(p.shape, generator=draw, dtype=torch.float32).to(p.dtype)
            p.copy_(x * 1.5 * p.shape[-1] ** -0.5 if p.ndim > 1 else p + 0.2 * x)
    return model


FAMILIES = {
    "llama": Family("LlamaForCausalLM", "LlamaConfig", GROUPED, "causal, grouped heads"),
    "mistral": Family("MistralForCausalLM", "MistralConfig", GROUPED | {"sliding_window": 5}, "window in all layers"),
    "qwen2": Family(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        GROUPED | {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
        "window in some layers",
    ),
    "qwen3": Family("Qwen3ForCausalLM", "Qwen3Config", GROUPED | {"head_dim": 16}, "heads of another width"),
    "gemma2": Family(
        "Gemma2ForCausalLM",
        "Gemma2Config",
        GROUPED | {"sliding_window": 5, "head_dim": 8, "attn_logit_softcapping": 3.0, "query_pre_attn_scalar": 13},
        "soft-cap, alternating windows, a scale of its own",
    ),
    "gemma3": Family(
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        GROUPED | {"sliding_window": 5, "head_dim": 8, "layer_types": ["sliding_attention", "full_attention"]},
        "windows",
    ),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        "GptOssConfig",
        GROUPED | MIXTURE | {"sliding_window": 5, "head_dim": 8, "num_local_experts": 2, "experts_per_token": 2},
        "sinks, alternating windows",
    ),
    "llama4": Family(
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        GROUPED
        | {
            "attention_chunk_size": 4,
            "head_dim": 8,
            "num_local_experts": 2,
            "intermediate_size_mlp": 48,
            "num_hidden_layers": 4,
        },
        "chunks",
    ),
    "gpt2": Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": 64,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "bos_token_id": 1,
            "eos_token_id": None,
        },
        "a scale that the module keeps",
    ),
    "gpt2_scaled": Family(
        "GPT2LMHeadModel",
        "GPT2Config",
        {
            "vocab_size": 64,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 128,
            "bos_token_id": 1,
            "eos_token_id": None,
            "scale_attn_by_inverse_layer_idx": True,
            "scale_attn_weights": False,
        },
        "other scales that the module keeps",
    ),
    "gpt_neox": Family("GPTNeoXForCausalLM", "GPTNeoXConfig", SIZES, "rotary positions on a part of each head"),
    "phi3": Family("Phi3ForCausalLM", "Phi3Config", GROUPED | {"sliding_window": 5}, "window"),
    "cohere2": Family("Cohere2ForCausalLM", "Cohere2Config", GROUPED | {"sliding_window": 5}, "windows"),
    "olmo2": Family("Olmo2ForCausalLM", "Olmo2Config", GROUPED, "normalised queries and keys"),
    "granite": Family("GraniteForCausalLM", "GraniteConfig", GROUPED | {"attention_multiplier": 0.7}, "a scale of its own"),
    "opt": Family(
        "OPTForCausalLM",
        "OPTConfig",
        SIZES | {"ffn_dim": 48, "word_embed_proj_dim": 32},
        "scaled queries",
    ),
    "deepseek": Family(
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        SIZES
        | MIXTURE
        | {
            "num_key_value_heads": 4,
            "n_routed_experts": 2,
            "n_group": 1,
            "topk_group": 1,
            "first_k_dense_replace": 2,
            "moe_intermediate_size": 16,
            "q_lora_rank": 16,
            "kv_lora_rank": 8,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 6,
        },
        "values of another width than keys",
    ),
    "stablelm": Family("StableLmForCausalLM", "StableLmConfig", GROUPED, "a table of classes"),
    "qwen2_moe": Family(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        GROUPED | MIXTURE | {"num_experts": 2, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
        "a table of classes",
    ),
    "bert": Family("BertForMaskedLM", "BertConfig", SIZES, "a table of classes", "encoder"),
    "bert_decoder": Family("BertLMHeadModel", "BertConfig", SIZES | {"is_decoder": True}, "a table of classes, causal"),
    "roberta": Family("RobertaForMaskedLM", "RobertaConfig", SIZES, "a table of classes", "encoder"),
    "xlm_roberta": Family("XLMRobertaForMaskedLM", "XLMRobertaConfig", SIZES, "a table of classes", "encoder"),
    "distilbert": Family(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": 64, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 128},
        "a table of classes",
        "encoder",
    ),
    "albert": Family("AlbertForMaskedLM", "AlbertConfig", SIZES | {"embedding_size": 16}, "a table of classes", "encoder"),
    "modernbert": Family(
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        SIZES | {"num_hidden_layers": 3, "local_attention": 6, "reference_compile": False},
        "windows to both sides, a table of functions",
        "encoder",
    ),
    "esm": Family("EsmForMaskedLM", "EsmConfig", SIZES | {"position_embedding_type": "rotary"}, "scaled queries", "encoder"),
    "vit": Family("ViTForImageClassification", "ViTConfig", VISION, "no mask", "vision"),
    "dinov2": Family("Dinov2ForImageClassification", "Dinov2Config", VISION, "no mask", "vision"),
    "siglip": Family("SiglipVisionModel", "SiglipVisionConfig", VISION, "attention that pools", "vision"),
    "beit": Family(
        "BeitForImageClassification",
        "BeitConfig",
        VISION | {"use_relative_position_bias": True},
        "a bias that learns, a table of classes",
        "vision",
    ),
    "bart": Family("BartForConditionalGeneration", "BartConfig", BART, "attention to an encoder", "seq2seq"),
    "t5gemma": Family(
        "T5GemmaForConditionalGeneration",
        "T5GemmaConfig",
        {
            "encoder": GROUPED | {"sliding_window": 5, "head_dim": 8, "attn_logit_softcapping": 3.0},
            "decoder": GROUPED
            | {"sliding_window": 5, "head_dim": 8, "attn_logit_softcapping": 3.0, "cross_attention_hidden_size": 32},
            "vocab_size": 64,
            "pad_token_id": 0,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
        "windows to both sides, soft-cap, attention to an encoder",
        "seq2seq",
    ),
    "whisper": Family(
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        BART
        | {
            "num_mel_bins": 8,
            "max_source_positions": 12,
            "max_target_positions": 80,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
        "attention to an encoder",
        "audio",
    ),
}


def inputs_for(family: Family, dtype: torch.dtype = torch.float32) -> tuple[dict[str, Any], Any]:
    """Inputs with padding (in front for decoders, behind for the rest), and which of the queries are real, {B, L}."""
    draw = torch.Generator().manual_seed(3)
    ids = torch.randint(3, 64, (2, 13), generator=draw)
    mask = torch.ones_like(ids)
    if family.kind == "decoder":
        mask[1, :4] = 0
    elif family.kind in ("encoder", "seq2seq"):
        mask[1, 9:] = 0
    ids = torch.where(mask == 1, ids, 0)
    targets = torch.randint(3, 64, (2, 7), generator=draw)
    if family.kind == "vision":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=draw).to(dtype)}, None
    if family.kind == "audio":
        sound = torch.randn(2, 8, 24, generator=draw).to(dtype)
        return {"input_features": sound, "decoder_input_ids": targets}, torch.ones_like(targets)
    given = {"input_ids": ids, "attention_mask": mask}
    if family.kind == "seq2seq":
        return given | {"decoder_input_ids": targets}, torch.ones_like(targets)
    return given, mask
