"""The k-median and k-center of HiGHS against the enumeration of all sets."""

import itertools

import numpy as np
import pytest

from fairbits.auditing.cover import choose_facilities


@pytest.mark.parametrize("objective", ["mean", "worst"])
@pytest.mark.parametrize("seed", range(12))
def test_no_set_is_better(seed: int, objective: str) -> None:
    rng = np.random.default_rng(seed)
    clients, candidates = rng.integers(2, 8, size=2)
    k = int(rng.integers(1, candidates + 1))
    cost = rng.integers(0, 5, size=(clients, candidates)) * 10.0 ** rng.integers(-6, 4)  # many ties
    nearest = [cost[:, list(each)].min(axis=1) for each in itertools.combinations(range(candidates), k)]
    found = choose_facilities(cost, k, objective=objective)
    assert found.value == pytest.approx(min(each.max() if objective == "worst" else each.mean() for each in nearest))
    assert len(set(found.chosen)) == k
    np.testing.assert_array_equal(found.cost, cost[:, found.chosen].min(axis=1))
    if objective == "worst":  # among the sets of that radius, the one of the least mean
        equal = [each.mean() for each in nearest if each.max() <= found.value * (1 + 1e-12)]
        assert found.cost.mean() == pytest.approx(min(equal))
