"""The minimax step against enumeration of all pieces, with its KKT certificate."""

import itertools

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.models.scales.exact_clip import clip_blocks, minimax_blocks
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.minimax_kernels import minimise_worst_quadratic
from fairbits.models.scales.sample_clip import minimax_sample
from fairbits_research.theory.clip_distribution import clip_distribution, minimax_distribution
from fairbits_research.theory.distributions import Gaussian, GeneralisedGaussian, Laplace
from fairbits_research.theory.noise import mse, sample_error


def piece_enumeration(w, H, grid):
    """min over s of max_λ f_λ: codes are fixed on a piece, so its candidates are vertices, crossings and ends."""
    x = np.abs(w)
    thresholds = np.arange(1, max(grid.caps) + 1) - 0.5 + grid.offset
    ends = np.unique((x[x > 0][:, None] / thresholds).ravel())
    ends = np.concatenate([[ends[0] / 2], ends, [2 * ends[-1] + x.max()]])
    best = np.inf
    for low, high in itertools.pairwise(ends):
        k = grid.codes(w, (low + high) / 2) + grid.offset
        A, B, C = H @ w**2, H @ (w * k), H @ (k * k)
        candidates = [low, high, *(B[C > 0] / C[C > 0])]
        for i, j in itertools.combinations(range(len(H)), 2):
            roots = np.roots([C[i] - C[j], -2 * (B[i] - B[j]), A[i] - A[j]])
            candidates += [root.real for root in roots if abs(root.imag) < 1e-9]
        for s in candidates:
            if s > 0:
                # fixed codes bound the true error from above at any s, so no candidate can undercut the truth
                best = min(best, max(A - 2 * s * B + s * s * C))
    return best


def draw(rng, case, bits):
    size, languages = int(rng.integers(1, 8)), int(rng.integers(2, 5))
    w = rng.standard_normal(size) if case % 3 else rng.choice([-2.0, -1.0, 0.5, 1.0, 3.0], size)
    H = rng.lognormal(0, 2, (languages, size))
    if case % 5 == 0:
        H[:, rng.integers(size)] *= 1e-9
    if case % 7 == 0:
        w[rng.integers(size)] = 1e3
    return w, H, bits


@pytest.mark.parametrize("kind", ["symmetric", "twos"])
def test_minimax_equals_piece_enumeration(kind) -> None:
    rng = np.random.default_rng(23)
    two_active = 0
    for case in range(160):
        w, H, bits = draw(rng, case, int(rng.integers(2, 5)))
        grid = Grid(bits, kind)
        truth = piece_enumeration(w, H, grid)
        floor = 1e-13 * float((H @ w**2).max())
        optimum = minimax_sample(w, grid, importance=H)
        assert optimum.value == pytest.approx(truth, rel=2e-9, abs=floor), (case, w, H)
        step = float(minimax_blocks(w[None], grid, importance=H)[0, 0])
        scaled = H / H.mean(axis=1, keepdims=True)
        truth = piece_enumeration(w, scaled, grid)
        floor = 1e-13 * float((scaled @ w**2).max())
        worst = max(sample_error(w, grid, step, importance=h) for h in scaled)
        assert worst == pytest.approx(truth, rel=2e-9, abs=floor), (case, w, H)
        two_active += sum(mu > 0 for mu in optimum.multipliers) == 2
    assert two_active > 20


def errors(W, steps, H):
    """Σ h(w − Q(w))² of every row and language at 4 bits."""
    return (W - Grid(4).quantize(W, steps)) ** 2 @ H.T


def worst_errors(W, steps, H):
    return errors(W, steps, H).max(axis=1)


def test_minimax_is_never_worse_for_the_worst_language_than_any_other_step() -> None:
    rng = np.random.default_rng(5)
    W, H = rng.standard_normal((20, 128)), rng.lognormal(0, 1.5, (4, 128))
    scaled = H / H.mean(axis=1, keepdims=True)
    shared = worst_errors(W, minimax_blocks(W, Grid(4), importance=H), scaled)
    for other in (clip_blocks(W, Grid(4)), clip_blocks(W, Grid(4), importance=scaled.mean(axis=0))):
        assert (shared <= worst_errors(W, other.step, scaled) * (1 + 1e-12)).all()


def test_regret_objective_equalises_relative_regret() -> None:
    rng = np.random.default_rng(6)
    W, H = rng.standard_normal((10, 64)), rng.lognormal(0, 1.5, (3, 64))
    scaled = H / H.mean(axis=1, keepdims=True)
    alone = np.array([clip_blocks(W, Grid(4), importance=h).error[:, 0] for h in scaled])
    regret = minimax_blocks(W, Grid(4), importance=H, objective="regret")
    worst = minimax_blocks(W, Grid(4), importance=H, objective="worst")
    relative = errors(W, regret, scaled).T / alone
    assert (relative >= 1 - 1e-9).all()
    assert (relative.max(axis=0) <= (errors(W, worst, scaled).T / alone).max(axis=0) * (1 + 1e-9)).all()


def test_distributions_have_a_certificate() -> None:
    laws = [Gaussian(1.0), Laplace(1.4), GeneralisedGaussian.with_kappa(20.0, sigma=0.8)]
    for bits, relative in itertools.product((2, 4, 6), (False, True)):
        grid = Grid(bits)
        optimum = minimax_distribution(laws, grid, relative=relative)
        scale = [clip_distribution(law, grid).value if relative else 1.0 for law in laws]
        steps = np.geomspace(optimum.step / 3, optimum.step * 3, 4001)
        curves = np.array([mse(law, grid, steps) / divisor for law, divisor in zip(laws, scale, strict=True)])
        assert optimum.worst <= curves.max(axis=0).min() * (1 + 1e-9)
        assert optimum.gap < 2e-9
        assert optimum.stationarity < 1e-4


def test_the_worst_of_parabolas_and_constants_is_minimised_with_its_certificate() -> None:
    rng = np.random.default_rng(8)
    for _ in range(3000):
        size = int(rng.integers(2, 8))
        C, vertex, F = (rng.integers(low, 4, size).astype(float) for low in (0, -3, 0))
        A, B = F + vertex**2 * C, vertex * C
        if not C.any():
            continue
        s, value, p, q, mu = minimise_worst_quadratic(A, B, C)
        dense = np.linspace(-3, 3, 601)
        assert value <= (A[:, None] - 2 * dense * B[:, None] + dense**2 * C[:, None]).max(axis=0).min() + 1e-12
        values, slopes = A - 2 * s * B + s * s * C, s * C - B
        assert abs(mu * slopes[p] + (1 - mu) * slopes[q]) < 1e-9
        assert value == pytest.approx(values.max())
        assert all(values[i] == pytest.approx(value) for i, weight in ((p, mu), (q, 1 - mu)) if weight > 0)


def test_languages_of_very_different_scales_and_of_none() -> None:
    w, H = np.array([1000.0, 0.01]), np.array([[1.0, 0.0], [0.0, 1e20]])
    optimum = minimax_sample(w, Grid(2), importance=H)
    assert optimum.value == pytest.approx(piece_enumeration(w, H, Grid(2)), abs=1e-14 * float((H @ w**2).max()))
    for unit in (1e30, 1e-30):
        silent = minimax_sample(np.float32([unit, 0, 2 * unit]), Grid(2), importance=[[1, 1, 1], [0, 1, 0]])
        assert silent.step == pytest.approx(1.5 * unit)
        assert silent.multipliers == (1.0, 0.0)


def test_relative_error_of_a_language_that_fits_exactly_is_refused() -> None:
    with pytest.raises(InputError, match="without error"):
        minimax_sample([0.1, 0.3, 0.77], Grid(3), importance=[[1, 1, 0], [1, 1, 1]], relative=True)


def test_regret_does_not_depend_on_the_scale_of_other_rows() -> None:
    rng = np.random.default_rng(0)
    w, H = rng.standard_normal(64), rng.lognormal(0, 1.5, (3, 64))
    step = minimax_blocks([w, 1e-7 * w], Grid(4), importance=H, objective="regret")[:, 0]
    assert 1e-7 * step[0] == pytest.approx(step[1], rel=1e-9)
