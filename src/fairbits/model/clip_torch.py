"""The exact clip of many groups at once in torch, on any device and in float64; the search is in `group_search`.

It is what a GPU without Triton uses, what groups that the Triton kernel leaves undone are searched with, and on every
GPU the worst of several languages.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor

from fairbits.memory import GPU_SEARCHED_WEIGHTS, SEARCHED_WEIGHTS
from fairbits.model.group_search import Best, Groups, search
from fairbits.theory.grid import Grid


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
