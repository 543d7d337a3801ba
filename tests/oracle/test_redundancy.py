"""Theorem 1 against the real error of the best uniform grid, and information against sums over outcomes."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import minimize_scalar
from scipy.stats import norm

from fairbits_research.theory.redundancy_theorem import (
    clipping_constant,
    delta_needed,
    disparity_ratio,
    holds_up_to,
    rate_distortion,
    redundancy,
    redundancy_bound,
    taylor_step_holds,
    taylor_step_limit,
    unique_information,
)

# bits: (largest R + δ for which the theorem is true, D*·4^b)
REGIONS = {
    2: (1.58, 1.90),
    3: (1.25, 2.40),
    4: (1.015, 2.95),
    5: (0.84, 3.58),
    6: (0.70, 4.26),
    8: (0.52, 5.75),
}


def midrise_mse(step: float, bits: int) -> float:
    """E(X − Q X)² of a unit Gaussian on the 2^bits levels (k + ½)·step, cell by cell in closed form."""
    half = 2 ** (bits - 1)
    edges = np.append(np.arange(half) * step, np.inf)
    levels = (np.arange(half) + 0.5) * step
    mass = np.diff(norm.cdf(edges))
    first = -np.diff(norm.pdf(edges))
    tails = np.append(edges[:-1] * norm.pdf(edges[:-1]), 0.0)
    second = mass - np.diff(tails)
    return float(2 * (second - 2 * levels * first + levels**2 * mass).sum())


def optimal_mse(bits: int) -> float:
    best = minimize_scalar(
        midrise_mse,
        bounds=(1 / 2**bits, 12 / 2**bits),
        args=(bits,),
        options={"xatol": 1e-10},
        method="bounded",
    )
    return float(best.fun)


def test_the_cell_formula_agrees_with_quadrature():
    def error(x):
        level = (min(np.floor(x / 0.4), 3) + 0.5) * 0.4
        return 2 * (x - level) ** 2 * norm.pdf(x)

    direct = sum(quad(error, a, b)[0] for a, b in ((0, 0.4), (0.4, 0.8), (0.8, 1.2), (1.2, 12)))
    assert midrise_mse(0.4, 3) == pytest.approx(direct, rel=1e-9)


@pytest.mark.parametrize("bits", REGIONS)
def test_the_theorem_holds_exactly_up_to_the_stated_region(bits):
    limit, constant = REGIONS[bits]
    mse = optimal_mse(bits)
    assert mse * 4**bits == pytest.approx(constant, abs=0.006)
    edge = holds_up_to(bits, mse)
    assert edge == pytest.approx(limit, abs=0.006)
    assert mse <= redundancy_bound(edge * 0.999, bits, delta=0)
    assert mse > redundancy_bound(edge * 1.001, bits, delta=0)
    assert mse > rate_distortion(bits)
    assert (mse > clipping_constant(bits)) == (bits >= 5)


def test_the_taylor_region_agrees_with_a_scan():
    for bits in range(1, 11):
        for delta in (0.05, 0.1, 0.5, 1.0, 2.0, 2.9):
            limit = taylor_step_limit(bits, delta=delta)
            for r in np.linspace(0, 30, 301):
                direct = bits / (bits + r) * 4.0**-bits <= 3 * 4.0**-bits / (r + delta) * (1 + 1e-12)
                assert taylor_step_holds(r, bits, delta=delta) == direct == (r <= limit * (1 + 1e-12))


def test_delta_needed_inverts_the_ratio():
    rng = np.random.default_rng(0)
    for high, low, delta in rng.uniform((2, 0, 0.01), (5, 1.9, 5), size=(100, 3)):
        ratio = disparity_ratio(high, low, delta=delta)
        assert delta_needed(ratio, high, r_low=low) == pytest.approx(delta, rel=1e-8)
        assert ratio < high / low


def test_redundancy_is_the_sum_over_outcomes():
    rng = np.random.default_rng(0)
    for _ in range(50):
        p = rng.dirichlet(np.full(12, 0.5)).reshape(3, 4)
        x, y = p.sum(axis=1), p.sum(axis=0)
        cells = [(i, j) for i in range(3) for j in range(4) if p[i, j] > 0]
        mutual = sum(p[i, j] * np.log2(p[i, j] / (x[i] * y[j])) for i, j in cells)
        conditional = -sum(p[i, j] * np.log2(p[i, j] / x[i]) for i, j in cells)
        assert redundancy(p) == pytest.approx(mutual - conditional, abs=1e-12)


def test_unique_information_is_zero_for_every_deterministic_later_layer():
    rng = np.random.default_rng(0)
    for _ in range(50):
        generic_y = rng.dirichlet(np.ones(15)).reshape(5, 3)
        joint = np.zeros((4, 5, 3))
        for generic, outlier in enumerate(rng.integers(0, 4, size=5)):
            joint[outlier, generic] = generic_y[generic]
        assert unique_information(joint) == pytest.approx(0.0, abs=1e-15)
        noisy = rng.dirichlet(np.ones(60)).reshape(4, 5, 3)
        h = {axes: -np.sum((q := noisy.sum(axis=axes)) * np.log2(q)) for axes in ((), (2,), (0,), (0, 2), (0, 1))}
        unique = h[2,] + h[0,] - h[0, 2] - h[()]
        assert unique_information(noisy) == pytest.approx(unique / (h[2,] + h[0, 1] - h[()]), rel=1e-9)
