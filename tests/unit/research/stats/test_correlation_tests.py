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
FAMILY = np.repeat(list("abcd"), [5, 4, 3, 2])


def test_small_inputs_are_enumerated_and_large_ones_sampled():
    small = permutation_test(X[:6], Y[:6])
    assert (small.exact, small.permutations) == (True, 720)
    large = permutation_test(X, Y, resamples=999)
    assert (large.exact, large.permutations) == (False, 999)
    assert large.p >= 1 / 1000


def test_same_seed_same_p():
    assert permutation_test(X, Y, resamples=999, rng=1) == permutation_test(X, Y, resamples=999, rng=1)


def test_blocks_count_only_permutations_inside_them():
    result = permutation_test(X[5:], Y[5:], blocks=FAMILY[5:], resamples=5000)
    assert (result.exact, result.permutations) == (True, 24 * 6 * 2)


def test_blocks_ignore_an_association_between_blocks():
    between = np.repeat([0.0, 10, 20, 30], [5, 4, 3, 2])
    noise = np.random.default_rng(11).normal(size=(2, 14))
    free = permutation_test(between + noise[0], between + noise[1], resamples=2000)
    inside = permutation_test(between + noise[0], between + noise[1], blocks=FAMILY, resamples=2000)
    assert free.p < 0.001
    assert inside.p > 0.05


def test_spearman_permutation_sees_ranks_only():
    assert permutation_test(X[:6], np.exp(9 * Y[:6]), method="spearman") == permutation_test(
        X[:6], Y[:6], method="spearman"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"blocks": np.arange(14)}, "every block has one unit"),
        ({"blocks": FAMILY[:5]}, "must agree"),
        ({"resamples": 10}, "resamples"),
        ({"method": "kendall"}, "method"),
    ],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        permutation_test(X, Y, **options)


def test_a_side_without_variation_inside_blocks_is_refused():
    with pytest.raises(InputError, match="constant inside every block"):
        permutation_test(np.repeat([1.0, 2, 3, 4], [5, 4, 3, 2]), Y, blocks=FAMILY)


def test_partial_correlation_reports_degrees_of_freedom_and_blocks():
    result = partial_correlation(X, Y, covariates=rng.normal(size=(14, 3)), blocks=FAMILY, resamples=999)
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
        (np.ones(13), "shape"),
        (np.zeros((14, 11)), "fewer covariates"),
        (np.full(14, np.nan), "NaN"),
    ],
)
def test_bad_covariates_are_refused(covariates, message):
    with pytest.raises(InputError, match=message):
        partial_correlation(X, Y, covariates=covariates)


@pytest.mark.parametrize("method", ["exact", "fisher"])
def test_power_grows_with_rho_n_and_alpha(method):
    powers = [correlation_power(rho, 20, method=method) for rho in (0, 0.2, 0.4, 0.8, 0.99)]
    assert powers == sorted(powers)
    assert correlation_power(0.4, 40, method=method) > correlation_power(0.4, 20, method=method)
    assert correlation_power(0.4, 20, alpha=0.1, method=method) > correlation_power(0.4, 20, method=method)
    assert correlation_power(-0.4, 20, method=method) == pytest.approx(correlation_power(0.4, 20, method=method))


def test_power_without_effect_is_the_level():
    assert correlation_power(0.0, 14, alpha=0.03) == pytest.approx(0.03, abs=1e-9)
    assert correlation_power(0.0, 4, alpha=0.05) == pytest.approx(0.05, abs=1e-9)


def test_power_is_certain_for_many_units():
    assert correlation_power(0.5, 100_000) == pytest.approx(1.0)


@pytest.mark.parametrize("method", ["exact", "fisher"])
def test_sample_size_is_the_least_that_reaches_the_power(method):
    n = sample_size_for_power(-0.25, 0.9, alpha=0.01, method=method)
    assert correlation_power(-0.25, n, alpha=0.01, method=method) >= 0.9
    assert correlation_power(-0.25, n - 1, alpha=0.01, method=method) < 0.9


def test_bad_arguments_are_refused():
    for arguments in ((1.0, 14), (0.3, 3), (0.3, 4.5)):
        with pytest.raises(InputError):
            correlation_power(*arguments)
    for arguments in ((0.0, 0.8), (0.3, 1.0), (0.3, 0.01)):
        with pytest.raises(InputError):
            sample_size_for_power(*arguments)
    with pytest.raises(InputError, match="method"):
        correlation_power(0.3, 14, method="guess")
    with pytest.raises(InputError, match="alpha"):
        correlation_power(0.3, 14, alpha=0)
