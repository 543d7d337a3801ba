"""The exact minimax step of every block over several languages, compiled by numba.

The search of `clip_kernels`, on F(s) = max_λ f_λ(s). Nearest codes minimise each term h·(x − k·s)² whatever h ≥ 0 is,
so they are best for every language at once. All f_λ therefore share their breakpoints, and between two breakpoints F is
a maximum of parabolas, which `minimise_worst_quadratic` minimises exactly.

Two kinds of bounds hold on an interval, and the higher one is used. F ≥ f_λ for every λ, so the highest of the
languages' own bounds holds. And F ≥ Σμ_λf_λ for any weights μ ≥ 0 with sum 1; the sum is the error of one language
with importance Σμ_λh_λ, so it has a bound of the same form. The second is what lets the search end quickly: where the
optimum is a crossing of two languages, each f_λ alone falls below F on one side, and intervals around the crossing
would never be excluded. With μ the multipliers of the best step found, Σμ_λf_λ has its minimum where F has.
"""

import numpy as np
from numba import njit, prange

from fairbits.models.scales.clip_kernels import (
    FAST,
    TINY,
    interval_bound,
    largest_magnitude,
    power_of_two_above,
    scale_into,
    set_caps,
)

_PIECES = 12
_DEPTH = 160


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


@njit(cache=True, fastmath=FAST)
def _language_sums(x, H, cap, s, code, rest, out):  # type: ignore[no-untyped-def]
    """Fills out[0..2, λ] = F, R, C of every language at step s; returns N, the sum of the codes."""
    t, n = 1.0 / s, 0.0
    for j in range(x.size):
        code[j] = min(np.floor(x[j] * t + 0.5), cap[j])
        n += code[j]
        rest[j] = x[j] - code[j] * s
    for lang in range(H.shape[0]):
        f, r, c = 0.0, 0.0, 0.0
        h = H[lang]
        for j in range(x.size):
            f += h[j] * rest[j] * rest[j]
            r += h[j] * code[j] * rest[j]
            c += h[j] * code[j] * code[j]
        out[0, lang], out[1, lang], out[2, lang] = f, r, c
    return n


@njit(cache=True, fastmath=FAST)
def _worst_edge_error(x, H, cap, s, clipped):  # type: ignore[no-untyped-def]
    """Returns the worst language's error from clipping alone (`clipped`), or from the dead zone alone, at step s."""
    worst = 0.0
    for lang in range(H.shape[0]):
        total = 0.0
        for j in range(x.size):
            inside = x[j] if x[j] < 0.5 * s else 0.0
            e = max(x[j] - cap[j] * s, 0.0) if clipped else inside
            total += H[lang, j] * e * e
        worst = max(worst, total)
    return worst


@njit(cache=True)
def _try_piece(s, sums, best):  # type: ignore[no-untyped-def]
    """Returns best = (value, step, p, q, μ), improved by the minimum on the piece of s where that is lower.

    The highest vertex of a language is a lower bound of that minimum, and much cheaper to compute.
    """
    floor = 0.0
    for lang in range(sums.shape[1]):
        if sums[2, lang] > 0.0:
            floor = max(floor, sums[0, lang] - sums[1, lang] * (sums[1, lang] / sums[2, lang]))
        else:
            floor = max(floor, sums[0, lang])
    if floor >= best[0]:
        return best
    move, value, p, q, mu = minimise_worst_quadratic(sums[0], sums[1], sums[2])
    return (value, s + move, p, q, mu) if value < best[0] and s + move > 0.0 else best


@njit(cache=True)
def _worst_bound(a, at_a, b, at_b, p, q, mu):  # type: ignore[no-untyped-def]
    """Returns a lower bound of F on [a, b]: the highest of the languages' bounds and that of μf_p + (1 − μ)f_q."""
    bound = interval_bound(
        a,
        mu * at_a[0, p] + (1.0 - mu) * at_a[0, q],
        mu * at_a[2, p] + (1.0 - mu) * at_a[2, q],
        b,
        mu * at_b[0, p] + (1.0 - mu) * at_b[0, q],
    )
    for lang in range(at_a.shape[1]):
        bound = max(bound, interval_bound(a, at_a[0, lang], at_a[2, lang], b, at_b[0, lang]))
    return bound


@njit(cache=True)
def _bracket(x, H, cap, start, top, best):  # type: ignore[no-untyped-def]
    """Returns a step below which clipping alone costs some language `best`, and one above which the dead zone does."""
    low = start
    while low > TINY and _worst_edge_error(x, H, cap, low, True) < best:
        low *= 0.7
    high = start
    while high < top and _worst_edge_error(x, H, cap, high, False) < best:
        high *= 1.25
    return low, min(high, top)


@njit(cache=True)
def _solve(x, H, cap, top_cap, largest, best, code, rest, sums, steps, counts):  # type: ignore[no-untyped-def]
    """Returns the improved best = (value, step, p, q, μ); sums, steps and counts are a stack of interval ends."""
    start = largest / (top_cap + 0.5)
    _language_sums(x, H, cap, start, code, rest, sums[0])
    best = _try_piece(start, sums[0], best)
    low, high = _bracket(x, H, cap, start, largest, best[0])
    ratio = (high / low) ** (1.0 / _PIECES)
    for i in range(_PIECES + 1):  # the stack holds the ends from the highest (bottom) to the lowest (top)
        at = _PIECES - i
        steps[at] = low * ratio**i
        counts[at] = _language_sums(x, H, cap, steps[at], code, rest, sums[at])
        best = _try_piece(steps[at], sums[at], best)
    size = _PIECES + 1
    while size > 1:
        a, b = steps[size - 1], steps[size - 2]
        middle = 0.5 * (a + b)
        done = counts[size - 1] - counts[size - 2] <= 1.0 or middle <= a or middle >= b or size >= _DEPTH
        bound = 0.0 if done else _worst_bound(a, sums[size - 1], b, sums[size - 2], best[2], best[3], best[4])
        if done or bound >= best[0] * (1.0 - 1e-12):
            size -= 1
            continue
        steps[size], counts[size] = a, counts[size - 1]
        sums[size] = sums[size - 1]
        steps[size - 1] = middle
        counts[size - 1] = _language_sums(x, H, cap, middle, code, rest, sums[size - 1])
        best = _try_piece(middle, sums[size - 1], best)
        size += 1
    return best


@njit(cache=True, parallel=True)
def minimax_steps(W, H, scales, caps, both_signs, steps):  # type: ignore[no-untyped-def]
    """Fills the steps of every row of W (blocks, size); NaN where a row is not finite.

    H is (languages, 1 or columns of blocks, size); block i uses H[:, i % columns]. The error of language λ in block i
    is multiplied by scales[λ, i % scales.shape[1]].
    """
    blocks, size = W.shape
    languages = H.shape[0]
    chunk = max(1, min(16, blocks // 8))
    for task in prange((blocks + chunk - 1) // chunk):
        x, h, cap = np.empty(size), np.empty((languages, size)), np.empty(size)
        code, rest, overall = np.empty(size), np.empty(size), np.empty(size)
        sums, ends, counts = np.empty((_DEPTH + 1, 3, languages)), np.empty(_DEPTH + 1), np.empty(_DEPTH + 1)
        for i in range(task * chunk, min(blocks, (task + 1) * chunk)):
            weight = 0.0
            overall[:] = 0.0
            for lang in range(languages):
                scale = scales[lang, i % scales.shape[1]]
                for j in range(size):
                    h[lang, j] = H[lang, i % H.shape[1], j] * scale
                    overall[j] = max(overall[j], h[lang, j])
                    weight = max(weight, h[lang, j])
            top, largest = max(caps[0], caps[1]), largest_magnitude(W[i], overall)
            unit = power_of_two_above(largest)
            if scale_into(W[i], overall, unit, x) != 0.0:
                steps[i] = np.nan
                continue
            if largest == 0.0:
                steps[i] = largest_magnitude(W[i], None) / top
                continue
            h /= weight
            best, sign = (np.inf, 0.0, np.int64(0), np.int64(0), 1.0), 1.0  # a literal 0 compiles _solve twice
            set_caps(W[i], caps[0], caps[1], cap)
            best = _solve(x, h, cap, top, largest / unit, best, code, rest, sums, ends, counts)
            if both_signs:
                set_caps(W[i], caps[1], caps[0], cap)
                turned = _solve(x, h, cap, top, largest / unit, best, code, rest, sums, ends, counts)
                if turned[0] < best[0]:
                    best, sign = turned, -1.0
            steps[i] = sign * best[1] * unit
