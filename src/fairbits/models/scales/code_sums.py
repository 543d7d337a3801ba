"""The sums over codes on which the certified search runs, of a law or of a sample.

For the nearest codes k at a step s, Σh(x − k·s)² = A − 2s·B(s) + s²·C(s) with A = Σhx², B = Σh|x||k| and C = Σhk².
Codes fall as s grows, so B and C do too. Laws and sorted samples differ only in how B and C are computed. A first axis
holds the languages that share the step.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Self

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.models.scales import clip_kernels as kernels
from fairbits.models.scales.distributions import Distribution
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.noise import code_sums


class CodeSums(ABC):
    """A = Σhx² (`energy`), Σh|x| (`magnitude`) and Σh (`total`) of every language; B and C at any step."""

    grid: Grid
    energy: Floats
    magnitude: Floats
    total: Floats
    rounding: float
    """The part of `energy` that rounding of B and C may add to or take from an error."""

    @abstractmethod
    def at(self, steps: Floats) -> tuple[Floats, Floats]:
        """Returns B and C, each (languages, steps), for positive steps."""

    @abstractmethod
    def beyond(self, points: Floats) -> tuple[Floats, Floats]:
        """Returns Σh and Σh|x| over |x| > point, each (languages, points)."""

    @abstractmethod
    def turned(self) -> Self:
        """Returns the same sums for steps of the other sign, which exchanges the two sides of the twos grid."""

    @abstractmethod
    def longest(self, best: float) -> float:
        """Returns a step above which some language's error is at least `best`."""

    def possible(self, best: float) -> tuple[float, float]:
        """Returns the range of steps where every language's error may be below `best`.

        Below it clipping alone costs as much: with c the largest level, Σh(|x| − c)²₊ ≥ (Σh(|x| − c)₊)² / Σh over
        |x| > c, by Cauchy–Schwarz. Above it the weights that round to 0 do: Σhx² over |x| < s/2 is at least
        (Σh|x|)² / Σh over the same x. (On the midrise grid all |x| < s/4 are at least s/4 away from ±s/2.)
        """
        top = max(self.grid.caps) + self.grid.offset
        loudest = int(np.argmax(self.energy))
        least = np.zeros_like(self.energy)
        np.divide(self.energy - best, 2 * top * self.magnitude, out=least, where=self.magnitude > 0)
        # as long as the best value is not below Σhx², the range ends where float64 cannot distinguish the two
        low = float(max(np.max(least), 1e-15 * self.energy[loudest] / (2 * top * self.magnitude[loudest])))
        high = self.longest(best)
        steps = np.geomspace(min(low, high), high, 64)
        count, first = self.beyond(top * steps)
        clip = _square_over(first - top * steps * count, count)
        if self.grid.kind == "midrise":
            dead = (steps / 4) ** 2 * (self.total[:, None] - self.beyond(steps / 4)[0])
        else:
            count, first = self.beyond(steps / 2)
            dead = _square_over(self.magnitude[:, None] - first, self.total[:, None] - count)
        below = np.flatnonzero((clip >= best).any(axis=0))
        above = np.flatnonzero((dead * (1 - 1e-9) >= best).any(axis=0))
        return float(steps[below[-1]] if below.size else steps[0]), float(steps[above[0]] if above.size else high)


def _square_over(first: Floats, count: Floats) -> Floats:
    # both are differences of sums: what cancellation leaves must not count
    safe = np.maximum(first, 0.0)
    ratio: Floats = np.divide(safe**2, count, out=np.zeros_like(safe), where=count > 1e-12 * count.max())
    return ratio


class LawSums(CodeSums):
    """The sums of distributions, one per language, each scaled by a positive factor."""

    rounding = 1e-15

    def __init__(self, laws: Sequence[Distribution], grid: Grid, *, scale: Floats | None = None) -> None:
        self.grid, self._sign, self._laws = grid, 1, laws
        self.total = np.ones(len(laws)) if scale is None else scale
        self.energy = self.total * [law.second_moment for law in laws]
        self.magnitude = self.total * [law.absolute_moment for law in laws]

    def at(self, steps: Floats) -> tuple[Floats, Floats]:
        """Returns B and C from exact tail moments."""
        return self._scaled([code_sums(law, self.grid, self._sign * steps) for law in self._laws])

    def beyond(self, points: Floats) -> tuple[Floats, Floats]:
        """Returns the tail moments of order 0 and 1."""
        return self._scaled([law.beyond(points)[:2] for law in self._laws])

    def turned(self) -> Self:
        """Returns the sums for negative steps."""
        other = copy(self)
        other._sign = -self._sign
        return other

    def longest(self, best: float) -> float:
        """Returns a step with E[X²; |X| > s/2] ≤ A − best (midrise: with s/2 ≥ √A + √best)."""
        rms = np.sqrt(np.max(self.energy / self.total))
        if self.grid.kind == "midrise":
            return float(2 * rms + 2 * np.sqrt(best / np.min(self.total)))
        step = 2.0 * rms
        while not (
            self.energy - self.total * [float(law.beyond(step / 2)[2]) for law in self._laws] >= best * (1 - 1e-12)
        ).any():
            step *= 2
        return float(step)

    def _scaled(self, pairs: Sequence[tuple[Floats, Floats]]) -> tuple[Floats, Floats]:
        first, second = np.array(pairs).transpose(1, 0, 2)
        return self.total[:, None] * first, self.total[:, None] * second


class SampleSums(CodeSums):
    """The sums of a sample from suffix sums; importance is (languages, size), None for one language of ones."""

    rounding = 4e-14

    def __init__(self, sides: Sequence[kernels.SortedSide], energy: Floats, *, total: Floats, grid: Grid) -> None:
        self.grid, self._sides, self._turned = grid, sides, False
        self.energy, self.total = energy, total
        self.magnitude = np.sum([side.first[:, 0] for side in sides], axis=0)
        self._largest = float(max(side.x[-1] for side in sides if side.x.size))

    @classmethod
    def of(cls, w: np.ndarray, importance: Floats | None, *, grid: Grid) -> "SampleSums":
        """Returns the sums of the weights w, sorted once; the twos grid keeps its two sides apart."""
        two = grid.kind == "twos"
        sides = kernels.both_sides(w, importance) if two else [kernels.one_side(np.abs(w), importance)]
        total = np.array([float(w.size)]) if importance is None else importance.sum(axis=1)
        return cls(sides, kernels.energy(w, importance), total=total, grid=grid)

    def turned(self) -> Self:
        """Returns the sums for negative steps, sharing all tables."""
        other = copy(self)
        other._turned = not self._turned
        return other

    def at(self, steps: Floats) -> tuple[Floats, Floats]:
        """Returns B and C by binary search in the sorted magnitudes."""
        caps = self.grid.caps[::-1] if self._turned else self.grid.caps
        offset, shape = self.grid.offset, (1, steps.size)
        first, second = (
            np.tile((offset * self.magnitude)[:, None], shape),
            np.tile((offset**2 * self.total)[:, None], shape),
        )
        for side, cap in zip(self._sides, caps, strict=False):
            kernels.add_code_sums(side, steps, cap=cap, offset=offset, first=first, second=second)
        return first, second

    def beyond(self, points: Floats) -> tuple[Floats, Floats]:
        """Returns the suffix sums at each point: one code earned at the point itself."""
        count, first = np.zeros((2, self.total.size, points.size))
        for side in self._sides:
            kernels.add_code_sums(side, points, cap=1, offset=0.5, first=first, second=count)
        return count / 2, first

    def longest(self, best: float) -> float:  # noqa: ARG002 - the same for every best
        """Returns max|w|, twice that on the midrise grid: above it f only grows with the step."""
        return self._largest * (2.0 if self.grid.kind == "midrise" else 1.0)
