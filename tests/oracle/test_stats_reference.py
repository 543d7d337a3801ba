"""The published statistics of 14 languages, recomputed (outlier activation and damage, illustrative data)."""

import numpy as np
import pytest

from fairbits.stats.correlation import spearman
from fairbits_research.stats.correlation_tests import partial_correlation, permutation_test
from fairbits_research.stats.pearson_correlation import pearson

# lang, degradation, outlier activation fraction, weighted kurtosis
ROWS = [
    ("eng", 0.005, 0.20472, 43.021),
    ("fra", 0.007, 0.20191, 43.023),
    ("deu", 0.008, 0.19007, 40.57),
    ("vie", 0.009, 0.18981, 40.145),
    ("rus", 0.012, 0.18197, 39.551),
    ("zho", 0.013, 0.18262, 40.529),
    ("tur", 0.015, 0.18288, 39.051),
    ("fin", 0.016, 0.19103, 40.063),
    ("kor", 0.018, 0.1788, 38.051),
    ("heb", 0.02, 0.18313, 39.278),
    ("tha", 0.02, 0.1752, 38.136),
    ("hin", 0.021, 0.17208, 37.52),
    ("jpn", 0.022, 0.18054, 40.274),
    ("ara", 0.025, 0.17717, 38.835),
]
LANG = [row[0] for row in ROWS]
D, A, KAPPA = np.array([row[1:] for row in ROWS]).T
LATIN = np.isin(LANG, ["eng", "fra", "deu", "vie", "tur", "fin"]).astype(float)


def limits(result):
    return result.estimate.low, result.estimate.high


def test_correlation_p_and_fisher_interval():
    result = pearson(A, D)
    assert result.estimate.value == pytest.approx(-0.8341, abs=5e-5)
    assert result.p == pytest.approx(0.000208, abs=2e-6)
    assert result.df == 12
    assert limits(result) == pytest.approx((-0.946, -0.545), abs=1e-3)


def test_bootstrap_intervals():
    percentile = pearson(A, D, interval="percentile", resamples=50_000)
    assert limits(percentile) == pytest.approx((-0.93, -0.632), abs=0.006)
    bca = pearson(A, D, interval="bca", resamples=50_000)
    assert limits(bca) == pytest.approx((-0.928, -0.625), abs=0.01)


def test_permutation_p():
    result = permutation_test(A, D, resamples=400_000)
    assert result.p == pytest.approx(1.1e-4, abs=5e-5)
    assert not result.exact


def test_spearman():
    assert spearman(A, D).estimate.value == pytest.approx(-0.792, abs=5e-4)


def test_partial_correlation_given_latin_script():
    result = partial_correlation(A, D, covariates=LATIN)
    assert result.estimate.value == pytest.approx(-0.62, abs=0.005)
    assert result.p == pytest.approx(0.025, abs=0.001)
    assert result.df == 11
    assert result.permutation_p == pytest.approx(result.p, abs=0.01)


def test_script_and_subsets():
    assert pearson(LATIN, D).estimate.value == pytest.approx(-0.73, abs=0.005)
    assert pearson(LATIN, A).estimate.value == pytest.approx(0.78, abs=0.005)
    other = pearson(A[LATIN == 0], D[LATIN == 0])
    assert (other.estimate.value, other.p) == pytest.approx((-0.51, 0.19), abs=0.006)
    latin = pearson(A[LATIN == 1], D[LATIN == 1])
    assert (latin.estimate.value, latin.p) == pytest.approx((-0.75, 0.085), abs=0.006)


def test_weighted_kurtosis():
    assert pearson(KAPPA, D).estimate.value == pytest.approx(-0.766, abs=5e-4)
