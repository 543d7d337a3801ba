"""Policies that give blocks widths of their own: mixed, gateway, allocate, protect."""

import dataclasses
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fairbits.kurtosis.checklist import OUTLIER_KAPPA_THRESHOLD
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization import policies
from fairbits.quantization.evidence import Evidence, Sensitivity
from fairbits.quantization.policies.precision import best_protected, quiet_solver, random_sets, within_budget

LANGUAGES = ("eng_Latn", "heb_Hebr", "hin_Deva")


def test_mixed_follows_kappa(llama: Evidence, made: Any, widths: Any) -> None:
    assert widths(made("mixed", llama)) == [{4}, {8}]
    assert widths(made("mixed", llama, tau=2, bits=3)) == [{8}, {8}]
    plan = made("mixed", llama, tau=1000)
    assert widths(plan) == [{4}, {4}]
    assert any("no block has κ above 1000" in note for note in plan.notes)


def test_gateway_takes_both_ends(llama: Evidence, made: Any, widths: Any) -> None:
    assert widths(made("gateway", llama, k=2)) == [{8}, {8}]


def test_gateway_counts_both_stacks_as_one(reading_model: Callable[[str], Checkpoint], made: Any) -> None:
    plan = made("gateway", Evidence(reading_model("mt5"), LANGUAGES), k=2)
    assert {each.block for each in plan.quantized if each.bits == 8} == {0, 3}
    assert any("encoder and decoder" in note for note in plan.notes)


def test_allocate_spends_on_the_worst_language(llama: Evidence, made: Any, schemes: Any, widths: Any) -> None:
    plan = made("allocate", llama, avg_bits=4.5)
    assert widths(plan) == [{4}, {5}]
    assert plan.settings["expected"]["heb_Hebr"] == pytest.approx(4.0**-4 + 9 * 4.0**-5)
    assert plan.settings["sensitivity"]["how"] == "predicted"
    assert plan.settings["bits"] == [4, 5]
    nearest = made("allocate", llama, avg_bits=4.5, sensitivity="measured", rounding="nearest")
    assert {each.rounding for each in schemes(nearest)} == {"nearest"}
    assert nearest.settings["sensitivity"]["how"] == "measured"


@pytest.mark.parametrize(("name", "told"), [("allocate", {"avg_bits": 4.5}), ("protect", {"k": 1})])
def test_a_note_says_how_sensitivities_differ_from_the_plan(
    llama: Evidence, name: str, told: dict[str, Any], made: Any
) -> None:
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


def test_protect_finds_the_vital_block_and_ranks_it(llama: Evidence, made: Any, widths: Any) -> None:
    plan = made("protect", llama, k=1)
    assert widths(plan) == [{4}, {8}]
    assert plan.settings["blocks"] == [1]
    assert plan.settings["random"] == [{"blocks": [0], "measured": pytest.approx(4.0**-8 + 9 * 4.0**-4)}]
    assert "0 of 1 random sets of 1 blocks measured better than the chosen one" in plan.notes


def test_protect_says_when_chance_is_better(llama: Evidence, made: Any, damage: Any) -> None:
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


def test_what_the_solver_prints_goes_to_stderr(capfd: pytest.CaptureFixture[str]) -> None:
    with quiet_solver():
        os.write(1, b"noise")
    os.write(1, b"result")
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("result", "noise")


def test_mixed_has_the_threshold_of_the_founding_documents() -> None:
    assert policies.find_policy("mixed").options["tau"].default == f"{OUTLIER_KAPPA_THRESHOLD:g}"
