import json

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.core.records import check_record
from fairbits.stats.intervals import Estimate, estimate_within, holm, order_quantile


def test_prints_value_interval_and_n():
    assert str(Estimate(0.0321, 0.0288, 0.0359, 40)) == "0.0321 [0.0288, 0.0359] (n=40)"
    assert str(Estimate(0.00001, 0.0, 2.0, 3)) == "1e-05 [0.0000, 2.0000] (n=3)"


def test_excludes_only_points_outside_the_closed_interval():
    estimate = Estimate(1.0, 0.5, 2.0, 9)
    assert estimate.excludes(0.49)
    assert estimate.excludes(2.01)
    assert not estimate.excludes(0.5)


def test_to_dict_is_json_and_comes_back():
    estimate = Estimate(np.float64(1.0), 0.5, 2.0, np.int64(9))
    assert Estimate(**json.loads(json.dumps(estimate.to_dict()))) == estimate


@pytest.mark.parametrize(
    "fields",
    [
        (np.nan, 0, 1, 5),
        (0, -np.inf, 1, 5),
        (0, 1, -1, 5),
        (0, -1, 1, 0),
        (0, -1, 1, 5, 1.0),
        (0, -1, 1, 2.5),
    ],
)
def test_refuses_what_is_no_estimate(fields):
    with pytest.raises(InputError):
        Estimate(*fields)


def test_without_an_interval_nothing_is_excluded_and_json_has_null():
    estimate = Estimate.without_interval(0.5, 2)
    assert (estimate.bounded, str(estimate)) == (False, "0.5000 (no interval, n=2)")
    assert not estimate.excludes(0)
    assert not estimate.excludes(1e9)
    assert estimate.to_dict() == {"value": 0.5, "low": None, "high": None, "n": 2, "confidence": 0.95}
    assert estimate.transform(np.expm1) == Estimate.without_interval(float(np.expm1(0.5)), 2)


def test_null_limits_are_read_from_a_file_and_only_both_of_them():
    data = {"value": 0.5, "low": None, "high": None, "n": 2, "confidence": 0.95}
    assert check_record(Estimate, data) == Estimate.without_interval(0.5, 2)
    bounded = Estimate(0.5, 0.25, 1.0, 9)
    assert check_record(Estimate, bounded.to_dict()) == bounded
    for wrong in ({"low": 0.1}, {"high": 0.6}, {"value": None}, {"low": "0"}):
        with pytest.raises(InputError):
            check_record(Estimate, data | wrong)


def test_limits_that_are_not_finite_are_no_interval():
    for low, high in ((-np.inf, 1.0), (0.0, np.inf), (np.nan, 1.0)):
        assert estimate_within(0.5, low, high, n=9, confidence=0.9) == Estimate.without_interval(0.5, 9, 0.9)


def test_a_transformed_interval_is_in_order():
    assert Estimate(2.0, 1.0, 4.0, 9).transform(lambda x: -x) == Estimate(-2.0, -4.0, -1.0, 9)


def test_estimates_are_frozen():
    with pytest.raises(AttributeError):
        Estimate(1.0, 0.5, 2.0, 9).value = 3.0


def test_holm_keeps_the_order_of_its_p_values():
    assert holm([0.5, 0.001]).tolist() == [0.5, 0.002]
    assert holm([0.7]).tolist() == [0.7]


def test_a_quantile_is_an_order_statistic():
    assert order_quantile(np.arange(99.0), 0.95).item() == 94
