"""Thresholds of weights that arrive in pieces: a mergeable histogram on the bits of a float.

A bin holds the magnitudes that share exponent and leading mantissa bits, so no range must be known beforehand and
merging is addition. Ten mantissa bits hold every float16 and bfloat16 weight in a bin of its own: for such
checkpoints the result is exact. Otherwise the loss is bounded afterwards from the widths of the bins that a decision
threshold cuts.
"""

from copy import copy
from dataclasses import replace

import numpy as np
from numba import njit
from numpy.typing import ArrayLike

from fairbits.checks import as_array, instance, near_one, nonnegative_array, representable, same_shape, whole
from fairbits.errors import InputError
from fairbits.theory.clipping import kernels
from fairbits.theory.clipping.certified import Certified, certified_minimum
from fairbits.theory.clipping.exact import check_signed
from fairbits.theory.clipping.sums import SampleSums
from fairbits.theory.grid import Grid

_MANTISSA_OF_FLOAT32 = 23


class WeightHistogram:
    """Σh, Σh|w|, Σhw² and the range of |w| per bin and sign; `add` weights, `+` merges, `clip` gives the step.

    >>> half = WeightHistogram()
    >>> half.add([0.5, -1.0])
    >>> other = WeightHistogram()
    >>> other.add([0.25, 0.75])
    >>> (half + other).clip(Grid(4)).value
    0.0
    """

    def __init__(self, *, mantissa_bits: int = 10) -> None:
        self.mantissa_bits = whole("mantissa_bits", mantissa_bits, least=4, most=13)
        bins = 256 << mantissa_bits
        self._sums = np.zeros((3, 2, bins))
        self._least, self._most = np.full((2, bins), np.inf), np.zeros((2, bins))

    def add(self, w: ArrayLike, *, importance: ArrayLike | None = None) -> None:
        """Adds weights, each counted by its importance h ≥ 0."""
        x = as_array("w", w)
        if x.dtype.kind not in "fiu":
            raise InputError(f"w is of type {x.dtype}; it must hold real numbers")
        x = np.ascontiguousarray(x, dtype=None if x.dtype in (np.float32, np.float64) else np.float64).ravel()
        h = np.ones(1) if importance is None else nonnegative_array("importance", importance, least=0).ravel()
        if importance is not None:
            same_shape("importance", h.shape, "w", x.shape)
        with np.errstate(over="ignore", invalid="ignore"):
            rounded = x.astype(np.float32)
        if not np.isfinite(rounded).all():
            raise InputError("w holds NaN, infinite or beyond-float32 elements; every weight must be a finite float32")
        shift = _MANTISSA_OF_FLOAT32 - self.mantissa_bits
        _fill(x, rounded.view(np.int32), h, shift, self._sums, self._least, self._most)

    def __add__(self, other: "WeightHistogram") -> "WeightHistogram":
        instance("what is added", other, WeightHistogram)
        if self.mantissa_bits != other.mantissa_bits:
            raise InputError(
                f"histograms of {self.mantissa_bits} and {other.mantissa_bits} mantissa bits do not merge; use one"
            )
        merged = WeightHistogram(mantissa_bits=self.mantissa_bits)
        merged._sums = self._sums + other._sums
        merged._least, merged._most = np.minimum(self._least, other._least), np.maximum(self._most, other._most)
        return merged

    def clip(self, grid: Grid, *, signed: bool = False) -> Certified:
        """Returns the best step of all weights added; its bound allows for the bins that a threshold cuts.

        `signed` also tries negative steps on the twos grid.
        """
        check_signed(instance("grid", grid, Grid), signed)
        count, _, second = self._sums.reshape(3, -1)
        with np.errstate(over="ignore"):
            representable("Σ of importance, or of importance·w²,", np.array([count.sum(), second.sum()]))
        if not count.any():
            raise InputError("the histogram is empty; add weights first")
        near, unit = copy(self), near_one(np.max(count, keepdims=True))[1]
        near._sums = self._sums / unit
        with kernels.LAUNCH:
            found = near._search(grid)
            if signed:  # a step −s for w is the step s for −w
                other = near._mirrored()._search(grid)
                best = replace(other, step=-other.step) if other.value < found.value else found
                found = replace(best, bound=min(found.bound, other.bound))
        value, bound = (representable("the squared error", part * unit) for part in (found.value, found.bound))
        return replace(found, value=value, bound=bound)

    def _mirrored(self) -> "WeightHistogram":
        other = copy(self)
        other._sums = self._sums[:, ::-1]
        other._least, other._most = self._least[::-1], self._most[::-1]
        return other

    def _search(self, grid: Grid) -> Certified:
        count, _, second = self._sums.reshape(3, -1)
        sides = self._sides(merge=grid.kind != "twos")
        if not any(side.x.size for side in sides):
            return Certified(0.0, 0.0, 0.0, 0)
        sums = SampleSums(sides, np.array([second.sum()]), total=np.array([count.sum()]), grid=grid)
        found = certified_minimum(sums)
        if found.step == 0:  # all squares underflow
            return found
        slack = self._slack(grid, *sums.possible(found.value))
        if found.value + slack < sums.energy[0]:
            slack = self._slack(grid, *_near(sums, found, slack))
        return replace(found, bound=max(0.0, found.bound - slack))

    def _sides(self, *, merge: bool) -> list[kernels.SortedSide]:
        """The bins as sorted points: positive and negative weights apart, or merged."""
        groups = [slice(0, 2)] if merge else [slice(0, 1), slice(1, 2)]
        return [self._side(group) for group in groups]

    def _side(self, signs: slice) -> kernels.SortedSide:
        count, first = self._sums[0, signs].sum(axis=0), self._sums[1, signs].sum(axis=0)
        used = (count > 0) & (first > 0)
        # a bin's mean stands for its weights: it lies inside the bin and keeps Σh|w| exact
        return kernels.paged(first[used] / count[used], count[used][None])

    def _slack(self, grid: Grid, low: float, high: float) -> float:
        """The most that finer codes could gain for any step in [low, high]: 2·step·width·Σh per cut bin."""
        count, least, most = self._sums[0].sum(axis=0), self._least.min(axis=0), self._most.max(axis=0)
        used = np.flatnonzero(count > 0)
        gain = 2 * high * (most[used] - least[used]) * count[used]
        total = 0.0
        for k in range(1, max(grid.caps) + 1):
            threshold = k - 0.5 + grid.offset
            start = np.searchsorted(most[used], threshold * low)
            stop = np.searchsorted(least[used], threshold * high, side="right")
            total += float(gain[start:stop].max(initial=0.0))
        return total


def _near(sums: SampleSums, found: Certified, slack: float) -> tuple[float, float]:
    """The steps whose value is within `slack` of the best: only they can hold the true optimum."""
    low, high = sums.possible(found.value + slack)
    steps = np.geomspace(low, high, 2000)
    first, second = sums.at(steps)
    values = sums.energy[0] - 2 * steps * first[0] + steps**2 * second[0]
    # between two steps f lies above the lower of its ends less C·width²/4
    floor = np.minimum(values[:-1], values[1:]) - second[0, :-1] * np.diff(steps) ** 2 / 4
    near = np.flatnonzero(floor <= found.value + slack)
    return float(steps[near[0]]), float(steps[near[-1] + 1])


@njit(cache=True)
def _fill(x, patterns, h, shift, sums, least, most):  # type: ignore[no-untyped-def]
    for i in range(x.size):
        weight = h[i] if h.size == x.size else h[0]
        if weight == 0.0:
            continue
        value = abs(np.float64(x[i]))
        sign = 0 if x[i] >= 0 else 1
        at = (patterns[i] & 0x7FFFFFFF) >> shift
        sums[0, sign, at] += weight
        sums[1, sign, at] += weight * value
        sums[2, sign, at] += weight * value * value
        least[sign, at] = min(least[sign, at], value)
        most[sign, at] = max(most[sign, at], value)
