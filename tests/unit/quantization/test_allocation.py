"""The allocation of bits; the oracle tests compare it with the enumeration of all allocations."""

import numpy as np
import pytest

from fairbits.core.errors import FairbitsError, InputError
from fairbits.quantization import allocation as module
from fairbits.quantization.allocation import Problem, allocate_mean, allocate_worst, gateway_set, protect_blocks

TWO = Problem((4, 8), np.array([[1, 2], [1, 2]]), damage=np.array([[[4.0, 0], [0, 0]], [[0, 0], [3, 0]]]))


@pytest.fixture
def problem() -> Problem:
    return Problem(
        bits=(2, 4, 8),
        sizes=np.array([[2, 4, 8], [2, 4, 8]]),
        damage=np.array([[[9, 3, 0], [4, 2, 0]], [[1, 0.5, 0], [9, 4, 0]]]),
        languages=("eng", "heb"),
    )


def test_the_result_accounts_for_bytes_and_damage(problem):
    best = allocate_mean(problem, 10)
    assert best.size_bytes == problem.total_bytes(best.options) <= 10
    np.testing.assert_array_equal(best.damage, problem.total_damage(best.options))
    assert best.bits == tuple(problem.bits[option] for option in best.options)
    assert best.value == pytest.approx(best.damage.mean())
    assert (best.solver, best.optimal) == ("highs", True)


def test_language_weights_steer_the_mean(problem):
    assert allocate_mean(problem, 10, pi=[1, 0]).bits == (8, 2)
    assert allocate_mean(problem, 10, pi=[0, 1]).bits == (2, 8)


@pytest.mark.parametrize("solve", [allocate_mean, allocate_worst])
def test_a_budget_for_everything_takes_the_least_damage(problem, solve):
    assert solve(problem, 10**9).bits == (8, 8)
    assert solve(problem, 10**9).value == 0
    assert solve(problem, 4).bits == (2, 2)
    with pytest.raises(InputError, match="no allocation within 3 bytes"):
        solve(problem, 3)


def test_no_language_ends_worse_than_the_baseline():
    assert allocate_worst(TWO, 3).bits == (8, 4)
    assert allocate_worst(TWO, 3, baseline=[5, 1]).bits == (4, 8)
    assert allocate_worst(TWO, 3, baseline=[4, 0]).bits == (4, 8)
    with pytest.raises(InputError, match="baseline"):
        allocate_worst(TWO, 3, baseline=[1, 1])


def test_regret_subtracts_each_languages_floor():
    result = allocate_worst(TWO, 3, floor=[3, 0])
    assert (result.bits, result.value) == ((4, 8), 1.0)


def test_a_choice_outside_the_budget_is_cut_off(problem, monkeypatch):
    calls = []

    def rounds_badly(*args, constraints, **kwargs):
        calls.append(len(constraints))
        kept = [c for i, c in enumerate(constraints) if i != 1 or len(calls) > 2]
        return real(*args, constraints=kept, **kwargs)

    real = module.milp
    monkeypatch.setattr(module, "milp", rounds_badly)
    assert allocate_worst(problem, 15).size_bytes <= 15  # 8 bits everywhere take 16
    assert calls == [3, 3, 4]
    monkeypatch.setattr(module, "_MAX_CUTS", 1)
    calls.clear()
    with pytest.raises(FairbitsError, match="exceed the budget"):
        allocate_worst(problem, 15)


def test_a_solver_that_stops_is_an_error(problem, monkeypatch):
    class Stopped:
        status, x, message = 1, None, "time limit reached"

    monkeypatch.setattr(module, "milp", lambda *_, **__: Stopped)
    with pytest.raises(FairbitsError, match="HiGHS stopped without a solution: time limit"):
        allocate_worst(problem, 15)


def test_gateway_set_is_the_rule_as_written():
    assert gateway_set(12, 3) == (0, 9, 11)
    assert gateway_set(24, 3) == (0, 18, 23)
    assert gateway_set(12, 4) == (0, 8, 9, 11)
    assert gateway_set(12, 2) == (0, 11)
    assert gateway_set(3, 3) == (0, 1, 2)
    for k in (1, 13):
        with pytest.raises(InputError, match="k is"):
            gateway_set(12, k)


def test_exactly_k_blocks_are_protected_even_where_it_hurts():
    low, high = np.zeros((2, 5)), np.ones((2, 5))
    assert len(protect_blocks(low, high, k=2)) == 2
    assert protect_blocks(low, high, k=5) == (0, 1, 2, 3, 4)
    assert protect_blocks(
        np.array([[5.0, 0.0], [0.0, 4.0]]), np.array([[5.0, 0.0], [5.0, 0.0]]), k=1, objective="mean"
    ) == (1,)
