"""Branch and bound over the step, with a certificate: the exact optimum of one language, the exact minimax of several.

For the nearest codes k at a step s, f(s) = Σh(x − k·s)² = A − 2s·B(s) + s²·C(s) with A = Σhx², B = Σh|x||k| and
C = Σhk². Codes fall as s grows, so B and C do too. f bends down at every breakpoint, so on [a, b] f(s) − C(a)·s² is
concave, and f is above its chord minus C(a)(s − a)(b − s); `clip_kernels` derives it. A second bound is better on wide
intervals: B ≤ B(a) and C ≥ C(b) there, so f(s) ≥ A − 2s·B(a) + s²·C(b) ≥ A − B(a)²/C(b). Intervals whose bound reaches
the best value are closed, the others cut. The lowest bound of a closed interval is a lower bound of f everywhere: the
certificate.

For several languages F = max_λ f_λ ≥ Σμ_λf_λ for any weights μ ≥ 0 with sum 1. With μ the multipliers at the best step
so far, this bound closes as fast as the bound of a single language (see `minimax_kernels`).

A long sample is sorted once. B and C are then sums over thresholds of what is beyond each, found by binary search; so a
step costs a few memory accesses per code, however long the sample is.
"""

from abc import ABC, abstractmethod
from copy import copy
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numba import njit, prange
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, near_one, nonnegative_array, representable
from fairbits.core.errors import FairbitsError, InputError
from fairbits.core.numba_lock import LAUNCH
from fairbits.models.scales.clip_kernels import FAST
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.minimax_kernels import minimise_worst_quadratic

_FEW = 12
_MAX_ROUNDS = 60
_RESOLUTION = 2e-15


class CodeSums(ABC):
    """A = Σhx² (`energy`), Σh|x| (`magnitude`) and Σh (`total`) of every language; B and C at any step."""

    grid: Grid
    energy: Floats
    magnitude: Floats
    total: Floats
    rounding: float  # the part of `energy` that rounding of B and C may add to or take from an error

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
        (Σh|x|)² / Σh over the same x.
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
        below = np.flatnonzero((clip >= best).any(axis=0))
        above = np.flatnonzero((self.dead_zone_error(steps) * (1 - 1e-9) >= best).any(axis=0))
        return float(steps[below[-1]] if below.size else steps[0]), float(steps[above[0]] if above.size else high)

    def dead_zone_error(self, steps: Floats) -> Floats:
        count, first = self.beyond(steps / 2)
        return _square_over(self.magnitude[:, None] - first, self.total[:, None] - count)


def _square_over(first: Floats, count: Floats) -> Floats:
    # both are differences of sums: what cancellation leaves must not count
    safe = np.maximum(first, 0.0)
    ratio: Floats = np.divide(safe**2, count, out=np.zeros_like(safe), where=count > 1e-12 * count.max())
    return ratio


@dataclass(frozen=True)
class Certified:
    """A step, its value, a proven lower bound of all values, steps tried, and KKT weights: at most two are above 0."""

    step: float
    value: float
    bound: float
    evaluations: int
    multipliers: tuple[float, ...] = (1.0,)

    @property
    def gap(self) -> float:
        """(value − bound) / value: how far, at most, the value is from the true optimum."""
        return max(0.0, 1 - self.bound / self.value) if self.value > 0 else 0.0


def certified_minimum(sums: CodeSums, *, tolerance: float = 1e-9) -> Certified:
    """Returns the step that minimises max_λ f_λ, proven to a relative `tolerance` or to the floor of float64."""
    if np.max(sums.energy) <= 0:
        return Certified(0.0, 0.0, 0.0, 0, tuple(np.eye(sums.energy.size)[0]))
    search = _Search(sums, tolerance)
    if search.start():
        return search.result()
    for _ in range(_MAX_ROUNDS):
        if not search.refine():
            return search.result()
    raise FairbitsError(f"the search for a step did not close in {_MAX_ROUNDS} rounds; this is a defect: report it")


def certified_either_sign(sums: CodeSums, *, tolerance: float = 1e-9) -> Certified:
    """Returns the better of the certified minima over positive and over negative steps."""
    up, down = (certified_minimum(side, tolerance=tolerance) for side in (sums, sums.turned()))
    bound = min(up.bound, down.bound)
    return replace(down, step=-down.step, bound=bound) if down.value < up.value else replace(up, bound=bound)


class _Search:
    """One search: the best step so far, the open intervals with B and C at their ends, the bound of the closed ones."""

    def __init__(self, sums: CodeSums, tolerance: float) -> None:
        self.sums, self.tolerance = sums, tolerance
        self.evaluations = 0
        self.best, self.step, self.closed = np.inf, 0.0, np.inf
        self.mu = np.full(sums.energy.size, 1 / sums.energy.size)

    def start(self) -> bool:
        """Returns whether a coarse scan found an exact fit; else opens the steps that can be better as intervals."""
        energy, magnitude = self.sums.energy, self.sums.magnitude
        scale = float(np.max(np.divide(energy, magnitude, out=np.zeros_like(energy), where=magnitude > 0)))
        self._evaluate(scale * np.geomspace(2.0 ** (1 - self.sums.grid.bits), 2.0, 8))
        if self.best <= self._floor():
            self.closed = 0.0
            return True
        low, high = self.sums.possible(self.best)
        useful = 2 * np.sqrt(self.best / float(np.max(self.sums.energy)))
        pieces = int(np.clip(np.log(high / low) / max(useful, 1e-3), 8, 256))
        edges = np.geomspace(low * (1 - 1e-12), high * (1 + 1e-12), pieces + 1)
        first, second = self._evaluate(edges)
        self.low, self.high = edges[:-1], edges[1:]
        self.ends = np.array([first[:, :-1], second[:, :-1], first[:, 1:], second[:, 1:]])
        return False

    def refine(self) -> bool:
        """Returns whether intervals are left after closing those without the optimum and cutting the others."""
        if self.best <= self._floor():  # an exact fit: everything below is rounding
            self.closed = 0.0
            return False
        bounds = self._bounds()
        keep = bounds < self.best - self._floor()
        self.closed = min(self.closed, float(np.min(bounds, where=~keep, initial=np.inf)))
        if not keep.any():
            return False
        low, high, (b_low, c_low, b_high, c_high) = self.low[keep], self.high[keep], self.ends[:, :, keep]
        cuts = 4 if low.size <= _FEW else 2  # a round costs as much as a few evaluations
        inner = low[:, None] + (high - low)[:, None] * (np.arange(1, cuts) / cuts)
        first, second = self._evaluate(inner.ravel())
        edges = np.column_stack([low, inner, high])
        b, c = (
            np.concatenate([left[..., None], middle.reshape(-1, *inner.shape), right[..., None]], axis=2)
            for left, middle, right in ((b_low, first, b_high), (c_low, second, c_high))
        )
        self.low, self.high = edges[:, :-1].ravel(), edges[:, 1:].ravel()
        sides = [b[..., :-1], c[..., :-1], b[..., 1:], c[..., 1:]]
        self.ends = np.array([side.reshape(len(b), -1) for side in sides])
        return True

    def result(self) -> Certified:
        bound = max(0.0, min(self.best, self.closed) - self._rounding())
        return Certified(self.step, self.best, bound, self.evaluations, tuple(self.mu.tolist()))

    def _rounding(self) -> float:
        """Returns what float64 may lose of an error, which is a difference of sums as large as the energy."""
        return self.sums.rounding * float(np.max(self.sums.energy))

    def _floor(self) -> float:
        """Returns the difference from the best value that is ignored: the tolerance, or what float64 cannot resolve."""
        energy = float(np.max(self.sums.energy))
        return max(self.tolerance * self.best - self._rounding(), _RESOLUTION * energy)

    def _evaluate(self, steps: Floats) -> tuple[Floats, Floats]:
        """Returns B and C at the steps, and keeps the best minimum of their pieces."""
        first, second = self.sums.at(steps)
        self.evaluations += steps.size
        energy = self.sums.energy
        if energy.size == 1:
            vertex = np.divide(first, second, out=np.zeros_like(first), where=second > 0)[0]
            values = np.maximum(energy[0] - first[0] * vertex, 0.0)
            at = int(np.argmin(values))
            if values[at] < self.best:
                self.best, self.step = float(values[at]), float(vertex[at])
            return first, second
        values = (energy[:, None] - 2 * steps * first + steps**2 * second).max(axis=0)
        for at in np.argsort(values)[:3]:
            step, value, p, q, mu = minimise_worst_quadratic(energy, first[:, at].copy(), second[:, at].copy())
            if value < self.best:
                self.best, self.step = max(value, 0.0), step
                self.mu = np.zeros(energy.size)
                self.mu[p] += mu
                self.mu[q] += 1 - mu
        return first, second

    def _bounds(self) -> Floats:
        """Returns a lower bound of max_λ f_λ on each open interval."""
        A, (Ba, Ca, Bb, Cb) = self.sums.energy[:, None], self.ends
        if len(A) > 1:
            A, Ba, Ca, Bb, Cb = (np.vstack([v, self.mu @ v]) for v in (A, Ba, Ca, Bb, Cb))
        a, b = self.low, self.high
        width = b - a
        at_a, at_b = A - 2 * a * Ba + a * a * Ca, A - 2 * b * Bb + b * b * Cb
        slope = np.divide(at_b - at_a, Ca * width, out=np.zeros_like(at_a), where=Ca * width > 0)
        u = np.clip((width - slope) / 2, 0, width)
        chord = np.where(u < width, at_a - Ca * u * u, at_b)
        vertex = A - np.divide(Ba * Ba, Cb, out=np.full_like(Ba, np.inf), where=Cb > 0)
        bounds: Floats = np.maximum(chord, vertex).max(axis=0)
        return bounds


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
