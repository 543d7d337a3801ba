"""The integer program against the enumeration of all allocations, and of all protection sets."""

import itertools

import numpy as np
import pytest

from fairbits.quantization.allocation import Problem, allocate_mean, allocate_worst, protect_blocks

SEEDS = range(120)
CHOICES = np.array(list(itertools.product(range(4), repeat=5)))


def draw(seed: int) -> tuple[Problem, int]:
    """A problem of 5 blocks, 4 widths and 3 languages with uneven sizes; some damages are not monotone."""
    rng = np.random.default_rng(seed)
    weights = rng.integers(1, 9, size=(5, 1)) * rng.integers(1, 50)
    sizes = weights * np.array([2, 3, 4, 8]) + rng.integers(0, 3, size=(5, 1))
    damage = rng.gamma(2.0, size=(3, 5, 1)) * 4.0 ** -np.array([2, 3, 4, 8]) * rng.lognormal(0, 0.4, (3, 5, 4))
    problem = Problem((2, 3, 4, 8), sizes, damage=damage * 10.0 ** rng.integers(-4, 2))
    return problem, int(rng.integers(sizes.min(axis=1).sum(), problem.total_bytes(np.full(5, 3)) + 1))


def enumerate_all(problem: Problem, budget: int) -> np.ndarray:
    """damage[choice, lang] of every allocation within the budget."""
    index = np.arange(problem.n_blocks)
    sizes = problem.sizes[index, CHOICES].sum(axis=1)
    return problem.damage[:, index, CHOICES[sizes <= budget]].sum(axis=2).T


def test_mean_is_the_brute_force_optimum():
    for seed in SEEDS:
        problem, budget = draw(seed)
        pi = np.random.default_rng(seed).dirichlet(np.ones(3))
        result = allocate_mean(problem, budget, pi=pi)
        assert result.size_bytes <= budget
        assert result.value == pytest.approx((enumerate_all(problem, budget) @ pi).min(), rel=1e-8)


def test_worst_is_the_brute_force_optimum():
    for seed in SEEDS:
        problem, budget = draw(seed)
        result = allocate_worst(problem, budget)
        assert result.size_bytes <= budget
        assert result.value == pytest.approx(enumerate_all(problem, budget).max(axis=1).min(), rel=1e-8)


def test_regret_under_a_baseline_is_the_brute_force_optimum():
    for seed in SEEDS:
        problem, budget = draw(seed)
        damages = enumerate_all(problem, budget)
        floor = damages.min(axis=0)
        baseline = damages[np.random.default_rng(seed).integers(len(damages))]
        kept = damages[(damages <= baseline * (1 + 1e-9)).all(axis=1)]
        result = allocate_worst(problem, budget, floor=floor, baseline=baseline)
        scale = damages.max(axis=1).min()
        assert result.value == pytest.approx((kept - floor).max(axis=1).min(), rel=1e-7, abs=1e-8 * scale)
        assert (result.damage <= baseline * (1 + 1e-8)).all()


@pytest.mark.parametrize("objective", ["worst", "mean"])
def test_protected_blocks_are_the_best_of_all_sets(objective):
    value_of = {"worst": np.max, "mean": np.mean}[objective]
    for seed in range(70):
        rng = np.random.default_rng(seed)
        low, high = rng.gamma(2.0, size=(2, 4, 9)) * [[[1.0]], [[0.2]]] * 10.0 ** rng.integers(-4, 3)
        k = int(rng.integers(1, 9))
        values = {
            blocks: value_of(np.where(np.isin(np.arange(9), blocks), high, low).sum(axis=1))
            for blocks in itertools.combinations(range(9), k)
        }
        assert protect_blocks(low, high, k=k, objective=objective) == min(values, key=values.__getitem__)
