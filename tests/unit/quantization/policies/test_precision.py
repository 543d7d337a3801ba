"""Policies of precision: mixed, gateway, allocate and protect."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import transformers as t

from fairbits.core.errors import InputError
from fairbits.kurtosis.checklist import OUTLIER_KAPPA_THRESHOLD
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization import policies
from fairbits.quantization.evidence import Evidence, Sensitivity
from fairbits.quantization.policies.precision import best_protected, quiet_solver, random_sets, within_budget

LANGUAGES = ("eng_Latn", "heb_Hebr", "hin_Deva")


def test_mixed_follows_kappa(llama: Evidence, make_plan: Any, block_bits: Any) -> None:
    assert block_bits(make_plan("mixed", llama)) == [{4}, {8}]
    assert block_bits(make_plan("mixed", llama, tau=2, bits=3)) == [{8}, {8}]
    plan = make_plan("mixed", llama, tau=1000)
    assert block_bits(plan) == [{4}, {4}]
    assert any("no block has κ above 1000" in note for note in plan.notes)


def test_mixed_has_the_threshold_of_the_research_notes() -> None:
    assert policies.find_policy("mixed").options["tau"].default == f"{OUTLIER_KAPPA_THRESHOLD:g}"


def test_gateway_takes_both_ends(llama: Evidence, make_plan: Any, block_bits: Any) -> None:
    assert block_bits(make_plan("gateway", llama, k=2)) == [{8}, {8}]


def test_gateway_counts_both_stacks_as_one(reading_model: Callable[[str], Checkpoint], make_plan: Any) -> None:
    plan = make_plan("gateway", Evidence(reading_model("mt5"), LANGUAGES), k=2)
    assert {layer.block for layer in plan.quantized if layer.bits == 8} == {0, 3}
    assert any("encoder and decoder" in note for note in plan.notes)


def test_allocate_spends_on_the_worst_language(llama: Evidence, make_plan: Any, schemes: Any, block_bits: Any) -> None:
    plan = make_plan("allocate", llama, avg_bits=4.5)
    assert block_bits(plan) == [{4}, {5}]
    assert plan.settings["expected"]["heb_Hebr"] == pytest.approx(4.0**-4 + 9 * 4.0**-5)
    assert plan.settings["sensitivity"]["how"] == "predicted"
    assert plan.settings["bits"] == [4, 5]
    nearest = make_plan("allocate", llama, avg_bits=4.5, sensitivity="measured", rounding="nearest")
    assert {scheme.rounding for scheme in schemes(nearest)} == {"nearest"}
    assert nearest.settings["sensitivity"]["how"] == "measured"


@pytest.mark.parametrize(("name", "options"), [("allocate", {"avg_bits": 4.5}), ("protect", {"k": 1})])
def test_a_note_says_how_sensitivities_differ_from_the_plan(
    llama: Evidence, name: str, options: dict[str, Any], make_plan: Any
) -> None:
    judged = "sensitivities are for rounding to nearest with scales set by the largest weight; the plan itself rounds "
    notes = [make_plan(name, llama, rounding=rounding, **options).notes for rounding in ("gptq", "nearest")]
    assert [
        next(note for note in plan_notes if note.startswith(judged)).removeprefix(judged) for plan_notes in notes
    ] == [
        "by gptq with a clip weighted by the inputs",
        "to nearest with a clip weighted by the inputs",
    ]


@pytest.mark.parametrize("objective", ["mean", "worst", "regret"])
def test_no_allocation_is_better_within_the_budget(objective: str) -> None:
    rng = np.random.default_rng(5)
    table = rng.gamma(1.0, size=(3, 4, 1)) * 4.0 ** -np.array([3, 4, 6])
    sensitivity = Sensitivity("measured", LANGUAGES, (3, 4, 6), table, ())
    sizes = np.array([800, 1600, 800, 400])
    chosen, _ = within_budget(sensitivity, sizes.tolist(), avg_bits=4.5, objective=objective)  # type: ignore[arg-type]
    options = np.array(np.meshgrid(*[range(3)] * 4)).reshape(4, -1).T
    fits = options[(sizes * np.array([3, 4, 6])[options]).sum(1) <= 4.5 * sizes.sum()]
    totals = np.array([table[:, range(4), choice].sum(1) for choice in fits])
    uniform = table[:, :, 1].sum(1)
    if objective != "mean":
        floor = totals.min(0) if objective == "regret" else 0.0
        totals = (totals - floor)[(totals <= uniform * (1 + 1e-9)).all(1)]
        assert chosen.value == pytest.approx(totals.max(1).min())
        assert (chosen.damage <= uniform * (1 + 1e-9)).all()
    else:
        assert chosen.value == pytest.approx(totals.mean(1).min())


def test_a_note_names_languages_that_the_mean_hurts() -> None:
    table = np.array([[[1.0, 0.0], [0.0, 0.0], [0.4, 0.0]], [[0.0, 0.0], [9.0, 0.0], [0.0, 0.0]]])
    with_uniform = np.concatenate([10 * table[:, :, :1], table], axis=2)  # 3, 4 and 8 bits
    sensitivity = Sensitivity("measured", ("eng_Latn", "heb_Hebr"), (3, 4, 8), with_uniform, ())
    allocation, notes = within_budget(sensitivity, [8, 8, 8], avg_bits=5, objective="mean")
    assert allocation.bits[1] == 8
    assert notes == ("the mean damage is minimal, but eng_Latn is worse off than with 4 bits everywhere",)


def test_allocate_refuses_what_it_cannot_do(unmeasured: Evidence, make_plan: Any) -> None:
    with pytest.raises(InputError, match="allocate needs avg_bits"):
        make_plan("allocate", unmeasured)
    with pytest.raises(InputError, match="allocate does not take bits"):
        make_plan("allocate", unmeasured, avg_bits=4, bits=4)


def test_protect_finds_the_vital_block_and_ranks_it(llama: Evidence, make_plan: Any, block_bits: Any) -> None:
    plan = make_plan("protect", llama, k=1)
    assert block_bits(plan) == [{4}, {8}]
    assert plan.settings["blocks"] == [1]
    assert plan.settings["random"] == [{"blocks": [0], "measured": pytest.approx(4.0**-8 + 9 * 4.0**-4)}]
    assert "0 of 1 random sets of 1 blocks did better than the chosen set" in plan.notes


def test_a_note_says_how_many_random_sets_are_better(llama: Evidence, make_plan: Any, damage: Any) -> None:
    contrary = dataclasses.replace(llama, damage=lambda sets: damage(sets)[::-1])
    assert any(note.startswith("1 of 1 random") for note in make_plan("protect", contrary, k=1).notes)


def test_one_block_cannot_be_protected_from_the_others(
    unmeasured: Evidence, saved: Callable[..., Checkpoint], make_plan: Any
) -> None:
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 48}
    single = saved(t.LlamaForCausalLM(t.LlamaConfig(**size, vocab_size=64)))
    with pytest.raises(InputError, match="the number of blocks that may be protected is 1; it must be 2 or more"):
        make_plan("protect", dataclasses.replace(unmeasured, checkpoint=single), k=1)


def test_large_searches_use_the_integer_program() -> None:
    rng = np.random.default_rng(0)
    gains = rng.gamma(1.0, size=(1, 60, 1)) * np.array([1.0, 0.0])
    sensitivity = Sensitivity("measured", ("eng_Latn",), (4, 8), gains, ())
    best = best_protected(sensitivity, bits=4, k=20, objective="worst")  # 4·10¹⁵ sets
    assert best == tuple(sorted(np.argsort(-gains[0, :, 0])[:20].tolist()))


def test_random_sets_are_seeded_and_differ() -> None:
    sets = random_sets(12, 3, count=20, seed=1)
    assert len(set(sets)) == 20
    assert sets == random_sets(12, 3, count=20, seed=1)
    assert sets != random_sets(12, 3, count=20, seed=2)
    assert len(random_sets(3, 2, count=20, seed=0)) == 3


def test_solver_output_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_solver():
        os.write(1, b"noise")
    os.write(1, b"result")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("result", "noise")
