"""The exact clip of groups of weights on a GPU: one Triton program of one warp searches one group.

The search is described in `clip_kernels`, which derives the bound: F, R, C and N at a step, intervals whose bound is
below the best value are divided, and one with at most one breakpoint is done. Here it runs in waves.

**Waves, in float32.** 16 steps are evaluated at a time, each by two lanes of which one takes the first and one the
second half of the weights, so a sum over the group needs one exchange. The weights are read once from memory; the waves
get them from the L1 cache. The first wave is a table of edges over the range in which the optimum may lie. Of its
intervals those that survive the bound share the steps of the next wave, and so on. Where more than half of them
survive, the range is searched in windows of fewer pieces.

**Codes.** A step is given by its inverse t, a number of float32: the step is 1/t, whatever float32 makes of that. The
code of x is the whole number nearest to t·x. `fma(t, x, 1.5·2²³)` rounds once, so it is that number exactly, and so is
the float64 sum, in which t·x is exact. Both precisions therefore see the same codes, those of the step 1/t, and N(a) −
N(b) counts the breakpoints between 1/t(a) and 1/t(b) without error. (If each precision divides on its own, a piece is
sometimes evaluated as its neighbour. That missed the optimum of up to 9 in 100,000 groups of 128.) Codes only fall as
the step grows, so steps with an equal N have equal codes, and no piece is evaluated twice in a wave. N is also counted
in float64. If the two ever differed, the group would be marked as undone.

**Margins.** r = t·x − k is one fused operation, and f(1/t) = Σhr²/t². So F has a relative error of a few u = 2⁻²⁴ per
term, and sums of positive terms keep it. The same holds for C. `float32_margin` bounds both; F is taken too low by it,
C too high. The width of an interval is taken too large by 4u, since float32 holds 1/t to within u. The error of R is at
most margin·√(CF), which makes the vertex F − R²/C wrong by less than 4·margin·F. `least` is what the smallest numbers
of float32 may amount to. What float32 excludes is therefore excluded. An interval down to the spacing of float32 is
done as well: a piece between its ends is narrower than 4u, so its vertex is at most C(2u/t)² ≤ 16u²A below f at the
nearer end, 6e-14 of A = Σhx².

**Values, in float64.** Every piece whose vertex might lie below the best value is evaluated again, with the weights
spread over the lanes and sums in float64. Step and error come from float64 alone.

**Cost.** Groups of 128 Gaussian or heavy-tailed weights need on average 2.7 waves at 4 bits (17 at 8 bits), about 5,000
instructions of a warp: 62.5 M groups (8 B weights) take 0.34 s on 528 schedulers at 1.75 GHz.

Groups that float32 cannot hold (largest weight outside 2⁻³⁰ … 2³⁰, optimum below 2⁻²⁰ of it, more than `MOST_WAVES`
waves) are marked as undone, and the caller searches them on the CPU in float64.
"""

from typing import Any

import torch
import triton  # type: ignore[import-not-found,import-untyped,unused-ignore]
import triton.language as tl  # type: ignore[import-not-found,import-untyped,unused-ignore]
from torch import Tensor

LANES = 32
MOST_WAVES = 512
REGISTERS = 96  # per lane: few enough for 21 warps per multiprocessor, enough for groups of 128
ROUNDING = 2.0**-24  # u, half the spacing of float32 at 1
SMALLEST = 2.0**-126  # the smallest normal number of float32


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _wave(  # type: ignore[no-untyped-def]
    w, h, inverse, s,
    UP: tl.constexpr, DOWN: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr, PARTS: tl.constexpr,
    STEPS: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Returns F, R, C and N in float32 at each of the steps; a lane takes one step and one part of the weights.

    `inverse` defines the steps, s is 1/inverse in float32. The residuals are in units of the step. Chunks of weights
    are summed apart, which keeps rounding low.
    """
    magic: tl.constexpr = 12582912.0  # 1.5·2²³: adding it rounds to a whole number
    none = tl.zeros([PARTS, STEPS], tl.float32)
    at = (tl.arange(0, PARTS) * (SIZE // PARTS))[:, None] + tl.zeros([PARTS, STEPS], tl.int32)
    t, shift = none + inverse[None, :], none + magic
    f, r1, c, n = none, none, none, none
    for start in range(0, SIZE // PARTS, CHUNK):
        f_part, r_part, c_part = none, none, none
        for i in tl.static_range(CHUNK):
            x = tl.load(w + (start + i) + at).to(tl.float32)
            k = tl.fma(t, x, shift) - magic
            k = tl.minimum(tl.maximum(k, -DOWN), UP)
            r = tl.fma(t, x, -k)
            if WEIGHTED:
                weight = tl.load(h + (start + i) + at)
                f_part += (weight * r) * r
                r_part += (weight * k) * r
                c_part += (weight * k) * k
            else:
                f_part += r * r
                r_part += k * r
                c_part += k * k
            n += tl.abs(k)
        f += f_part
        r1 += r_part
        c += c_part
    return tl.sum(f, 0) * (s * s), tl.sum(r1, 0) * s, tl.sum(c, 0), tl.sum(n, 0)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _sums(  # type: ignore[no-untyped-def]
    w, h, s, t, UP: tl.constexpr, DOWN: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr
):
    """Returns F, R and C in float64 and N at the step s = 1/t, with the weights spread over the lanes."""
    magic: tl.constexpr = 6755399441055744.0  # 1.5·2⁵²
    f, r1 = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float64)
    c, n = tl.zeros([BLOCK], tl.float64), tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(w + at, mask=at < SIZE, other=0.0).to(tl.float64)
        k = (x * t + magic) - magic
        k = tl.minimum(tl.maximum(k, -DOWN), UP)
        r = x - k * s
        if WEIGHTED:
            weight = tl.load(h + at, mask=at < SIZE, other=0.0)
            f += weight * r * r
            r1 += weight * k * r
            c += weight * k * k
        else:
            f += r * r
            r1 += k * r
            c += k * k
        n += tl.abs(k.to(tl.float32))
    return tl.sum(f), tl.sum(r1), tl.sum(c), tl.sum(n)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _survey(w, h, SIZE: tl.constexpr, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns the largest magnitude with importance, the largest of all (∞ if one is not finite), and Σhx²."""
    counted, largest = tl.zeros([BLOCK], tl.float32), tl.zeros([BLOCK], tl.float32)
    energy = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.abs(tl.load(w + at, mask=at < SIZE, other=0.0).to(tl.float32))
        largest = tl.maximum(largest, tl.where(x <= 3.4028234663852886e38, x, float("inf")))
        if WEIGHTED:
            weight = tl.load(h + at, mask=at < SIZE, other=0.0)
            x = tl.where(weight > 0.0, x, 0.0)
            energy += weight * x * x
        else:
            energy += x * x
        counted = tl.maximum(counted, x)
    return tl.max(counted), tl.max(largest), tl.sum(energy)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _clip_error(  # type: ignore[no-untyped-def]
    w, h, s, UP: tl.constexpr, DOWN: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr
):
    """Returns the error of the weights beyond the largest level: a lower bound of f(s) that falls with s."""
    total = tl.zeros([BLOCK], tl.float32)
    minus, up, down = total - s, total + UP, total + DOWN
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(w + at, mask=at < SIZE, other=0.0).to(tl.float32)
        e = tl.maximum(tl.maximum(tl.fma(minus, up, x), tl.fma(minus, down, -x)), 0.0)
        total += tl.load(h + at, mask=at < SIZE, other=0.0) * e * e if WEIGHTED else e * e
    return tl.sum(total)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _dead_zone_error(w, h, s, SIZE: tl.constexpr, BLOCK: tl.constexpr, WEIGHTED: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns the error of the weights that round to 0: a lower bound of f(s) that rises with s."""
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, SIZE, BLOCK):
        at = start + tl.arange(0, BLOCK)
        x = tl.load(w + at, mask=at < SIZE, other=0.0).to(tl.float32)
        e = tl.where(2.0 * tl.abs(x) < s, x, 0.0)
        total += tl.load(h + at, mask=at < SIZE, other=0.0) * e * e if WEIGHTED else e * e
    return tl.sum(total)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _try_pieces(  # type: ignore[no-untyped-def]
    w, h, t, f, r, c, n, best, step, best_n, sound, least,
    MARGIN: tl.constexpr, UP: tl.constexpr, DOWN: tl.constexpr, SIZE: tl.constexpr, BLOCK: tl.constexpr,
    WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Returns the improved (best, step, N of its piece), from all pieces of a wave that may be lower than the best.

    And whether both precisions have always seen the same codes.
    """
    vertex = tl.where(c > 0.0, f - r * (r / tl.where(c > 0.0, c, 1.0)), f) - (4.0 * MARGIN + 1e-6) * f
    vertex = tl.where(n == best_n, float("inf"), vertex)
    lowest = tl.min(vertex)
    while lowest.to(tl.float64) < best + least:
        inverse = tl.max(tl.where(vertex == lowest, t, 0.0))
        count = tl.max(tl.where((vertex == lowest) & (t == inverse), n, 0.0))
        exact = inverse.to(tl.float64)
        at = 1.0 / exact
        f1, r1, c1, n1 = _sums(w, h, at, exact, UP, DOWN, SIZE, BLOCK, WEIGHTED)
        sound = sound & (n1 == count)
        move = r1 / tl.where(c1 > 0.0, c1, 1.0)
        better = (c1 > 0.0) & (f1 - r1 * move < best)
        best = tl.where(better, f1 - r1 * move, best)
        step = tl.where(better, at + move, step)
        best_n = tl.where(better, count, best_n)
        vertex = tl.where(n == count, float("inf"), vertex)
        lowest = tl.min(vertex)
    return best, step, best_n, sound


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _survivors(a, fa, ca, na, b, fb, nb, best, least, MARGIN: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns which intervals may hold a value below the best one and have more than one breakpoint.

    `least` is what the smallest numbers of float32 may amount to.
    """
    width = (b - a).to(tl.float64) + 2.384185791015625e-07 * b.to(tl.float64)
    low_a, low_b = fa.to(tl.float64) * (1.0 - MARGIN), fb.to(tl.float64) * (1.0 - MARGIN)
    curve = ca.to(tl.float64) * (1.0 + MARGIN)
    bends = curve * width > 0.0
    u = 0.5 * (width - (low_b - low_a) / tl.where(bends, curve * width, 1.0))
    inside = tl.where(u <= 0.0, low_a, tl.where(u >= width, low_b, low_a - curve * u * u))
    bound = tl.where(bends, inside, tl.minimum(low_a, low_b))
    return (na - nb > 1.5) & (b - a > 1.1920928955078125e-07 * a) & (bound < best + least)


@triton.jit  # type: ignore[untyped-decorator,unused-ignore]
def _place(alive, slot, STEPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Returns the place of the survivor number `slot` (from 0): how many places have at most that many up to them."""
    count = tl.cumsum(alive.to(tl.int32), 0)
    place = slot * 0
    jump: tl.constexpr = STEPS // 2
    for i in tl.static_range(6):
        if jump >> i > 0:
            before = tl.gather(count, place + ((jump >> i) - 1), 0)
            place += tl.where(before <= slot, jump >> i, 0)
    return tl.minimum(place, STEPS - 1)


@triton.jit(do_not_specialize=["columns"])  # type: ignore[untyped-decorator,unused-ignore]
def _search(  # type: ignore[no-untyped-def]
    w_ptr, h_ptr, h32_ptr, steps, errors, undone, columns,
    UP: tl.constexpr, DOWN: tl.constexpr, MARGIN: tl.constexpr,
    SIZE: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr, STEPS: tl.constexpr,
    MOST: tl.constexpr, WEIGHTED: tl.constexpr,
):  # fmt: skip
    """Stores the step and the error of one group, and whether its search is not finished."""
    group = tl.program_id(0).to(tl.int64)
    w = w_ptr + group * SIZE
    h, h32 = h_ptr + (group % columns) * SIZE, h32_ptr + (group % columns) * SIZE
    top: tl.constexpr = max(UP, DOWN)
    largest, anyone, energy = _survey(w, h32, SIZE, BLOCK, WEIGHTED)
    finite = anyone <= 3.4028234663852886e38
    usable = finite & (largest > 9.313225746154785e-10) & (largest < 1073741824.0)
    usable = usable & (anyone < 1.2379400392853803e27 * largest)  # or t·x would not be finite
    reach = tl.where(usable, largest, 1.0)
    least = (reach * reach).to(tl.float64) * (SIZE * 4.70197740328915e-38) + 7.52316384526264e-37
    start = (reach / (top + 0.5)).to(tl.float64)
    f, r, c, _ = _sums(w, h, start, 1.0 / start, UP, DOWN, SIZE, BLOCK, WEIGHTED)
    usable = usable & (c > 0.0)
    move = r / tl.where(c > 0.0, c, 1.0)
    best, step = f - r * move, start + move
    low, high = start.to(tl.float32), start.to(tl.float32)
    cost = _clip_error(w, h32, low, UP, DOWN, SIZE, BLOCK, WEIGHTED).to(tl.float64) * (1.0 - MARGIN) - least
    while usable & (cost < best) & (low > 9.5367431640625e-07 * reach):
        low = low * 0.7
        cost = _clip_error(w, h32, low, UP, DOWN, SIZE, BLOCK, WEIGHTED).to(tl.float64) * (1.0 - MARGIN) - least
    usable = usable & (cost >= best)
    cost = _dead_zone_error(w, h32, high, SIZE, BLOCK, WEIGHTED).to(tl.float64) * (1.0 - MARGIN) - least
    while usable & (cost < best) & (high < reach):
        high = high * 1.25
        cost = _dead_zone_error(w, h32, high, SIZE, BLOCK, WEIGHTED).to(tl.float64) * (1.0 - MARGIN) - least
    here, end = low * 0.999999, tl.minimum(high, reach) * 1.000001
    lane = tl.arange(0, STEPS)
    following = tl.minimum(lane + 1, STEPS - 1)
    best_n, shrink, waves, sound = -1.0 + 0.0 * here, 1.0 + 0.0 * here, 0, here == here
    while usable & (here < end) & (waves < MOST):
        ratio = tl.maximum(best.to(tl.float32), 0.0) / energy
        width = tl.minimum(tl.maximum(2.0 * tl.sqrt(ratio), 0.002), 0.2) * shrink
        span = tl.log(end / here) * 1.00001 + 1e-6
        between = span / tl.ceil(span / ((STEPS - 1) * width)) / (STEPS - 1)
        a = tl.where(lane == 0, here, here * tl.exp(between * lane.to(tl.float32)))
        t = tl.div_rn(1.0, a)
        fa, ra, ca, na = _wave(w, h32, t, a, UP, DOWN, SIZE, CHUNK, PARTS, STEPS, WEIGHTED)
        b, fb, nb = tl.gather(a, following, 0), tl.gather(fa, following, 0), tl.gather(na, following, 0)
        last = tl.max(a)
        best, step, best_n, sound = _try_pieces(
            w, h, t, fa, ra, ca, na, best, step, best_n, sound, least, MARGIN, UP, DOWN, SIZE, BLOCK, WEIGHTED
        )
        alive = _survivors(a, fa, ca, na, b, fb, nb, best, least, MARGIN)
        count = tl.sum(alive.to(tl.int32))
        waves += 1
        while (count > 0) & (2 * count <= STEPS) & (waves < MOST):
            # each surviving interval gets as many steps as there are for it; its lower end is evaluated again
            share = STEPS // count
            slot = lane // share
            part = lane - slot * share
            source = _place(alive, slot, STEPS)
            lower, upper = tl.gather(a, source, 0), tl.gather(b, source, 0)
            f_upper, n_upper = tl.gather(fb, source, 0), tl.gather(nb, source, 0)
            a = lower + (upper - lower) * (part.to(tl.float32) / share.to(tl.float32))
            t = tl.div_rn(1.0, a)
            fa, ra, ca, na = _wave(w, h32, t, a, UP, DOWN, SIZE, CHUNK, PARTS, STEPS, WEIGHTED)
            ends = part == share - 1
            b = tl.where(ends, upper, tl.gather(a, following, 0))
            fb = tl.where(ends, f_upper, tl.gather(fa, following, 0))
            nb = tl.where(ends, n_upper, tl.gather(na, following, 0))
            nb = tl.where(slot < count, nb, na)  # steps without an interval
            best, step, best_n, sound = _try_pieces(
                w, h, t, fa, ra, ca, na, best, step, best_n, sound, least, MARGIN, UP, DOWN, SIZE, BLOCK, WEIGHTED
            )
            alive = _survivors(a, fa, ca, na, b, fb, nb, best, least, MARGIN)
            count = tl.sum(alive.to(tl.int32))
            waves += 1
        here = tl.where(count == 0, last, here)
        shrink = tl.where(count == 0, tl.minimum(2.0 * shrink, 1.0), 0.5 * shrink)
    usable = usable & sound & (here >= end) & (step > 0.0)
    at = tl.where(usable, step, start)
    f, r, c, _ = _sums(w, h, at, 1.0 / at, UP, DOWN, SIZE, BLOCK, WEIGHTED)
    empty = finite & (largest == 0.0)
    tl.store(steps + group, tl.where(empty, anyone.to(tl.float64) / top, at))
    tl.store(errors + group, tl.where(empty, 0.0, f))
    tl.store(undone + group, tl.where(usable | empty, 0, 1).to(tl.int8))


def search_groups(W: Tensor, h: Tensor | None, *, caps: tuple[int, int]) -> tuple[Tensor, Tensor, Tensor]:
    """Returns step and error of every row of W (groups, size) in float64, and whether its search is not finished.

    Row i has the importance h[i % len(h)], scaled to at most 1; None stands for ones. W is contiguous, float32, float16
    or bfloat16. `caps` are the largest codes of positive and of negative weights.
    """
    groups, size = W.shape
    steps, errors = (torch.empty(groups, dtype=torch.float64, device=W.device) for _ in range(2))
    undone = torch.empty(groups, dtype=torch.int8, device=W.device)
    parts = 2 if size % 2 == 0 else 1
    chunk = next(length for length in (16, 8, 4, 2, 1) if size // parts % length == 0)
    weights = W if h is None else h
    # a weight with importance must not lose it in float32
    narrow = weights if h is None else torch.where(h > 0, h.float().clamp(min=SMALLEST), 0.0)
    arguments: tuple[Any, ...] = (W, weights, narrow, steps, errors, undone)
    with torch.cuda.device_of(W):  # type: ignore[no-untyped-call]  # where Triton launches
        _search[(groups,)](
            *arguments,
            1 if h is None else len(h),
            UP=float(caps[0]),
            DOWN=float(caps[1]),
            MARGIN=float32_margin(size, chunk),
            SIZE=size,
            CHUNK=chunk,
            BLOCK=min(256, max(LANES, triton.next_power_of_2(size))),  # of more, float64 would not fit the registers
            PARTS=parts,
            STEPS=LANES // parts,
            MOST=MOST_WAVES,
            WEIGHTED=h is not None,
            num_warps=1,
            maxnreg=REGISTERS,
        )
    return steps, errors, undone != 0


def float32_margin(size: int, chunk: int) -> float:
    """Returns the relative error that F and C may have in float32: of sums in chunks, and of products."""
    return (chunk + size / chunk + 16) * ROUNDING
