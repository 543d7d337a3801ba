"""The exact step of every block of weights: branch and bound on residual sums, compiled by numba.

**The function.** For magnitudes x with importance h let k(s) be the nearest codes at step s, clipped to the grid, and
f(s) = Σh(x − k·s)². As long as no code changes, f is a parabola in s, a *piece*. It changes piece at the breakpoints
s = x/(k − ½), where a weight reaches the threshold of its next code. Nearest codes are the minimum over all codes, so f
is the minimum of all these parabolas, and at a breakpoint it can only bend down. Every local minimum is therefore the
vertex of a piece. But there are up to size × codes pieces and f is not convex: a local search may end in the wrong
valley.

**What one evaluation gives.** With the residuals r = x − k·s let F = Σhr², R = Σhkr, C = Σhk², N = Σk. Then F is f(s)
itself, and on the piece of s, f(s + d) = F − 2dR + d²C: its vertex lies at s + R/C and has the value F − R²/C. Codes
only fall as s grows, so N(a) − N(b) counts the breakpoints between a and b. Sums over residuals lose no digits where
the equivalent A − 2sB + s²C would cancel.

**The bound.** C falls as s grows, so on [a, b] every piece has a curvature of at most 2C(a), and breakpoints only bend
f down: f(s) − C(a)·s² is concave there. A concave function lies above its chord, which gives

    f(s) ≥ chord of f − C(a)·(s − a)·(b − s).

The lowest point of the right-hand side has a closed form (`interval_bound`) that needs F and C at the two ends only.

**The search.** 1. The optimum lies between the step at which clipping alone costs as much as the best value found, and
the step at which the weights that round to 0 do (`_bracket`). 2. That range is cut into intervals of relative width
about 2√(f/A), A = Σhx², because there C(a)·(b − a)²/4, by which the bound falls below the chord, is of the order of f.
3. Intervals whose bound is below the best value are halved. One with at most one breakpoint is done: its only pieces
are those of its two ends, whose vertices have been tried.
"""

import math

import numpy as np
from numba import njit, prange

FAST = {"reassoc", "contract", "nsz", "arcp"}  # lets the compiler vectorise sums; NaN and infinity stay

TINY = 1e-200  # steps below this part of the largest weight are not tried

_MAX_EDGES = 256
_DEPTH = 80


@njit(cache=True, fastmath=FAST)
def _residual_sums(x, h, cap, s):  # type: ignore[no-untyped-def]
    """Returns F, R, C and N at step s; an h of None stands for ones."""
    t = 1.0 / s
    f, r1, c, n = 0.0, 0.0, 0.0, 0.0
    for j in range(x.size):
        k = min(np.floor(x[j] * t + 0.5), cap[j])
        r = x[j] - k * s
        weight = 1.0 if h is None else h[j]
        hk = weight * k
        f += weight * r * r
        r1 += hk * r
        c += hk * k
        n += k
    return f, r1, c, n


@njit(cache=True, fastmath=FAST)
def _clip_error(x, h, cap, s):  # type: ignore[no-untyped-def]
    """Returns the error of the weights beyond the largest level: a lower bound of f(s) that falls with s."""
    total = 0.0
    for j in range(x.size):
        e = max(x[j] - cap[j] * s, 0.0)
        total += e * e if h is None else h[j] * e * e
    return total


@njit(cache=True, fastmath=FAST)
def _dead_zone_error(x, h, s):  # type: ignore[no-untyped-def]
    """Returns the error of the weights that round to 0, those below s/2: a lower bound of f(s) that rises with s."""
    total = 0.0
    for j in range(x.size):
        square = x[j] * x[j] if 2.0 * x[j] < s else 0.0
        total += square if h is None else h[j] * square
    return total


@njit(cache=True)
def interval_bound(a, fa, ca, b, fb):  # type: ignore[no-untyped-def]
    """Returns a lower bound of f on [a, b]: the lowest point of the chord minus C(a)(s − a)(b − s).

    With u = s − a it is f(a) + u·(f(b) − f(a))/width − C(a)·u·(width − u), lowest at u = (width − slope/C(a))/2.
    """
    width = b - a
    if ca * width <= 0.0:
        return min(fa, fb)
    u = 0.5 * (width - (fb - fa) / (ca * width))
    if u <= 0.0:
        return fa
    return fb if u >= width else fa - ca * u * u


@njit(cache=True)
def _bracket(x, h, cap, start, largest, best):  # type: ignore[no-untyped-def]
    """Returns a step below which the clip error alone reaches `best`, and one above which the dead zone does."""
    low = start
    while low > TINY and _clip_error(x, h, cap, low) < best:
        low *= 0.7
    high = start
    while high < largest and _dead_zone_error(x, h, high) < best:
        high *= 1.25
    return low, min(high, largest)


@njit(cache=True)
def _branch(x, h, cap, edges, at, best, step, stack):  # type: ignore[no-untyped-def]
    """Returns the improved (best, step) after a search between rows `at` and `at + 1` of the edge table (s, F, C, N).

    Depth first, lower half first: the stack holds the upper ends that wait, so an interval's lower end is always the
    upper end of the one before it, and no sum is computed twice.
    """
    a, fa, ca, na = edges[at, 0], edges[at, 1], edges[at, 2], edges[at, 3]
    b, fb, cb, nb = edges[at + 1, 0], edges[at + 1, 1], edges[at + 1, 2], edges[at + 1, 3]
    waiting = 0
    while True:
        middle = 0.5 * (a + b)
        done = na - nb <= 1.0 or middle <= a or middle >= b
        if not done and interval_bound(a, fa, ca, b, fb) < best * (1.0 - 1e-12):
            # search the lower half now, keep the end of the upper one for later
            stack[waiting, 0], stack[waiting, 1], stack[waiting, 2], stack[waiting, 3] = b, fb, cb, nb
            waiting += 1
            b = middle
            fb, r, cb, nb = _residual_sums(x, h, cap, b)
            if cb > 0.0 and fb - r * (r / cb) < best:
                best, step = fb - r * (r / cb), b + r / cb
        elif waiting == 0:
            return best, step
        else:
            waiting -= 1
            a, fa, ca, na = b, fb, cb, nb
            b, fb, cb, nb = stack[waiting, 0], stack[waiting, 1], stack[waiting, 2], stack[waiting, 3]


@njit(cache=True)
def _solve(x, h, cap, top, largest, best, step, edges, stack):  # type: ignore[no-untyped-def]
    """Returns the improved (best, step) for normalised magnitudes x, given a best value found before (or ∞)."""
    energy = _clip_error(x, h, cap, 0.0)
    start = largest / (top + 0.5)
    f, r1, c, n = _residual_sums(x, h, cap, start)
    if c > 0.0 and f - r1 * (r1 / c) < best:  # R² alone could underflow
        best, step = f - r1 * (r1 / c), start + r1 / c
    if best <= 1e-30 * energy:
        return best, step
    low, high = _bracket(x, h, cap, start, largest, best)
    width = min(max(2.0 * math.sqrt(best / energy), 0.002), 0.2)
    pieces = min(max(math.ceil(math.log(high / low) / width), 4), _MAX_EDGES - 1)
    ratio = (high / low) ** (1.0 / pieces)
    s = low
    for i in range(pieces + 1):
        f, r1, c, n = _residual_sums(x, h, cap, s)
        edges[i, 0], edges[i, 1], edges[i, 2], edges[i, 3] = s, f, c, n
        if c > 0.0 and f - r1 * (r1 / c) < best:
            best, step = f - r1 * (r1 / c), s + r1 / c
        s *= ratio
    for i in range(pieces):
        best, step = _branch(x, h, cap, edges, i, best, step, stack)
    return best, step


@njit(cache=True)
def _polish(x, h, cap, step):  # type: ignore[no-untyped-def]
    """Returns the directly summed error at `step`, or at the vertex of its piece where that is lower, and the step."""
    if step <= 0.0:  # it vanished next to weights of far larger importance
        return _clip_error(x, h, cap, 0.0), 0.0
    f, r1, c, _ = _residual_sums(x, h, cap, step)
    if c > 0.0:
        moved = step + r1 / c
        g, _, _, _ = _residual_sums(x, h, cap, moved)
        if g < f:
            return g, moved
    return f, step


@njit(cache=True, fastmath=FAST | {"nnan"})
def largest_magnitude(row, h):  # type: ignore[no-untyped-def]
    """Returns the largest magnitude among the weights with importance."""
    largest = 0.0
    for j in range(row.size):
        value = abs(np.float64(row[j]))
        largest = max(largest, value if h is None or h[j] > 0.0 else 0.0)
    return largest


@njit(cache=True)
def power_of_two_above(largest):  # type: ignore[no-untyped-def]
    """Returns the power of two just above `largest`, limited so that it and its inverse are normal numbers."""
    return 2.0 ** min(max(math.frexp(largest)[1], -1021), 1021)


@njit(cache=True, fastmath=FAST)
def scale_into(row, h, unit, out):  # type: ignore[no-untyped-def]
    """Fills out = |row| / unit, 0 where h is 0; returns 0, or NaN if the row is not finite (0·∞ is NaN)."""
    total = 0.0
    for j in range(row.size):
        value = np.float64(row[j])
        total += 0.0 * value
        out[j] = abs(value) / unit if h is None or h[j] > 0.0 else 0.0
    return total


@njit(cache=True)
def set_caps(row, up, down, cap):  # type: ignore[no-untyped-def]
    """Fills the largest code of every weight: `up` for positive ones, `down` for the others."""
    for j in range(row.size):
        cap[j] = up if row[j] > 0 else down


@njit(cache=True)
def _best_step(row, h, unit_h, caps, both_signs, x, cap, edges, stack):  # type: ignore[no-untyped-def]
    """Returns (step, error) of one block; h is the importance scaled by 1/unit_h, None for ones.

    NaN where the row is not finite. Where no weight with importance differs from 0, any step is optimal: the one that
    represents the largest weight is returned.
    """
    up, down = caps
    top, largest = max(up, down), largest_magnitude(row, h)
    # scaling by powers of two is exact and keeps squares away from overflow and underflow
    unit = power_of_two_above(largest)
    if scale_into(row, h, unit, x) != 0.0:
        return np.nan, np.nan
    if largest == 0.0:
        return largest_magnitude(row, None) / top, 0.0
    set_caps(row, up, down, cap)
    best, step = _solve(x, h, cap, top, largest / unit, np.inf, 0.0, edges, stack)
    sign = 1.0
    if both_signs:
        set_caps(row, down, up, cap)
        turned, turned_step = _solve(x, h, cap, top, largest / unit, best, step, edges, stack)
        if turned < best:
            step, sign = turned_step, -1.0
        else:
            set_caps(row, up, down, cap)
    error, step = _polish(x, h, cap, step)
    return sign * step * unit, error * unit * unit_h * unit


@njit(cache=True, parallel=True)
def best_steps(W, importance, caps, both_signs, steps, errors):  # type: ignore[no-untyped-def]
    """Fills `steps` and `errors` for the rows of W (blocks, size); row i has importance[i % rows] (None: ones)."""
    blocks, size = W.shape
    chunk = max(1, min(64, blocks // 8))
    for task in prange((blocks + chunk - 1) // chunk):
        x, h, cap = np.empty(size), np.empty(size), np.empty(size)
        edges, stack = np.empty((_MAX_EDGES, 4)), np.empty((_DEPTH, 4))
        for i in range(task * chunk, min(blocks, (task + 1) * chunk)):
            if importance is None:
                steps[i], errors[i] = _best_step(W[i], None, 1.0, caps, both_signs, x, cap, edges, stack)
            else:
                weights = importance[i % importance.shape[0]]
                unit_h = power_of_two_above(largest_magnitude(weights, None))
                scale_into(weights, None, unit_h, h)
                steps[i], errors[i] = _best_step(W[i], h, unit_h, caps, both_signs, x, cap, edges, stack)
