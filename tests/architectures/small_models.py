"""A small random model of any language model class in transformers: its configuration, cut down by general rules."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto import configuration_auto, modeling_auto

KINDS = {
    "causal": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "sequence to sequence": modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
    "speech": modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
}
DEPTH = 2
LARGEST = 40_000_000
"""The most weights of a model that counts as small."""

# field of a configuration -> its value in a small model
SIZES: Mapping[str, int] = {
    r"hidden_size|d_model|n_embd|dim|model_dim|emb_dim|word_embed_proj_dim|embed_dim|embedding_size|dim_model": 64,
    r"num_hidden_layers|n_layers?|num_layers|(encoder|decoder)_layers|num_(de|en)coder_layers": DEPTH,
    r"intermediate_size|((encoder|decoder)_)?ffn_dim|d_ff|d_inner|ffn_hidden_size|dim_ff|shared_intermediate_size": 128,
    r"(moe|shared_expert|moe_shared_expert)_intermediate_size|expert_ffn_hidden_size|block_ff_dim": 32,
    r"num_attention_heads|n_heads?|num_heads|(encoder|decoder)_attention_heads|attention_heads": 4,
    r"num_key_value_heads|num_kv_heads|swa_num_key_value_heads": 2,
    r"head_dim|attention_head_size|d_kv|swa_head_dim|global_head_dim": 16,
    r"rotary_dim": 8,
    r"num_experts|num_local_experts|n_routed_experts|moe_num_experts": 4,
    r"num_experts_per_tok(en)?|moe_topk|moe_top_k|top_k_experts|moe_k": 2,
    r"n_group|topk_group|num_expert_groups|mamba_n_groups|n_groups|n_shared_experts|num_shared_experts": 1,
    r"q_lora_rank|kv_lora_rank": 32,
    r"qk_rope_head_dim": 8,
    r"qk_nope_head_dim|v_head_dim": 16,
    r"max_position_embeddings|n_positions|max_seq_len|seq_length|n_ctx": 512,
    r"linear_num_((key|value)_)?heads": 4,
    r"linear_((key|value)_)?head_dim|mamba_d_head|mamba_head_dim": 16,
    r"mamba_n_heads|mamba_num_heads": 8,
    r"ssm_state_size|state_size|mamba_d_state": 16,
    r"time_step_rank": 4,
    r"vocab_size|n_vocab|vocab_size_per_layer_input": 0,  # of the tokenizer
}
TOKENS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3, "decoder_start_token_id": 1}

# what the general rules cannot know
HYBRID = ["linear_attention", "full_attention"]
INDEXED = {
    "indexer_head_dim": 16,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_budget": 64,
    "indexer_compress_ratio": 4,
}
SPECIAL: Mapping[str, Mapping[str, Any]] = {
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"patch_in_forward": False},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "bailing_hybrid": {"n_group": 1, "group_norm_size": 1},
    "dbrx.attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dbrx.ffn_config": {"hidden_size": 64, "ffn_hidden_size": 64},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2},
    "esm": {"vocab_size": 16385, "mask_token_id": 4, "pad_token_id": 3},
    "esmc": {"num_key_value_heads": 4},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma3n.text_config": {"activation_sparsity_pattern": None, "num_kv_shared_layers": 0},
    "gemma3n_text": {"activation_sparsity_pattern": None, "num_kv_shared_layers": 0},
    "gpt_neo": {"attention_types": [[["global", "local"], DEPTH // 2]], "attention_layers": ["global", "local"]},
    "granitemoehybrid": {"layer_types": HYBRID},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "luke": {"entity_vocab_size": 16, "entity_emb_size": 32},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "perceiver": {"d_latents": 64, "num_latents": 16, "qk_channels": 64, "v_channels": 64},
    "qwen4_exp.text_config": INDEXED,
    "qwen4_exp_text": INDEXED,
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "max_position_embeddings": 512},
    "whisper": {"max_source_positions": 150},  # three seconds
    "xmod": {"default_language": "en_XX"},
    "xlstm": {"num_heads": 2},
    "zamba2": {"layers_block_type": ["linear_attention", "hybrid"]},
    "zaya": {"num_experts_per_tok": 1},
}


def language_models() -> Iterator[tuple[str, str, str]]:
    """Yields kind, model_type and class name of every class with a language model head, speech without those before."""
    available = set(dir(transformers))  # without importing them
    named = set[str]()
    for kind, table in KINDS.items():
        for model_type, name in table.items():
            if isinstance(name, str) and name in available and not (kind == "speech" and name in named):
                yield kind, model_type, name
                named.add(name)


def small_config(model_type: str, name: str, *, vocabulary: int) -> PretrainedConfig:
    """Returns the configuration of a small model of this class."""
    kind = configuration_auto.CONFIG_MAPPING[model_type]
    usual = kind()
    parts = {name: getattr(usual, name, None) for name in kind.sub_configs}
    inner = {
        part: {
            **part_config.to_dict(),
            **_smaller(part_config, vocabulary=vocabulary),
            **SPECIAL.get(f"{model_type}.{part}", {}),
        }
        for part, part_config in parts.items()
        if isinstance(part_config, PretrainedConfig)
    }
    config = kind(**{**_smaller(usual, vocabulary=vocabulary), **inner, **SPECIAL.get(model_type, {})})
    if getattr(transformers, name).config_class is kind.sub_configs.get("text_config"):
        return config.get_text_config()  # as AutoModelForCausalLM does
    return config


def small_model(model_type: str, name: str, *, vocabulary: int, seed: int = 0) -> PreTrainedModel:
    """Returns a small model with random weights."""
    cls = getattr(transformers, name)
    config = small_config(model_type, name, vocabulary=vocabulary)
    with torch.device("meta"):
        count = sum(parameter.numel() for parameter in cls(config).parameters())
    if count > LARGEST:
        raise ValueError(f"{name} has {count:,} weights in its small configuration")
    torch.manual_seed(seed)
    model: PreTrainedModel = cls(config).eval()
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():  # some classes start with maps that give nothing
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def _smaller(config: PretrainedConfig, *, vocabulary: int) -> dict[str, Any]:
    """Returns the fields of a configuration that are different in a small model."""
    fields = config.to_dict()
    changes: dict[str, Any] = {}
    for name, value in fields.items():
        size = next((size for pattern, size in SIZES.items() if re.fullmatch(pattern, name)), None)
        if size is not None and isinstance(value, list):
            changes[name] = [size] * DEPTH
        elif size is not None and isinstance(value, int) and not isinstance(value, bool):
            changes[name] = size or vocabulary
        elif name in TOKENS and value is not None:
            changes[name] = TOKENS[name]
        elif name.endswith("layer_types") and isinstance(value, list):
            changes[name] = _kinds(value)
    if "head_dim" in fields:
        changes["head_dim"] = changes.get("qk_rope_head_dim", 16)
    if "qk_rope_head_dim" in changes:  # latent attention makes keys and values for every head
        changes["num_key_value_heads"] = changes["num_attention_heads"]
    if fields.get("is_encoder_decoder"):
        changes["decoder_start_token_id"] = TOKENS["decoder_start_token_id"]
    if "per_layer_config" in fields:
        changes["per_layer_config"] = {}
    return changes


def _kinds(kinds: list[str]) -> list[str]:
    """Returns the kinds of the layers of a shorter model, each at least once if there are few enough."""
    different = list(dict.fromkeys(kinds))
    return (different * DEPTH)[:DEPTH]
