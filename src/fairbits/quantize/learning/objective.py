"""How languages count in what is learned, by the damage that each has on text kept apart."""

from dataclasses import dataclass

import numpy as np

from fairbits.checks import Floats
from fairbits.model.scheme import Objective

POWER = 4.0
"""The worst language is stood for by the power mean of this order plus 1, which has a gradient for all of them."""


def weights_for(damage: Floats, start: Floats, objective: Objective) -> Floats:
    """Returns the weights of languages, summing to 1.

    "mean"    all alike
    "worst"   ∝ dᵖ: the gradient of the power mean (Σ dᵖ⁺¹)^(1/(p+1)), which comes near the largest d
    "regret"  ∝ (d/d₀)ᵖ / d₀: the same of what is left of the damage at the start

    >>> weights_for(np.array([1.0, 2.0]), np.array([1.0, 1.0]), "worst").round(3).tolist()
    [0.059, 0.941]
    """
    floor = 1e-6 * max(float(damage.max()), 1e-12)
    d, first = np.maximum(damage, floor), np.maximum(start, floor)
    if objective == "mean":
        raw = np.ones_like(d)
    elif objective == "worst":
        raw = (d / d.max()) ** POWER
    else:
        left = d / first
        raw = (left / left.max()) ** POWER / first
    shares: Floats = raw / raw.sum()
    return shares


@dataclass(frozen=True)
class Candidate:
    """What a state of the codes costs every language on text kept apart, after so many steps."""

    step: int
    damage: Floats

    def value(self, start: Floats, objective: Objective) -> float:
        """Returns what shall be small: the mean, the worst, or the worst share of the start's damage that is left."""
        if objective == "mean":
            return float(self.damage.mean())
        return float(self.damage.max() if objective == "worst" else (self.damage / np.maximum(start, 1e-12)).max())

    def hurts_none(self, start: Floats) -> bool:
        """Returns whether no language is worse off than at the start."""
        return bool((self.damage <= start).all())
