"""Correlations, permutations and power against scipy, statsmodels, enumeration and simulation."""

from itertools import permutations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy import stats

from fairbits.stats.intervals import holm
from fairbits_research.stats.correlation_tests import (
    correlation_power,
    partial_correlation,
    permutation_test,
    sample_size_for_power,
)
from fairbits_research.stats.pearson_correlation import pearson

rng = np.random.default_rng(42)
X = rng.normal(size=14)
Y = 0.6 * X + rng.normal(size=14)
Z = rng.normal(size=(14, 2)) + X[:, None] / 2


def test_pearson_agrees_with_scipy():
    ours, theirs = pearson(X, Y), stats.pearsonr(X, Y)
    interval = theirs.confidence_interval(0.95)
    assert (ours.estimate.value, ours.p) == pytest.approx((theirs.statistic, theirs.pvalue))
    assert (ours.estimate.low, ours.estimate.high) == pytest.approx((interval.low, interval.high))


def test_percentile_interval_agrees_with_a_plain_loop():
    draws = np.random.default_rng(1).integers(0, 14, (8000, 14))
    expected = np.quantile([np.corrcoef(X[i], Y[i])[0, 1] for i in draws], [0.025, 0.975])
    got = pearson(X, Y, interval="percentile", resamples=20_000, rng=2).estimate
    assert (got.low, got.high) == pytest.approx(expected, abs=0.05)  # four standard errors of the loop


def test_exact_permutation_agrees_with_scipy():
    ours = permutation_test(X[:7], Y[:7])
    theirs = stats.permutation_test(
        (Y[:7],),
        lambda y: abs(stats.pearsonr(X[:7], y).statistic),
        permutation_type="pairings",
        n_resamples=np.inf,
        alternative="greater",
    )
    assert ours.p == pytest.approx(theirs.pvalue)


def test_sampled_permutations_approach_the_exact_p():
    exact = permutation_test(X[:8], Y[:8]).p
    sampled = permutation_test(X[:8], Y[:8], resamples=40_000).p
    assert sampled == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 40_000))


def test_partial_correlation_agrees_with_the_regression_of_statsmodels():
    result = partial_correlation(X, Y, covariates=Z, resamples=999)
    fit = sm.OLS(Y, sm.add_constant(np.column_stack([X, Z]))).fit()
    t, df = fit.tvalues[1], fit.df_resid
    assert result.p == pytest.approx(fit.pvalues[1])
    assert result.df == df
    assert result.estimate.value == pytest.approx(t / np.sqrt(t * t + df))


def test_freedman_lane_agrees_with_refitting_every_permutation():
    x, y, z = X[:6], Y[:6], Z[:6, 0]
    reduced = sm.OLS(y, sm.add_constant(z)).fit()
    full = sm.add_constant(np.column_stack([x, z]))
    observed = abs(sm.OLS(y, full).fit().tvalues[1])
    t = [
        abs(sm.OLS(reduced.fittedvalues + reduced.resid[list(order)], full).fit().tvalues[1])
        for order in permutations(range(6))
    ]
    expected = np.mean(np.array(t) >= observed * (1 - 1e-9))
    result = partial_correlation(x, y, covariates=z)
    assert result.exact
    assert result.permutation_p == pytest.approx(expected)


def test_holm_agrees_with_its_definition():
    p = rng.uniform(0, 0.2, 9)
    order = np.argsort(p)
    expected = np.empty(9)
    expected[order] = np.minimum(1, np.maximum.accumulate((9 - np.arange(9)) * p[order]))
    assert holm(p) == pytest.approx(expected)


@pytest.mark.parametrize(("rho", "expected"), [(0.3, 0.18), (0.5, 0.47), (0.6, 0.67), (0.7, 0.85)])
def test_published_power_of_fourteen_languages(rho, expected):
    assert correlation_power(rho, 14) == pytest.approx(expected, abs=0.0051)


def test_published_power_after_holm():
    assert correlation_power(0.7, 14, alpha=0.005) == pytest.approx(0.53, abs=0.005)


def test_published_sample_sizes_are_those_of_fisher():
    rhos = (0.3, 0.4, 0.5, 0.6, 0.7)
    assert [sample_size_for_power(rho, 0.8) for rho in rhos] == [85, 47, 30, 20, 14]


@pytest.mark.parametrize(("rho", "n", "alpha"), [(0.3, 14, 0.05), (0.7, 14, 0.005), (-0.5, 8, 0.05), (0.2, 60, 0.1)])
def test_power_agrees_with_simulation(rho, n, alpha):
    x, e = np.random.default_rng(n).normal(size=(2, 100_000, n))
    y = rho * x + np.sqrt(1 - rho**2) * e
    x -= x.mean(axis=1, keepdims=True)
    y -= y.mean(axis=1, keepdims=True)
    r = (x * y).sum(axis=1) / np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1))
    t = stats.t.isf(alpha / 2, n - 2)
    simulated = np.mean(np.abs(r) > t / np.sqrt(n - 2 + t * t))
    assert correlation_power(rho, n, alpha=alpha) == pytest.approx(simulated, abs=0.006)
