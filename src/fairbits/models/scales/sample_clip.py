"""The exact certified threshold of one long sample, for one language or the worst of several.

The sample is sorted once. B and C of `certified` are then sums over thresholds of what is beyond each, found by binary
search; so a step costs a few memory accesses per code, however long the sample is.
"""

from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numba import njit, prange
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, near_one, nonnegative_array, representable
from fairbits.core.errors import InputError
from fairbits.core.numba_lock import LAUNCH
from fairbits.models.scales.certified import Certified, CodeSums, certified_either_sign, certified_minimum
from fairbits.models.scales.clip_kernels import FAST
from fairbits.models.scales.grid import Grid

_CHUNK = 4096
_PAGE = 64
_ROUNDING = 1e-28  # an error below this part of Σhw² is 0 up to rounding


def clip_sample(
    w: ArrayLike, grid: Grid, *, importance: ArrayLike | None = None, signed: bool = False, tolerance: float = 1e-9
) -> Certified:
    """Returns the step, of either sign if `signed`, that minimises Σ h_j (w_j − Q(w_j))² over a sample, certified."""
    x, h, units = _sample(w, None if importance is None else np.asarray(importance)[None])
    if not x.any():
        return Certified(0.0, 0.0, 0.0, 0)
    search = certified_either_sign if signed else certified_minimum
    weights = np.empty(0) if h is None else h[0]
    with LAUNCH:
        best = search(SampleSums(x, h, grid=grid), tolerance=tolerance)
        value = units.error(_squared_error(x, weights, best.step, grid.lowest, grid.highest))
    return replace(best, step=units.step(best.step), value=value, bound=min(units.error(best.bound), value))


def minimax_sample(w: ArrayLike, grid: Grid, *, importance: ArrayLike, relative: bool = False) -> Certified:
    """Returns the step of a sample with the lowest max_λ Σ_j h_j(λ)(w_j − Q(w_j))²; `importance` is (languages, size).

    With `relative`, each language's error is divided by its own optimum. For many blocks at once use `minimax_blocks`.
    """
    x, h, units = _sample(w, np.asarray(importance))
    if h is None or not x.any():
        raise InputError("w is 0 wherever importance is above 0; at least one weight must differ from 0")
    if relative:
        optima = np.array([clip_sample(x, grid, importance=row).value for row in h])
        if (optima <= _ROUNDING * _energy(x, h)).any():
            raise InputError("a language can be represented without error; its relative error is not defined")
        h = np.ascontiguousarray(h / optima[:, None])
    with LAUNCH:
        best = certified_minimum(SampleSums(x, h, grid=grid))
    best = replace(best, step=units.step(best.step))
    return best if relative else replace(best, value=units.error(best.value), bound=units.error(best.bound))


class SampleSums(CodeSums):
    """The sums of a sample w; importance is (languages, size), None for one language of ones."""

    rounding = 4e-14

    def __init__(self, w: np.ndarray, importance: Floats | None, *, grid: Grid) -> None:
        self.grid, self._caps = grid, grid.caps
        self._sides = _both_sides(w, importance) if grid.kind == "twos" else [_paged(*_sorted(np.abs(w), importance))]
        self.energy = _energy(w, importance)
        self.total = np.array([float(w.size)]) if importance is None else importance.sum(axis=1)
        self.magnitude = np.sum([side.first[:, 0] for side in self._sides], axis=0)
        self._largest = float(max(side.x[-1] for side in self._sides if side.x.size))

    def turned(self) -> Self:
        turned = copy(self)
        turned._caps = self._caps[::-1]
        return turned

    def at(self, steps: Floats) -> tuple[Floats, Floats]:
        first, second = np.zeros((2, self.total.size, steps.size))
        for side, cap in zip(self._sides, self._caps, strict=False):
            side.add_code_sums(steps, cap=cap, offset=0.0, first=first, second=second)
        return first, second

    def beyond(self, points: Floats) -> tuple[Floats, Floats]:
        """Returns the suffix sums at each point: one code earned at the point itself."""
        count, first = np.zeros((2, self.total.size, points.size))
        for side in self._sides:
            side.add_code_sums(points, cap=1, offset=0.5, first=first, second=count)
        return count / 2, first

    def longest(self, best: float) -> float:  # noqa: ARG002 - the same for every best
        """Returns max|w|: above it f only grows with the step."""
        return self._largest


@dataclass(frozen=True)
class _SortedSide:
    """Magnitudes in ascending order, in pages of 64, with Σhx and Σh over all pages from each one on, per language.

    `tops` holds the last magnitude of each page. It is small enough for the cache, so the binary search runs over it.
    """

    x: np.ndarray
    h: Floats
    tops: np.ndarray
    first: Floats
    count: Floats

    def add_code_sums(self, steps: Floats, *, cap: int, offset: float, first: Floats, second: Floats) -> None:
        """Adds to B and C (languages, steps) what this side contributes: `cap` thresholds per step."""
        if self.x.size:
            arrays = (self.x, self.h, self.tops, self.first, self.count)
            _add_code_sums(*arrays, steps, cap, np.float64(offset), first, second)


def _both_sides(w: np.ndarray, importance: Floats | None) -> list[_SortedSide]:
    ordered, weights = _sorted(w, importance)
    zero = int(np.searchsorted(ordered, 0))
    return [_paged(ordered[zero:], weights[:, zero:]), _paged(-ordered[:zero][::-1], weights[:, :zero][:, ::-1])]


def _sorted(x: np.ndarray, importance: Floats | None) -> tuple[np.ndarray, Floats]:
    if importance is None:
        return np.sort(x), np.empty((0, x.size))
    order = np.argsort(x)
    return x[order], importance[:, order]


def _paged(ordered: np.ndarray, weights: Floats) -> _SortedSide:
    """Returns sorted magnitudes with their page sums; weights without languages stand for one language of ones."""
    x, h = np.ascontiguousarray(ordered), np.ascontiguousarray(weights)
    first, count = (np.zeros((max(1, len(h)), -(-x.size // _PAGE) + 1)) for _ in range(2))
    _page_sums(x, h, first, count)
    for sums in (first, count):
        np.cumsum(sums[:, ::-1], axis=1, out=sums[:, ::-1])
    tops = np.append(x[_PAGE - 1 :: _PAGE], x[-1:]) if x.size % _PAGE else x[_PAGE - 1 :: _PAGE].copy()
    return _SortedSide(x, h, tops, first, count)


def _energy(w: np.ndarray, importance: Floats | None) -> Floats:
    if importance is None:
        return np.array([_weighted_square_sum(w, np.empty(0))])
    return np.array([_weighted_square_sum(w, h) for h in importance])


@dataclass(frozen=True)
class _Units:
    """The powers of two by which weights and importance were divided, so that their products fit float64."""

    weight: float = 1.0
    importance: float = 1.0

    def step(self, step: float) -> float:
        return representable("the step", step * self.weight)

    def error(self, error: float) -> float:
        return representable("the squared error", float(error) * self.weight * self.importance * self.weight)


def _sample(w: ArrayLike, importance: np.ndarray | None) -> tuple[np.ndarray, Floats | None, _Units]:
    x = np.asarray(w).ravel()
    if x.dtype not in (np.float32, np.float64):
        x = x.astype(np.float64)
    if not np.isfinite(x).all():
        raise InputError(f"w holds {(~np.isfinite(x)).sum()} NaN or infinite element(s); every weight must be finite")
    h, unit_h = None, 1.0
    if importance is not None:
        h = nonnegative_array("importance", importance).reshape(len(importance), x.size)
        if not h.any(axis=1).all():
            raise InputError("importance is 0 everywhere; it must be above 0 for at least one weight")
        h, unit_h = near_one(h)
        x = np.where((h > 0).any(axis=0), x, x.dtype.type(0))
    if x.dtype == np.float32:  # its squares fit float64
        return x, h, _Units(importance=unit_h)
    x, unit = near_one(x)
    return x, h, _Units(unit, unit_h)


@njit(cache=True, parallel=True, fastmath=FAST)
def _weighted_square_sum(w, h):  # type: ignore[no-untyped-def]
    chunks = (w.size + _CHUNK - 1) // _CHUNK
    partial = np.zeros(chunks)
    for c in prange(chunks):
        total = 0.0
        for i in range(c * _CHUNK, min(w.size, (c + 1) * _CHUNK)):
            v = np.float64(w[i])
            total += v * v * (h[i] if h.size else 1.0)
        partial[c] = total
    return partial.sum()


@njit(cache=True, parallel=True, fastmath=FAST)
def _squared_error(w, h, step, lowest, highest):  # type: ignore[no-untyped-def]
    """Returns Σh(w − Q(w))² at one step other than 0, summed from the residuals; an empty h stands for ones."""
    chunks = (w.size + _CHUNK - 1) // _CHUNK
    partial = np.zeros(chunks)
    for c in prange(chunks):
        total = 0.0
        for i in range(c * _CHUNK, min(w.size, (c + 1) * _CHUNK)):
            v = np.float64(w[i])
            code = min(max(np.rint(v / step), lowest), highest)
            r = v - code * step
            total += r * r * (h[i] if h.size else 1.0)
        partial[c] = total
    return partial.sum()


@njit(cache=True, parallel=True, fastmath=FAST)
def _page_sums(x, h, first, count):  # type: ignore[no-untyped-def]
    for page in prange(first.shape[1] - 1):
        low, high = page * _PAGE, min(x.size, (page + 1) * _PAGE)
        for lang in range(first.shape[0]):
            total, mass = 0.0, 0.0
            for i in range(low, high):
                weight = h[lang, i] if h.size else 1.0
                total += weight * np.float64(x[i])
                mass += weight
            first[lang, page], count[lang, page] = total, mass


@njit(cache=True, parallel=True, fastmath=FAST)
def _add_code_sums(x, h, tops, page_first, page_count, steps, cap, offset, first, second):  # type: ignore[no-untyped-def]
    """Adds B and C of every step to `first` and `second`.

    A magnitude gets its k-th code at the threshold (k − ½ + offset)·s. So B, the sum of h·x over all codes, is a sum
    over thresholds of Σhx beyond each; and C is a sum of (2k − 1 + 2·offset)·Σh beyond each, because k² is the sum of
    the odd numbers up to 2k − 1. What lies beyond a threshold is the rest of one page, which is scanned, and all later
    pages, whose sums are stored. Thresholds rise with k, so each binary search starts at the page of the last one.
    """
    for m in prange(steps.size):
        page = 0
        for k in range(1, cap + 1):
            threshold = (k - 0.5 + offset) * steps[m]
            high = tops.size
            while page < high:
                middle = (page + high) // 2
                if tops[middle] > threshold:
                    high = middle
                else:
                    page = middle + 1
            if page == tops.size:
                break
            start, stop = page * _PAGE, min(x.size, (page + 1) * _PAGE)
            gain = 2 * k - 1 + 2 * offset
            for lang in range(first.shape[0]):
                total, mass = 0.0, 0.0
                for i in range(start, stop):
                    inside = 1.0 if x[i] > threshold else 0.0
                    weight = inside * h[lang, i] if h.size else inside
                    total += weight * np.float64(x[i])
                    mass += weight
                first[lang, m] += total + page_first[lang, page + 1]
                second[lang, m] += gain * (mass + page_count[lang, page + 1])
