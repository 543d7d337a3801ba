"""Rigorous bounds are never violated; the research notes' bounds are, where they should be."""

import numpy as np
import pytest

from fairbits.models.scales.grid import Grid
from fairbits_research.theory.bounds import (
    alpha_limit,
    disparity,
    excess_bounds,
    own_optimum_bound,
    total_variation,
    tv_bound,
)
from fairbits_research.theory.clip_distribution import clip_distribution
from fairbits_research.theory.distributions import (
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Laplace,
    Mixture,
    StudentT,
)
from fairbits_research.theory.noise import additive_mse, mse
from fairbits_research.theory.threshold_formulas import additive_alpha, noise_constant
from fairbits_research.theory.thresholds import families


def random_law(rng):
    sigma, kappa = rng.lognormal(0, 0.7), float(rng.choice([0.5, 3.0, 20.0, 100.0]))
    kind = rng.integers(5)
    if kind == 0:
        return Gaussian(sigma)
    if kind == 1:
        return Laplace(sigma)
    if kind == 2:
        return StudentT.with_kappa(kappa, sigma=sigma)
    if kind == 3:
        return GeneralisedGaussian.with_kappa(kappa, sigma=sigma)
    return GaussianScaleMixture.with_kappa(kappa, epsilon=0.01, sigma=sigma)


@pytest.mark.long
def test_tv_bound_is_never_violated_on_the_exact_grid() -> None:
    rng = np.random.default_rng(0)
    tightness = []
    for _ in range(2000):
        blocks = int(rng.integers(2, 7))
        grid = Grid(int(rng.integers(2, 7)), str(rng.choice(["symmetric", "twos"])))
        laws = [random_law(rng) for _ in range(blocks)]
        step = float(rng.lognormal(-1, 0.7))
        errors = np.array([float(mse(law, grid, step)) for law in laws])
        p, q = rng.dirichlet(np.ones(blocks) * rng.choice([0.3, 1, 5]), size=2)
        bound = tv_bound(p, q, errors=errors)
        assert abs((p - q) @ errors) <= bound * (1 + 1e-12) + 1e-12
        if bound > 1e-12:
            tightness.append(abs((p - q) @ errors) / bound)
    assert max(tightness) == pytest.approx(1.0, abs=1e-6)  # attained with two blocks


def test_tv_bound_holds_weight_by_weight() -> None:
    rng = np.random.default_rng(1)
    for _ in range(200):
        w, h = rng.standard_t(4, 64), rng.lognormal(0, 1.5, (2, 64))
        errors = (w - Grid(4).quantize(w, 0.4)) ** 2
        p, q = h / h.sum(axis=1, keepdims=True)
        assert abs((p - q) @ errors) <= tv_bound(p, q, errors=errors) * (1 + 1e-12)


@pytest.mark.long
def test_own_optimum_bound() -> None:
    rng = np.random.default_rng(2)
    for _ in range(150):
        laws = [random_law(rng) for _ in range(3)]
        patterns = rng.dirichlet(np.ones(3), size=2)
        best = [clip_distribution(Mixture(laws, pattern), Grid(4)) for pattern in patterns]
        errors = [[float(mse(law, Grid(4), optimum.step)) for law in laws] for optimum in best]
        bound = own_optimum_bound(*patterns, errors_p=errors[0], errors_q=errors[1])
        assert abs(best[0].value - best[1].value) <= bound * (1 + 1e-9)


@pytest.mark.long
def test_second_order_law_of_the_additive_model() -> None:
    rng = np.random.default_rng(4)
    for _ in range(2000):
        law, c = random_law(rng), noise_constant(int(rng.integers(2, 9)))
        best = additive_alpha(law, c)
        alpha = best * float(rng.lognormal(0, 0.5))
        excess = float(additive_mse(law, alpha, c) - additive_mse(law, best, c))
        low, high = excess_bounds(law, alpha, c=c)
        assert low * (1 - 1e-6) - 1e-12 <= excess <= high * (1 + 1e-6) + 1e-12


def test_newton_finds_the_minimum_of_the_additive_model() -> None:
    for law in (StudentT(dof=5.0), Mixture([Gaussian(1.0), Laplace(3.0)], [0.7, 0.3])):
        for bits in (2, 4, 8):
            c = noise_constant(bits)
            alpha = additive_alpha(law, c)
            scan = np.geomspace(alpha / 4, alpha * 4, 20_001)
            assert float(additive_mse(law, alpha, c)) <= additive_mse(law, scan, c).min() * (1 + 1e-12)


@pytest.mark.parametrize("bits", [2, 3, 4, 6, 8])
def test_kurtosis_bounds_the_threshold(bits) -> None:
    c = noise_constant(bits)
    for kappa in (0.0, 1.0, 3.0, 20.0, 100.0, 200.0):
        for law in families(kappa).values():
            assert additive_alpha(law, c) <= alpha_limit(kappa, c)


def test_total_variation_is_a_metric_between_patterns() -> None:
    assert total_variation([1, 0], [0, 1]) == 1
    assert total_variation([2, 2], [1, 1]) == 0
    assert disparity([0.3, 0.1, 0.2]) == pytest.approx(0.2)
