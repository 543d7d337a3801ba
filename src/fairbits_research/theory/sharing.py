"""The price of sharing: what one code for all languages must cost, next to a code for each language alone.

A row w of weights becomes integer codes q, in units of the step, and language λ pays e H_λ eᵀ for the error e = q − w,
with H_λ = E_λ[x xᵀ]. For weights π of the languages and any codes, max_λ e H_λ eᵀ ≥ e H_π eᵀ with H_π = Σ_λ π_λ H_λ. So
whatever any code must pay under some mixture H_π, one code for all must cost the worst language. The π for which this
bound is largest is the least favourable mixture. The bounds here, in units of step²:

any code        sphere   on average over w that are uniform modulo the grid, e H eᵀ ≥ n/(n+2)·V_n^(−2/n)·det(H)^(1/n),
                         V_n being the volume of the unit ball. The errors of the best codes fill a cell of volume 1,
                         and of all cells of that volume under H an ellipsoid has the least second moment.
feedback        GPTQ     rounds column by column, each to the nearest level after a correction that is linear in the
                         earlier errors. On the same average, feedback M costs tr(H M Mᵀ)/12, M unit triangular; the
                         best for H costs Σ_k R_kk²/12, with H = R Rᵀ (see `quantization.rounding.gptq`).
every w         diagonal e H eᵀ ≥ ν Σ_j H_jj e_j², ν being the least eigenvalue of the correlation matrix of H, and no
                         e_j is smaller than that of nearest rounding. It needs no average, and is weak if inputs
                         correlate.

The first two hold on average over w: weights that spread over several steps are uniform modulo the grid to a very good
approximation, and a layer has many rows. Clipping only adds to all costs. det(H)^(1/n) and R_kk² are concave in H,
so the least favourable mixture is the solution of a concave problem, with a certificate. For feedback there is no
duality gap: tr(H M Mᵀ) is convex in M, so the best feedback for the least favourable mixture is the best for the worst
language, among all feedback in that order of the columns.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cholesky, eigvalsh, lapack

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError


@dataclass(frozen=True, eq=False)
class LeastFavourable:
    """The least favourable mixture: its weights `pi`, and the limits between which its cost lies.

    `bound`    Σ_λ π_λ cost_λ at `pi`: no code costs the worst language less
    `reached`  the least max_λ cost_λ that was found: the bound cannot exceed it for any π
    """

    pi: Floats
    bound: float
    reached: float


def ball_constant(n: int) -> float:
    """Returns n/(n+2)·V_n^(−2/n), the second moment of a ball of volume 1 in n dimensions.

    It is 1/12 for n = 1, and approaches n/(2πe).
    """
    return n / (n + 2) * math.exp(2 / n * math.lgamma(n / 2 + 1) - math.log(math.pi))


def sphere_bound(H: ArrayLike) -> float:
    """Returns n/(n+2)·V_n^(−2/n)·det(H)^(1/n): no codes have a smaller mean e H eᵀ, in units of step².

    The mean is over weights that are uniform modulo the grid. With steps s_j, the bound is that of H_ij s_i s_j.
    """
    matrix = np.asarray(H, dtype=np.float64)
    return float(sphere_costs(matrix[None], matrix)[0])


def sphere_costs(H: ArrayLike, mixture: ArrayLike) -> Floats:
    """Returns sphere_bound(M)·tr(M⁻¹ H_λ)/n of each language for H (languages, n, n) and a mixture M of them.

    This is the tangent at M of the concave function det^(1/n): the costs weighted by π add up to the bound of
    M = Σ_λ π_λ H_λ, and each is at least the language's own bound.
    """
    H, M = _languages(H, mixture)
    n = len(M)
    lower = _factor(M)
    scale = ball_constant(n) * math.exp(2 * float(np.log(np.diag(lower)).mean()))
    inverse, failed = lapack.dpotri(lower, lower=True)
    assert not failed
    return scale / n * _inner(H, np.tril(inverse, -1) * 2 + np.diag(np.diag(inverse)))


def feedback_costs(H: ArrayLike, mixture: ArrayLike, *, order: NDArray[np.intp] | None = None) -> Floats:
    """Returns the mean e H_λ eᵀ of each language if GPTQ rounds for a mixture M, in units of step².

    H is (languages, n, n). With M = R Rᵀ, R upper triangular in the given order of columns (by default the largest M_jj
    first), the bracket of column k is uniform within half a step, so e has covariance (R⁻¹)ᵀ diag(R_kk²) R⁻¹ / 12.
    """
    H, M = _languages(H, mixture)
    backwards = (np.argsort(-np.diag(M), kind="stable") if order is None else order)[::-1]
    lower = _factor(M[np.ix_(backwards, backwards)])
    inverse, failed = lapack.dtrtri(lower / np.diag(lower), lower=True, unitdiag=True)
    assert not failed
    inverse = np.tril(inverse, -1) + np.eye(len(M))
    where = np.empty_like(backwards)
    where[backwards] = np.arange(len(M))
    return _inner(H, (inverse.T @ inverse)[np.ix_(where, where)]) / 12


def diagonal_bound(W: ArrayLike, H: ArrayLike, *, step: ArrayLike = 1.0) -> float:
    """Returns ν Σ_j H_jj ‖w_j − nearest‖² for W (rows, n): no codes of these weights have a smaller Σ e H eᵀ.

    ν is the least eigenvalue of the correlation matrix of H; a column with H_jj = 0 costs nothing. `step` is one number
    or one for each row.
    """
    weights, matrix = np.asarray(W, dtype=np.float64), np.asarray(H, dtype=np.float64)
    steps = np.broadcast_to(np.asarray(step, dtype=np.float64), len(weights))[:, None]
    used = np.diag(matrix) > 0
    if not used.any():
        return 0.0
    matrix = matrix[np.ix_(used, used)]
    root = np.sqrt(np.diag(matrix))
    least = max(0.0, float(eigvalsh(matrix / np.outer(root, root), subset_by_index=(0, 0))[0]))
    nearest = (weights - steps * np.round(weights / steps))[:, used]
    return least * float((np.square(nearest) @ np.diag(matrix)).sum())


def least_favourable(
    costs_of: Callable[[Floats], Floats], languages: int, *, tolerance: float = 0.01, most: int = 200
) -> LeastFavourable:
    """Returns the weights π that maximise F(π) = Σ_λ π_λ costs_of(π)_λ, F being concave with these costs as gradient.

    F(cπ) = cF(π) for the bounds here, so max_λ costs_of(π)_λ is at least F everywhere: it is the certificate. π is
    multiplied by costs/F, which for det^(1/n) never lowers F (it is the algorithm for D-optimal designs); larger powers
    of it are tried as long as F rises. It ends when the limits are within the `tolerance`, or after `most` rounds.
    """
    weights = best = np.full(languages, 1 / languages)
    bound, reached, power, kept = -np.inf, np.inf, 1.0, np.ones(languages)
    for _ in range(most):
        costs = costs_of(weights)
        value = float(weights @ costs)
        reached = min(reached, float(costs.max()))
        if value > bound:
            best, bound, kept = weights, value, costs / value
            power *= 1.5
        else:
            power /= 4
        if reached <= bound * (1 + tolerance):
            break
        weights = best * kept**power
        weights /= weights.sum()
    return LeastFavourable(best, bound, reached)


def mix_moments(H: ArrayLike, weights: ArrayLike) -> Floats:
    """Returns Σ_λ π_λ H_λ in float64, for H (languages, n, n) of any float type."""
    moments = np.asarray(H)
    total = np.zeros(moments.shape[1:])
    for share, of_language in zip(np.asarray(weights), moments, strict=True):
        if share:
            total += share * of_language.astype(np.float64)
    return total


def _languages(H: ArrayLike, mixture: ArrayLike) -> tuple[Floats, Floats]:
    moments, M = np.asarray(H), np.asarray(mixture, dtype=np.float64)  # H may be large: it is not copied
    if not math.isfinite(float(moments.sum(dtype=np.float64))):
        raise InputError("H is NaN or infinite somewhere; check the activations")
    return moments, M


def _factor(M: Floats) -> Floats:
    """Returns the lower triangular factor of a positive definite matrix."""
    try:
        return cholesky(M, lower=True)
    except np.linalg.LinAlgError:
        raise InputError(
            f"a matrix ({len(M)} columns) is not positive definite; use more text, or add a little to its diagonal"
        ) from None


def _inner(H: Floats, C: Floats) -> Floats:
    """Returns tr(H_λ C) of every language."""
    return np.array([float(np.vdot(of_language.astype(np.float64), C)) for of_language in H])
