"""Training choices: which models are taken, what counts as moved, both judgements, and a small run."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as t
from scipy.stats import t as student_t

from fairbits.core.errors import InputError
from fairbits.models.embedded import ASSETS
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.all_experiments import run_experiment
from fairbits_research.experiments.laboratory import Laboratory, Setting
from fairbits_research.experiments.result import Answer, Result
from fairbits_research.experiments.training_choices import (
    ARMS,
    RESPECTS,
    TrainedModel,
    arms_with_enough_models,
    change_answer,
    difference_over_seeds,
    direction_of_change,
    false_alarms,
    judge_penalty,
    judge_respects,
    models_in,
)

LANGUAGES = ("eng_Latn", "fra_Latn", "heb_Hebr")
EVEN, UNEVEN = (0.01, 0.012), (0.1, 0.11)


def models(kappa: Sequence[float], *, uneven: Sequence[float] = UNEVEN, bits: float = 2.0) -> list[TrainedModel]:
    """Returns models of which nothing is known but these numbers."""
    return [
        TrainedModel(f"m-{i}", k, k, {"stream": u}, bits, {}, {})
        for i, (k, u) in enumerate(zip(kappa, uneven, strict=True))
    ]


def pairs(*changes: tuple[float, float]) -> dict[int, list[tuple[str, Estimate, float]]]:
    """Returns changes (low, high) of a gap of 1 at both widths."""
    gap_changes = [("pair", Estimate((low + high) / 2, low, high, 40), 1.0) for low, high in changes]
    return {3: gap_changes, 4: gap_changes}


def directory(tmp_path: Path, *names: str) -> Path:
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    return tmp_path


def test_models_are_found_by_arm_with_seeds_as_numbers(tmp_path) -> None:
    place = directory(tmp_path, "base-10", "base-9", "penalty-1")
    (place / "data-1").mkdir()  # begun, not written
    arms = models_in(place)
    assert {arm: [Path(path).name for path in paths] for arm, paths in arms.items()} == {
        "base": ["base-9", "base-10"],
        "penalty": ["penalty-1"],
    }


def test_a_directory_without_models_is_refused(tmp_path) -> None:
    with pytest.raises(InputError, match="is not a directory"):
        models_in(tmp_path / "nowhere")
    with pytest.raises(InputError, match="holds no model"):
        models_in(tmp_path)
    with pytest.raises(InputError, match="belongs to no known arm"):
        models_in(directory(tmp_path, "other-1"))


def test_arms_need_two_seeds() -> None:
    with pytest.raises(InputError, match="base has 1 model"):
        arms_with_enough_models({"base": ["a"], "data": ["b", "c"]})
    with pytest.raises(InputError, match="only base"):
        arms_with_enough_models({"base": ["a", "b"], "data": ["c"]})
    kept, notes = arms_with_enough_models({arm: ["a", "b"] for arm in ARMS} | {"data": ["c"]})
    assert "data" not in kept
    assert len(kept) == len(ARMS) - 1
    assert notes == ("Left out, with fewer than 2 models: data.",)


@pytest.mark.parametrize("seeds", [2, 3])
def test_the_rule_errs_as_often_as_the_design_says(seeds) -> None:
    rng = np.random.default_rng(1)
    drawn = rng.normal(size=(3000, 6, seeds))
    directions = np.array([[direction_of_change(arm, base) for arm in arms] for base, *arms in drawn])
    changed, lowered = false_alarms(seeds, [seeds] * 5)
    assert np.mean(directions != 0) == pytest.approx(changed, abs=0.01)
    assert np.mean((directions < 0).any(axis=1)) == pytest.approx(lowered, abs=0.02)
    assert (changed, lowered) == pytest.approx({2: (0.091, 0.153), 3: (0.0075, 0.0166)}[seeds], abs=0.002)


def test_the_interval_over_seeds_is_welchs() -> None:
    arm, base = [0.7062, 0.7997, 0.7531], [0.4885, 0.4506, 0.4602]
    change = difference_over_seeds(arm, base)
    parts = [np.var(values, ddof=1) / 3 for values in (arm, base)]
    freedom = sum(parts) ** 2 / sum(part**2 / 2 for part in parts)
    reach = student_t.ppf(0.975, freedom) * np.sqrt(sum(parts))
    assert change.value == pytest.approx(np.mean(arm) - np.mean(base))
    assert (change.low, change.high) == pytest.approx((change.value - reach, change.value + reach))
    assert change.n == 6
    assert not difference_over_seeds([1.0, 1.0], [2.0, 2.0]).bounded


def test_the_interval_over_seeds_covers_the_difference() -> None:
    rng = np.random.default_rng(2)
    drawn = rng.normal(size=(1000, 2, 3)) * [[3.0], [1.0]]
    missed = np.mean([difference_over_seeds(arm, base).excludes(0) for arm, base in drawn])
    assert missed == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [
        (-0.5, -0.1, Answer.SUPPORTED),
        (-0.1, -0.05, Answer.SUPPORTED),
        (0.1, 0.3, Answer.NOT_SUPPORTED),
        (-0.1, 0.3, Answer.NOT_SUPPORTED),
        (-0.3, 0.1, Answer.UNDECIDED),
    ],
)
def test_a_gap_fell_or_not_or_perhaps(low, high, answer) -> None:
    assert change_answer(Estimate((low + high) / 2, low, high, 40), 1.0) is answer


@pytest.mark.parametrize(
    ("changes", "uneven", "answer"),
    [
        ([(-0.5, -0.1), (-0.4, -0.2)], EVEN, Answer.SUPPORTED),
        ([(-0.5, -0.1), (-0.4, 0.2)], EVEN, Answer.UNDECIDED),
        ([(-0.5, -0.1), (0.1, 0.2)], EVEN, Answer.UNDECIDED),
        ([(-0.1, 0.1), (0.1, 0.2)], EVEN, Answer.NOT_SUPPORTED),
        ([(-0.5, -0.1), (-0.4, -0.2)], UNEVEN, Answer.UNDECIDED),
        ([(-0.1, 0.1), (0.1, 0.2)], UNEVEN, Answer.UNDECIDED),
        ([(0.1, 0.3), (0.1, 0.2)], UNEVEN, Answer.NOT_SUPPORTED),
    ],
)
def test_the_penalty_is_judged_by_all_pairs_and_by_layer_use(changes, uneven, answer) -> None:
    family = {"base": models((5, 6)), "penalty": models((5, 6), uneven=uneven)}
    judgement = judge_penalty(family, pairs(*changes))
    assert judgement.answer is answer
    assert ("no clear fall" in judgement.because) == (uneven is UNEVEN)


def test_without_the_penalty_nothing_is_said_of_it() -> None:
    assert judge_penalty({"base": models((5, 6))}, {}).answer is Answer.UNDECIDED


@pytest.mark.parametrize(
    ("kappa", "answer"),
    [
        ((1.0, 1.2), Answer.SUPPORTED),
        ((-9.0, -9.5), Answer.UNDECIDED),  # lower, and farther from a Gaussian
        ((5.5, 6.5), Answer.NOT_SUPPORTED),
        ((50.0, 51.0), Answer.UNDECIDED),
    ],
)
def test_a_respect_counts_where_it_brings_weights_nearer_to_a_gaussian(kappa, answer) -> None:
    family = {arm: models((5, 6)) for arm in ("base", *RESPECTS)} | {"optimizer": models(kappa)}
    assert judge_respects(family).answer is answer


def test_respects_that_were_not_tried_leave_it_undecided() -> None:
    family = {"base": models((5, 6)), "data": models((5, 6))}
    assert judge_respects(family).answer is Answer.UNDECIDED
    assert judge_respects({"base": models((5, 6)), "penalty": models((1, 1))}).because.startswith("no models")


def test_an_arm_that_learned_less_is_named() -> None:
    family = {"base": models((5, 6)), "data": models((1, 1.2), bits=3.0), "optimizer": models((1, 1.2))}
    because = judge_respects(family).because
    assert "lowered by data (1 and 1.2: -4.4 [" in because
    assert ", optimizer (1 and 1.2: -4.4 [" in because
    assert because.endswith("data also learned less (more bits per byte)")


@pytest.mark.long
def test_a_small_run_sees_the_heavy_tails_of_one_arm(tmp_path) -> None:
    config = t.LlamaConfig(
        vocab_size=16384,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
    )
    for arm, seed in [(arm, seed) for arm in ("base", "initialization", "penalty") for seed in (1, 2)]:
        torch.manual_seed(seed)
        model = t.LlamaForCausalLM(config)
        if arm == "initialization":
            model.model.layers[1].mlp.up_proj.weight.data[0, :4] = 1.0
        model.save_pretrained(tmp_path / f"{arm}-{seed}")
        t.PreTrainedTokenizerFast.from_pretrained(ASSETS / "tiny").save_pretrained(tmp_path / f"{arm}-{seed}")
    laboratory = Laboratory(Setting(languages=LANGUAGES, tokens=256, calibration=128))
    result = run_experiment("training-choices", laboratory, models=tmp_path)
    penalty, respects = result.judgements
    assert (penalty.claim, respects.claim) == ("000-29", "001-21")
    assert "raised by initialization" in respects.because
    assert "2 seeds per arm" in result.design
    assert [row[1] for row in result.tables[1].rows if row[0] == "max κ"] == ["initialization", "penalty"]
    for measured in ("gap at 3 bits", "gap at 4 bits", "range of κ_eff"):
        text = result.verdict.partition(f"the {measured}, ")[2]
        assert all(f"{arm} (" in text for arm in ("initialization", "penalty"))
    assert penalty.answer is Answer.UNDECIDED  # models of the same weights: layer use is as uneven as before
    same = [row for row in result.tables[2].rows if row[1] in ("penalty-1 less base-1", "penalty-2 less base-2")]
    assert [row[3] for row in same] == ["0 [0, 0]"] * 4
    assert result.subject.seeds == (1, 2)
    result.save(tmp_path / "result.json")
    assert Result.load(tmp_path / "result.json").as_bytes() == result.as_bytes()
