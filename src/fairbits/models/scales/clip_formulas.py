"""Clip thresholds by formula: Banner's, the research notes', refitted ones, and the convex additive model.

The additive model is f(α) = E[(|X| − α)²₊] + c·α². Three constants c are in use:

| model    | c              | grid                                                   |
|----------|----------------|--------------------------------------------------------|
| `banner` | 1/(3·4^B)      | step 2α/2^B: Banner et al. 2019                        |
| `seed`   | 1/(3(2^B−1)²)  | step 2α/(2^B−1): the research notes                |
| `true`   | 1/(12 n²)      | step α/n, n = 2^(B−1)−1: the symmetric grid as it is   |
"""

from typing import Literal, get_args

import numpy as np
from scipy import special

from fairbits.core.array_checks import representable
from fairbits.core.checks import in_range, instance, one_of, positive, sequence, whole
from fairbits.core.errors import FairbitsError, InputError
from fairbits.models.scales.distributions import Distribution, Gaussian

NoiseModel = Literal["banner", "seed", "true"]

SEED_CONSTANTS = (2.5, 0.3)
"""c_4 and d_4 of the research notes, given for 4 bits only."""

REFITTED_CONSTANTS = {
    2: (1.234, 0.005),
    3: (1.976, 0.137),
    4: (2.385, 0.656),
    5: (2.743, 1.316),
    6: (3.123, 2.028),
    7: (3.490, 2.913),
    8: (3.855, 3.986),
}
"""c_B and d_B that minimise the mean log MSE loss over the families of `science.theory.thresholds` (symmetric grid)."""


def noise_constant(bits: int, model: NoiseModel = "true") -> float:
    """Returns c of the additive model.

    >>> round(1 / noise_constant(4, "banner")), round(1 / noise_constant(4, "true"))
    (768, 588)
    """
    whole("bits", bits, least=2, most=8)
    one_of("noise model", model, get_args(NoiseModel))
    if model == "banner":
        return float(1 / (3 * 4**bits))
    return float(1 / (3 * (2**bits - 1) ** 2) if model == "seed" else 1 / (12 * (2 ** (bits - 1) - 1) ** 2))


def additive_alpha(source: Distribution, c: float) -> float:
    """Returns the unique minimiser of the additive model: c·α* = E(|X| − α*)₊.

    Newton from the left, α ← E[|X|; |X| > α] / (c + P(|X| > α)), rises monotonically to the root for every law, because
    the stationarity function is increasing and concave.

    >>> round(additive_alpha(Gaussian(), noise_constant(4, "banner")), 3)
    2.559
    """
    positive("c", c)
    instance("source", source, Distribution)
    if source.second_moment <= 0:
        raise InputError("the distribution is a point mass at 0, which has no clip threshold; give one that varies")
    alpha = 0.0
    for _ in range(500):
        p, first, _ = (float(tail) for tail in source.beyond(alpha))
        moved = first / (c + p)
        if moved <= alpha * (1 + 1e-14):
            return alpha
        alpha = moved
    raise FairbitsError(f"Newton did not settle in 500 steps (α = {alpha:g}); this is a defect: report it")


def banner_gaussian(sigma: float, bits: int) -> float:
    """Returns Banner's α* of a Gaussian: 1.71σ, 2.15σ, 2.56σ at 2, 3, 4 bits.

    >>> [round(banner_gaussian(1.0, bits), 2) for bits in (2, 3, 4)]
    [1.71, 2.15, 2.56]
    """
    return positive("sigma", sigma) * additive_alpha(Gaussian(), noise_constant(bits, "banner"))


def banner_laplace(laplace_b: float, bits: int) -> float:
    """Returns Banner's α* of a Laplace law, closed form b·W(3·4^B) with Lambert's W: 2.83b, 3.90b, 5.03b.

    >>> [round(banner_laplace(1.0, bits), 2) for bits in (2, 3, 4)]
    [2.83, 3.9, 5.03]
    """
    return positive("laplace_b", laplace_b) * float(special.lambertw(1 / noise_constant(bits, "banner")).real)


def kappa_alpha(sigma: float, kappa: float, *, constants: tuple[float, float] = SEED_CONSTANTS) -> float:
    """Returns σ·(c_B + d_B·ln(1 + κ)), the research notes' f(κ, B) (000-21, 002-05).

    A heuristic: κ does not determine the best threshold. `SEED_CONSTANTS` are those of the documents, for 4 bits;
    `REFITTED_CONSTANTS[bits]` lose least over many families. The formula is undefined for κ ≤ −1.

    >>> round(kappa_alpha(1.0, 43.0), 3), round(kappa_alpha(1.0, 43.0, constants=REFITTED_CONSTANTS[4]), 3)
    (3.635, 4.867)
    """
    positive("sigma", sigma)
    in_range("kappa", kappa, above=-1.0)
    values = sequence("constants", constants)
    if len(values) != 2:
        raise InputError(f"constants holds {len(values)} number(s); it must hold two, c_B and d_B")
    c, d = (in_range("constant", value) for value in values)
    return representable("alpha", sigma * (c + d * float(np.log1p(kappa))))
