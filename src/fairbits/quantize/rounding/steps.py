"""The steps of a linear map, as its treatment says, in the type that is stored."""

import numpy as np
import torch
from torch import Tensor

from fairbits.checks import Floats, nonnegative_array, weights_vector
from fairbits.errors import InputError
from fairbits.quantize.plan import Group, Treatment
from fairbits.theory.clipping.blocks import clip_blocks, minimax_blocks
from fairbits.theory.clipping.exact import minimax_sample
from fairbits.theory.clipping.formulas import SEED_CONSTANTS, banner_gaussian, banner_laplace
from fairbits.theory.grid import Grid

Notes = tuple[str, ...]

LARGEST_TABLE = 2**27
"""Numbers (languages × weights) up to which one step of a whole tensor is sought for the worst language: 1 GiB."""


def steps_for(
    W: Tensor,
    treatment: Treatment,
    *,
    importance: Floats | None = None,
    pi: Floats | None = None,
    dtype: torch.dtype,
) -> tuple[Tensor, Notes]:
    """Returns the step of every group of W as (out, groups) in `dtype`, and notes on whatever was not done as asked.

    `importance` is h_j(λ) = E_λ[x_j²], (languages, in), and `pi` the weights of the languages (None: all alike). The
    exact clip minimises Σ_j h_j (w_j − Q(w_j))², with
    None, "mean"       h̄ = Σ_λ π_λ h(λ) / mean_j h_j(λ), so that loud languages do not win by loudness
    "worst", "regret"  the worst of all languages with π > 0
    One step for a whole tensor comes as (out, 1), all alike: so it is stored.

    >>> W = torch.tensor([[0.7, -0.35, 0.1]])
    >>> steps_for(W, Treatment("w", 0, "q", 4, grid="symmetric", clip="absmax"), dtype=torch.float32)[0]
    tensor([[0.1000]])
    """
    if treatment.bits is None:
        raise InputError(f"{treatment.name} is kept as it is; it has no steps")
    notes: Notes = ()
    grid, blocks = Grid(treatment.bits, treatment.grid), _blocks(W.float().cpu(), treatment.group)
    if treatment.clip == "exact":
        steps, notes = _exact(blocks, treatment, grid, importance=_importance(treatment, importance), pi=pi)
    elif treatment.clip == "absmax":
        steps = _absmax(blocks, grid)
    else:
        steps, notes = _closed_form(blocks, treatment, grid)
    stored, rounding = _stored(steps, dtype)
    return (stored.expand(W.shape[0], 1).contiguous() if treatment.group == "tensor" else stored), (*notes, *rounding)


def _blocks(W: Tensor, group: Group) -> Tensor:
    """Returns W (out, in) as (out, groups, weights that share a step); a tensor as one row of one group."""
    if group == "tensor":
        return W.reshape(1, 1, -1)
    if group == "channel":
        return W[:, None]
    if W.shape[1] % int(group):
        raise InputError(
            f"rows of {W.shape[1]} weights cannot be cut into groups of {group}; "
            "the group must divide the inputs of every layer: choose a smaller one, or one step per channel"
        )
    return W.reshape(W.shape[0], -1, int(group))


def _absmax(blocks: Tensor, grid: Grid) -> Tensor:
    """Returns max|w| / n, on the twos grid max|w| / (n + ½): the highest code rounds down by half a step at most."""
    return blocks.abs().amax(2).double() / (grid.highest + (0.5 if grid.kind == "twos" else 0.0))


def _closed_form(blocks: Tensor, treatment: Treatment, grid: Grid) -> tuple[Tensor, Notes]:
    """Returns α(σ), α(b) or α(σ, κ) of every block, divided as the grid divides it."""
    notes: list[str] = []
    away = blocks - blocks.mean(2, keepdim=True, dtype=torch.float64).float()
    sigma = away.square().mean(2, dtype=torch.float64).sqrt()
    if treatment.clip == "gaussian":
        alpha = banner_gaussian(1.0, grid.bits) * sigma
    elif treatment.clip == "laplace":
        alpha = banner_laplace(1.0, grid.bits) * away.abs().mean(2, dtype=torch.float64)
    else:
        c, d = SEED_CONSTANTS
        unit = torch.where(sigma > 0, sigma, 1.0)[..., None].float()  # fourth powers stay in range
        kappa = away.div_(unit).pow_(4).mean(2, dtype=torch.float64) - 3
        below = int((kappa[sigma > 0] < 0).sum())
        if below:
            notes.append(f"κ is below 0 in {below} of {kappa.numel()} blocks: taken as max(0, κ), as 003-13 has it")
        alpha = sigma * (c + d * torch.log1p(kappa.clamp(min=0)))
    flat = (sigma == 0) & (blocks != 0).any(2)
    if flat.any():
        notes.append(f"all weights are alike in {int(flat.sum())} of {flat.numel()} blocks: there the largest is kept")
    return torch.where(flat, _absmax(blocks, grid), alpha / grid.steps_per_alpha), tuple(notes)


def _exact(
    blocks: Tensor, treatment: Treatment, grid: Grid, *, importance: Floats | None, pi: Floats | None
) -> tuple[Tensor, Notes]:
    out, groups, size = blocks.shape
    W = blocks.reshape(out, -1).numpy()
    if importance is None:
        return torch.from_numpy(clip_blocks(W, grid, group=size).step), ()
    share = weights_vector("pi", np.ones(len(importance)) if pi is None else pi, size=len(importance))
    if treatment.group != "tensor" and importance.shape[1] != W.shape[1]:
        raise InputError(f"importance has shape {importance.shape} but W is {W.shape}; its rows must match W's inputs")
    counts, silent = share > 0, ~importance.any(axis=1)
    notes: Notes = ()
    if (counts & silent).any():
        left = counts & ~silent
        notes = (f"its input is 0 in {int((counts & silent).sum())} of {int(counts.sum())} languages, left out here",)
        if not left.any():
            return _absmax(blocks, grid), ("its input is 0 everywhere: the largest weight is a level",)
        counts = left
    counted = importance[counts] / importance[counts].mean(axis=1, keepdims=True)
    if treatment.objective in (None, "mean"):
        h = share[counts] @ counted
        steps = clip_blocks(W, grid, group=size, importance=np.resize(h, W.shape[1])).step
    elif treatment.group == "tensor":
        steps = _worst_of_tensor(W[0], counted, treatment, grid)
    else:
        steps = minimax_blocks(W, grid, group=size, importance=counted, objective=str(treatment.objective)).step
    return torch.from_numpy(steps.reshape(out, groups)), notes


def _worst_of_tensor(w: np.ndarray, importance: Floats, treatment: Treatment, grid: Grid) -> Floats:
    if not w.any():
        return np.zeros((1, 1))
    if len(importance) * w.size > LARGEST_TABLE:
        raise InputError(
            f"{treatment.name} has {w.size:,} weights; one step for all of them and the worst of {len(importance)} "
            f"languages is sought up to {LARGEST_TABLE // len(importance):,}: take one step per channel or group"
        )
    tiled = np.tile(importance, w.size // importance.shape[1])
    found = minimax_sample(w, grid, importance=tiled, relative=treatment.objective == "regret")
    return np.full((1, 1), found.step)


def _importance(treatment: Treatment, importance: Floats | None) -> Floats | None:
    if importance is None and treatment.objective is not None:
        raise InputError(f"{treatment.name} weighs languages ({treatment.objective}); E[x²] of its input must be given")
    return None if importance is None else nonnegative_array("importance", importance, ndim=2)


def _stored(steps: Tensor, dtype: torch.dtype) -> tuple[Tensor, Notes]:
    """Returns the steps in `dtype`, those that would leave its range at its ends."""
    limits = torch.finfo(dtype)
    least = limits.smallest_normal * limits.eps  # the smallest number above 0
    small, large = (steps > 0) & (steps < least), steps > limits.max
    notes = [
        f"{int(beyond.sum())} of {steps.numel()} steps are {what} {dtype} can hold: taken as {limit:.3g}"
        for beyond, what, limit in ((small, "smaller than", least), (large, "larger than", limits.max))
        if beyond.any()
    ]
    return torch.where(small, least, steps.clamp(max=limits.max)).to(dtype), tuple(notes)
