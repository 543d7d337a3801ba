import json

import numpy as np
import pytest

from fairbits.errors import InputError
from fairbits.stats import Estimate
from fairbits.stats.resample import generator


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


def test_estimates_are_frozen():
    with pytest.raises(AttributeError):
        Estimate(1.0, 0.5, 2.0, 9).value = 3.0


def test_generator_takes_a_generator_or_a_seed():
    rng = np.random.default_rng(3)
    assert generator(rng) is rng
    assert generator(7).random() == np.random.default_rng(7).random()
    with pytest.raises(InputError, match="rng is -1"):
        generator(-1)
    with pytest.raises(InputError, match="rng is None"):
        generator(None)
