"""The exact clip of many groups at once in torch, on any device and in float64; the search is in `group_search`.

It is what a GPU without Triton uses, what groups that the Triton kernel leaves undone are searched with, and on every
GPU the worst of several languages.

The minimum of the highest of several parabolas, for many sets at once, in torch.

Branch and bound on many groups of weights at once in torch: all intervals of all groups are halved level by level.

The functions, the bound and the proof are those of `block_kernels` and `minimax_kernels` in `theory/clipping`; only
the order differs. There one group is searched depth first; here all intervals that may hold a better value are halved
together. Each level costs a few passes over the weights of the groups that have such intervals, and one number that the
host waits for.

Sums are (evaluations, languages); without languages there is one. Groups are ordered by column of blocks, because all
rows share the importance of a column: sums over weights are then matrix products, one per column.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairbits.core.memory import GPU_SEARCHED_WEIGHTS, SEARCHED_WEIGHTS
from fairbits.models.scales.grid import Grid


def minimise_worst_quadratic(energy: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Returns (s, max_λ q_λ(s), p, q, μ) at the minimum over s of max_λ q_λ, q_λ(s) = A − 2sB + s²C.

    All arguments are (n, languages), all results (n,).

    `theory.clipping.kernels.minimise_worst_quadratic` explains the method; here all rows exchange their pairs together,
    and the crossing of two parabolas is a closed form instead of a bisection.

    >>> one, two = torch.tensor([[1.0, 1.0]]), torch.tensor([[1.0, -1.0]])
    >>> [each.tolist() for each in minimise_worst_quadratic(one, two, one)[:2]]
    [[0.0], [1.0]]
    """
    sets = _Parabolas(energy, first, second)
    bent = second > 0
    vertex = first / torch.where(bent, second, 1.0)
    low = torch.where(bent, vertex, torch.inf).amin(1)
    high = torch.where(bent, vertex, -torch.inf).amax(1)
    curved = low <= high
    p, q = sets.highest(torch.where(curved, low, 0.0)), sets.highest(torch.where(curved, high, 0.0))
    s, p, q, mu = sets.minimise_pair(p, q)
    for _ in range(4 * energy.shape[1] + 8):
        i = sets.highest(s)
        new = curved & (i != p) & (i != q)
        if not new.any():
            break
        falls = sets.of(first, i) > s * sets.of(second, i)
        p, q = torch.where(new & falls, i, p), torch.where(new & ~falls, i, q)
        moved, other_p, other_q, other_mu = sets.minimise_pair(p, q)
        s, mu = torch.where(new, moved, s), torch.where(new, other_mu, mu)
        p, q = torch.where(new, other_p, p), torch.where(new, other_q, q)
    value = sets.value(sets.highest(s), s)
    level, constant = torch.where(bent, -torch.inf, energy).max(1)
    flat = ~curved | (level >= value)
    s = torch.where(curved, s, 0.0)
    value = torch.where(flat, level, value)
    p, q, mu = torch.where(flat, constant, p), torch.where(flat, constant, q), torch.where(flat, 1.0, mu)
    return s, value, p, q, mu


class _Parabolas:
    """Rows of parabolas A − 2sB + s²C."""

    def __init__(self, energy: Tensor, first: Tensor, second: Tensor) -> None:
        self.energy, self.first, self.second = energy, first, second

    @staticmethod
    def of(table: Tensor, i: Tensor) -> Tensor:
        return table.gather(1, i[:, None])[:, 0]

    def value(self, i: Tensor, s: Tensor) -> Tensor:
        return self.of(self.energy, i) - 2 * s * self.of(self.first, i) + s * s * self.of(self.second, i)

    def highest(self, s: Tensor) -> Tensor:
        """Returns the parabola with curvature that is the highest at s."""
        at = s[:, None]
        values = self.energy - 2 * at * self.first + at * at * self.second
        return torch.where(self.second > 0, values, -torch.inf).argmax(1)

    def minimise_pair(self, p: Tensor, q: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns (s, p, q, μ) at the minimum of max(q_p, q_q): p falls and q rises there, or both are one."""
        vertex_p, vertex_q = (
            self.of(self.first, i) / torch.where(self.of(self.second, i) > 0, self.of(self.second, i), 1.0)
            for i in (p, q)
        )
        only_p = (p == q) | (self.value(p, vertex_p) >= self.value(q, vertex_p))
        only_q = ~only_p & (self.value(q, vertex_q) >= self.value(p, vertex_q))
        swap = vertex_p < vertex_q
        falling, rising = torch.where(swap, q, p), torch.where(swap, p, q)
        s = self._crossing(falling, rising, torch.minimum(vertex_p, vertex_q), torch.maximum(vertex_p, vertex_q))
        slope_p, slope_q = (s * self.of(self.second, i) - self.of(self.first, i) for i in (falling, rising))
        apart = slope_q - slope_p
        mu = torch.where(apart != 0, slope_q / torch.where(apart != 0, apart, 1.0), 0.5).clamp(0.0, 1.0)
        s = torch.where(only_p, vertex_p, torch.where(only_q, vertex_q, s))
        return (
            s,
            torch.where(only_q, q, torch.where(only_p, p, falling)),
            torch.where(only_p, p, torch.where(only_q, q, rising)),
            torch.where(only_p | only_q, 1.0, mu),
        )

    def _crossing(self, p: Tensor, q: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Returns where q_p − q_q, positive at `low` and negative at `high`, is 0: a closed form, repeated."""
        first = self.of(self.first, p) - self.of(self.first, q)
        second = self.of(self.second, p) - self.of(self.second, q)
        s = 0.5 * (low + high)
        for _ in range(4):
            height = self.value(p, s) - self.value(q, s)
            slope = 2 * (s * second - first)
            root = torch.sqrt((slope * slope - 4 * second * height).clamp(min=0))
            under = slope - root  # the slope at the crossing is −root
            move = torch.where(under != 0, -2 * height / torch.where(under != 0, under, 1.0), 0.0)
            s = torch.minimum(torch.maximum(s + move, low), high)
        return s


_TINY = 1e-200
_MOST_PIECES = 255
_MINIMAX_PIECES = 12
_WIDTH = 2.0


@dataclass(frozen=True, eq=False)
class Groups:
    """Normalised magnitudes x (groups, size), their largest codes, and their importance.

    `H` is (columns, size, languages), `column` that of each group, in ascending order, and `factor` (groups, languages)
    multiplies the sums of a group; an `H` of None stands for ones and one language.
    """

    x: Tensor
    cap: Tensor
    top: float
    offset: float
    H: Tensor | None
    column: Tensor
    factor: Tensor

    @property
    def languages(self) -> int:
        return self.factor.shape[1]

    def weighted(self, values: Tensor, at: Tensor) -> Tensor:
        """Returns Σ_j h_j v_j of every language, for values (n, size) of the groups `at`."""
        if self.H is None:
            return values.sum(1, keepdim=True)
        column = self.column[at]
        if len(self.H) == 1:
            sums = values @ self.H[0]
        elif self.languages == 1:
            sums = torch.linalg.vecdot(values, self.H[column, :, 0])[:, None]
        else:
            counts = torch.bincount(column, minlength=len(self.H))
            place = torch.arange(len(at), device=at.device) - (counts.cumsum(0) - counts)[column]
            padded = values.new_zeros(len(self.H), int(counts.max()), values.shape[1])
            padded[column, place] = values
            sums = torch.bmm(padded, self.H)[column, place]
        return sums * self.factor[at]

    def sums(self, at: Tensor, s: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns F, R, C, each (n, languages), and N of the groups `at`, each at a step of its own."""
        found: list[tuple[Tensor, ...]] = []
        for group, step in self._parts(at, s):
            x = self.x[group]
            code = torch.minimum(torch.floor(x * (1.0 / step)[:, None] + (0.5 - self.offset)), self._caps(group))
            n = code.sum(1)
            k = code.add_(self.offset)
            r = torch.addcmul(x, k, step[:, None], value=-1)
            found.append(
                (self.weighted(r * r, group), self.weighted(k * r, group), self.weighted(k.square_(), group), n)
            )
        f, r1, c, n = (torch.cat(each) for each in zip(*found, strict=True))
        return f, r1, c, n

    def clip_error(self, at: Tensor, s: Tensor) -> Tensor:
        """Returns the worst language's error of the weights beyond the largest level."""
        return torch.cat(
            [
                self.weighted((self.x[i] - (self._caps(i) + self.offset) * step[:, None]).clamp_(min=0).square_(), i)
                for i, step in self._parts(at, s)
            ]
        ).amax(1)

    def dead_zone_error(self, at: Tensor, s: Tensor) -> Tensor:
        """Returns the worst language's error of the weights that round to 0; on the midrise grid see the kernels."""
        found = []
        for group, step in self._parts(at, s):
            x, edge = self.x[group], step[:, None] * (0.25 if self.offset else 0.5)
            inside = torch.where(x < edge, edge if self.offset else x, 0.0)
            found.append(self.weighted(inside.square(), group))
        return torch.cat(found).amax(1)

    def _caps(self, at: Tensor) -> Tensor:
        return self.cap if self.cap.numel() == 1 else self.cap[at]

    def _parts(self, at: Tensor, s: Tensor) -> list[tuple[Tensor, Tensor]]:
        room = GPU_SEARCHED_WEIGHTS if at.is_cuda else SEARCHED_WEIGHTS
        rows = max(1, room // self.x.shape[1])
        return list(zip(torch.split(at, rows), torch.split(s, rows), strict=True))


@dataclass(eq=False)
class Best:
    """The lowest value found for each group, its step, and the two languages (p with μ, q with 1 − μ) that set it."""

    value: Tensor
    step: Tensor
    p: Tensor
    q: Tensor
    mu: Tensor

    @classmethod
    def none(cls, groups: int, device: torch.device) -> "Best":
        whole = torch.zeros(groups, dtype=torch.int64, device=device)
        numbers = torch.zeros(groups, dtype=torch.float64, device=device)
        return cls(numbers + math.inf, numbers, whole, whole, numbers + 1.0)

    def try_pieces(self, at: Tensor, s: Tensor, f: Tensor, r: Tensor, c: Tensor) -> None:
        """Takes over what the pieces of the steps s of the groups `at` have below the best values."""
        bent = c > 0
        safe = torch.where(bent, c, 1.0)
        floor = torch.where(bent, f - r * (r / safe), f).amax(1)
        if f.shape[1] == 1:
            floor = torch.where(bent[:, 0], floor, math.inf)
            self._take(at, floor, s + (r / safe)[:, 0])
            return
        low = (floor < self.value[at]).nonzero()[:, 0]
        if len(low):
            move, value, p, q, mu = minimise_worst_quadratic(f[low], r[low], c[low])
            moved = s[low] + move
            self._take(at[low], torch.where(moved > 0, value, math.inf), moved, p, q, mu)

    def _take(
        self,
        at: Tensor,
        value: Tensor,
        step: Tensor,
        p: Tensor | None = None,
        q: Tensor | None = None,
        mu: Tensor | None = None,
    ) -> None:
        lowest = self.value.scatter_reduce(0, at, value, "amin")
        place = torch.arange(len(at), device=at.device)
        wins = (value == lowest[at]) & (value < self.value[at])
        first = torch.full_like(self.p, len(at)).scatter_reduce(0, at, torch.where(wins, place, len(at)), "amin")
        better, source = first < len(at), first.clamp(max=len(at) - 1)
        self.value, self.step = lowest, torch.where(better, step[source], self.step)
        if p is not None and q is not None and mu is not None:
            self.p, self.q = torch.where(better, p[source], self.p), torch.where(better, q[source], self.q)
            self.mu = torch.where(better, mu[source], self.mu)


@dataclass(frozen=True, eq=False)
class _Intervals:
    """Intervals [a, b] of the groups `at`, with F, C and N at their ends."""

    at: Tensor
    a: Tensor
    fa: Tensor
    ca: Tensor
    na: Tensor
    b: Tensor
    fb: Tensor
    cb: Tensor
    nb: Tensor

    def __getitem__(self, index: Tensor) -> "_Intervals":
        return _Intervals(*(each[index] for each in self._fields()))

    def _fields(self) -> tuple[Tensor, ...]:
        return self.at, self.a, self.fa, self.ca, self.na, self.b, self.fb, self.cb, self.nb

    def alive(self, best: Best) -> Tensor:
        """Returns which may hold a value below the best and have more than one breakpoint."""
        middle = 0.5 * (self.a + self.b)
        bound = interval_bound(self.a[:, None], self.fa, self.ca, self.b[:, None], self.fb).amax(1)
        if self.fa.shape[1] > 1:
            p, q = best.p[self.at][:, None], best.q[self.at][:, None]
            mu = best.mu[self.at]
            fa, ca, fb = (
                mu * each.gather(1, p)[:, 0] + (1.0 - mu) * each.gather(1, q)[:, 0]
                for each in (self.fa, self.ca, self.fb)
            )
            bound = torch.maximum(bound, interval_bound(self.a, fa, ca, self.b, fb))
        below = bound < best.value[self.at] * (1.0 - 1e-12)
        return below & (self.na - self.nb > 1.0) & (middle > self.a) & (middle < self.b)

    def halves(self, middle: Tensor, f: Tensor, c: Tensor, n: Tensor) -> "_Intervals":
        """Returns the lower and the upper half of each, in order."""
        lower = (self.at, self.a, self.fa, self.ca, self.na, middle, f, c, n)
        upper = (self.at, middle, f, c, n, self.b, self.fb, self.cb, self.nb)
        return _Intervals(*(torch.stack(pair, 1).flatten(0, 1) for pair in zip(lower, upper, strict=True)))


def interval_bound(a: Tensor, fa: Tensor, ca: Tensor, b: Tensor, fb: Tensor) -> Tensor:
    """Returns a lower bound of f on [a, b], as `block_kernels` derives it."""
    width = b - a
    bend = ca * width
    u = 0.5 * (width - (fb - fa) / torch.where(bend > 0, bend, 1.0))
    inside = torch.where(u <= 0, fa, torch.where(u >= width, fb, fa - ca * u * u))
    return torch.where(bend > 0, inside, torch.minimum(fa, fb))


def search(groups: Groups, largest: Tensor, best: Best) -> None:
    """Improves the best values; `largest` is the largest normalised magnitude of each group."""
    everyone = torch.arange(len(groups.x), device=groups.x.device)
    energy = groups.clip_error(everyone, torch.zeros_like(largest))
    start = largest / (groups.top + 0.5 + groups.offset)
    while groups.offset:  # a value far above Σhx² would cancel
        high = groups.dead_zone_error(everyone, start) > energy
        if not high.any():
            break
        start = torch.where(high, 0.5 * start, start)
    f, r, c, _ = groups.sums(everyone, start)
    best.try_pieces(everyone, start, f, r, c)
    alone = groups.languages == 1
    at = (best.value > 1e-30 * energy).nonzero()[:, 0] if alone else everyone
    if not len(at):
        return
    low, high = _bracket(groups, at, start[at], largest[at] * (2.0 if groups.offset else 1.0), best.value[at])
    span = torch.log(high / low)
    if alone:
        width = (_WIDTH * torch.sqrt(best.value[at] / energy[at])).clamp(0.002, 0.2)
        pieces = torch.ceil(span / width).clamp(4, _MOST_PIECES).long()
    else:
        pieces = torch.full_like(at, _MINIMAX_PIECES)
    _halve(groups, _edges(groups, at, low, span=span, pieces=pieces, best=best), best)


def _bracket(groups: Groups, at: Tensor, start: Tensor, top: Tensor, best: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a step below which clipping alone costs `best`, and one above which the dead zone does."""
    low, high = start.clone(), start.clone()
    going = torch.arange(len(at), device=at.device)
    while len(going):
        short = (groups.clip_error(at[going], low[going]) < best[going]) & (low[going] > _TINY)
        going = going[short]
        low[going] *= 0.7
    going = torch.arange(len(at), device=at.device)
    while len(going):
        short = (groups.dead_zone_error(at[going], high[going]) < best[going]) & (high[going] < top[going])
        going = going[short]
        high[going] *= 1.25
    return low, torch.minimum(high, top)


def _edges(groups: Groups, at: Tensor, low: Tensor, *, span: Tensor, pieces: Tensor, best: Best) -> _Intervals:
    """Returns the intervals of each group's range, cut into pieces of equal ratio."""
    counts = pieces + 1
    own = torch.repeat_interleave(torch.arange(len(at), device=at.device), counts)
    place = torch.arange(len(own), device=at.device) - (counts.cumsum(0) - counts)[own]
    s = low[own] * torch.exp(span[own] * place / pieces[own])
    group = at[own]
    f, r, c, n = groups.sums(group, s)
    best.try_pieces(group, s, f, r, c)
    lower = (place < pieces[own]).nonzero()[:, 0]
    upper = lower + 1
    return _Intervals(group[lower], s[lower], f[lower], c[lower], n[lower], s[upper], f[upper], c[upper], n[upper])


def _halve(groups: Groups, intervals: _Intervals, best: Best) -> None:
    """Halves the intervals that may hold a better value until there are none."""
    while True:
        intervals = intervals[intervals.alive(best).nonzero()[:, 0]]
        if not len(intervals.at):
            return
        middle = 0.5 * (intervals.a + intervals.b)
        f, r, c, n = groups.sums(intervals.at, middle)
        best.try_pieces(intervals.at, middle, f, r, c)
        intervals = intervals.halves(middle, f, c, n)


def exact_steps(W: Tensor, h: Tensor | None, *, grid: Grid, signed: bool = False) -> tuple[Tensor, Tensor]:
    """Returns the exact step and its error of every row of W (groups, size), in float64.

    Row i has the importance h[i % len(h)]; None stands for ones. Rows that are not finite get NaN. Where no weight with
    importance differs from 0, the step represents the largest weight (on the midrise grid it is 0).

    >>> exact_steps(torch.tensor([[0.5, 1.0, -0.25, 0.75]]), None, grid=Grid(4))[1].tolist()
    [0.0]
    """
    own = None if h is None else h.double()
    ranges = _row_ranges(W, 1 if h is None else len(h))
    found = [_steps_of_rows(W[i : i + n], own, grid=grid, signed=signed) for i, n in ranges]
    return torch.cat([step for step, _ in found]), torch.cat([error for _, error in found])


def minimax_steps(W: Tensor, H: Tensor, *, scales: Tensor, grid: Grid, signed: bool = False) -> Tensor:
    """Returns the step of every row of W (groups, size) with the lowest max_λ scales_λ Σ_j h_j(λ)(w_j − Q(w_j))².

    `H` is (languages, columns, size), of which row i uses column i % columns; `scales` is (languages, groups), or
    (languages, 1) for all groups.
    """
    found = []
    for i, n in _row_ranges(W, H.shape[1]):
        own = scales[:, i : i + n] if scales.shape[1] > 1 else scales
        found.append(_minimax_of_rows(W[i : i + n], H.double(), own.double(), grid=grid, signed=signed))
    return torch.cat(found)


def _row_ranges(W: Tensor, columns: int) -> list[tuple[int, int]]:
    """Returns the start and the length of parts of W, whole rows of `columns` groups each."""
    room = GPU_SEARCHED_WEIGHTS if W.is_cuda else SEARCHED_WEIGHTS
    rows = max(1, room // (W.shape[1] * columns)) * columns
    return [(start, min(rows, len(W) - start)) for start in range(0, len(W), rows)]


def power_of_two_above(largest: Tensor) -> Tensor:
    """Returns the power of two just above each number, limited so that it and its inverse are normal numbers."""
    return torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent.clamp(-1021, 1021))


def _by_column(groups: int, columns: int, device: torch.device) -> Tensor:
    """Returns the numbers of the groups in the order of their columns."""
    return torch.arange(groups, device=device).reshape(-1, columns).T.flatten()


def _steps_of_rows(W: Tensor, h: Tensor | None, *, grid: Grid, signed: bool) -> tuple[Tensor, Tensor]:
    columns = 1 if h is None else len(h)
    order = _by_column(len(W), columns, W.device)
    weights, column = W[order].double(), order % columns
    unit_h = torch.ones(columns, dtype=torch.float64, device=W.device)
    if h is not None:
        unit_h = power_of_two_above(h.amax(1))
        h = h / unit_h[:, None]
    absolute = weights.abs()
    x = absolute if h is None else torch.where(h[column] > 0, absolute, 0.0)
    largest, finite = x.amax(1), torch.isfinite(weights).all(1)
    unit = power_of_two_above(largest)
    searched = (finite & (largest > 0)).nonzero()[:, 0]
    top = max(grid.caps)
    step = absolute.amax(1) / top if grid.offset == 0 else torch.zeros_like(largest)
    step = torch.where(finite, step, math.nan)
    error = torch.where(finite, 0.0, step)
    if len(searched):
        own = _prepared(weights, x / unit[:, None], searched, column, grid, None if h is None else h[:, :, None])
        found, value = _either_sign(own, weights[searched], (largest / unit)[searched], grid=grid, signed=signed)
        step[searched] = found * unit[searched]
        error[searched] = value * unit[searched] * unit_h[column[searched]] * unit[searched]
    back = torch.argsort(order)
    return step[back], error[back]


def _prepared(
    weights: Tensor,
    x: Tensor,
    searched: Tensor,
    column: Tensor,
    grid: Grid,
    H: Tensor | None,
    factor: Tensor | None = None,
) -> Groups:
    cap = _caps_of(weights[searched], grid.caps)
    ones = torch.ones(len(searched), 1, dtype=torch.float64, device=x.device)
    return Groups(
        x[searched], cap, max(grid.caps), grid.offset, H, column[searched], ones if factor is None else factor
    )


def _caps_of(weights: Tensor, caps: tuple[int, int]) -> Tensor:
    """Returns the largest code of every weight: the first cap for positive ones, the second for the others."""
    up, down = (torch.tensor(float(cap), dtype=torch.float64, device=weights.device) for cap in caps)
    return up[None, None] if caps[0] == caps[1] else torch.where(weights > 0, up, down)


def _either_sign(
    groups: Groups, weights: Tensor, largest: Tensor, *, grid: Grid, signed: bool
) -> tuple[Tensor, Tensor]:
    """Returns the signed step and the error at it, in normalised units."""
    best = Best.none(len(largest), largest.device)
    search(groups, largest, best)
    sign, chosen = torch.ones_like(largest), groups
    if signed:
        before = best.value
        other = replace(groups, cap=_caps_of(weights, (grid.caps[1], grid.caps[0])))
        search(other, largest, best)
        turned = best.value < before
        sign = torch.where(turned, -1.0, sign)
        cap = torch.where(turned[:, None], other.cap, groups.cap)
        chosen = replace(groups, cap=cap)
    if groups.languages > 1:
        return sign * best.step, best.value
    step, error = _polish(chosen, best.step)
    return sign * step, error


def _polish(groups: Groups, step: Tensor) -> tuple[Tensor, Tensor]:
    """Returns each step, or the vertex of its piece where that is lower, and the directly summed error at it."""
    at = torch.arange(len(step), device=step.device)
    vanished = step <= 0
    safe = torch.where(vanished, 1.0, step)
    f, r, c, _ = groups.sums(at, safe)
    moved = safe + torch.where(c > 0, r / torch.where(c > 0, c, 1.0), 0.0)[:, 0]
    usable = moved > 0
    g = groups.sums(at, torch.where(usable, moved, safe))[0][:, 0]
    lower = usable & (g < f[:, 0])
    found, value = torch.where(lower, moved, safe), torch.where(lower, g, f[:, 0])
    if vanished.any():
        value = torch.where(vanished, groups.clip_error(at, torch.zeros_like(step)), value)
    return torch.where(vanished, 0.0, found), value


def _minimax_of_rows(W: Tensor, H: Tensor, scales: Tensor, *, grid: Grid, signed: bool) -> Tensor:
    languages, columns, _ = H.shape
    order = _by_column(len(W), columns, W.device)
    weights, column = W[order].double(), order % columns
    unit_h = power_of_two_above(H.amax((0, 2)))
    parts = H / unit_h[None, :, None]
    factor = scales.T.expand(len(W), languages)[order]
    absolute, counted = weights.abs(), (parts > 0).any(0)
    x = torch.where(counted[column], absolute, 0.0)
    largest, finite = x.amax(1), torch.isfinite(weights).all(1)
    unit = power_of_two_above(largest)
    searched = (finite & (largest > 0)).nonzero()[:, 0]
    top = max(grid.caps)
    step = absolute.amax(1) / top if grid.offset == 0 else torch.zeros_like(largest)
    step = torch.where(finite, step, math.nan)
    if len(searched):
        # the largest product of importance and scale becomes 1
        peak = (parts.amax(2).T[column] * factor).amax(1, keepdim=True)
        own = (factor / peak)[searched]
        groups = _prepared(weights, x / unit[:, None], searched, column, grid, parts.permute(1, 2, 0).contiguous(), own)
        found, _ = _either_sign(groups, weights[searched], (largest / unit)[searched], grid=grid, signed=signed)
        step[searched] = found * unit[searched]
    return step[torch.argsort(order)]
