"""Compiled kernels that all of exact clipping shares: sums over sorted weights, and the minimum of several parabolas.

They are loops that NumPy cannot fuse. numba compiles them to vector code, runs them on all cores, needs no compiler on
the user's machine.
"""

from dataclasses import dataclass
from threading import RLock

import numpy as np
from numba import njit, prange

from fairbits.core.array_checks import Floats

_CHUNK = 4096
_PAGE = 64
FAST = {"reassoc", "contract", "nsz", "arcp"}
"""Floating-point liberties that let the compiler vectorise sums; NaN and infinity keep their meaning."""

TINY = 1e-200
"""Steps below this part of the largest weight are not tried."""

LAUNCH = RLock()
"""Held while parallel kernels run: one call uses all cores, and numba's fallback threads allow only one caller."""


@dataclass(frozen=True)
class SortedSide:
    """Magnitudes in ascending order, in pages of 64, with Σhx and Σh over all pages from each one on, per language.

    `tops` holds the last magnitude of each page. It is small enough for the cache, so the binary search runs over it.
    """

    x: np.ndarray
    h: Floats
    tops: np.ndarray
    first: Floats
    count: Floats


def one_side(x: np.ndarray, importance: Floats | None) -> SortedSide:
    """Returns the magnitudes x sorted, with their sums."""
    return paged(*_sorted(x, importance))


def both_sides(w: np.ndarray, importance: Floats | None) -> list[SortedSide]:
    """Returns the positive and the negative weights as two sorted sides, from one sort."""
    ordered, weights = _sorted(w, importance)
    zero = int(np.searchsorted(ordered, 0))
    return [paged(ordered[zero:], weights[:, zero:]), paged(-ordered[:zero][::-1], weights[:, :zero][:, ::-1])]


def paged(ordered: np.ndarray, weights: Floats) -> SortedSide:
    """Returns sorted magnitudes with their page sums; weights without languages stand for one language of ones."""
    x, h = np.ascontiguousarray(ordered), np.ascontiguousarray(weights)
    first, count = (np.zeros((max(1, len(h)), -(-x.size // _PAGE) + 1)) for _ in range(2))
    _page_sums(x, h, first, count)
    for sums in (first, count):
        np.cumsum(sums[:, ::-1], axis=1, out=sums[:, ::-1])
    tops = np.append(x[_PAGE - 1 :: _PAGE], x[-1:]) if x.size % _PAGE else x[_PAGE - 1 :: _PAGE].copy()
    return SortedSide(x, h, tops, first, count)


def _sorted(x: np.ndarray, importance: Floats | None) -> tuple[np.ndarray, Floats]:
    if importance is None:
        return np.sort(x), np.empty((0, x.size))
    order = np.argsort(x)
    return x[order], importance[:, order]


def energy(w: np.ndarray, importance: Floats | None) -> Floats:
    """Returns Σ h w² per language."""
    if importance is None:
        return np.array([_weighted_square_sum(w, np.empty(0))])
    return np.array([_weighted_square_sum(w, h) for h in importance])


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
def squared_error(w, h, step, lowest, highest, offset):  # type: ignore[no-untyped-def]
    """Returns Σh(w − Q(w))² at one step other than 0, summed from the residuals; an empty h stands for ones."""
    chunks = (w.size + _CHUNK - 1) // _CHUNK
    partial = np.zeros(chunks)
    for c in prange(chunks):
        total = 0.0
        for i in range(c * _CHUNK, min(w.size, (c + 1) * _CHUNK)):
            v = np.float64(w[i])
            code = min(max(np.rint(v / step - offset), lowest), highest)
            r = v - (code + offset) * step
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


def add_code_sums(side: SortedSide, steps: Floats, *, cap: int, offset: float, first: Floats, second: Floats) -> None:
    """Adds to B and C (languages, steps) what one side contributes: `cap` thresholds per step."""
    if side.x.size:
        _add_code_sums(side.x, side.h, side.tops, side.first, side.count, steps, cap, np.float64(offset), first, second)


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


@njit(cache=True)
def minimise_worst_quadratic(energy, first, second):  # type: ignore[no-untyped-def]
    """Returns (s, max_λ q_λ(s), p, q, μ) at the minimum over s of max_λ q_λ, q_λ(s) = A − 2sB + s²C.

    p and q are the active languages with multipliers μ and 1 − μ; one may be enough. In one dimension the maximum of
    convex functions has its minimum where a single one has its own, or where a falling and a rising one cross. So the
    minimum of a pair is found, and as long as a third language lies above it there, that one replaces the member of
    the pair that slopes the same way. The minimum rises with every exchange, so this ends. Languages of curvature 0
    are constants: one that lies above the minimum of the others is active alone.
    """
    low, high, constant = np.inf, -np.inf, 0
    for i in range(first.size):
        if second[i] > 0:
            low, high = min(low, first[i] / second[i]), max(high, first[i] / second[i])
        elif second[constant] > 0 or energy[i] > energy[constant]:
            constant = i
    if low > high:
        return 0.0, energy[constant], constant, constant, 1.0
    p, q = _active(energy, first, second, low), _active(energy, first, second, high)
    s, p, q, mu = _minimise_pair(energy, first, second, p, q)
    for _ in range(4 * first.size + 8):
        i = _active(energy, first, second, s)
        if i in (p, q):
            break
        if first[i] > s * second[i]:
            p = i
        else:
            q = i
        s, p, q, mu = _minimise_pair(energy, first, second, p, q)
    value = _value(energy, first, second, _active(energy, first, second, s), s)
    if second[constant] <= 0 and energy[constant] >= value:
        return s, energy[constant], constant, constant, 1.0
    if p != q and mu > 0.5:  # let μ be the smaller one: 1 − μ would lose a multiplier below 1e-16
        slope_p, slope_q = s * second[p] - first[p], s * second[q] - first[q]
        p, q, mu = q, p, max(0.0, slope_p / (slope_p - slope_q)) if slope_p != slope_q else 0.5
    return s, value, p, q, mu


@njit(cache=True)
def _value(energy, first, second, i, s):  # type: ignore[no-untyped-def]
    return energy[i] - 2 * s * first[i] + s * s * second[i]


@njit(cache=True)
def _active(energy, first, second, s):  # type: ignore[no-untyped-def]
    """Returns the language with curvature that is the highest at s."""
    best, at = -np.inf, 0
    for i in range(energy.size):
        value = _value(energy, first, second, i, s)
        if second[i] > 0 and value > best:
            best, at = value, i
    return at


@njit(cache=True)
def _minimise_pair(energy, first, second, p, q):  # type: ignore[no-untyped-def]
    """Returns (s, p, q, μ) at the minimum over s of max(q_p, q_q): p falls and q rises there, or both are one language.

    If neither has its vertex above the other there, the two cross between the vertices; the crossing is bisected down
    to the spacing of float64.
    """
    vertex_p, vertex_q = first[p] / second[p], first[q] / second[q]
    if p == q or _value(energy, first, second, p, vertex_p) >= _value(energy, first, second, q, vertex_p):
        return vertex_p, p, p, 1.0
    if _value(energy, first, second, q, vertex_q) >= _value(energy, first, second, p, vertex_q):
        return vertex_q, q, q, 1.0
    if vertex_p < vertex_q:
        p, q = q, p
    low, high = min(vertex_p, vertex_q), max(vertex_p, vertex_q)
    s = 0.5 * (low + high)
    while low < s < high:
        if _value(energy, first, second, p, s) > _value(energy, first, second, q, s):
            low = s
        else:
            high = s
        s = 0.5 * (low + high)
    slope_p, slope_q = s * second[p] - first[p], s * second[q] - first[q]
    mu = slope_q / (slope_q - slope_p) if slope_q != slope_p else 0.5
    return s, p, q, min(1.0, max(0.0, mu))
