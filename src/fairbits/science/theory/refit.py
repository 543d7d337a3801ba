"""The constants c_B, d_B of σ(c_B + d_B ln(1 + κ)) that lose least over many families, and how much they still lose.

The form is the founding documents'; no choice of constants makes κ a sufficient statistic. This module keeps the fit
reproducible: `REFITTED_CONSTANTS` are its rounded results.
"""

from dataclasses import dataclass

import numpy as np
from scipy import optimize
from scipy.interpolate import CubicSpline

from fairbits.checks import Floats, in_range, instance
from fairbits.errors import InputError
from fairbits.theory.clipping.exact import clip_law
from fairbits.theory.distributions import (
    Distribution,
    Gaussian,
    GaussianScaleMixture,
    GeneralisedGaussian,
    StudentT,
)
from fairbits.theory.grid import Grid
from fairbits.theory.noise import mse

MIXTURE_SHARES = (1e-4, 1e-3, 1e-2, 0.05, 0.1)
"""The shares ε of wide Gaussians in the scale mixtures of the family set."""

KAPPAS = (0.0, 0.5, 1.0, 3.0, 6.0, 10.0, 20.0, 50.0, 100.0, 200.0)
"""The kurtoses over which the constants are fitted."""

ALPHAS = (0.05, 120.0)
"""The ends of the loss curves, in standard deviations."""


def families(kappa: float) -> dict[str, Distribution]:
    """Returns unit-variance laws of excess kurtosis κ: t, generalised Gaussian, and the scale mixtures that reach κ.

    >>> list(families(20.0))
    ['t', 'ggd', 'gsm 0.0001', 'gsm 0.001', 'gsm 0.01', 'gsm 0.05', 'gsm 0.1']
    """
    if in_range("kappa", kappa, least=0.0) == 0:
        return {"gaussian": Gaussian()}
    laws: dict[str, Distribution] = {
        "t": StudentT.with_kappa(kappa),
        "ggd": GeneralisedGaussian.with_kappa(kappa),
    }
    for epsilon in MIXTURE_SHARES:
        if kappa < 3 * (1 - epsilon) / epsilon:
            laws[f"gsm {epsilon:g}"] = GaussianScaleMixture.with_kappa(kappa, epsilon=epsilon)
    return laws


@dataclass(frozen=True)
class LossCurves:
    """ln(MSE(α)/MSE*) of every family member at one bit width, as splines in ln α."""

    kappas: Floats
    curves: tuple[CubicSpline, ...]

    def losses(self, c: float, d: float) -> Floats:
        """Returns MSE(α)/MSE* of each member when α = c + d·ln(1 + κ)."""
        alphas = np.maximum(in_range("c", c) + in_range("d", d) * np.log1p(self.kappas), ALPHAS[0])
        if alphas.max() > ALPHAS[1]:
            raise InputError(f"c = {c:g} and d = {d:g} give α up to {alphas.max():g}; the curves end at {ALPHAS[1]:g}")
        return np.exp([curve(np.log(alpha)) for curve, alpha in zip(self.curves, alphas, strict=True)])


def loss_curves(bits: int) -> LossCurves:
    """Returns the loss curves of all families and kurtoses on the symmetric grid.

    >>> len(loss_curves(4).curves)
    59
    """
    grid = Grid(bits)
    alphas = np.geomspace(*ALPHAS, 500)
    kappas, curves = [], []
    for kappa in KAPPAS:
        for law in families(kappa).values():
            ratio = mse(law, grid, grid.step(alphas)) / clip_law(law, grid, tolerance=1e-6).value
            kappas.append(kappa)
            curves.append(CubicSpline(np.log(alphas), np.log(np.maximum(ratio, 1.0))))
    return LossCurves(np.array(kappas), tuple(curves))


def refit(curves: LossCurves) -> tuple[float, float]:
    """Returns c_B and d_B ≥ 0 that minimise the mean log loss, by Nelder–Mead from the best point of a coarse grid.

    >>> [round(constant, 2) for constant in refit(loss_curves(4))]
    [2.38, 0.66]
    """
    instance("curves", curves, LossCurves)

    def mean_loss(point: Floats) -> float:
        return float(np.mean(np.log(curves.losses(point[0], abs(point[1])))))

    starts = [(c, d) for c in np.arange(1.0, 5.0, 0.5) for d in np.arange(0.0, 5.0, 0.5)]
    best = min(starts, key=lambda point: mean_loss(np.array(point)))
    found = optimize.minimize(mean_loss, best, method="Nelder-Mead", options={"xatol": 1e-4, "fatol": 1e-8})
    return float(found.x[0]), abs(float(found.x[1]))
