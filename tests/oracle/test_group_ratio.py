"""The ratio of the damage of two groups of languages and its bootstrap-t interval, in plain loops over resamples."""

from types import SimpleNamespace

import numpy as np
import pytest

from fairbits.evaluation.language_groups import group_damage
from fairbits.stats.frame import LanguageFrame
from fairbits_research.experiments.resource_ratio import redundancy_frame

GROUPS = {"high": ("a", "b"), "low": ("c", "d", "e")}
LANGUAGES, DOCUMENTS = "abcde", 25


def drawn() -> tuple[np.ndarray, np.ndarray]:
    """Returns damage and bytes, (language, document), with difficult documents that all languages share."""
    rng = np.random.default_rng(11)
    size = rng.uniform(200, 600, (5, DOCUMENTS))
    hard = rng.lognormal(0, 0.5, DOCUMENTS)
    return size * hard * rng.lognormal(0, 0.4, (5, DOCUMENTS)) * np.array([[1], [2], [2], [3], [4]]) / 100, size


def log_ratio(damage: np.ndarray, size: np.ndarray) -> tuple[float, float]:
    """Returns log(mean of c, d, e / mean of a, b) and its standard error from the influence of every document."""
    n = damage.shape[1]
    value = damage.sum(1) / size.sum(1)
    high, low = value[:2].mean(), value[2:].mean()
    slope = np.array([-0.5 / high] * 2 + [1 / 3 / low] * 3)
    influence = slope @ ((damage - value[:, None] * size) / size.sum(1)[:, None])
    return np.log(low / high), float(np.sqrt(n / (n - 1) * (influence**2).sum()))


def test_ratio_and_interval_agree_with_a_plain_bootstrap() -> None:
    damage, size = drawn()
    frame = LanguageFrame(
        np.repeat(list(LANGUAGES), DOCUMENTS),
        np.tile(np.arange(DOCUMENTS), 5),
        values=damage.ravel(),
        weights=size.ravel(),
    )
    result = group_damage(frame, GROUPS)
    centre, error = log_ratio(damage, size)
    value = damage.sum(1) / size.sum(1)
    assert result.means["high"].value == pytest.approx(value[:2].mean(), rel=1e-12)
    assert result.means["low"].value == pytest.approx(value[2:].mean(), rel=1e-12)
    ratio = result.ratios["low"]
    assert ratio.value == pytest.approx(np.exp(centre), rel=1e-12)
    rng, t = np.random.default_rng(99), []
    for _ in range(6000):
        rows = rng.integers(0, DOCUMENTS, DOCUMENTS)
        star, star_error = log_ratio(damage[:, rows], size[:, rows])
        t.append((star - centre) / star_error)
    low, high = centre - error * np.quantile(t, 0.975), centre - error * np.quantile(t, 0.025)
    # languages of a resample are taken to be as correlated as in the sample, which moves a limit a little
    assert np.log(ratio.low) == pytest.approx(low, abs=0.12 * (high - low))
    assert np.log(ratio.high) == pytest.approx(high, abs=0.12 * (high - low))


def test_worst_over_best_of_two_groups_is_the_larger_of_both_ratios() -> None:
    damage, size = drawn()
    frame = LanguageFrame(
        np.repeat(list(LANGUAGES), DOCUMENTS),
        np.tile(np.arange(DOCUMENTS), 5),
        values=damage.ravel(),
        weights=size.ravel(),
    )
    result = group_damage(frame, {"low": GROUPS["low"], "high": GROUPS["high"]})
    assert result.ratios["high"].value < 1 < result.worst_over_best.value
    assert result.worst_over_best.high == pytest.approx(1 / result.ratios["high"].low, rel=1e-9)


def test_the_predicted_ratio_of_the_corollary() -> None:
    """(R_a + δ)/(R_b + δ) with R = H(Y) − 2·H(Y|X), where Y is one of k equally frequent tokens."""
    rng, documents = np.random.default_rng(0), 8
    tokens = np.tile(rng.integers(40, 90, documents), 2).astype(float)
    counts = np.array([np.full(16, 5_000.0), np.concatenate([np.full(8, 10_000.0), np.zeros(8)])])
    nats = tokens * np.repeat([0.4, 0.6], documents) * np.log(2) * rng.uniform(0.9, 1.1, 2 * documents)
    measured = SimpleNamespace(
        languages=("a", "b"),
        lang=np.repeat(["a", "b"], documents),
        document=np.tile(np.arange(documents), 2),
        predicted=tokens,
        nll=nats,
        unigrams=counts,
    )
    frame = redundancy_frame(measured)
    bits = [nats[rows].sum() / np.log(2) / tokens[rows].sum() for rows in (slice(0, 8), slice(8, 16))]
    R = [4 + 15 / (2 * 80_000 * np.log(2)) - 2 * bits[0], 3 + 7 / (2 * 80_000 * np.log(2)) - 2 * bits[1]]
    assert [estimate.value for estimate in frame.by_language().values()] == pytest.approx(R, rel=1e-12)
    assert group_damage(frame, {"b": ("b",), "a": ("a",)}).ratios["a"].value == pytest.approx(R[0] / R[1], rel=1e-12)
