"""Thresholds of the research notes: the formula in κ, and the convex additive model.

The additive model is f(α) = E[(|X| − α)²₊] + c·α². Three constants c are in use:

| model    | c              | grid                                                   |
|----------|----------------|--------------------------------------------------------|
| `banner` | 1/(3·4^B)      | step 2α/2^B: Banner et al. 2019                        |
| `seed`   | 1/(3(2^B−1)²)  | step 2α/(2^B−1): the research notes                    |
| `true`   | 1/(12 n²)      | step α/n, n = 2^(B−1)−1: the symmetric grid as it is   |
"""

from typing import Literal

from fairbits.core.errors import FairbitsError, InputError
from fairbits.models.scales.clip_formulas import SEED_CONSTANTS, banner_constant, kappa_factor
from fairbits_research.theory.distributions import Distribution

NoiseModel = Literal["banner", "seed", "true"]

REFITTED_CONSTANTS = {
    2: (1.234, 0.005),
    3: (1.976, 0.137),
    4: (2.385, 0.656),
    5: (2.743, 1.316),
    6: (3.123, 2.028),
    7: (3.490, 2.913),
    8: (3.855, 3.986),
}
"""c_B and d_B that minimise the mean log MSE loss over the families of `thresholds` (symmetric grid)."""


def noise_constant(bits: int, model: NoiseModel = "true") -> float:
    """Returns c of the additive model."""
    if model == "banner":
        return banner_constant(bits)
    return float(1 / (3 * (2**bits - 1) ** 2) if model == "seed" else 1 / (12 * (2 ** (bits - 1) - 1) ** 2))


def additive_alpha(source: Distribution, c: float) -> float:
    """Returns the unique minimiser of the additive model: c·α* = E(|X| − α*)₊.

    Newton from the left, α ← E[|X|; |X| > α] / (c + P(|X| > α)), rises monotonically to the root for every
    distribution, because the stationarity function is increasing and concave.
    """
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


def kappa_alpha(sigma: float, kappa: float, *, constants: tuple[float, float] = SEED_CONSTANTS) -> float:
    """Returns σ·(c_B + d_B·ln(1 + max(0, κ))), the research notes' f(κ, B) (000-21, 002-05, 003-13).

    A heuristic: κ does not determine the best threshold. `SEED_CONSTANTS` are from the documents, for 4 bits;
    `REFITTED_CONSTANTS[bits]` lose least over many families. κ below 0 counts as 0, and below −2 is refused.
    """
    return sigma * float(kappa_factor(kappa, constants))
