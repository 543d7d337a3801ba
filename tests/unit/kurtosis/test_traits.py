"""Traits of small random models of the real classes, against what their papers and code say."""

import json

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from fairbits.kurtosis.diff import ACTIVATIONS, format_trait, traits
from fairbits.models.checkpoint import Checkpoint

VOCAB = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, **VOCAB}
GROUPED = {**SIZE, "num_key_value_heads": 2}
OPT = {k: v for k, v in SIZE.items() if k != "intermediate_size"} | {
    "ffn_dim": 48,
    "word_embed_proj_dim": 32,
    "max_position_embeddings": 40,
}
SCALED = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}

# class, configuration, and the traits named in NAMES
CASES = {
    "bloom": (
        t.BloomForCausalLM,
        t.BloomConfig(hidden_size=32, n_layer=2, n_head=4, seq_length=77, **VOCAB),
        ("GELU (tanh)", False, "LayerNorm", "pre", 1e-5, "alibi", None, None, 4, "all", True),
    ),
    "xglm": (
        t.XGLMForCausalLM,
        t.XGLMConfig(d_model=32, ffn_dim=48, num_layers=2, attention_heads=4, init_std=0.006, **VOCAB),
        ("GELU", False, "LayerNorm", "pre", 1e-5, "sinusoidal", None, None, 4, "all", True),
    ),
    "mt5": (
        t.MT5ForConditionalGeneration,
        t.MT5Config(d_model=32, d_kv=6, d_ff=48, num_layers=1, num_decoder_layers=2, num_heads=4, **VOCAB),
        ("GELU (tanh)", True, "RMSNorm", "pre", 1e-6, "relative bias", None, None, 4, "none", True),
    ),
    "xlmr": (
        t.XLMRobertaForMaskedLM,
        t.XLMRobertaConfig(max_position_embeddings=40, layer_norm_eps=1e-5, **SIZE),
        ("GELU", False, "LayerNorm", "post", 1e-5, "learned", None, None, 4, "all", True),
    ),
    "gpt2": (
        t.GPT2LMHeadModel,
        t.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, **VOCAB),
        ("GELU (tanh)", False, "LayerNorm", "pre", 1e-5, "learned", None, None, 4, "all", True),
    ),
    "gpt2_without_head": (
        t.GPT2Model,
        t.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, activation_function="gelu", **VOCAB),
        ("GELU", False, "LayerNorm", "pre", 1e-5, "learned", None, None, 4, "all", None),
    ),
    "opt": (
        t.OPTForCausalLM,
        t.OPTConfig(**OPT),
        ("ReLU", False, "LayerNorm", "pre", 1e-5, "learned", None, None, 4, "all", True),
    ),
    "opt_post": (
        t.OPTForCausalLM,
        t.OPTConfig(**OPT, do_layer_norm_before=False),
        ("ReLU", False, "LayerNorm", "post", 1e-5, "learned", None, None, 4, "all", True),
    ),
    "gpt_neox": (
        t.GPTNeoXForCausalLM,
        t.GPTNeoXConfig(**SIZE),
        ("GELU", False, "LayerNorm", "pre", 1e-5, "rotary", "10,000", 2, 4, "all", False),
    ),
    "llama": (
        t.LlamaForCausalLM,
        t.LlamaConfig(**GROUPED, rms_norm_eps=1e-5, rope_parameters=SCALED),
        ("SiLU", True, "RMSNorm", "pre", 1e-5, "rotary", "500,000 (llama3)", 8, 2, "none", False),
    ),
    "qwen2": (
        t.Qwen2ForCausalLM,
        t.Qwen2Config(**GROUPED, tie_word_embeddings=True),
        ("SiLU", True, "RMSNorm", "pre", 1e-6, "rotary", "10,000", 8, 2, "q, k, v", True),
    ),
    "gemma3": (
        t.Gemma3ForCausalLM,
        t.Gemma3TextConfig(**GROUPED, head_dim=16),
        (
            "GELU (tanh)",
            True,
            "RMSNorm",
            "pre, after branches",
            1e-6,
            "rotary",
            "1,000,000 and 10,000",
            16,
            2,
            "none",
            True,
        ),
    ),
    "olmo2": (
        t.Olmo2ForCausalLM,
        t.Olmo2Config(**GROUPED),
        ("SiLU", True, "RMSNorm", "after branches", 1e-5, "rotary", "10,000", 8, 2, "none", False),
    ),
    "phi3": (
        t.Phi3ForCausalLM,
        t.Phi3Config(**GROUPED),
        ("SiLU", True, "RMSNorm", "pre", 1e-5, "rotary", "10,000", 8, 2, "none", False),
    ),
}
NAMES = [
    "activation",
    "gated_mlp",
    "norm",
    "norm_placement",
    "norm_epsilon",
    "positions",
    "rotary_base",
    "rotary_dimensions",
    "key_value_heads",
    "biases",
    "tied_head",
]


@pytest.fixture(scope="module", params=list(CASES))
def case(request, tmp_path_factory, save):
    directory = tmp_path_factory.mktemp(request.param)
    cls, config, expected = CASES[request.param]
    save(cls, config, directory)
    return request.param, traits(Checkpoint(directory)), dict(zip(NAMES, expected, strict=True))


def test_modules_tell_the_traits(case) -> None:
    _, found, expected = case
    assert {name: getattr(found, name) for name in NAMES} == expected


def test_sizes_come_from_the_file(case) -> None:
    name, found, _ = case
    blocks = {"mt5": (1, 2), "xlmr": (2, 0)}.get(name, (0, 2))
    assert (found.encoder_blocks, found.decoder_blocks) == blocks
    assert (found.width, found.heads, found.vocabulary, found.dtype) == (32, 4, 96, "float32")
    assert found.head_dimension == {"mt5": 6, "gemma3": 16}.get(name, 8)
    assert found.mlp_width == (128 if name.startswith(("bloom", "gpt2")) else 48)
    cls, config, _ = CASES[name]
    assert found.parameters == sum(p.numel() for p in cls(config).parameters())  # a tied matrix counts once


def test_the_configuration_is_asked_for_what_no_module_shows(case) -> None:
    name, found, _ = case
    longest = {"bloom": 77, "xglm": 2048, "xlmr": 40, "opt": 40, "opt_post": 40, "mt5": None}
    longest |= {"gpt2": 32, "gpt2_without_head": 32}
    if name in longest:
        assert found.longest_input == longest[name]
    # mT5 scales each matrix by its width: it has a factor, and no range
    assert found.initializer_range == {"xglm": 0.006, "mt5": None}.get(name, 0.02)


def test_different_values_stand_side_by_side(tmp_path, save) -> None:
    size = {**GROUPED, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    save(t.Qwen2MoeForCausalLM, t.Qwen2MoeConfig(**size, shared_expert_intermediate_size=40), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    norm = "model.norm.weight"
    save_file(weights | {norm: weights[norm].half()}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = traits(Checkpoint(tmp_path))
    assert found.mlp_width in ("24 and 40", "40 and 24")
    assert found.dtype == "float32 and float16"
    assert (found.activation, found.gated_mlp, found.biases) == ("SiLU", True, "q, k, v")


@pytest.mark.parametrize("equal", [True, False])
def test_a_head_beside_the_embedding_is_tied_if_the_values_agree(tmp_path, save, equal) -> None:
    config = t.GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=32, **VOCAB)
    save(t.GPT2LMHeadModel, config, tmp_path)
    before = traits(Checkpoint(tmp_path)).parameters
    weights = load_file(tmp_path / "model.safetensors")
    head = weights["transformer.wte.weight"].clone() if equal else torch.zeros(96, 32)
    save_file(weights | {"lm_head.weight": head}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = traits(Checkpoint(tmp_path))
    assert found.tied_head is equal
    assert found.parameters == before + (0 if equal else 96 * 32)


def test_an_activation_function_of_another_kind_keeps_the_name_of_its_class(tmp_path, save) -> None:
    config = t.GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=32, activation_function="mish", **VOCAB)
    save(t.GPT2LMHeadModel, config, tmp_path)
    assert traits(Checkpoint(tmp_path)).activation == "MishActivation"


def test_no_activation_function_passes_for_another() -> None:
    x = torch.linspace(-4.0, 4.0, 65)
    values = [f(x) for f in ACTIVATIONS.values()]
    gaps = [float((a - b).abs().max()) for i, a in enumerate(values) for b in values[:i]]
    assert min(gaps) > 4e-4


def test_the_embedded_model_as_data_and_as_text() -> None:
    found = traits(Checkpoint("embedded:tiny"))
    data = json.loads(json.dumps(found.as_data(), allow_nan=False))
    assert data["positions"] == "alibi"
    assert data["parameters"] == 13_672_448
    assert [name for name, _ in found.items()] == [name.replace("_", " ") for name in data]
    assert dict(found.items())["norm epsilon"] == 1e-5
    assert format_trait(found.longest_input) == "512"
