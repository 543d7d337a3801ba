"""The k-median of HiGHS against the enumeration of all sets."""

import itertools

import numpy as np
import pytest

from fairbits.auditing.cover import choose_facilities


@pytest.mark.parametrize("seed", range(12))
def test_no_set_is_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    clients, candidates = rng.integers(2, 8, size=2)
    k = int(rng.integers(1, candidates + 1))
    cost = rng.integers(0, 5, size=(clients, candidates)) * 10.0 ** rng.integers(-6, 4)  # many ties
    nearest = [cost[:, list(subset)].min(axis=1) for subset in itertools.combinations(range(candidates), k)]
    choice = choose_facilities(cost, k)
    assert choice.value == pytest.approx(min(costs.mean() for costs in nearest))
    assert len(set(choice.chosen)) == k
    np.testing.assert_array_equal(choice.cost, cost[:, choice.chosen].min(axis=1))
