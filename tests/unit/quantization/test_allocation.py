import dataclasses

import numpy as np
import pytest

from fairbits.core.errors import FairbitsError, InputError
from fairbits.quantization import allocation as program
from fairbits.quantization.allocation import Problem, allocate_mean, allocate_worst, block_bytes, gateway_set
from fairbits.quantization.policies.precision import protect
from fairbits_research.theory.gateway_theorem import amplification_sensitivity, gateway_misses


@pytest.fixture
def problem() -> Problem:
    return Problem(
        bits=(2, 4, 8),
        sizes=[[2, 4, 8], [2, 4, 8]],
        damage=[[[9, 3, 0], [4, 2, 0]], [[1, 0.5, 0], [9, 4, 0]]],
        fixed_bytes=5,
        languages=("eng", "heb"),
        blocks=("0", "1"),
    )


def test_sizes_count_codes_scales_and_round_up_to_bytes():
    assert block_bytes([3, 128], [1, 1], bits=(3, 8, 16)).tolist() == [[4, 5, 6], [50, 130, 256]]


def test_a_problem_is_frozen_and_keeps_its_own_copy(problem):
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.fixed_bytes = 0
    with pytest.raises(ValueError, match="read-only"):
        problem.damage[0, 0, 0] = 1.0
    assert dataclasses.replace(problem, fixed_bytes=7).smallest_bytes == 11
    assert (problem.n_languages, problem.n_blocks, problem.total_bytes([2, 2])) == (2, 2, 21)


def test_the_result_accounts_for_fixed_bytes_and_damage(problem):
    best = allocate_mean(problem, 15)
    assert best.size_bytes <= 15
    assert best.size_bytes == problem.total_bytes(best.options)
    np.testing.assert_array_equal(best.damage, problem.total_damage(best.options))
    assert best.bits == tuple(problem.bits[option] for option in best.options)
    assert best.value == pytest.approx(best.damage.mean())
    assert (best.solver, best.optimal, best.bound) == ("dp", True, best.value)


def test_language_weights_steer_the_mean(problem):
    assert allocate_mean(problem, 15, pi=[1, 0]).bits == (8, 2)
    assert allocate_mean(problem, 15, pi=[0, 1]).bits == (2, 8)


def test_a_budget_for_everything_takes_the_least_damage(problem):
    for result in (
        allocate_mean(problem, 10**9),
        allocate_worst(problem, 10**9),
    ):
        assert result.bits == (8, 8)
        assert result.value == 0


def test_too_many_states_go_to_highs_and_the_result_says_so(problem, monkeypatch):
    monkeypatch.setattr("fairbits.quantization.allocation.DYNAMIC_PROGRAM_STATES", 3)
    result = allocate_mean(problem, 15)
    assert result.solver == "highs"
    assert result.optimal
    with pytest.raises(InputError, match="solver='highs'"):
        allocate_mean(problem, 15, solver="dp")


def test_no_language_ends_worse_than_the_baseline():
    damage = [[[4, 0], [0, 0]], [[0, 0], [3, 0]]]
    problem = Problem(bits=(4, 8), sizes=[[1, 2], [1, 2]], damage=damage)
    assert allocate_worst(problem, 3).bits == (8, 4)
    assert allocate_worst(problem, 3, baseline=[5, 1]).bits == (4, 8)
    assert allocate_worst(problem, 3, baseline=[4, 0]).bits == (4, 8)
    with pytest.raises(InputError, match="baseline"):
        allocate_worst(problem, 3, baseline=[1, 1])


def test_regret_subtracts_each_languages_floor():
    damage = [[[4, 0], [0, 0]], [[0, 0], [3, 0]]]
    problem = Problem(bits=(4, 8), sizes=[[1, 2], [1, 2]], damage=damage)
    result = allocate_worst(problem, 3, floor=[3, 0])
    assert (result.objective, result.bits, result.value) == ("regret", (4, 8), 1.0)


def test_a_choice_outside_the_budget_is_cut_off(problem, monkeypatch):
    calls = []

    def rounds_badly(*args, constraints, **kwargs):
        calls.append(len(constraints))
        kept = [c for i, c in enumerate(constraints) if i != 1 or len(calls) > 1]
        return real(*args, constraints=kept, **kwargs)

    real = program.milp
    monkeypatch.setattr(program, "milp", rounds_badly)
    result = allocate_worst(problem, 20)  # everything at 8 bits takes 21
    assert calls == [3, 4]
    assert result.size_bytes <= 20
    monkeypatch.setattr(program, "_MAX_CUTS", 1)
    calls.clear()
    with pytest.raises(FairbitsError, match="exceed the budget"):
        allocate_worst(problem, 20)


def test_a_solver_that_contradicts_a_known_choice_is_not_believed(problem, monkeypatch):
    def claims_too_much(*args, **kwargs):
        result = real(*args, **kwargs)
        result.mip_dual_bound *= 1.5
        return result

    real = program.milp
    monkeypatch.setattr(program, "milp", claims_too_much)
    with pytest.raises(FairbitsError, match="fault of the solver"):
        allocate_worst(problem, 15)


def test_the_time_limit_that_finds_nothing_is_an_error():
    rng = np.random.default_rng(0)
    big = Problem(bits=(2, 3, 4, 8), sizes=rng.integers(1, 10**6, (300, 4)), damage=rng.random((20, 300, 4)))
    with pytest.raises(FairbitsError, match="time_limit"):
        allocate_worst(big, big.smallest_bytes + 10**7, time_limit=1e-6)


@pytest.mark.parametrize("solve", [allocate_mean, allocate_worst])
def test_a_budget_too_small_names_the_smallest_feasible_size(problem, solve):
    with pytest.raises(InputError, match="smallest feasible size is 9 bytes"):
        solve(problem, 8)
    with pytest.raises(InputError, match="whole number"):
        solve(problem, 20.5)
    solve(problem, 9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bits": ()}, "at least one width"),
        ({"bits": (4, 2, 8)}, "increasing order"),
        ({"bits": (2, 4)}, "must agree"),
        ({"sizes": [[2, 4, 8], [2, 4, -8]]}, "at least 0"),
        ({"sizes": [[2, 4, 8.5], [2, 4, 8]]}, "whole number"),
        ({"sizes": [[2, 4, 8]]}, "must agree"),
        ({"damage": np.full((2, 2, 3), np.nan)}, "NaN"),
        ({"damage": np.zeros((0, 2, 3))}, "at least 1"),
        ({"damage": np.zeros((2, 3))}, "3 dimension"),
        ({"fixed_bytes": -1}, "0 or more"),
        ({"languages": ("eng",)}, "2 name"),
        ({"blocks": "ab"}, "2 name"),
    ],
)
def test_a_bad_problem_is_refused(problem, change, message):
    with pytest.raises(InputError, match=message):
        dataclasses.replace(problem, **change)


def test_bad_arguments_are_refused(problem):
    with pytest.raises(InputError, match="pi"):
        allocate_mean(problem, 20, pi=[1, 2, 3])
    with pytest.raises(InputError, match="baseline"):
        allocate_worst(problem, 20, baseline=[1.0])
    with pytest.raises(InputError, match="relative_gap"):
        allocate_worst(problem, 20, relative_gap=-0.1)
    with pytest.raises(InputError, match="time_limit"):
        allocate_worst(problem, 20, time_limit=0)
    with pytest.raises(InputError, match="below 3"):
        problem.total_damage([0, 3])
    with pytest.raises(InputError, match="n_scales"):
        block_bytes([1, 2], [1], bits=(4,))


def test_gateway_set_is_the_rule_as_written():
    assert gateway_set(12, 3) == (0, 9, 11)
    assert gateway_set(24, 3) == (0, 18, 23)
    assert gateway_set(12, 4) == (0, 8, 9, 11)
    assert gateway_set(12, 2) == (0, 11)
    assert gateway_set(3, 3) == (0, 1, 2)
    for k in (1, 13):
        with pytest.raises(InputError, match="k is"):
            gateway_set(12, k)


@pytest.mark.parametrize("method", ["exhaustive", "milp", "greedy"])
def test_exactly_k_blocks_are_protected_even_where_it_hurts(method):
    low, high = np.zeros((2, 5)), np.ones((2, 5))
    best = protect(low, high, k=2, method=method)
    assert len(best.blocks) == 2
    assert best.value == 2
    assert best.optimal == (method != "greedy")
    assert protect(low, high, k=5, method=method).blocks == (0, 1, 2, 3, 4)


def test_the_gap_can_be_lowered_by_hurting_the_best_language():
    low = np.array([[5.0, 0.0], [0.0, 4.0]])
    high = np.array([[5.0, 0.0], [5.0, 0.0]])
    assert protect(low, high, k=1, objective="gap").blocks == (0,)
    assert protect(low, high, k=1, objective="mean").blocks == (1,)


def test_protection_refuses_what_it_cannot_do():
    low = np.ones((2, 40))
    for k in (0, 41):
        with pytest.raises(InputError, match="k is"):
            protect(low, 0 * low, k=k)
    with pytest.raises(InputError, match="method='milp'"):
        protect(low, 0 * low, k=10)
    with pytest.raises(InputError, match="objective"):
        protect(low, 0 * low, k=2, objective="max")
    with pytest.raises(InputError, match="must agree"):
        protect(low, low[:, :3], k=2)
    with pytest.raises(InputError, match="NaN"):
        protect(low * np.nan, low, k=2)
    with pytest.raises(InputError, match="n_blocks"):
        gateway_misses(1, rng=np.random.default_rng(0), objective="gap", n_blocks=2)


def test_amplification_never_protects_both_ends():
    for norm, expected in ((1.3, (0, 1, 2)), (0.7, (9, 10, 11))):
        terms = amplification_sensitivity(np.ones(12), np.full(12, norm))
        assert protect(terms[None], np.zeros((1, 12)), k=3).blocks == expected
    with pytest.raises(InputError, match="overflow"):
        amplification_sensitivity(np.ones(12), np.full(12, 1e300))
    with pytest.raises(InputError, match="must agree"):
        amplification_sensitivity(np.ones(12), np.ones(11))
