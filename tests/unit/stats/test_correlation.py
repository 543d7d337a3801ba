import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.stats.correlation import pearson, spearman
from fairbits.stats.intervals import holm

X = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10])
Y = np.array([2.0, 1, 4, 3, 6, 5, 9, 7, 8, 10])


@pytest.mark.parametrize("correlation", [pearson, spearman])
@pytest.mark.parametrize("interval", ["fisher", "percentile", "bca"])
def test_interval_holds_the_estimate_and_is_reproducible(correlation, interval):
    result = correlation(X, Y, interval=interval, resamples=500, rng=3)
    again = correlation(X, Y, interval=interval, resamples=500, rng=np.random.default_rng(3))
    assert result == again
    assert result.estimate.low < result.estimate.value < result.estimate.high <= 1
    assert result.df == 8
    assert result.estimate.n == 10


@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_correlation_is_symmetric_and_odd(correlation):
    there, back, flipped = correlation(X, Y), correlation(Y, X), correlation(X, -Y)
    assert there.estimate.value == pytest.approx(back.estimate.value)
    assert flipped.estimate.low == pytest.approx(-there.estimate.high)


def test_wider_confidence_gives_a_wider_interval():
    narrow, wide = pearson(X, Y, confidence=0.5).estimate, pearson(X, Y, confidence=0.99).estimate
    assert wide.low < narrow.low < narrow.high < wide.high
    assert wide.confidence == 0.99


def test_perfect_correlation_has_a_point_interval():
    estimate = pearson(X, 3 * X + 1).estimate
    assert (estimate.low, estimate.value, estimate.high) == pytest.approx((1, 1, 1))


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        ([1, 2, 3], [1, 2, 3], "at least 4"),
        (X, Y[:5], "must agree"),
        (X, np.full(10, 0.1), "y is constant"),
        (np.where(X == 3, np.nan, X), Y, "NaN"),
        ([], [], "at least 4"),
        (X.reshape(2, 5), Y, "dimension"),
        (["a"] * 10, Y, "real numbers"),
    ],
)
@pytest.mark.parametrize("correlation", [pearson, spearman])
def test_bad_input_is_refused_with_a_reason(correlation, x, y, message):
    with pytest.raises(InputError, match=message):
        correlation(x, y)


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


def test_holm_keeps_order_and_refuses_what_is_no_probability():
    assert holm([0.5, 0.001]).tolist() == [0.5, 0.002]
    assert holm([0.7]).tolist() == [0.7]
    with pytest.raises(InputError, match=r"\[0, 1\]"):
        holm([0.5, 1.2])
    with pytest.raises(InputError, match="at least 1"):
        holm([])
