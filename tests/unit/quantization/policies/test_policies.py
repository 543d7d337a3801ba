"""Every policy: what it decides, what it says, and what it refuses."""

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import transformers as t
from safetensors.torch import load_file, save_file

from fairbits.errors import InputError
from fairbits.measure.audit.outliers import FOUNDING_THRESHOLD
from fairbits.model import Checkpoint
from fairbits.model.files.formats import DEFAULT_FORMAT
from fairbits.model.scheme import Scheme
from fairbits.quantization import policies
from fairbits.quantization.evidence import Evidence, How, Mix, Sensitivity
from fairbits.quantization.plan import Calibration, LayerPlan, Plan
from fairbits.quantization.policies import decide
from fairbits.quantization.policies.widths import best_protected, quiet_solver, random_sets, within_budget

LANGUAGES = ("eng_Latn", "heb_Hebr", "hin_Deva")
TEXT = Calibration("text", dict.fromkeys(LANGUAGES, "0"), 512, 64, 3)
BLIND = ("aciq", "kappa", "mse")


def sensitivity(widths: Sequence[int], how: How) -> Sensitivity:
    """Block 1 is vital to Hebrew, block 0 a little to the others; 4^−bits as rounding errors go."""
    cost = np.array([[2.0, 1.0], [1.0, 9.0], [2.0, 1.0]])
    return Sensitivity(how, LANGUAGES, tuple(widths), cost[:, :, None] * 4.0 ** -np.array(widths), ())


def damage(allocations: Sequence[Sequence[int]]) -> np.ndarray:
    found = sensitivity(range(2, 9), "measured")
    rows = [sum(found.at(bits)[:, block] for block, bits in enumerate(each)) for each in allocations]
    return np.array(rows)


@pytest.fixture
def llama(reading_model: Callable[[str], Checkpoint]) -> Evidence:
    return Evidence(
        reading_model("llama"),
        LANGUAGES,
        kappa=lambda: np.array([3.0, 150.0]),
        sensitivity=sensitivity,
        damage=damage,
        minimax=lambda: Mix({"eng_Latn": 0.2, "heb_Hebr": 0.5, "hin_Deva": 0.3}, ({"pi": {}},), ("found",)),
    )


def made(name: str, evidence: Evidence, **told: Any) -> Plan:
    return decide(name, evidence, calibration=TEXT, **{"group": 16, **told})


def rounded(plan: Plan) -> list[LayerPlan]:
    return [each for each in plan.quantized if each.block is not None]


def schemes(plan: Plan) -> list[Scheme]:
    return [each.scheme for each in rounded(plan) if each.scheme is not None]


def widths(plan: Plan) -> list[set[int | None]]:
    return [{each.bits for each in rounded(plan) if each.block == block} for block in (0, 1)]


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
def test_the_method_of_each_policy(llama: Evidence, name: str, clip: str, objective: str, rounding: str) -> None:
    told = {"gateway": {"k": 2}, "protect": {"k": 1}}.get(name, {})
    plan = made(name, llama, **told)
    assert plan.policy == name
    assert {(each.clip, each.objective, each.rounding) for each in schemes(plan)} == {(clip, objective, rounding)}
    assert len(rounded(plan)) == 14  # seven linear maps in each of two blocks
    assert plan.reads_text == policies.find_policy(name).reads_text
    assert plan.languages
    assert plan.calibration is not None  # those that read no text are measured on it, layer by layer
    assert any("destroy" in note for note in plan.notes) == (name in BLIND)


def test_every_policy_can_be_imported_by_its_name() -> None:
    assert {name: getattr(policies, name) for name in policies.POLICIES} == policies.POLICIES


def test_every_policy_is_shown_and_the_default_sees_inputs(llama: Evidence) -> None:
    bits_alike = ["rtn", "aciq", "kappa", "mse", "weighted", "laaciq", "gptq"]
    assert sorted(policies.POLICIES) == sorted([*bits_alike, "mixed", "allocate", "gateway", "protect", "fair"])
    plan = made(policies.DEFAULT, llama)
    assert all(each.objective == "mean" for each in schemes(plan))
    assert plan.languages == pytest.approx(dict.fromkeys(LANGUAGES, 1 / 3))


def test_norms_head_and_embedding_stay_unless_asked(llama: Evidence) -> None:
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


def test_four_bits_are_for_the_head_alone(llama: Evidence) -> None:
    plan, wider = made("rtn", llama, embeddings=4), made("rtn", llama, embeddings=8)
    assert [(each.role, each.bits) for each in plan.quantized if each.block is None] == [("embedding", 8), ("head", 4)]
    DEFAULT_FORMAT.check(llama.checkpoint, plan.schemes)
    head = llama.checkpoint.architecture.head
    assert head is not None
    assert wider.size_bytes - plan.size_bytes == math.prod(head.shape) // 2
    note = "the head has 4 bits, the embedding 8: the format packs linear maps only"
    assert note in plan.notes
    assert note not in wider.notes


def test_a_tied_head_is_the_embedding(reading_model: Callable[[str], Checkpoint]) -> None:
    tied = Evidence(reading_model("gemma3"))
    plan = made("rtn", tied, embeddings=8)
    assert [each.role for each in plan.quantized if each.block is None] == ["embedding"]
    DEFAULT_FORMAT.check(tied.checkpoint, plan.schemes)
    with pytest.raises(InputError, match=r"head and embedding tied: 8 is the least .* use 8"):
        made("rtn", tied, embeddings=4)


def test_a_head_that_repeats_the_embedding_in_the_file_is_tied(saved: Callable[..., Checkpoint]) -> None:
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 48}
    checkpoint = saved(t.LlamaForCausalLM(t.LlamaConfig(**size, vocab_size=64, tie_word_embeddings=True)))
    file = checkpoint.directory / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file, {"format": "pt"})
    with pytest.raises(InputError, match="head and embedding tied"):
        made("rtn", Evidence(Checkpoint(checkpoint.directory)), embeddings=4)


def test_fused_maps_share_width_and_group(llama: Evidence) -> None:
    plan = made("allocate", llama, avg_bits=4.5)
    layers = {each.name: each for each in plan.layers}
    for group in llama.checkpoint.architecture.fused_groups.values():
        assert len({layers[each.name].scheme.as_stored for each in group}) == 1


def test_experts_and_routers_stay(reading_model: Callable[[str], Checkpoint]) -> None:
    plan = made("rtn", Evidence(reading_model("mixtral")))
    assert {each.role for each in rounded(plan)} == {"q", "k", "v", "attention_out"}
    assert any(each.role == "router" and each.bits is None for each in plan.layers)
    assert any("18 tensors of experts" in note for note in plan.notes)  # 2 blocks × 3 experts × 3 maps


def test_kappa_is_on_the_symmetric_grid(llama: Evidence) -> None:
    plan = made("kappa", llama, bits=3, group="channel")
    assert {each.grid for each in schemes(plan)} == {"symmetric"}
    assert plan.settings["grid"] == "symmetric"
    assert any("4 bits only" in note for note in plan.notes)
    with pytest.raises(InputError, match="kappa takes no grid"):
        made("kappa", llama, grid="twos")


def test_aciq_has_two_laws(llama: Evidence) -> None:
    assert {each.clip for each in schemes(made("aciq", llama, law="laplace"))} == {"laplace"}
    with pytest.raises(InputError, match="one of gaussian, laplace"):
        made("aciq", llama, law="cauchy")


def test_laaciq_of_one_language_saves_all_thresholds(llama: Evidence) -> None:
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
def test_the_worst_of_layers_is_not_the_worst_of_the_model(llama: Evidence, told: Any, warns: int) -> None:
    assert any("need not serve the worst language" in note for note in made("laaciq", llama, **told).notes) == warns
    assert not any("need not serve" in note for note in made("laaciq", llama, language="he").notes)


def test_mixed_follows_kappa(llama: Evidence) -> None:
    assert widths(made("mixed", llama)) == [{4}, {8}]
    assert widths(made("mixed", llama, tau=2, bits=3)) == [{8}, {8}]
    plan = made("mixed", llama, tau=1000)
    assert widths(plan) == [{4}, {4}]
    assert any("no block has κ above 1000" in note for note in plan.notes)


def test_gateway_takes_both_ends(llama: Evidence) -> None:
    assert widths(made("gateway", llama, k=2)) == [{8}, {8}]


def test_gateway_counts_both_stacks_as_one(reading_model: Callable[[str], Checkpoint]) -> None:
    plan = made("gateway", Evidence(reading_model("mt5"), LANGUAGES), k=2)
    assert {each.block for each in plan.quantized if each.bits == 8} == {0, 3}
    assert any("encoder and decoder" in note for note in plan.notes)


def test_allocate_spends_on_the_worst_language(llama: Evidence) -> None:
    plan = made("allocate", llama, avg_bits=4.5)
    assert widths(plan) == [{4}, {5}]
    assert plan.settings["expected"]["heb_Hebr"] == pytest.approx(4.0**-4 + 9 * 4.0**-5)
    assert plan.settings["sensitivity"]["how"] == "predicted"
    assert plan.settings["bits"] == [4, 5]
    nearest = made("allocate", llama, avg_bits=4.5, sensitivity="measured", rounding="nearest")
    assert {each.rounding for each in schemes(nearest)} == {"nearest"}
    assert nearest.settings["sensitivity"]["how"] == "measured"


@pytest.mark.parametrize(("name", "told"), [("allocate", {"avg_bits": 4.5}), ("protect", {"k": 1})])
def test_a_note_says_how_sensitivities_differ_from_the_plan(llama: Evidence, name: str, told: dict[str, Any]) -> None:
    judged = "sensitivities are for rounding to nearest with scales set by the largest weight; the plan itself rounds "
    notes = [made(name, llama, rounding=rounding, **told).notes for rounding in ("gptq", "nearest")]
    assert [next(note for note in each if note.startswith(judged)).removeprefix(judged) for each in notes] == [
        "by gptq with a clip weighted by the inputs",
        "to nearest with a clip weighted by the inputs",
    ]


@pytest.mark.parametrize("objective", ["mean", "worst", "regret"])
def test_no_allocation_is_better_within_the_budget(objective: str) -> None:
    rng = np.random.default_rng(5)
    table = rng.gamma(1.0, size=(3, 4, 1)) * 4.0 ** -np.array([3, 4, 6])
    found = Sensitivity("measured", LANGUAGES, (3, 4, 6), table, ())
    sizes = np.array([800, 1600, 800, 400])
    chosen, _ = within_budget(found, sizes.tolist(), avg_bits=4.5, objective=objective)  # type: ignore[arg-type]
    options = np.array(np.meshgrid(*[range(3)] * 4)).reshape(4, -1).T
    fits = options[(sizes * np.array([3, 4, 6])[options]).sum(1) <= 4.5 * sizes.sum()]
    totals = np.array([table[:, range(4), each].sum(1) for each in fits])
    uniform = table[:, :, 1].sum(1)
    if objective != "mean":
        floor = totals.min(0) if objective == "regret" else 0.0
        totals = (totals - floor)[(totals <= uniform * (1 + 1e-9)).all(1)]
        assert chosen.value == pytest.approx(totals.max(1).min())
        assert (chosen.damage <= uniform * (1 + 1e-9)).all()
    else:
        assert chosen.value == pytest.approx(totals.mean(1).min())


def test_a_mean_that_hurts_a_language_says_so() -> None:
    table = np.array([[[1.0, 0.0], [0.0, 0.0], [0.4, 0.0]], [[0.0, 0.0], [9.0, 0.0], [0.0, 0.0]]])
    with_uniform = np.concatenate([10 * table[:, :, :1], table], axis=2)  # 3, 4 and 8 bits
    found = Sensitivity("measured", ("eng_Latn", "heb_Hebr"), (3, 4, 8), with_uniform, ())
    allocation, notes = within_budget(found, [8, 8, 8], avg_bits=5, objective="mean")
    assert allocation.bits[1] == 8
    assert notes == ("the mean damage is minimal, but eng_Latn is worse off than with 4 bits everywhere",)


def test_protect_finds_the_vital_block_and_ranks_it(llama: Evidence) -> None:
    plan = made("protect", llama, k=1)
    assert widths(plan) == [{4}, {8}]
    assert plan.settings["blocks"] == [1]
    assert plan.settings["random"] == [{"blocks": [0], "measured": pytest.approx(4.0**-8 + 9 * 4.0**-4)}]
    assert "0 of 1 random sets of 1 blocks measured better than the chosen one" in plan.notes


def test_protect_says_when_chance_is_better(llama: Evidence) -> None:
    contrary = dataclasses.replace(llama, damage=lambda sets: damage(sets)[::-1])
    assert any(note.startswith("1 of 1 random") for note in made("protect", contrary, k=1).notes)


def test_large_searches_are_left_to_the_program() -> None:
    rng = np.random.default_rng(0)
    gains = rng.gamma(1.0, size=(1, 60, 1)) * np.array([1.0, 0.0])
    found = Sensitivity("measured", ("eng_Latn",), (4, 8), gains, ())
    best = best_protected(found, bits=4, k=20, objective="worst")  # 4·10¹⁵ sets
    assert best == tuple(sorted(np.argsort(-gains[0, :, 0])[:20].tolist()))


def test_random_sets_are_seeded_and_differ() -> None:
    sets = random_sets(12, 3, count=20, seed=1)
    assert len(set(sets)) == 20
    assert sets == random_sets(12, 3, count=20, seed=1)
    assert sets != random_sets(12, 3, count=20, seed=2)
    assert len(random_sets(3, 2, count=20, seed=0)) == 3


def test_mixes_of_gptq(llama: Evidence) -> None:
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


def test_english_must_be_there_to_be_preferred(llama: Evidence) -> None:
    with pytest.raises(InputError, match="eng_Latn is not one of the languages heb_Hebr"):
        made("gptq", dataclasses.replace(llama, languages=("heb_Hebr",)), mix="english")


def test_one_step_can_serve_a_whole_tensor(llama: Evidence) -> None:
    assert {each.group for each in schemes(made("gptq", llama, group="tensor"))} == {"tensor"}


def test_size_is_that_of_the_file_layout(llama: Evidence) -> None:
    four, eight = (made("rtn", llama, bits=bits).size_bytes for bits in (4, 8))
    assert eight - four == sum(llama.block_weights) // 2  # half a byte more per weight, steps the same


def test_the_same_evidence_gives_the_same_digest(llama: Evidence) -> None:
    assert made("protect", llama, k=1).digest == made("protect", llama, k=1).digest
    assert made("protect", llama, k=1).digest != made("protect", llama, k=1, bits=3).digest


def test_what_the_solver_prints_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_solver():
        os.write(1, b"noise")
    os.write(1, b"result")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("result", "noise")


def test_mixed_has_the_threshold_of_the_founding_documents() -> None:
    assert policies.find_policy("mixed").options["tau"].default == f"{FOUNDING_THRESHOLD:g}"
