"""More families that speak many languages, and those whose tensors are easily mistaken."""

from typing import Any

import pytest
import transformers as t
from small_models import small_config
from transformers.models.llama4.modeling_llama4 import Llama4TextExperts

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Architecture
from fairbits.models.architecture.assemble import map_architecture

VOCAB = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, **VOCAB}
GROUPED = {**SIZE, "num_key_value_heads": 2}
BART = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 2), ("ffn_dim", 48))}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 32, "max_position_embeddings": 32}
GLM = {"moe_intermediate_size": 24, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 0}

EMBEDDING, SHARED, WORDS = "model.embed_tokens.weight", "model.shared.weight", "bert.embeddings.word_embeddings.weight"
QKV = "q_proj:q:attention.qkv k_proj:k:attention.qkv v_proj:v:attention.qkv"
GATED = "gate_proj:mlp_gate:mlp.gate_up up_proj:mlp_up:mlp.gate_up down_proj:mlp_down:-"
SHARED_EXPERTS = " ".join(f"shared_experts.{row}" for row in GATED.split())
LLAMA = f"{QKV} o_proj:attention_out:- {GATED}"

# class, configuration, number of blocks, stack of the first one, its linear layers (name:role:group), what is tied
FAMILIES = {
    "aya": (
        t.CohereForCausalLM,
        t.CohereConfig(**GROUPED, use_qk_norm=True),
        2,
        "decoder",
        LLAMA,
        {"lm_head": EMBEDDING},
    ),
    "aya_expanse": (t.Cohere2ForCausalLM, t.Cohere2Config(**GROUPED), 2, "decoder", LLAMA, {"lm_head": EMBEDDING}),
    "gemma": (t.GemmaForCausalLM, t.GemmaConfig(**GROUPED, head_dim=16), 2, "decoder", LLAMA, {"lm_head": EMBEDDING}),
    "apertus": (
        *(t.ApertusForCausalLM, t.ApertusConfig(**GROUPED), 2, "decoder"),
        *(f"{QKV} o_proj:attention_out:- up_proj:mlp_up:- down_proj:mlp_down:-", {}),
    ),
    "eurobert": (t.EuroBertModel, t.EuroBertConfig(**GROUPED), 2, "encoder", LLAMA, {}),
    "mbert": (
        *(t.BertForMaskedLM, t.BertConfig(**SIZE, max_position_embeddings=32), 2, "encoder"),
        "query:q:attention.qkv key:k:attention.qkv value:v:attention.qkv "
        "attention.output.dense:attention_out:- intermediate.dense:mlp_up:- 0.output.dense:mlp_down:-",
        {"cls.predictions.decoder": WORDS},
    ),
    "nllb": (
        *(t.M2M100ForConditionalGeneration, t.M2M100Config(**BART, **VOCAB), 4, "encoder"),
        f"{QKV} out_proj:attention_out:- fc1:mlp_up:- fc2:mlp_down:-",
        dict.fromkeys(("model.encoder.embed_tokens", "model.decoder.embed_tokens", "lm_head"), SHARED),
    ),
    "glm_moe": (
        *(t.Glm4MoeForCausalLM, t.Glm4MoeConfig(**GROUPED, **GLM, head_dim=8, n_group=1, topk_group=1), 2, "decoder"),
        f"{QKV} o_proj:attention_out:- mlp.gate:router:- {SHARED_EXPERTS}",
        {},
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_families_of_many_languages(name: str, described: Any) -> None:
    cls, config, n_blocks, stack, table, tied = FAMILIES[name]
    architecture: Architecture = map_architecture(*described(cls, config))
    assert (architecture.n_blocks, architecture.blocks[0].stack) == (n_blocks, stack)
    assert {key.removesuffix(".weight"): value for key, value in architecture.tied.items() if "bias" not in key} == tied
    linears = {n: w for n, w in architecture.blocks[0].linears.items() if w.expert is None}
    rows = [row.split(":") for row in table.split()]
    assert len(linears) == len(rows)
    for suffix, role, group in rows:
        (weight,) = (w for n, w in linears.items() if n.endswith(f"{suffix}.weight"))
        assert (weight.role, weight.fused) == (role, None if group == "-" else f"blocks.0.{group}"), suffix
        assert not weight.transposed


def test_what_routes_and_what_activates_belongs_to_the_model(described: Any) -> None:
    glm = t.Glm4MoeConfig(**GROUPED, **GLM, head_dim=8, n_group=1, topk_group=1)
    architecture = map_architecture(*described(t.Glm4MoeForCausalLM, glm))
    assert architecture.weights["model.layers.0.mlp.gate.e_score_correction_bias"].role == "bias"
    architecture = map_architecture(*described(t.ApertusForCausalLM, t.ApertusConfig(**GROUPED)))
    assert architecture.weights["model.layers.0.mlp.act_fn.beta"].role == "other"
    assert architecture.ignored == {}


@pytest.mark.parametrize(("intermediate", "hidden"), [(48, 32), (32, 64), (32, 32)])
def test_experts_that_do_not_say_how_they_are_stored(intermediate: int, hidden: int, described: Any) -> None:
    """Llama 4 multiplies from the left, (in, out), and its module has no word on that."""
    architecture = map_architecture(*described(t.Llama4ForCausalLM, llama4(intermediate, hidden=hidden)))
    down, both = (architecture.weights[f"model.layers.1.feed_forward.experts.{n}_proj"] for n in ("down", "gate_up"))
    assert (down.shape, down.transposed, down.stacked) == ((hidden, intermediate), True, 4)
    assert (both.shape, both.transposed, both.role) == ((2 * intermediate, hidden), True, "mlp_gate_up")


def test_experts_that_are_not_stored_as_they_say(described: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    config, shapes = described(t.Llama4ForCausalLM, llama4(48, hidden=32))
    monkeypatch.setattr(Llama4TextExperts, "is_transposed", False, raising=False)
    with pytest.raises(InputError, match=r"experts.gate_up_proj' cannot be recognized as \(out, in\) or \(in, out\)"):
        map_architecture(config, shapes)


def llama4(intermediate: int, *, hidden: int) -> Any:
    size = {**GROUPED, "hidden_size": hidden, "intermediate_size": intermediate, "head_dim": 8}
    return t.Llama4TextConfig(**size, intermediate_size_mlp=48, num_local_experts=4, interleave_moe_layer_step=2)


def test_experts_stacked_in_the_file(described: Any) -> None:
    config = t.GptOssConfig(**GROUPED, head_dim=16, num_local_experts=4)
    architecture = map_architecture(*described(t.GptOssForCausalLM, config))
    down = architecture.weights["model.layers.0.mlp.experts.down_proj"]
    both = architecture.weights["model.layers.0.mlp.experts.gate_up_proj"]
    assert (down.role, down.shape, down.transposed, down.stacked) == ("mlp_down", (32, 48), True, 4)
    assert (both.role, both.shape, both.transposed, both.stacked) == ("mlp_gate_up", (96, 32), True, 4)
    assert (both.sees, down.sees) == ("blocks.0.experts.mlp", "blocks.0.experts.mlp_down")


def test_parallel_attention_and_feed_forward_share_one_input(described: Any) -> None:
    config = t.GPTJConfig(n_embd=32, n_layer=2, n_head=4, rotary_dim=4, **VOCAB)
    block = map_architecture(*described(t.GPTJForCausalLM, config)).blocks[1].weights
    names = ("attn.q_proj", "attn.k_proj", "attn.v_proj", "mlp.fc_in")
    assert {block[f"transformer.h.1.{name}.weight"].sees for name in names} == {"blocks.1.attention"}


def test_gains_per_head_are_no_linear_map(described: Any) -> None:
    architecture = map_architecture(*described(t.CohereForCausalLM, t.CohereConfig(**GROUPED, use_qk_norm=True)))
    gain = architecture.weights["model.layers.0.self_attn.q_norm.weight"]
    assert (gain.role, gain.shape, gain.linear) == ("norm", (4, 8), False)


def test_a_bottleneck_is_no_feed_forward_layer(described: Any) -> None:
    config = t.Gemma4TextConfig(**GROUPED, head_dim=8, vocab_size_per_layer_input=96, hidden_size_per_layer_input=8)
    block = map_architecture(*described(t.Gemma4ForCausalLM, config)).blocks[0]
    roles = [weight.role for weight in block.linears.values()]
    assert (roles.count("mlp_up"), roles.count("mlp_down"), roles.count("projection")) == (1, 1, 2)


def test_an_attention_with_a_gate_of_its_own(described: Any) -> None:
    """The gate sees what q, k and v see and has the shape of the output projection."""
    config = t.MiniMaxConfig(**GROUPED, num_local_experts=4, layer_types=["full_attention", "linear_attention"])
    architecture = map_architecture(*described(t.MiniMaxForCausalLM, config))
    inside = {name.removeprefix("model.layers.1.self_attn."): w for name, w in architecture.blocks[1].linears.items()}
    roles = {name: inside[f"{name}.weight"].role for name in ("qkv_proj", "output_gate", "out_proj")}
    assert roles == {"qkv_proj": "qkv", "output_gate": "projection", "out_proj": "attention_out"}
    assert inside["output_gate.weight"].sees == inside["qkv_proj.weight"].sees == "blocks.1.attention"


def test_latent_attention(described: Any) -> None:
    """Its maps are found with their inputs; the first ones, which share one, share a scheme."""
    ranks = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
    config = t.DeepseekV3Config(**SIZE, **ranks, num_key_value_heads=4, first_k_dense_replace=2, head_dim=4)
    block = map_architecture(*described(t.DeepseekV3ForCausalLM, config)).blocks[0]
    inside = {name.split(".")[-2]: weight for name, weight in block.linears.items() if "self_attn" in name}
    assert {weight.role for weight in inside.values()} == {"projection"}
    shared = [inside[name] for name in ("q_a_proj", "kv_a_proj_with_mqa")]
    assert {weight.fused for weight in shared} == {"blocks.0.mixer.projections"}
    assert {weight.sees for weight in shared} == {"blocks.0.mixer"}
    assert len({inside[name].sees for name in ("q_b_proj", "kv_b_proj", "o_proj")}) == 3


def test_a_state_space(described: Any) -> None:
    """Its linear layers are found, the narrow one is kept, and so is what is no linear layer."""
    config = t.MambaConfig(hidden_size=32, num_hidden_layers=2, time_step_rank=2, **VOCAB)
    block = map_architecture(*described(t.MambaForCausalLM, config)).blocks[0]
    roles = {name.removeprefix("backbone.layers.0.mixer."): weight.role for name, weight in block.weights.items()}
    assert roles["in_proj.weight"] == roles["x_proj.weight"] == roles["out_proj.weight"] == "projection"
    assert (roles["A_log"], roles["conv1d.weight"]) == ("other", "other")
    assert not block.weights["backbone.layers.0.mixer.dt_proj.weight"].linear  # its module is never called


def test_a_narrow_map_steers(described: Any) -> None:
    config = t.Qwen3NextConfig(
        **{**GROUPED, "hidden_size": 64},
        head_dim=16,
        linear_num_key_heads=1,
        linear_num_value_heads=2,
        linear_key_head_dim=32,
        linear_value_head_dim=32,
        layer_types=["linear_attention", "full_attention"],
        num_experts=3,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=24,
    )
    block = map_architecture(*described(t.Qwen3NextForCausalLM, config)).blocks[0]
    inside = {name.split(".")[-2]: weight for name, weight in block.linears.items() if "linear_attn" in name}
    assert (inside["in_proj_ba"].role, inside["in_proj_ba"].is_control) == ("control", True)
    assert (inside["in_proj_qkvz"].role, inside["in_proj_qkvz"].is_control) == ("projection", False)


def test_a_map_of_groups_of_features_is_no_linear_map(described: Any) -> None:
    config = small_config("deepseek_v4", "DeepseekV4ForCausalLM", vocabulary=64)
    weights = map_architecture(*described(t.DeepseekV4ForCausalLM, config)).weights.values()
    linear = {weight.module.removeprefix("model.layers.1.self_attn."): weight.linear for weight in weights}
    assert (linear["o_a_proj"], linear["o_b_proj"]) == (False, True)


@pytest.mark.parametrize(
    ("family", "name"), [("encoder-decoder", "EncoderDecoderModel"), ("seamless_m4t", "SeamlessM4TForTextToText")]
)
def test_the_outermost_name_tells_encoder_and_decoder_apart(described: Any, family: str, name: str) -> None:
    architecture = map_architecture(*described(getattr(t, name), small_config(family, name, vocabulary=96)))
    assert [block.stack for block in architecture.blocks] == ["encoder", "encoder", "decoder", "decoder"]


def test_a_class_that_reads_padding_is_refused(described: Any) -> None:
    config, shapes = described(t.FNetForMaskedLM, small_config("fnet", "FNetForMaskedLM", vocabulary=96))
    with pytest.raises(InputError, match=r"takes no attention_mask: it would mix the padding of a batch into the text"):
        map_architecture(config, shapes)
