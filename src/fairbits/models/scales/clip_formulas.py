"""Clip thresholds by formula: Banner's for Gaussian and Laplace weights, and the constants of the research notes."""

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from fairbits.core.array_checks import Floats, finite_array
from fairbits.core.errors import FairbitsError, InputError

SEED_CONSTANTS = (2.5, 0.3)  # c_4 and d_4 of σ·(c + d·ln(1 + κ)) in the research notes, for 4 bits only


def banner_constant(bits: int) -> float:
    """Returns c = 1/(3·4^B) of the error model E[(|X| − α)²₊] + c·α²: a step of 2α/2^B (Banner et al. 2019)."""
    return float(1 / (3 * 4**bits))


def banner_gaussian(sigma: float, bits: int) -> float:
    """Returns Banner's α* of a Gaussian, the root of c·α = E(|X| − α)₊ (1.71σ at 2 bits), by Newton from the left."""
    alpha, c = 0.0, banner_constant(bits)
    for _ in range(500):
        density = np.exp(-alpha * alpha / 2) / np.sqrt(2 * np.pi)
        moved = float(2 * density / (c + 2 * special.ndtr(-alpha)))
        if moved <= alpha * (1 + 1e-14):
            return sigma * alpha
        alpha = moved
    raise FairbitsError(f"Newton did not settle in 500 steps (α = {alpha:g}); this is a defect: report it")


def banner_laplace(laplace_b: float, bits: int) -> float:
    """Returns Banner's α* of a Laplace distribution, b·W(3·4^B) with Lambert's W: 2.83b, 3.90b, 5.03b."""
    return laplace_b * float(special.lambertw(1 / banner_constant(bits)).real)


def kappa_factor(kappa: ArrayLike, constants: tuple[float, float] = SEED_CONSTANTS) -> Floats:
    """Returns f = c_B + d_B·ln(1 + max(0, κ)), the research notes' α/σ (000-21, 003-13); κ is at least −2.

    >>> float(kappa_factor(-1.2)), round(float(kappa_factor(79.1)), 3)
    (2.5, 3.815)
    """
    values = finite_array("kappa", kappa)
    if (values < -2).any():
        raise InputError(f"κ is {values.min():g}; no distribution has an excess kurtosis below -2")
    c, d = constants
    factor: Floats = c + d * np.log1p(np.maximum(values, 0.0))
    return factor
