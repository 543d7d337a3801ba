"""The exact minimax step of one block over several languages, compiled by numba.

The search of `block_kernels`, on F(s) = max_λ f_λ(s). Nearest codes minimise each term h·(x − k·s)² whatever h ≥ 0 is,
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

from fairbits.models.scales.block_kernels import _interval_bound, _largest, _scale_into, _set_caps, _unit
from fairbits.models.scales.clip_kernels import FAST, TINY, minimise_worst_quadratic

_PIECES = 12
_DEPTH = 160


@njit(cache=True, fastmath=FAST)
def _language_sums(x, H, cap, offset, s, code, rest, out):  # type: ignore[no-untyped-def]
    """Fills out[0..2, λ] = F, R, C of every language at step s; returns N, the sum of the codes."""
    t, n = 1.0 / s, 0.0
    for j in range(x.size):
        k = min(np.floor(x[j] * t + (0.5 - offset)), cap[j])
        n += k
        code[j] = k + offset
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
def _worst_edge_error(x, H, cap, offset, s, clipped):  # type: ignore[no-untyped-def]
    """Returns the worst language's error from clipping alone (`clipped`), or from the dead zone alone, at step s."""
    worst = 0.0
    edge = 0.25 * s if offset > 0.0 else 0.5 * s
    for lang in range(H.shape[0]):
        total = 0.0
        for j in range(x.size):
            inside = (edge if offset > 0.0 else x[j]) if x[j] < edge else 0.0
            e = max(x[j] - (cap[j] + offset) * s, 0.0) if clipped else inside
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
    bound = _interval_bound(
        a,
        mu * at_a[0, p] + (1.0 - mu) * at_a[0, q],
        mu * at_a[2, p] + (1.0 - mu) * at_a[2, q],
        b,
        mu * at_b[0, p] + (1.0 - mu) * at_b[0, q],
    )
    for lang in range(at_a.shape[1]):
        bound = max(bound, _interval_bound(a, at_a[0, lang], at_a[2, lang], b, at_b[0, lang]))
    return bound


@njit(cache=True)
def _bracket(x, H, cap, offset, start, top, best):  # type: ignore[no-untyped-def]
    """Returns a step below which clipping alone costs some language `best`, and one above which the dead zone does."""
    low = start
    while low > TINY and _worst_edge_error(x, H, cap, offset, low, True) < best:
        low *= 0.7
    high = start
    while high < top and _worst_edge_error(x, H, cap, offset, high, False) < best:
        high *= 1.25
    return low, min(high, top)


@njit(cache=True)
def _solve(x, H, cap, top_cap, offset, largest, best, code, rest, sums, steps, counts):  # type: ignore[no-untyped-def]
    """Returns the improved best = (value, step, p, q, μ); sums, steps and counts are a stack of interval ends."""
    start = largest / (top_cap + 0.5 + offset)
    energy = _worst_edge_error(x, H, cap, offset, 0.0, True)
    while offset > 0.0 and _worst_edge_error(x, H, cap, offset, start, False) > energy:
        start *= 0.5  # a value far above Σhx² would cancel
    _language_sums(x, H, cap, offset, start, code, rest, sums[0])
    best = _try_piece(start, sums[0], best)
    low, high = _bracket(x, H, cap, offset, start, largest * (2.0 if offset > 0.0 else 1.0), best[0])
    ratio = (high / low) ** (1.0 / _PIECES)
    for i in range(_PIECES + 1):  # the stack holds the ends from the highest (bottom) to the lowest (top)
        at = _PIECES - i
        steps[at] = low * ratio**i
        counts[at] = _language_sums(x, H, cap, offset, steps[at], code, rest, sums[at])
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
        counts[size - 1] = _language_sums(x, H, cap, offset, middle, code, rest, sums[size - 1])
        best = _try_piece(middle, sums[size - 1], best)
        size += 1
    return best


@njit(cache=True, parallel=True)
def minimax_steps(W, H, scales, caps, offset, both_signs, steps, errors, multipliers):  # type: ignore[no-untyped-def]
    """Fills steps, errors (blocks, languages) and multipliers (blocks, languages) for every row of W.

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
            top, largest = max(caps[0], caps[1]), _largest(W[i], overall)
            unit = _unit(largest)
            if _scale_into(W[i], overall, unit, x) != 0.0:
                steps[i] = np.nan
                continue
            if largest == 0.0:
                steps[i] = _largest(W[i], None) / top if offset == 0.0 else 0.0
                errors[i], multipliers[i] = 0.0, 0.0
                multipliers[i, 0] = 1.0
                continue
            h /= weight
            best, sign = (np.inf, 0.0, np.int64(0), np.int64(0), 1.0), 1.0  # a literal 0 compiles _solve twice
            _set_caps(W[i], caps[0], caps[1], cap)
            best = _solve(x, h, cap, top, offset, largest / unit, best, code, rest, sums, ends, counts)
            if both_signs:
                _set_caps(W[i], caps[1], caps[0], cap)
                other = _solve(x, h, cap, top, offset, largest / unit, best, code, rest, sums, ends, counts)
                if other[0] < best[0]:
                    best, sign = other, -1.0
                else:
                    _set_caps(W[i], caps[0], caps[1], cap)
            _language_sums(x, h, cap, offset, best[1], code, rest, sums[0])
            steps[i] = sign * best[1] * unit
            multipliers[i] = 0.0
            multipliers[i, best[2]] += best[4]
            multipliers[i, best[3]] += 1.0 - best[4]
            for lang in range(languages):
                scale = scales[lang, i % scales.shape[1]]
                errors[i, lang] = sums[0, 0, lang] * unit * (weight / scale) * unit if scale > 0.0 else 0.0
