import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits_research.stats.correlation_tests import (
    correlation_power,
    partial_correlation,
    permutation_test,
    sample_size_for_power,
)

rng = np.random.default_rng(5)
X, Y = rng.normal(size=(2, 14))


def test_small_inputs_are_enumerated_and_large_ones_sampled():
    small = permutation_test(X[:6], Y[:6])
    assert (small.exact, small.permutations) == (True, 720)
    large = permutation_test(X, Y, resamples=999)
    assert (large.exact, large.permutations) == (False, 999)
    assert large.p >= 1 / 1000


def test_same_seed_same_p():
    assert permutation_test(X, Y, resamples=999, rng=1) == permutation_test(X, Y, resamples=999, rng=1)


def test_partial_correlation_reports_degrees_of_freedom():
    result = partial_correlation(X, Y, covariates=rng.normal(size=(14, 3)), resamples=999)
    assert result.df == 14 - 2 - 3
    assert result.estimate.low < result.estimate.value < result.estimate.high
    assert not result.exact


@pytest.mark.parametrize(
    ("covariates", "message"),
    [
        (np.ones(14), "constant"),
        (np.column_stack([X, 2 * X]), "collinear"),
        (X, "x is a combination"),
        (3 - Y, "y is a combination"),
        (np.zeros((14, 11)), "fewer covariates"),
        (np.full(14, np.nan), "NaN"),
    ],
)
def test_bad_covariates_are_refused(covariates, message):
    with pytest.raises(InputError, match=message):
        partial_correlation(X, Y, covariates=covariates)


def test_power_grows_with_rho_n_and_alpha():
    powers = [correlation_power(rho, 20) for rho in (0, 0.2, 0.4, 0.8, 0.99)]
    assert powers == sorted(powers)
    assert correlation_power(0.4, 40) > correlation_power(0.4, 20)
    assert correlation_power(0.4, 20, alpha=0.1) > correlation_power(0.4, 20)
    assert correlation_power(-0.4, 20) == pytest.approx(correlation_power(0.4, 20))


def test_power_without_effect_is_the_level():
    assert correlation_power(0.0, 14, alpha=0.03) == pytest.approx(0.03, abs=1e-9)
    assert correlation_power(0.0, 4, alpha=0.05) == pytest.approx(0.05, abs=1e-9)


def test_power_is_certain_for_many_units():
    assert correlation_power(0.5, 100_000) == pytest.approx(1.0)


def test_sample_size_is_conservative():
    n = sample_size_for_power(-0.25, 0.9)
    assert correlation_power(-0.25, n) >= 0.9
    assert correlation_power(-0.25, n - 3) < 0.9
