import numpy as np
import pytest

from fairbits.auditing import cover as facilities
from fairbits.auditing.cover import choose_facilities
from fairbits.core.errors import FairbitsError, InputError

COST = [[0, 1, 9], [1, 0, 9], [9, 9, 0]]


@pytest.mark.parametrize(
    ("cost", "k", "objective", "message"),
    [
        ([1.0, 2.0], 1, "mean", "cost"),
        ([[1.0, -1.0]], 1, "mean", "cost"),
        ([[1.0, np.nan]], 1, "mean", "cost"),
        (np.zeros((0, 2)), 1, "mean", "cost holds 0 element"),
        (COST, 0, "mean", "k is 0; it must be 1 to 3"),
        (COST, 4, "mean", "k is 4; it must be 1 to 3"),
        (COST, 1, "median", "objective"),
    ],
)
def test_bad_input_is_refused(cost, k, objective, message):
    with pytest.raises(InputError, match=message):
        choose_facilities(cost, k, objective=objective)


def test_all_candidates_and_costs_of_zero():
    assert choose_facilities(COST, 3).chosen == (0, 1, 2)
    assert choose_facilities(np.zeros((2, 2)), 1, objective="worst").value == 0


def test_a_client_that_no_candidate_is_near_raises_the_radius():
    assert choose_facilities([[0, 5], [7, 6]], 1, objective="worst").value == 6


def test_a_solver_that_stops_is_an_error(monkeypatch):
    class Stopped:
        status, x, message = 1, None, "time limit reached"

    monkeypatch.setattr(facilities, "milp", lambda *_, **__: Stopped)
    with pytest.raises(FairbitsError, match="HiGHS stopped without a solution: time limit"):
        choose_facilities(COST, 1)


def test_a_solver_that_finds_nothing_is_an_error(monkeypatch):
    class Infeasible:
        status, x, message = 2, None, "infeasible"

    monkeypatch.setattr(facilities, "milp", lambda *_, **__: Infeasible)
    with pytest.raises(FairbitsError, match="no set although one exists"):
        choose_facilities(COST, 1)
