"""The exact certified threshold of distributions: of one, or of the worst of several."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import Certified, CodeSums, certified_either_sign, certified_minimum
from fairbits_research.theory.distributions import Distribution
from fairbits_research.theory.noise import code_sums, mse


@dataclass(frozen=True)
class SharedStep:
    """One step for several languages, with the proof that no other step is better for the worst of them.

    `values` are the languages' objectives. `multipliers` are their KKT weights: they sum to 1 and at most two are above
    0, the active set. `stationarity` is |Σμ_λf′_λ| on the piece of the step, relative to 2Σμ_λB_λ, the larger of
    the two terms whose difference is f′. `gap` is the proven relative distance to the optimum.
    """

    step: float
    values: tuple[float, ...]
    multipliers: tuple[float, ...]
    stationarity: float
    gap: float

    @property
    def worst(self) -> float:
        """max_λ of the objectives."""
        return max(self.values)

    @property
    def active(self) -> tuple[int, ...]:
        """The languages that determine the step."""
        return tuple(i for i, mu in enumerate(self.multipliers) if mu > 0)


def clip_distribution(source: Distribution, grid: Grid, *, signed: bool = False, tolerance: float = 1e-9) -> Certified:
    """Returns the step that minimises E(X − Q(X))², certified; α is `grid.alpha(step)`.

    `signed` also tries negative steps, which serve skewed distributions on the twos grid.
    """
    search = certified_either_sign if signed else certified_minimum
    return search(DistributionSums([source], grid), tolerance=tolerance)


def minimax_distribution(sources: Sequence[Distribution], grid: Grid, *, relative: bool = False) -> SharedStep:
    """Returns the step with the lowest max_λ MSE_λ, or with `relative` the lowest max_λ MSE_λ / MSE_λ*."""
    optima = (
        np.array([clip_distribution(source, grid).value for source in sources]) if relative else np.ones(len(sources))
    )
    if (optima <= 0).any():
        raise InputError("a language can be represented without error; its relative error is not defined")
    sums = DistributionSums(sources, grid, scale=1 / optima)
    best = certified_minimum(sums)
    values = tuple(float(mse(source, grid, best.step) / scale) for source, scale in zip(sources, optima, strict=True))
    first, second = sums.at(np.array([best.step]))
    slopes = np.array(best.multipliers) * (best.step * second[:, 0] - first[:, 0])
    scale = np.array(best.multipliers) @ first[:, 0]
    stationarity = float(abs(slopes.sum()) / scale) if scale > 0 else 0.0
    return SharedStep(best.step, values, best.multipliers, stationarity, best.gap)


class DistributionSums(CodeSums):
    """The sums of distributions, one per language, each scaled by a positive factor."""

    rounding = 1e-15

    def __init__(self, sources: Sequence[Distribution], grid: Grid, *, scale: Floats | None = None) -> None:
        self.grid, self._sign, self._sources = grid, 1, sources
        self.total = np.ones(len(sources)) if scale is None else scale
        self.energy = self.total * [source.second_moment for source in sources]
        self.magnitude = self.total * [source.absolute_moment for source in sources]

    def at(self, steps: Floats) -> tuple[Floats, Floats]:
        """Returns B and C from exact tail moments."""
        return self._scaled([code_sums(source, self.grid, self._sign * steps) for source in self._sources])

    def beyond(self, points: Floats) -> tuple[Floats, Floats]:
        """Returns the tail moments of order 0 and 1."""
        return self._scaled([source.beyond(points)[:2] for source in self._sources])

    def dead_zone_error(self, steps: Floats) -> Floats:
        """Returns the bound of `CodeSums`; on the midrise grid all |x| < s/4 are at least s/4 away from ±s/2."""
        if self.grid.kind != "midrise":
            return super().dead_zone_error(steps)
        bound: Floats = (steps / 4) ** 2 * (self.total[:, None] - self.beyond(steps / 4)[0])
        return bound

    def turned(self) -> Self:
        """Returns the sums for negative steps."""
        turned = copy(self)
        turned._sign = -self._sign
        return turned

    def longest(self, best: float) -> float:
        """Returns a step with E[X²; |X| > s/2] ≤ A − best (midrise: with s/2 ≥ √A + √best)."""
        rms = np.sqrt(np.max(self.energy / self.total))
        if self.grid.kind == "midrise":
            return float(2 * rms + 2 * np.sqrt(best / np.min(self.total)))
        step = 2.0 * rms
        while not (
            self.energy - self.total * [float(source.beyond(step / 2)[2]) for source in self._sources]
            >= best * (1 - 1e-12)
        ).any():
            step *= 2
        return float(step)

    def _scaled(self, pairs: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
        first, second = np.array(pairs).transpose(1, 0, 2)
        return self.total[:, None] * first, self.total[:, None] * second
