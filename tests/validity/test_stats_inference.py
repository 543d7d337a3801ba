"""Size of the permutation tests and coverage of the intervals of a correlation at 14 languages."""

import numpy as np
import pytest

from fairbits.stats.correlation import spearman
from fairbits_research.stats.correlation_tests import partial_correlation, permutation_test
from fairbits_research.stats.pearson_correlation import pearson

pytestmark = pytest.mark.validity

ERROR = 4 * np.sqrt(0.05 * 0.95 / 3000)


def size_of(test, seed):
    rng = np.random.default_rng(seed)
    return np.mean([test(rng) <= 0.05 for _ in range(3000)])


def test_permutation_test_rejects_5_percent_of_skewed_nulls():
    def p(rng):
        x, y = rng.exponential(size=(2, 14)) ** 2
        return permutation_test(x, y, resamples=199, rng=rng).p

    size = size_of(p, 1)
    print(f"\nsize of the permutation test: {size:.4f} (3000 trials)")
    assert size == pytest.approx(0.05, abs=ERROR)


def test_freedman_lane_rejects_5_percent_given_a_confounder():
    def draw(rng):
        z = rng.normal(size=14)
        return z, z + rng.exponential(size=14), z + rng.exponential(size=14)

    def partial(rng):
        z, x, y = draw(rng)
        return partial_correlation(x, y, covariates=z, resamples=199, rng=rng).permutation_p

    def plain(rng):
        _, x, y = draw(rng)
        return permutation_test(x, y, resamples=199, rng=rng).p

    size, wrong = size_of(partial, 3), size_of(plain, 3)
    print(f"\nsize of Freedman-Lane: {size:.4f}; ignoring the confounder: {wrong:.4f} (3000 trials)")
    assert size == pytest.approx(0.05, abs=ERROR + 0.005)
    assert wrong > 0.2


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_fisher_interval_covers_95_percent_at_14_languages(correlation):
    rng = np.random.default_rng(4)
    rho = 0.7
    truth = rho if correlation is pearson else 6 / np.pi * np.arcsin(rho / 2)
    hits = []
    for _ in range(3000):
        x, e = rng.normal(size=(2, 14))
        estimate = correlation(x, rho * x + np.sqrt(1 - rho**2) * e).estimate
        hits.append(estimate.low <= truth <= estimate.high)
    print(f"\nFisher coverage of {correlation.__name__}, n=14: {np.mean(hits):.4f} (3000 trials)")
    assert np.mean(hits) == pytest.approx(0.95, abs=ERROR + 0.005)


def test_bootstrap_intervals_are_too_narrow_at_14_languages_as_documented():
    rng = np.random.default_rng(5)
    hits = {"percentile": [], "bca": []}
    for _ in range(1000):
        x, e = rng.normal(size=(2, 14))
        y = 0.7 * x + np.sqrt(1 - 0.49) * e
        for interval, covered in hits.items():
            estimate = pearson(x, y, interval=interval, resamples=999, rng=rng).estimate
            covered.append(estimate.low <= 0.7 <= estimate.high)
    coverage = {interval: float(np.mean(covered)) for interval, covered in hits.items()}
    print(f"\nbootstrap coverage of pearson, n=14: {coverage} (1000 trials)")
    assert all(0.82 < value < 0.95 for value in coverage.values())
