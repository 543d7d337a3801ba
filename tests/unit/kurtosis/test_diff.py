"""Traits of models by their modules, and two models side by side."""

import io
import json
from itertools import pairwise

import pytest
import torch
import transformers as t
from rich.console import Console
from safetensors.torch import load_file, save_file

from fairbits.cli.diff_command import diff_tables, log_bar
from fairbits.core.errors import InputError
from fairbits.core.table import plain, render_tables
from fairbits.kurtosis.diff import ACTIVATIONS, ModelDiff, block_pairs, diff, format_trait, traits
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.weight_moments import weight_moments

VOCAB = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


@pytest.fixture(scope="module")
def tiny() -> Checkpoint:
    return Checkpoint("embedded:tiny")


@pytest.fixture(scope="module")
def outliers(tiny) -> ModelDiff:
    return diff(tiny, Checkpoint("embedded:tiny?outliers=3:125"))


@pytest.fixture(scope="module")
def families(tmp_path_factory) -> tuple[ModelDiff, list[tuple[int, int]]]:
    """Returns BLOOM of 12 blocks beside GPT-NeoX of 5, and the calls of the progress callback."""
    t.logging.disable_progress_bar()
    bloom, neox = tmp_path_factory.mktemp("bloom"), tmp_path_factory.mktemp("neox")
    t.BloomForCausalLM(t.BloomConfig(hidden_size=16, n_layer=12, n_head=2, **VOCAB)).half().save_pretrained(bloom)
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 5, "intermediate_size": 48}
    t.GPTNeoXForCausalLM(t.GPTNeoXConfig(**size, **VOCAB)).save_pretrained(neox)
    seen: list[tuple[int, int]] = []
    return diff(Checkpoint(bloom), Checkpoint(neox), progress=lambda *call: seen.append(call)), seen


def printed(model_diff: ModelDiff) -> str:
    console = Console(file=io.StringIO(), width=80, emoji=False)
    console.print(render_tables(diff_tables(model_diff)))
    return console.file.getvalue()


def test_outliers_change_the_weights_of_one_block_and_no_trait(outliers, tiny) -> None:
    assert outliers.differing == ()
    assert outliers.pairs == tuple((i, i) for i in range(12))
    assert outliers.a.kappa == tuple(block.kappa for block in weight_moments(tiny).blocks)
    assert [i for i in range(12) if outliers.a.kappa[i] != outliers.b.kappa[i]] == [3]
    assert outliers.b.worst == 3
    assert outliers.b.kappa[3] == pytest.approx(125, rel=0.02)
    assert outliers.a.worst == outliers.a.kappa.index(max(outliers.a.kappa)) != 3


def test_traits_that_differ_are_named_and_marked(families) -> None:
    model_diff, _ = families
    assert {"family", "decoder blocks", "width", "activation", "positions", "tied head", "dtype"} <= set(
        model_diff.differing
    )
    assert "norm" not in model_diff.differing
    assert "norm placement" not in model_diff.differing
    assert "rotary base" not in model_diff.differing  # BLOOM has none: nothing to compare
    marked = {line[2:].split("  ")[0].strip() for line in printed(model_diff).splitlines() if line.startswith("≠")}
    assert marked == set(model_diff.differing)


def test_blocks_of_other_depth_stand_side_by_side_by_relative_depth(families) -> None:
    model_diff, _ = families
    assert [pair[0] for pair in model_diff.pairs] == list(range(12))
    assert [pair[1] for pair in model_diff.pairs] == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4]
    assert "blocks of 12 and 5 are matched by relative depth" in model_diff.notes[0]
    assert "relative depth" in " ".join(printed(model_diff).split())


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 7), (24, 24), (24, 12), (12, 24), (16, 24), (5, 3)])
def test_alignment_meets_every_block_in_order(n, m) -> None:
    pairs = block_pairs(n, m)
    assert len(pairs) == max(n, m)
    assert {i for i, _ in pairs} == set(range(n))
    assert {j for _, j in pairs} == set(range(m))
    assert all(one <= other for first, second in pairwise(pairs) for one, other in zip(first, second, strict=True))
    assert pairs == tuple((i, j) for j, i in block_pairs(m, n))


def test_progress_counts_both_models_once(families) -> None:
    model_diff, seen = families
    total = sum(
        info.nbytes for side in (model_diff.a, model_diff.b) for info in Checkpoint(side.target).tensors.values()
    )
    assert {(stage, whole) for stage, _, whole in seen} == {("reading weights", total)}
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1][1] == total


def test_data_are_plain_json_with_provenance(outliers, tiny) -> None:
    data = json.loads(json.dumps(outliers.as_data(), allow_nan=False))
    assert data["schema"] == "fairbits.diff/1"
    assert data["a"]["fingerprint"] == tiny.fingerprint != data["b"]["fingerprint"]
    assert data["b"]["max_kappa_block"] == 3
    assert data["b"]["max_kappa"] == data["b"]["blocks"][3]["kappa"]
    assert "outliers were given" in data["b"]["notes"][0]
    assert "optimizer, learning rate, weight decay, training data cannot be read" in data["notes"][0]
    assert data["a"]["traits"]["positions"] == "alibi"


def test_the_table_fits_80_columns_and_shows_the_outliers(outliers) -> None:
    text = printed(outliers)
    assert max(map(len, text.splitlines())) <= 80
    row = next(line.split() for line in text.splitlines() if line.split()[:2] == ["3", "3"])
    assert row[-1] == "████████"
    assert row[-3] == f"{outliers.b.kappa[3]:.2f}"
    assert "max κ 8.60 in block 2 of 12" in text
    assert "cannot be read from" in text


def test_bars_are_logarithmic() -> None:
    assert [len(plain(log_bar(kappa, 9999.0)).strip()) for kappa in (9, 99, 999, 9999)] == [2, 4, 6, 8]
    assert (log_bar(-1.0, 5.0), log_bar(0.0, 5.0), log_bar(-1.2, -1.0)) == ("", "", "")


def test_names_of_models_cannot_steer_the_terminal(outliers) -> None:
    from dataclasses import replace

    hostile = replace(outliers, a=replace(outliers.a, target="x\x1b[2J[red]"))
    assert "x\\u001b[2J[red]" in printed(hostile)


def test_only_checkpoints_are_compared(tiny) -> None:
    with pytest.raises(InputError, match=r"b is .*embedded:tiny.*must be a Checkpoint"):
        diff(tiny, "embedded:tiny")  # type: ignore[arg-type]


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
    _, case_traits, expected = case
    assert {name: getattr(case_traits, name) for name in NAMES} == expected


def test_sizes_come_from_the_file(case) -> None:
    name, case_traits, _ = case
    blocks = {"mt5": (1, 2), "xlmr": (2, 0)}.get(name, (0, 2))
    assert (case_traits.encoder_blocks, case_traits.decoder_blocks) == blocks
    assert (case_traits.width, case_traits.heads, case_traits.vocabulary, case_traits.dtype) == (32, 4, 96, "float32")
    assert case_traits.head_dimension == {"mt5": 6, "gemma3": 16}.get(name, 8)
    assert case_traits.mlp_width == (128 if name.startswith(("bloom", "gpt2")) else 48)
    cls, config, _ = CASES[name]
    assert case_traits.parameters == sum(p.numel() for p in cls(config).parameters())  # a tied matrix counts once


def test_the_configuration_is_asked_for_what_no_module_shows(case) -> None:
    name, case_traits, _ = case
    longest = {"bloom": 77, "xglm": 2048, "xlmr": 40, "opt": 40, "opt_post": 40, "mt5": None}
    longest |= {"gpt2": 32, "gpt2_without_head": 32}
    if name in longest:
        assert case_traits.longest_input == longest[name]
    # mT5 scales each matrix by its width: it has a factor, and no range
    assert case_traits.initializer_range == {"xglm": 0.006, "mt5": None}.get(name, 0.02)


def test_different_values_stand_side_by_side(tmp_path, save) -> None:
    size = {**GROUPED, "num_experts": 3, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    save(t.Qwen2MoeForCausalLM, t.Qwen2MoeConfig(**size, shared_expert_intermediate_size=40), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    norm = "model.norm.weight"
    save_file(weights | {norm: weights[norm].half()}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model_traits = traits(Checkpoint(tmp_path))
    assert model_traits.mlp_width in ("24 and 40", "40 and 24")
    assert model_traits.dtype == "float32 and float16"
    assert (model_traits.activation, model_traits.gated_mlp, model_traits.biases) == ("SiLU", True, "q, k, v")


@pytest.mark.parametrize("equal", [True, False])
def test_a_head_beside_the_embedding_is_tied_if_the_values_agree(tmp_path, save, equal) -> None:
    config = t.GPT2Config(n_embd=32, n_layer=1, n_head=4, n_positions=32, **VOCAB)
    save(t.GPT2LMHeadModel, config, tmp_path)
    before = traits(Checkpoint(tmp_path)).parameters
    weights = load_file(tmp_path / "model.safetensors")
    head = weights["transformer.wte.weight"].clone() if equal else torch.zeros(96, 32)
    save_file(weights | {"lm_head.weight": head}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model_traits = traits(Checkpoint(tmp_path))
    assert model_traits.tied_head is equal
    assert model_traits.parameters == before + (0 if equal else 96 * 32)


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
    model_traits = traits(Checkpoint("embedded:tiny"))
    data = json.loads(json.dumps(model_traits.as_data(), allow_nan=False))
    assert data["positions"] == "alibi"
    assert data["parameters"] == 13_672_448
    assert [name for name, _ in model_traits.items()] == [name.replace("_", " ") for name in data]
    assert dict(model_traits.items())["norm epsilon"] == 1e-5
    assert format_trait(model_traits.longest_input) == "512"
