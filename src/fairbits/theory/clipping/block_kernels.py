"""The exact step of one block of weights, compiled: branch and bound on residual sums.

For the nearest codes k at step s let r = x − k·s and F = Σhr², R = Σhkr, C = Σhk², N = Σk. Then f(s) = F, f′(s) =
−2R, the piece of s has its vertex at s + R/C with value F − R²/C, and N(a) − N(b) counts the breakpoints between a
and b. (Residual sums lose no digits where A − 2sB + s²C would cancel.) Breakpoints bend f downward and C falls with
s, so on [a, b] f(s) − C(a)·s² is concave: f lies above its chord less C(a)(s − a)(b − s).

1. The optimum lies between the step whose clip error alone reaches the best value found and the step whose dead zone
   does. 2. That range is cut into intervals of relative width ~ √(f/A), where the bound of an interval is of the
   order of f. 3. Intervals that survive are halved. One that holds at most one breakpoint is done: both its pieces
   were seen.
"""

import math

import numpy as np
from numba import njit, prange

from fairbits.theory.clipping.kernels import FAST, TINY

_MAX_EDGES = 256
_DEPTH = 80
_WIDTH = 2.0


@njit(cache=True, fastmath=FAST)
def _residual_sums(x, h, cap, offset, s):  # type: ignore[no-untyped-def]
    t = 1.0 / s
    f, r1, c, n = 0.0, 0.0, 0.0, 0.0
    for j in range(x.size):
        code = min(np.floor(x[j] * t + (0.5 - offset)), cap[j])
        k = code + offset
        r = x[j] - k * s
        weight = 1.0 if h is None else h[j]
        hk = weight * k
        f += weight * r * r
        r1 += hk * r
        c += hk * k
        n += code
    return f, r1, c, n


@njit(cache=True, fastmath=FAST)
def _clip_error(x, h, cap, offset, s):  # type: ignore[no-untyped-def]
    total = 0.0
    for j in range(x.size):
        e = max(x[j] - (cap[j] + offset) * s, 0.0)
        total += e * e if h is None else h[j] * e * e
    return total


@njit(cache=True, fastmath=FAST)
def _dead_zone_error(x, h, offset, s):  # type: ignore[no-untyped-def]
    """What weights below s/2 cost, on the midrise grid at least those below s/4: its levels are s/4 away or more."""
    total = 0.0
    if offset > 0.0:
        for j in range(x.size):
            inside = 0.0625 * s * s if 4.0 * x[j] < s else 0.0
            total += inside if h is None else h[j] * inside
        return total
    for j in range(x.size):
        square = x[j] * x[j] if 2.0 * x[j] < s else 0.0
        total += square if h is None else h[j] * square
    return total


@njit(cache=True)
def _interval_bound(a, fa, ca, b, fb):  # type: ignore[no-untyped-def]
    """Lower bound of f on [a, b]: the lowest point of the chord less C(a)(s − a)(b − s)."""
    width = b - a
    if ca * width <= 0.0:
        return min(fa, fb)
    u = 0.5 * (width - (fb - fa) / (ca * width))
    if u <= 0.0:
        return fa
    return fb if u >= width else fa - ca * u * u


@njit(cache=True)
def _bracket(x, h, cap, offset, start, largest, best):  # type: ignore[no-untyped-def]
    """Steps below and above which the clip error and the dead zone alone reach `best`."""
    low = start
    while low > TINY and _clip_error(x, h, cap, offset, low) < best:
        low *= 0.7
    top = 2.0 * largest if offset > 0.0 else largest
    high = start
    while high < top and _dead_zone_error(x, h, offset, high) < best:
        high *= 1.25
    return low, min(high, top)


@njit(cache=True)
def _branch(x, h, cap, offset, edges, at, best, step, stack):  # type: ignore[no-untyped-def]
    """Searches between rows `at` and `at + 1` of the edge table (s, F, C, N); returns the improved (best, step)."""
    a, fa, ca, na = edges[at, 0], edges[at, 1], edges[at, 2], edges[at, 3]
    b, fb, cb, nb = edges[at + 1, 0], edges[at + 1, 1], edges[at + 1, 2], edges[at + 1, 3]
    waiting = 0
    while True:
        middle = 0.5 * (a + b)
        done = na - nb <= 1.0 or middle <= a or middle >= b
        if not done and _interval_bound(a, fa, ca, b, fb) < best * (1.0 - 1e-12):
            # search the lower half now, keep the end of the upper one for later
            stack[waiting, 0], stack[waiting, 1], stack[waiting, 2], stack[waiting, 3] = b, fb, cb, nb
            waiting += 1
            b = middle
            fb, r, cb, nb = _residual_sums(x, h, cap, offset, b)
            if cb > 0.0 and fb - r * (r / cb) < best:
                best, step = fb - r * (r / cb), b + r / cb
        elif waiting == 0:
            return best, step
        else:
            waiting -= 1
            a, fa, ca, na = b, fb, cb, nb
            b, fb, cb, nb = stack[waiting, 0], stack[waiting, 1], stack[waiting, 2], stack[waiting, 3]


@njit(cache=True)
def _solve(x, h, cap, top, offset, largest, best, step, edges, stack):  # type: ignore[no-untyped-def]
    """Returns the improved (best, step) for normalised magnitudes x, given a best value from elsewhere (or ∞)."""
    energy = _clip_error(x, h, cap, offset, 0.0)
    start = largest / (top + 0.5 + offset)
    while offset > 0.0 and _dead_zone_error(x, h, offset, start) > energy:
        start *= 0.5  # a value far above the energy would cancel in f − r²/c
    f, r1, c, n = _residual_sums(x, h, cap, offset, start)
    if c > 0.0 and f - r1 * (r1 / c) < best:  # r² alone could underflow
        best, step = f - r1 * (r1 / c), start + r1 / c
    if best <= 1e-30 * energy:
        return best, step
    low, high = _bracket(x, h, cap, offset, start, largest, best)
    width = min(max(_WIDTH * math.sqrt(best / energy), 0.002), 0.2)
    pieces = min(max(math.ceil(math.log(high / low) / width), 4), _MAX_EDGES - 1)
    ratio = (high / low) ** (1.0 / pieces)
    s = low
    for i in range(pieces + 1):
        f, r1, c, n = _residual_sums(x, h, cap, offset, s)
        edges[i, 0], edges[i, 1], edges[i, 2], edges[i, 3] = s, f, c, n
        if c > 0.0 and f - r1 * (r1 / c) < best:
            best, step = f - r1 * (r1 / c), s + r1 / c
        s *= ratio
    for i in range(pieces):
        best, step = _branch(x, h, cap, offset, edges, i, best, step, stack)
    return best, step


@njit(cache=True)
def _polish(x, h, cap, offset, step):  # type: ignore[no-untyped-def]
    """The directly summed error at `step`, or at the vertex of its piece where that is lower.

    A step that vanished against the weights (midrise, zeros that matter 1e30 times more) leaves every value at 0.
    """
    if step <= 0.0:
        return _clip_error(x, h, cap, offset, 0.0), 0.0
    f, r1, c, _ = _residual_sums(x, h, cap, offset, step)
    if c > 0.0:
        moved = step + r1 / c
        g, _, _, _ = _residual_sums(x, h, cap, offset, moved)
        if g < f:
            return g, moved
    return f, step


@njit(cache=True, fastmath=FAST | {"nnan"})
def _largest(row, h):  # type: ignore[no-untyped-def]
    """The largest magnitude among the weights that matter."""
    largest = 0.0
    for j in range(row.size):
        value = abs(np.float64(row[j]))
        largest = max(largest, value if h is None or h[j] > 0.0 else 0.0)
    return largest


@njit(cache=True)
def _unit(largest):  # type: ignore[no-untyped-def]
    """The power of two just above `largest`, kept where it and its inverse are normal numbers."""
    return 2.0 ** min(max(math.frexp(largest)[1], -1021), 1021)


@njit(cache=True, fastmath=FAST)
def _scale_into(row, h, unit, out):  # type: ignore[no-untyped-def]
    """Fills out = |row| / unit, 0 where h is; returns 0, or NaN if the row is not finite."""
    total = 0.0
    for j in range(row.size):
        value = np.float64(row[j])
        total += 0.0 * value
        out[j] = abs(value) / unit if h is None or h[j] > 0.0 else 0.0
    return total


@njit(cache=True)
def _set_caps(row, up, down, cap):  # type: ignore[no-untyped-def]
    for j in range(row.size):
        cap[j] = up if row[j] > 0 else down


@njit(cache=True)
def _best_step(row, h, unit_h, caps, offset, both_signs, x, cap, edges, stack):  # type: ignore[no-untyped-def]
    """Returns (step, error) of one block; h is the importance scaled by 1/unit_h, None for ones.

    NaN where the row is not finite. Where nothing that matters differs from 0, any step serves: the one that represents
    the largest weight (0 on the midrise grid, which has no 0).
    """
    up, down = caps
    top, largest = max(up, down), _largest(row, h)
    # scaling by powers of two is exact and keeps squares away from overflow and underflow
    unit = _unit(largest)
    if _scale_into(row, h, unit, x) != 0.0:
        return np.nan, np.nan
    if largest == 0.0:
        return (_largest(row, None) / top if offset == 0.0 else 0.0), 0.0
    _set_caps(row, up, down, cap)
    best, step = _solve(x, h, cap, top, offset, largest / unit, np.inf, 0.0, edges, stack)
    sign = 1.0
    if both_signs:
        _set_caps(row, down, up, cap)
        other, other_step = _solve(x, h, cap, top, offset, largest / unit, best, step, edges, stack)
        if other < best:
            step, sign = other_step, -1.0
        else:
            _set_caps(row, up, down, cap)
    error, step = _polish(x, h, cap, offset, step)
    return sign * step * unit, error * unit * unit_h * unit


@njit(cache=True, parallel=True)
def best_steps(W, importance, caps, offset, both_signs, steps, errors):  # type: ignore[no-untyped-def]
    """Fills `steps` and `errors` of the rows of W (blocks, size); row i weighs by importance[i % rows] (None: ones)."""
    blocks, size = W.shape
    chunk = max(1, min(64, blocks // 8))
    for task in prange((blocks + chunk - 1) // chunk):
        x, h, cap = np.empty(size), np.empty(size), np.empty(size)
        edges, stack = np.empty((_MAX_EDGES, 4)), np.empty((_DEPTH, 4))
        for i in range(task * chunk, min(blocks, (task + 1) * chunk)):
            if importance is None:
                steps[i], errors[i] = _best_step(W[i], None, 1.0, caps, offset, both_signs, x, cap, edges, stack)
            else:
                weights = importance[i % importance.shape[0]]
                unit_h = _unit(_largest(weights, None))
                _scale_into(weights, None, unit_h, h)
                steps[i], errors[i] = _best_step(W[i], h, unit_h, caps, offset, both_signs, x, cap, edges, stack)
