"""The bounds on one code for all languages against exhaustive search, and the cost of feedback against GPTQ itself."""

from itertools import product

import numpy as np
import pytest
import torch

from fairbits.models.scales.grid import Grid
from fairbits.quantization.gptq.columns import gptq
from fairbits_research.theory.sharing import (
    diagonal_bound,
    feedback_costs,
    least_favourable,
    sphere_bound,
    sphere_costs,
)


def random_moments(rng, languages, n, *, spread=1.0):
    """Returns second moments (languages, n, n) of correlated inputs whose scales differ."""
    roots = rng.normal(size=(languages, n, 2 * n)) * np.exp(spread * rng.normal(size=(languages, n, 1)))
    return roots @ roots.transpose(0, 2, 1) / (2 * n)


def candidates(W, reach):
    """Returns the errors (rows, codes, n) of all codes within `reach` of every weight."""
    n = W.shape[1]
    near = np.array(list(product(range(1 - reach, 1 + reach), repeat=n)))
    return np.floor(W)[:, None] + near[None] - W[:, None]


def costs(E, H):
    return np.einsum("rcj,jk,rck->rc", E, H, E, optimize=True)


@pytest.mark.parametrize(("n", "reach"), [(1, 3), (2, 4), (3, 3), (4, 2)])
def test_no_codes_are_below_the_sphere_bound_on_average(n, reach) -> None:
    rng = np.random.default_rng(n)
    for H in random_moments(rng, 3, n, spread=0.3):
        best = costs(candidates(rng.random((2000, n)), reach), H).min(1)
        error = best.std() / np.sqrt(len(best))
        assert best.mean() >= sphere_bound(H) - 3 * error
        assert best.mean() <= feedback_costs(H[None], H)[0] + 3 * error  # GPTQ is no better than the best codes
        if n == 1:
            assert best.mean() == pytest.approx(sphere_bound(H), abs=3 * error)  # where it is attained


def test_the_hexagonal_lattice_is_close_to_the_sphere_bound() -> None:
    H = np.array([[1.0, 0.5], [0.5, 1.0]])
    W = np.random.default_rng(0).random((20_000, 2))
    best = costs(candidates(W, 3), H).min(1).mean()
    hexagon = 2 * 5 / (36 * np.sqrt(3)) * np.sqrt(np.linalg.det(H))  # its known second moment
    assert best == pytest.approx(hexagon, rel=0.02)
    assert 1 < hexagon / sphere_bound(H) < 1.01


def test_no_codes_are_below_the_diagonal_bound_for_any_weights() -> None:
    rng = np.random.default_rng(1)
    for H in random_moments(rng, 20, 3, spread=0.5):
        W = rng.normal(size=(8, 3))
        step = float(rng.lognormal())
        best = costs(candidates(W / step, 4), H).min(1).sum() * step**2
        assert best >= diagonal_bound(W, H, step=step) > 0


def test_one_code_for_all_costs_the_worst_language_at_least_the_bound() -> None:
    """Also codes that are sought for the worst language, over all rows together."""
    rng = np.random.default_rng(2)
    H = random_moments(rng, 3, 3, spread=0.7)
    certificate = least_favourable(lambda pi: sphere_costs(H, np.tensordot(pi, H, 1)), 3, tolerance=1e-4)
    W = rng.random((400, 3))
    E = candidates(W, 3)
    code_costs = np.stack([costs(E, one) for one in H])  # (languages, rows, codes)
    lowest = np.inf
    pi = np.full(3, 1 / 3)
    for _ in range(300):  # multiplicative weights on the exact problem
        chosen = np.tensordot(pi, code_costs, 1).argmin(1)
        paid = code_costs[:, np.arange(len(W)), chosen].mean(1)
        lowest = min(lowest, paid.max())
        pi = pi * np.exp(0.05 * paid / paid.max())
        pi /= pi.sum()
    assert lowest >= certificate.bound * 0.97
    assert lowest <= certificate.bound * 1.6  # and not by far: in three dimensions the sphere is a good cell


def test_feedback_costs_are_those_of_gptq() -> None:
    rng = np.random.default_rng(3)
    n, rows = 24, 4000
    H = random_moments(rng, 3, n, spread=0.5)
    mixture = np.tensordot([0.2, 0.3, 0.5], H, 1)
    W = rng.uniform(-20, 20, (rows, n))
    quantized = gptq(
        torch.from_numpy(W).float(),
        torch.from_numpy(mixture).float(),
        torch.ones(rows, 1),
        grid=Grid(8, "twos"),
        damp=0.0,
    )
    E = quantized.codes.dequantized.double().numpy() - W
    measured = np.einsum("rj,ljk,rk->l", E, H, E, optimize=True) / rows
    assert measured == pytest.approx(feedback_costs(H, mixture), rel=0.03)


def test_no_feedback_beats_that_for_the_least_favourable_mixture() -> None:
    """No duality gap: the feedback for that mixture reaches the bound, and none that differs from it is below."""
    rng = np.random.default_rng(4)
    n, order = 5, np.arange(5)
    H = random_moments(rng, 3, n, spread=0.7)
    certificate = least_favourable(
        lambda pi: feedback_costs(H, np.tensordot(pi, H, 1), order=order), 3, tolerance=1e-4, most=500
    )
    assert certificate.reached <= certificate.bound * (1 + 1e-4)
    R = np.linalg.cholesky(np.tensordot(certificate.pi, H, 1)[::-1, ::-1])[::-1, ::-1]
    M = np.linalg.inv(R / np.diag(R))  # e = u M, u uniform within half a step
    language_costs = np.einsum("ki,lij,kj->l", M, H, M) / 12
    assert language_costs.max() == pytest.approx(certificate.bound, rel=0.01)
    assert certificate.pi @ (language_costs.max() - language_costs) == pytest.approx(
        0, abs=0.01 * certificate.bound
    )  # only the worst have weight
    for size in (0.01, 0.1, 1.0):
        others = M + size * np.triu(rng.normal(size=(500, n, n)), 1)
        paid = np.einsum("rki,lij,rkj->rl", others, H, others, optimize=True) / 12
        assert (paid.max(1) >= certificate.bound).all()
