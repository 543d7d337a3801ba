"""The minimum of the highest of several parabolas, for many sets at once, in torch."""

import torch
from torch import Tensor


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
