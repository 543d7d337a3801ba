"""Clip thresholds as the research notes propose them: per language, and by a formula in the kurtosis.

Four functions answer "which α is best for language λ?". They differ in what they take the language's weights to be:

| function            | reading                                               | where         |
|---------------------|-------------------------------------------------------|---------------|
| `alpha_by_kappa`    | σ·f(κ_eff), κ_eff = Σ ā_l κ_l                          | 000-22        |
| `alpha_by_mixture`  | argmin for the mixture Σ ā_l P_l                       | 003-08        |
| `alpha_by_product`  | argmin for the sample w ⊙ a                           | 004-13        |
| `alpha_by_importance` | argmin of Σ_j h_j(λ)(w_j − Q(w_j))², h_j = E_λ[x_j²] | the error of the layer's output |

Only the last minimises the error of the language. Where every block has its own threshold, the first two give every
language the same one (`separable`).

`refit` finds the constants c_B, d_B of σ(c_B + d_B·ln(1 + κ)) that lose least over many families of distributions. The
form is the documents'; no choice of constants makes κ a sufficient statistic. `REFITTED_CONSTANTS` are its results,
rounded.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize
from scipy.interpolate import CubicSpline

from fairbits.core.array_checks import Floats, weights_vector
from fairbits.core.errors import InputError
from fairbits.models.scales.clip_formulas import SEED_CONSTANTS
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample
from fairbits_research.theory.clip_distribution import clip_distribution
from fairbits_research.theory.distributions import (
    Distribution,
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    Mixture,
    StudentT,
)
from fairbits_research.theory.effective_kurtosis import kappa_weighted
from fairbits_research.theory.noise import mse
from fairbits_research.theory.threshold_formulas import kappa_alpha


def alpha_by_kappa(
    sigma: float, activation: ArrayLike, *, kappa: ArrayLike, constants: tuple[float, float] = SEED_CONSTANTS
) -> float:
    """Returns σ·f(Σ ā_l κ_l), the research notes' proposition 1 (000-22)."""
    return kappa_alpha(sigma, kappa_weighted(activation, kappa), constants=constants)


def alpha_by_mixture(parts: Sequence[Distribution], activation: ArrayLike, *, grid: Grid) -> float:
    """Returns the exact α of the effective distribution Σ ā_l P_l (003-08)."""
    best = clip_distribution(Mixture(parts, activation), grid)
    return float(grid.alpha(best.step))


def alpha_by_product(w: ArrayLike, activation: ArrayLike, *, grid: Grid) -> float:
    """Returns the exact α of the sample w ⊙ a, as the research notes' algorithm has it (004-13, 004-19).

    Q(w ⊙ a) is not Q(w) ⊙ a: with a ≡ 0.1 it returns a tenth of the right threshold.
    """
    best = clip_sample(np.asarray(w, dtype=np.float64) * np.asarray(activation, dtype=np.float64), grid)
    return float(grid.alpha(best.step))


def alpha_by_importance(w: ArrayLike, importance: ArrayLike, *, grid: Grid) -> float:
    """Returns the exact α under the language's importance h_j = E_λ[x_j²]: the correct reading."""
    best = clip_sample(w, grid, importance=importance)
    return float(grid.alpha(best.step))


def separable(parts: Sequence[Distribution], activations: ArrayLike, *, grid: Grid) -> tuple[Floats, Floats]:
    """Returns D_λ = Σ_l ā_l(λ)·f_l with one α per part, and D_λ with one α shared by all parts and chosen for λ.

    With a threshold per part, each part's own optimum is best for every language at once, so nothing depends on the
    language. Rows of `activations` are languages.
    """
    rows = np.asarray(activations, dtype=np.float64)
    patterns = np.stack([weights_vector(f"activations[{i}]", row, size=len(parts)) for i, row in enumerate(rows)])
    least = np.array([clip_distribution(part, grid).value for part in parts])
    shared = []
    for pattern in patterns:
        step = clip_distribution(Mixture(parts, pattern), grid).step
        shared.append(pattern @ np.array([float(mse(part, grid, step)) for part in parts]))
    return patterns @ least, np.array(shared)


MIXTURE_SHARES = (1e-4, 1e-3, 1e-2, 0.05, 0.1)
"""The shares ε of wide Gaussians in the scale mixtures of the family set."""

KAPPAS = (0.0, 0.5, 1.0, 3.0, 6.0, 10.0, 20.0, 50.0, 100.0, 200.0)
"""The kurtoses over which the constants are fitted."""

ALPHAS = (0.05, 120.0)
"""The ends of the loss curves, in standard deviations."""


def families(kappa: float) -> dict[str, Distribution]:
    """Returns unit-variance distributions of excess kurtosis κ: t, generalised Gaussian, scale mixtures with κ."""
    if kappa == 0:
        return {"gaussian": Gaussian()}
    distributions: dict[str, Distribution] = {
        "t": StudentT.with_kappa(kappa),
        "ggd": GeneralisedGaussian.with_kappa(kappa),
    }
    for epsilon in MIXTURE_SHARES:
        if kappa < 3 * (1 - epsilon) / epsilon:
            distributions[f"gsm {epsilon:g}"] = GaussianScaleMixture.with_kappa(kappa, epsilon=epsilon)
    return distributions


@dataclass(frozen=True)
class LossCurves:
    """ln(MSE(α)/MSE*) of every family member at one bit width, as splines in ln α."""

    kappas: Floats
    curves: tuple[CubicSpline, ...]

    def losses(self, c: float, d: float) -> Floats:
        """Returns MSE(α)/MSE* of each member when α = c + d·ln(1 + κ)."""
        alphas = np.maximum(c + d * np.log1p(self.kappas), ALPHAS[0])
        if alphas.max() > ALPHAS[1]:
            raise InputError(f"c = {c:g} and d = {d:g} give α up to {alphas.max():g}; the curves end at {ALPHAS[1]:g}")
        return np.exp([curve(np.log(alpha)) for curve, alpha in zip(self.curves, alphas, strict=True)])


def loss_curves(bits: int) -> LossCurves:
    """Returns the loss curves of all families and kurtoses on the symmetric grid."""
    grid = Grid(bits)
    alphas = np.geomspace(*ALPHAS, 500)
    kappas, curves = [], []
    for kappa in KAPPAS:
        for distribution in families(kappa).values():
            ratio = (
                mse(distribution, grid, grid.step(alphas)) / clip_distribution(distribution, grid, tolerance=1e-6).value
            )
            kappas.append(kappa)
            curves.append(CubicSpline(np.log(alphas), np.log(np.maximum(ratio, 1.0))))
    return LossCurves(np.array(kappas), tuple(curves))


def refit(curves: LossCurves) -> tuple[float, float]:
    """Returns c_B and d_B ≥ 0 that minimise the mean log loss, by Nelder–Mead from the best point of a coarse grid."""

    def mean_loss(point: Floats) -> float:
        return float(np.mean(np.log(curves.losses(point[0], abs(point[1])))))

    starts = [(c, d) for c in np.arange(1.0, 5.0, 0.5) for d in np.arange(0.0, 5.0, 0.5)]
    best = min(starts, key=lambda point: mean_loss(np.array(point)))
    least = optimize.minimize(mean_loss, best, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-8})
    return float(least.x[0]), abs(float(least.x[1]))
