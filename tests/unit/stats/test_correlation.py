import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.stats.correlation import fisher_interval, spearman

X = np.array([1.0, 2, 3, 4, 5, 6, 7, 8, 9, 10])
Y = np.array([2.0, 1, 4, 3, 6, 5, 9, 7, 8, 10])


def test_interval_contains_the_estimate():
    result = spearman(X, Y)
    assert result.estimate.low < result.estimate.value < result.estimate.high <= 1
    assert (result.df, result.estimate.n) == (8, 10)


def test_correlation_is_symmetric_and_odd():
    there, back, flipped = spearman(X, Y), spearman(Y, X), spearman(X, -Y)
    assert there.estimate.value == pytest.approx(back.estimate.value)
    assert flipped.estimate.low == pytest.approx(-there.estimate.high)


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
def test_bad_input_is_refused_with_a_reason(x, y, message):
    with pytest.raises(InputError, match=message):
        spearman(x, y)


def test_fisher_interval_of_a_correlation():
    assert fisher_interval(-0.834, 1 / 11**0.5, 0.95) == pytest.approx((-0.946, -0.544), abs=1e-3)
