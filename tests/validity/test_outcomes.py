"""Items that are right or wrong, before and after: coverage of the intervals, and false alarms if nothing changed."""

import numpy as np
import pytest
from scipy.stats import binom, norm

from fairbits.stats.outcomes import OutcomeFrame, mcnemar_p, score_limit

pytestmark = pytest.mark.validity

ITEMS = (100, 200, 400, 900)
SHARES = (0.002, 0.005, 0.01, 0.02, 0.04, 0.08, 0.15)
"""Of items that are lost, and of items that are gained."""
LANGUAGES, TRIALS = 20, 400


def exact_misses(items, p_lost, p_gained):
    """Returns the probabilities that the interval lies below and above the truth, summed over all results."""
    changed = p_lost + p_gained
    most = min(items, int(items * changed + 12 * np.sqrt(items * changed) + 15))
    lost, gained = (grid.ravel() for grid in np.meshgrid(np.arange(most + 1), np.arange(most + 1)))
    lost, gained = (counts[lost + gained <= most].astype(float) for counts in (lost, gained))
    chance = binom.pmf(lost + gained, items, changed) * binom.pmf(lost, lost + gained, p_lost / changed)
    z = norm.ppf(0.975)
    low, high = (score_limit(lost, gained, items, z=quantile) for quantile in (z, -z))
    truth = p_lost - p_gained
    return chance[high < truth].sum(), chance[low > truth].sum()


@pytest.mark.parametrize("items", ITEMS)
def test_the_interval_of_a_language_is_exactly_right_where_items_change(items):
    misses = {(lost, gained): exact_misses(items, lost, gained) for lost in SHARES for gained in SHARES}
    coverage = {pair: 1 - sum(missed) for pair, missed in misses.items()}
    many = [covered for (lost, gained), covered in coverage.items() if items * (lost + gained) >= 8]
    side = max(max(missed) for missed in misses.values())
    print(
        f"\nexact coverage, {items} items: {min(many):.4f} to {max(many):.4f} with 8 or more changes expected (mean "
        f"{np.mean(many):.4f}); {min(coverage.values()):.4f} to {max(coverage.values()):.4f} in all {len(coverage)} "
        f"cases; at most {side:.4f} missed on one side"
    )
    assert min(many) >= 0.93
    assert max(many) <= 0.97
    assert min(coverage.values()) >= 0.93  # fewer changes: conservative, up to 1
    assert side <= 0.05


def sampled(p_lost, p_gained, items, rng, *, shared=0.5):
    """Returns a frame of parallel items; a share `shared` of each item's luck is common to all languages."""
    common, individual = rng.standard_normal(items), rng.standard_normal((len(p_lost), items))
    u = norm.cdf(np.sqrt(shared) * common + np.sqrt(1 - shared) * individual)
    values = (u < np.asarray(p_lost)[:, None]).astype(float) - (u > 1 - np.asarray(p_gained)[:, None])
    return OutcomeFrame(
        np.repeat([f"l{i:03}" for i in range(len(p_lost))], items),
        np.tile(np.arange(items), len(p_lost)),
        values=values.ravel(),
        weights=np.ones(values.size),
        unit="per_item",
        resamples=1000,
        seed=int(rng.integers(2**31)),
    )


@pytest.mark.parametrize("items", [100, 900])
@pytest.mark.parametrize("shared", [0.0, 0.5])
@pytest.mark.parametrize("changed", [0.005, 0.05])
def test_languages_without_a_change_raise_an_alarm_in_5_percent_of_runs_at_most(items, shared, changed):
    """A gate without limits fails if a language or the mean is significantly worse: together in 5 % of runs at most."""
    rng = np.random.default_rng(1)
    same = np.full(LANGUAGES, changed)
    alarms = []
    for _ in range(TRIALS):
        frame = sampled(same, same, items, rng, shared=shared)
        significant = frame.contrast_with_zero().significant().values()
        alarms.append([bool(significant), any(contrast.value > 0 for contrast in significant) or frame.mean().low > 0])
    different, gate = np.mean(alarms, axis=0)
    print(
        f"\nfalse alarms, {items} items, {changed:.1%} changed each way, shared {shared}: a language differs "
        f"{different:.4f}, the gate fails {gate:.4f}"
    )
    assert different <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / TRIALS)
    assert gate <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / TRIALS)


def test_mcnemar_never_rejects_more_than_5_percent():
    for changes in range(1, 200):
        lost = np.arange(changes + 1)
        rejected = mcnemar_p(lost, changes - lost) <= 0.05
        assert binom.pmf(lost, changes, 0.5)[rejected].sum() <= 0.05


SCENES = {
    "nothing": (np.full(LANGUAGES, 0.02), np.full(LANGUAGES, 0.02)),
    "few changes": (np.full(LANGUAGES, 0.004), np.full(LANGUAGES, 0.002)),
    "one stands out": (np.r_[np.full(LANGUAGES - 1, 0.03), 0.10], np.full(LANGUAGES, 0.03)),
    "a row": (np.linspace(0.02, 0.12, LANGUAGES), np.full(LANGUAGES, 0.02)),
}


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("items", [100, 400])
def test_worst_mean_and_gap_are_covered_at_least_95_percent(scene, items):
    rng = np.random.default_rng(2)
    p_lost, p_gained = SCENES[scene]
    truth = p_lost - p_gained
    hits, wrong = [], []
    for _ in range(TRIALS):
        frame = sampled(p_lost, p_gained, items, rng)
        worst, mean, gap = frame.worst()[1], frame.mean(), frame.gap()
        covered = [
            interval.low <= t <= interval.high for interval, t in zip(frame.by_language().values(), truth, strict=True)
        ]
        numbers = zip((worst, mean, gap), (truth.max(), truth.mean(), np.ptp(truth)), strict=True)
        hits.append([np.mean(covered), *(interval.low <= t <= interval.high for interval, t in numbers)])
        wrong.append(worst.high <= truth.max() - 1e-9)
    names = ("languages", "worst", "mean", "gap")
    coverage = dict(zip(names, np.mean(hits, axis=0).round(3).tolist(), strict=True))
    print(f"\n{scene}, {items} items: coverage {coverage}; a gate below the truth passes {np.mean(wrong):.3f}")
    assert coverage["languages"] >= 0.93
    assert min(coverage.values()) >= 0.918  # 0.95 less three standard errors
    assert np.mean(wrong) <= 0.05
