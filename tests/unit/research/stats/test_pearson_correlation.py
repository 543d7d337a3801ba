import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits_research.stats.pearson_correlation import pearson

X = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10])
Y = np.array([2.0, 1, 4, 3, 6, 5, 9, 7, 8, 10])


@pytest.mark.parametrize("interval", ["fisher", "percentile", "bca"])
def test_interval_contains_the_estimate_and_is_reproducible(interval):
    result = pearson(X, Y, interval=interval, resamples=500, rng=3)
    assert result == pearson(X, Y, interval=interval, resamples=500, rng=np.random.default_rng(3))
    assert result.estimate.low < result.estimate.value < result.estimate.high <= 1
    assert (result.df, result.estimate.n) == (8, 10)


def test_wider_confidence_gives_a_wider_interval():
    narrow, wide = pearson(X, Y, confidence=0.5).estimate, pearson(X, Y, confidence=0.99).estimate
    assert wide.low < narrow.low < narrow.high < wide.high
    assert wide.confidence == 0.99


def test_perfect_correlation_has_a_point_interval():
    estimate = pearson(X, 3 * X + 1).estimate
    assert (estimate.low, estimate.value, estimate.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize("options", [{"confidence": 1.0}, {"interval": "wald"}, {"confidence": 0}])
def test_bad_options_are_refused(options):
    with pytest.raises(InputError, match=next(iter(options))):
        pearson(X, Y, **options)


def test_too_few_resamples_are_refused():
    with pytest.raises(InputError, match="resamples"):
        pearson(X, Y, interval="percentile", resamples=10)


def test_bootstrap_refuses_resamples_without_variation():
    rare = np.r_[np.zeros(9), 1.0]
    with pytest.raises(InputError, match="use interval='fisher'"):
        pearson(X, rare, interval="percentile", resamples=500)
