"""Every policy: what it decides, what it says, and what it refuses."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import transformers as t
from safetensors.torch import load_file, save_file

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.compressed_tensors import check_storable
from fairbits.quantization import policies
from fairbits.quantization.evidence import Evidence

LANGUAGES = ("eng_Latn", "heb_Hebr", "hin_Deva")
BLIND = ("aciq", "kappa", "mse")


@pytest.mark.parametrize(
    ("name", "clip", "objective", "rounding"),
    [
        ("rtn", "absmax", None, "nearest"),
        ("aciq", "gaussian", None, "nearest"),
        ("kappa", "kappa", None, "nearest"),
        ("mse", "exact", None, "nearest"),
        ("weighted", "exact", "mean", "nearest"),
        ("laaciq", "exact", "worst", "nearest"),
        ("mixed", "exact", "mean", "gptq"),
        ("gateway", "exact", "mean", "gptq"),
        ("protect", "exact", "mean", "gptq"),
        ("gptq", "exact", "mean", "gptq"),
        ("fair", "exact", "mean", "gptq"),
    ],
)
def test_the_method_of_each_policy(
    llama: Evidence, name: str, clip: str, objective: str, rounding: str, made: Any, rounded: Any, schemes: Any
) -> None:
    told = {"gateway": {"k": 2}, "protect": {"k": 1}}.get(name, {})
    plan = made(name, llama, **told)
    assert plan.policy == name
    assert {(each.clip, each.objective, each.rounding) for each in schemes(plan)} == {(clip, objective, rounding)}
    assert len(rounded(plan)) == 14  # seven linear layers in each of two blocks
    assert plan.reads_text == policies.find_policy(name).reads_text
    assert plan.languages
    assert plan.calibration is not None  # those that read no text are measured on it, layer by layer
    assert any("destroy" in note for note in plan.notes) == (name in BLIND)


def test_every_policy_can_be_imported_by_its_name() -> None:
    assert {name: getattr(policies, name) for name in policies.POLICIES} == policies.POLICIES


def test_every_policy_is_shown_and_the_default_sees_inputs(llama: Evidence, made: Any, schemes: Any) -> None:
    bits_alike = ["rtn", "aciq", "kappa", "mse", "weighted", "laaciq", "gptq"]
    assert sorted(policies.POLICIES) == sorted([*bits_alike, "mixed", "allocate", "gateway", "protect", "fair"])
    plan = made(policies.DEFAULT, llama)
    assert all(each.objective == "mean" for each in schemes(plan))
    assert plan.languages == pytest.approx(dict.fromkeys(LANGUAGES, 1 / 3))


def test_norms_head_and_embedding_stay_unless_asked(llama: Evidence, made: Any) -> None:
    kept = {each.role for each in made("rtn", llama).layers if each.bits is None}
    assert kept == {"embedding", "head"}  # norms are not in the plan at all
    plan = made("mse", llama, embeddings=8)
    outside = [each for each in plan.quantized if each.block is None]
    assert [(each.role, each.bits, each.scheme.clip) for each in outside] == [
        ("embedding", 8, "absmax"),
        ("head", 8, "absmax"),
    ]
    assert plan.layers[0].role == "embedding"
    assert plan.layers[-1].role == "head"
    assert plan.size_bytes < made("mse", llama).size_bytes


def test_four_bits_are_for_the_head_alone(llama: Evidence, made: Any) -> None:
    plan, wider = made("rtn", llama, embeddings=4), made("rtn", llama, embeddings=8)
    assert [(each.role, each.bits) for each in plan.quantized if each.block is None] == [("embedding", 8), ("head", 4)]
    check_storable(llama.checkpoint, plan.schemes)
    head = llama.checkpoint.architecture.head
    assert head is not None
    assert wider.size_bytes - plan.size_bytes == math.prod(head.shape) // 2
    note = "the head has 4 bits, the embedding 8: the format packs linear layers only"
    assert note in plan.notes
    assert note not in wider.notes


def test_a_quantized_embedding_is_said_not_to_load_in_vllm(llama: Evidence, made: Any) -> None:
    warned = {bits: made("rtn", llama, embeddings=bits).notes for bits in ("keep", 8, 4)}
    assert [sum("vLLM 0.32 cannot load" in note for note in notes) for notes in warned.values()] == [0, 1, 1]


def test_a_tied_head_is_the_embedding(reading_model: Callable[[str], Checkpoint], made: Any) -> None:
    tied = Evidence(reading_model("gemma3"))
    plan = made("rtn", tied, embeddings=8)
    assert [each.role for each in plan.quantized if each.block is None] == ["embedding"]
    check_storable(tied.checkpoint, plan.schemes)
    with pytest.raises(InputError, match=r"head and embedding tied: 8 is the least .* use 8"):
        made("rtn", tied, embeddings=4)


def test_a_head_that_repeats_the_embedding_in_the_file_is_tied(saved: Callable[..., Checkpoint], made: Any) -> None:
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 48}
    checkpoint = saved(t.LlamaForCausalLM(t.LlamaConfig(**size, vocab_size=64, tie_word_embeddings=True)))
    file = checkpoint.directory / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file, {"format": "pt"})
    with pytest.raises(InputError, match="head and embedding tied"):
        made("rtn", Evidence(Checkpoint(checkpoint.directory)), embeddings=4)


def test_fused_maps_share_width_and_group(llama: Evidence, made: Any) -> None:
    plan = made("allocate", llama, avg_bits=4.5)
    layers = {each.name: each for each in plan.layers}
    for group in llama.checkpoint.architecture.fused_groups.values():
        assert len({layers[each.name].scheme.as_stored for each in group}) == 1


def test_routers_stay(reading_model: Callable[[str], Checkpoint], made: Any, rounded: Any) -> None:
    plan = made("rtn", Evidence(reading_model("mixtral")))
    mlp = {"mlp_gate", "mlp_up", "mlp_down"}
    assert {each.role for each in rounded(plan)} == {"q", "k", "v", "attention_out"} | mlp
    assert sum(each.role in mlp for each in rounded(plan)) == 18  # 2 blocks × 3 experts × 3 maps
    assert any(each.role == "router" and each.bits is None for each in plan.layers)


def test_kappa_is_on_the_symmetric_grid(llama: Evidence, made: Any, schemes: Any) -> None:
    plan = made("kappa", llama, bits=3, group="channel")
    assert {each.grid for each in schemes(plan)} == {"symmetric"}
    assert plan.settings["grid"] == "symmetric"
    assert any("4 bits only" in note for note in plan.notes)
    with pytest.raises(InputError, match="kappa takes no grid"):
        made("kappa", llama, grid="twos")


def test_aciq_has_two_laws(llama: Evidence, made: Any, schemes: Any) -> None:
    assert {each.clip for each in schemes(made("aciq", llama, law="laplace"))} == {"laplace"}
    with pytest.raises(InputError, match="one of gaussian, laplace"):
        made("aciq", llama, law="cauchy")


def test_laaciq_of_one_language_saves_all_thresholds(llama: Evidence, made: Any, schemes: Any) -> None:
    plan = made("laaciq", llama, language="he")
    assert plan.languages == {"eng_Latn": 0.0, "heb_Hebr": 1.0, "hin_Deva": 0.0}
    assert {each.objective for each in schemes(plan)} == {"mean"}
    assert plan.thresholds
    assert made("laaciq", llama, objective="regret").settings["objective"] == "regret"
    with pytest.raises(InputError, match="objective is 'best'"):
        made("laaciq", llama, objective="best")
    with pytest.raises(InputError, match="laaciq was given objective worst and language he; give one of them"):
        made("laaciq", llama, language="he", objective="worst")
    with pytest.raises(InputError, match="fra_Latn is not one of the languages"):
        made("laaciq", llama, language="fra")


@pytest.mark.parametrize(
    ("told", "warns"), [({}, True), ({"objective": "regret"}, True), ({"objective": "mean"}, False)]
)
def test_the_worst_of_layers_is_not_the_worst_of_the_model(llama: Evidence, told: Any, warns: int, made: Any) -> None:
    assert any("need not serve the worst language" in note for note in made("laaciq", llama, **told).notes) == warns
    assert not any("need not serve" in note for note in made("laaciq", llama, language="he").notes)


def test_mixes_of_gptq(llama: Evidence, made: Any) -> None:
    english, equal = made("gptq", llama, mix="english"), made("gptq", llama)
    assert english.languages == {"eng_Latn": 1.0}
    assert english.calibration is not None
    assert equal.calibration is not None
    assert english.calibration.tokens == 3 * equal.calibration.tokens  # as many as three languages have
    assert made("gptq", llama, mix={"he": 3, "hin": 1}).languages == {
        "eng_Latn": 0.0,
        "heb_Hebr": 0.75,
        "hin_Deva": 0.25,
    }
    found = made("gptq", llama, mix="minimax")
    assert found.languages["heb_Hebr"] == 0.5
    assert found.settings["rounds"] == [{"pi": {}}]
    assert "found" in found.notes
    with pytest.raises(InputError, match="fra_Latn is not one"):
        made("gptq", llama, mix={"fr": 1})


def test_english_must_be_there_to_be_preferred(llama: Evidence, made: Any) -> None:
    with pytest.raises(InputError, match="eng_Latn is not one of the languages heb_Hebr"):
        made("gptq", dataclasses.replace(llama, languages=("heb_Hebr",)), mix="english")


def test_one_step_can_serve_a_whole_tensor(llama: Evidence, made: Any, schemes: Any) -> None:
    assert {each.group for each in schemes(made("gptq", llama, group="tensor"))} == {"tensor"}


def test_size_is_that_of_the_file_layout(llama: Evidence, made: Any) -> None:
    four, eight = (made("rtn", llama, bits=bits).size_bytes for bits in (4, 8))
    assert eight - four == sum(llama.block_weights) // 2  # half a byte more per weight, steps the same


def test_the_same_evidence_gives_the_same_digest(llama: Evidence, made: Any) -> None:
    assert made("protect", llama, k=1).digest == made("protect", llama, k=1).digest
    assert made("protect", llama, k=1).digest != made("protect", llama, k=1, bits=3).digest
