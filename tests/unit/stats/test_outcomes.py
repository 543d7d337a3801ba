import numpy as np
import pytest
from scipy.stats import binom

from fairbits.core.errors import InputError
from fairbits.stats.intervals import holm
from fairbits.stats.outcomes import OutcomeFrame, mcnemar_p, noise_floor, score_limit, worst_by_chance


def framed(changes: dict[str, tuple[int, int]], items: int = 200, *, seed: int = 0, **settings) -> OutcomeFrame:
    """Returns a frame in which each language has lost and gained so many items, each in an order of its own."""
    rng = np.random.default_rng(seed)
    values = [
        rng.permutation(np.r_[np.ones(lost), -np.ones(gained), np.zeros(items - lost - gained)])
        for lost, gained in changes.values()
    ]
    return OutcomeFrame(
        np.repeat(list(changes), items),
        np.tile(np.arange(items), len(changes)),
        values=np.concatenate(values),
        weights=np.ones(items * len(changes)),
        unit="per_item",
        **settings,
    )


def test_the_interval_of_a_language_is_tangos_at_any_confidence() -> None:
    for confidence, z in ((0.95, 1.959964), (0.8, 1.281552)):
        estimates = framed({"heb": (9, 2), "fin": (0, 0)}, confidence=confidence).by_language()
        for code, (lost, gained) in {"heb": (9, 2), "fin": (0, 0)}.items():
            limits = score_limit(lost, gained, 200, z=[z, -z])
            assert [estimates[code].low, estimates[code].high] == pytest.approx(limits.tolist(), abs=2e-5)
        assert estimates["heb"].value == 7 / 200
        assert estimates["fin"].high > 0.008  # nothing has changed, and yet something may be lost


def test_one_language_is_the_worst_and_the_mean() -> None:
    frame = framed({"heb": (9, 2)})
    estimate = frame.by_language()["heb"]
    assert frame.worst() == ("heb", estimate)
    assert [frame.mean().value, frame.mean().low, frame.mean().high] == pytest.approx(
        [estimate.value, estimate.low, estimate.high]
    )


def test_the_worst_of_many_is_corrected_for_selection() -> None:
    changes = {f"l{i:02}": (4 + i % 5, 5) for i in range(20)}
    frame = framed(changes)
    code, worst = frame.worst()
    estimates = frame.by_language()
    assert estimates[code].value == max(estimate.value for estimate in estimates.values())
    assert frame.mean().value <= worst.value < estimates[code].value
    assert worst.high == pytest.approx(max(estimate.high for estimate in estimates.values()), abs=1e-9)
    assert worst.low < estimates[code].low
    assert worst_by_chance(frame) > 0.02


def test_translations_are_correlated_and_others_are_not() -> None:
    same = np.r_[np.ones(30), np.zeros(270)]
    lang, weights = np.repeat(["a", "b"], 300), np.ones(600)
    together = OutcomeFrame(lang, np.tile(np.arange(300), 2), values=np.tile(same, 2), weights=weights, unit="per_item")
    apart = OutcomeFrame(lang, np.arange(600), values=np.tile(same, 2), weights=weights, unit="per_item")
    assert together.replicates.correlation[0, 1] == pytest.approx(27 / 29, abs=0.03)
    assert apart.replicates.correlation[0, 1] == 0
    widths = [frame.mean().high - frame.mean().low for frame in (together, apart)]
    assert widths[0] > 1.3 * widths[1]
    assert together.gap().high < apart.gap().high


def test_holm_corrects_for_the_number_of_languages() -> None:
    changes = {"bad": (20, 4)} | {f"l{i}": (5, 5) for i in range(9)}
    contrast = framed(changes).contrast_with_zero()
    assert contrast.p["bad"] == pytest.approx(2 * binom.cdf(4, 24, 0.5))
    assert contrast.p_holm["bad"] == pytest.approx(10 * contrast.p["bad"])
    assert list(contrast.significant()) == ["bad"]
    assert contrast.p_holm["l1"] == 1


def test_less_noise_with_more_items() -> None:
    few, many = (noise_floor(framed({"heb": (n // 50, n // 50)}, n))["heb"] for n in (100, 900))
    assert few[0] == pytest.approx(1.96 * np.sqrt(6) / 102, rel=0.01)
    assert few[0] > 2 * many[0]
    assert few[1] > few[0]


def test_a_language_with_few_items_has_no_interval() -> None:
    lang = np.r_[np.full(4, "few"), np.full(100, "many")]
    frame = OutcomeFrame(lang, np.arange(104), values=np.zeros(104), weights=np.ones(104), unit="per_item")
    assert list(frame.without_interval) == ["few"]
    assert frame.worst()[0] == "many"


def test_values_that_are_no_changes_are_refused() -> None:
    with pytest.raises(InputError, match="values must be 1"):
        OutcomeFrame(np.array(["a"]), np.array([0]), values=np.array([0.5]), weights=np.ones(1))


@pytest.mark.parametrize(("items", "p_lost", "p_gained"), [(100, 0.05, 0.03), (400, 0.02, 0.01), (900, 0.01, 0.01)])
def test_exact_coverage_is_95_percent(items, p_lost, p_gained) -> None:
    """A slice of tests/validity/test_outcomes.py."""
    changed = p_lost + p_gained
    lost, gained = (grid.ravel() for grid in np.meshgrid(np.arange(60), np.arange(60)))
    chance = binom.pmf(lost + gained, items, changed) * binom.pmf(lost, lost + gained, p_lost / changed)
    low, high = (score_limit(lost, gained, items, z=z) for z in (1.96, -1.96))
    truth = p_lost - p_gained
    assert chance.sum() > 0.9999
    assert 0.93 <= chance[(low <= truth) & (truth <= high)].sum() <= 0.97


def test_false_alarms_are_at_most_5_percent() -> None:
    """A slice of tests/validity/test_outcomes.py: 12 languages with 12 changes each, as likely lost as gained."""
    lost = np.random.default_rng(0).binomial(12, 0.5, (2000, 12))
    alarms = [holm(mcnemar_p(losses, 12 - losses)).min() < 0.05 for losses in lost]
    assert 0 < np.mean(alarms) <= 0.05
