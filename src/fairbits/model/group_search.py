"""Branch and bound on many groups of weights at once in torch: all intervals of all groups are halved level by level.

The functions, the bound and the proof are those of `block_kernels` and `minimax_kernels` in `theory/clipping`; only
the order differs. There one group is searched depth first; here all intervals that may hold a better value are halved
together. Each level costs a few passes over the weights of the groups that have such intervals, and one number that the
host waits for.

Sums are (evaluations, languages); without languages there is one. Groups are ordered by column of blocks, because all
rows share the importance of a column: sums over weights are then matrix products, one per column.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from fairbits.memory import GPU_SEARCHED_WEIGHTS, SEARCHED_WEIGHTS
from fairbits.model.worst_quadratic import minimise_worst_quadratic

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
