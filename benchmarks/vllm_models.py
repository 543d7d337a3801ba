"""Small trained models of real classes, which vLLM's CPU kernels can compute: the models of `vllm_check.py`.

All sizes are multiples of 128, so that every group fits, and all have the embedded model's tokenizer, cut to its first
2,048 tokens. They are trained for some seconds, so that their predictions are not flat and errors show.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers as t
from torch import Tensor

from fairbits import Checkpoint
from fairbits.text.included_texts import help_text
from random_models import smaller_tokenizer

EMBEDDED = "embedded:tiny"
LANGUAGES = ("eng_Latn", "fra_Latn", "rus_Cyrl", "ell_Grek", "fin_Latn", "jpn_Jpan")
SEED = 0
STEPS, WINDOW, BATCH, RATE = 150, 64, 16, 4e-3

TOKENS = {"vocab_size": 2048, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
WIDTHS = {"hidden_size": 128, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 256}
POSITIONS = {"max_position_embeddings": 512}
GROUPED = {**WIDTHS, **TOKENS, **POSITIONS, "num_key_value_heads": 2}
BLOOM = {"hidden_size": 128, "n_layer": 2, "n_head": 4, **TOKENS}
OPT = {k: v for k, v in WIDTHS.items() if k != "intermediate_size"} | {"ffn_dim": 256, "word_embed_proj_dim": 128}
GEMMA = {**GROUPED, "head_dim": 32, "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]}

EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
QWEN_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 128, "head_dim": 32}
SHARED_EXPERT = {"shared_expert_intermediate_size": 128}
LATENT = {
    **WIDTHS,
    **TOKENS,
    **POSITIONS,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "moe_intermediate_size": 128,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "num_key_value_heads": 4,
}
"""Latent attention with the widths of DeepSeek, as vLLM's kernels have no others."""
GATED_DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "layer_types": ["linear_attention", "full_attention"],
}
STATE_SPACE = {"mamba_n_heads": 8, "mamba_d_head": 32, "mamba_d_state": 64, "mamba_n_groups": 1, "mamba_expand": 2}
SHORT_CONVOLUTION = {
    "block_dim": 128,
    "conv_dim": 128,
    "conv_dim_out": 128,
    "block_ff_dim": 256,
    "block_multiple_of": 256,
}
HALF_EACH = {"layer_types": ["mamba", "attention"]}

MODELS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "llama": (t.LlamaForCausalLM, lambda: t.LlamaConfig(**GROUPED)),
    "qwen2": (t.Qwen2ForCausalLM, lambda: t.Qwen2Config(**GROUPED, tie_word_embeddings=True)),
    "qwen3": (t.Qwen3ForCausalLM, lambda: t.Qwen3Config(**GROUPED, head_dim=32)),
    "gemma3": (t.Gemma3ForCausalLM, lambda: t.Gemma3TextConfig(**GEMMA, query_pre_attn_scalar=32)),
    "bloom": (t.BloomForCausalLM, lambda: t.BloomConfig(**BLOOM)),
    "opt": (t.OPTForCausalLM, lambda: t.OPTConfig(**OPT, **TOKENS, **POSITIONS)),
    "gpt_neox": (t.GPTNeoXForCausalLM, lambda: t.GPTNeoXConfig(**WIDTHS, **TOKENS, **POSITIONS)),
}
"""Class and configuration of every family."""

EXPERT_MODELS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "mixtral": (t.MixtralForCausalLM, lambda: t.MixtralConfig(**GROUPED, **EXPERTS)),
    "qwen3_moe": (t.Qwen3MoeForCausalLM, lambda: t.Qwen3MoeConfig(**GROUPED, **QWEN_EXPERTS)),
}
"""The same with experts, which vLLM computes on a GPU only."""

OTHER_MODELS: dict[str, tuple[Any, Callable[[], Any]]] = {
    "mistral": (t.MistralForCausalLM, lambda: t.MistralConfig(**GROUPED, head_dim=32)),
    "phi3": (t.Phi3ForCausalLM, lambda: t.Phi3Config(**GROUPED)),
    "gemma2": (t.Gemma2ForCausalLM, lambda: t.Gemma2Config(**GEMMA, query_pre_attn_scalar=32)),
    "cohere2": (t.Cohere2ForCausalLM, lambda: t.Cohere2Config(**GROUPED)),
    "olmo2": (t.Olmo2ForCausalLM, lambda: t.Olmo2Config(**GROUPED)),
    "granite": (t.GraniteForCausalLM, lambda: t.GraniteConfig(**GROUPED)),
    "glm4": (t.Glm4ForCausalLM, lambda: t.Glm4Config(**GROUPED, head_dim=32)),
    "smollm3": (t.SmolLM3ForCausalLM, lambda: t.SmolLM3Config(**GROUPED)),
    "apertus": (t.ApertusForCausalLM, lambda: t.ApertusConfig(**GROUPED)),
    "starcoder2": (t.Starcoder2ForCausalLM, lambda: t.Starcoder2Config(**GROUPED)),
    "olmoe": (t.OlmoeForCausalLM, lambda: t.OlmoeConfig(**GROUPED, num_experts=4, num_experts_per_tok=2)),
    "qwen2_moe": (t.Qwen2MoeForCausalLM, lambda: t.Qwen2MoeConfig(**GROUPED, **QWEN_EXPERTS, **SHARED_EXPERT)),
    "deepseek_v2": (t.DeepseekV2ForCausalLM, lambda: t.DeepseekV2Config(**LATENT)),
    "deepseek_v3": (
        t.DeepseekV3ForCausalLM,
        lambda: t.DeepseekV3Config(**LATENT | {"q_lora_rank": 128}, topk_method="noaux_tc"),
    ),
    "glm4_moe": (
        t.Glm4MoeForCausalLM,
        lambda: t.Glm4MoeConfig(
            **GROUPED,
            head_dim=32,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=128,
            first_k_dense_replace=1,
        ),
    ),
    "gpt_oss": (t.GptOssForCausalLM, lambda: t.GptOssConfig(**GROUPED, **EXPERTS, head_dim=64)),
    "granite_moe": (t.GraniteMoeForCausalLM, lambda: t.GraniteMoeConfig(**GROUPED, **EXPERTS)),
    "qwen3_next": (
        t.Qwen3NextForCausalLM,
        lambda: t.Qwen3NextConfig(**GROUPED, **QWEN_EXPERTS | {"head_dim": 64}, **SHARED_EXPERT, **GATED_DELTA),
    ),
    "granite_hybrid": (
        t.GraniteMoeHybridForCausalLM,
        lambda: t.GraniteMoeHybridConfig(
            **GROUPED,
            **STATE_SPACE,
            **HALF_EACH,
            num_local_experts=0,
            num_experts_per_tok=0,
            shared_intermediate_size=256,
        ),
    ),
    "falcon_h1": (t.FalconH1ForCausalLM, lambda: t.FalconH1Config(**GROUPED, **STATE_SPACE, mamba_d_ssm=256)),
    "lfm2": (
        t.Lfm2ForCausalLM,
        lambda: t.Lfm2Config(
            **GROUPED, **SHORT_CONVOLUTION, layer_types=["conv", "full_attention"], block_auto_adjust_ff_dim=False
        ),
    ),
    "llama4": (
        t.Llama4ForCausalLM,
        lambda: t.Llama4TextConfig(
            **{**GROUPED, **EXPERTS, "num_experts_per_tok": 1},
            head_dim=32,
            intermediate_size_mlp=256,
            interleave_moe_layer_step=2,
        ),
    ),
}
"""Further classes that vLLM has, served on a GPU: families of dense models, experts, latent and linear attention."""


def small_model(family: str, directory: Path) -> Path:
    """Returns the directory of a family's model, which is trained if it is not there."""
    if (directory / "config.json").is_file():
        return directory
    cls, config = (MODELS | EXPERT_MODELS | OTHER_MODELS)[family]
    with torch.random.fork_rng():
        torch.manual_seed(SEED)
        model = cls(config())
        copy_tokenizer(directory, size=model.config.vocab_size)
        train(model, calibration_ids(directory))
    model.half().save_pretrained(directory)
    return directory


def train(model: Any, ids: Tensor) -> None:
    """Trains a model on windows drawn from token ids."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=RATE, total_steps=STEPS)
    rng = torch.Generator().manual_seed(SEED)
    model.train()
    for _ in range(STEPS):
        starts = torch.randint(len(ids) - WINDOW, (BATCH,), generator=rng)
        batch = torch.stack([ids[start : start + WINDOW] for start in starts.tolist()])
        model(input_ids=batch, labels=batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    model.eval()


def calibration_ids(directory: Path) -> Tensor:
    """Returns the tokens of the calibration text in all languages, one after the other."""
    tokenizer = t.AutoTokenizer.from_pretrained(directory)
    documents = help_text(LANGUAGES).calibration
    return torch.tensor(
        [token for texts in documents.values() for text in texts for token in tokenizer(text).input_ids]
    )


def copy_tokenizer(directory: Path, *, size: int) -> None:
    """Writes the embedded model's tokenizer with its first `size` tokens."""
    source = Checkpoint(EMBEDDED).directory
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(smaller_tokenizer(source / "tokenizer.json", size), "utf-8")
    (directory / "tokenizer_config.json").write_bytes((source / "tokenizer_config.json").read_bytes())
