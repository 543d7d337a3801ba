"""The exact clip of the groups of a matrix, on the device where the matrix is.

| device         | one importance, or none            | the worst of several languages |
|----------------|------------------------------------|--------------------------------|
| CPU            | numba, `theory.clipping.blocks`    | the same                       |
| GPU, Triton    | `clip_triton`, one warp per group  | `clip_torch`                   |
| GPU, no Triton | `clip_torch`                       | `clip_torch`                   |

All of them return the certified global optimum. They add up in different orders, so where two steps have the same error
to about 1e-12, they may return different ones. Groups of more than `LONG` weights are searched on the CPU, which sorts
them. Triton needs a C compiler on the machine; without one it counts as missing.
"""

import os
import shutil
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fairbits.core.array_checks import Floats, near_one
from fairbits.core.errors import InputError
from fairbits.core.memory import GPU_SEARCHED_WEIGHTS
from fairbits.models.scales.block_clip import clip_blocks, minimax_blocks
from fairbits.models.scales.clip_torch import exact_steps, minimax_steps, power_of_two_above
from fairbits.models.scales.grid import Grid

LONG = 65_536


def clip_groups(blocks: Tensor, grid: Grid, *, importance: Floats | None = None, signed: bool = False) -> Tensor:
    """Returns the exact scale of every group as (out, groups) in float64; blocks are (out, groups, weights).

    `importance` is h ≥ 0 of every input, (groups · weights,). `signed` lets scales of the twos grid be negative.

    >>> clip_groups(torch.tensor([[[0.7, -0.35, 0.1]]]), Grid(4)).tolist()
    [[0.1...]]
    """
    out, columns, size = blocks.shape
    if not _on_device(blocks):
        W = blocks.cpu().float().reshape(out, -1).numpy()
        return torch.from_numpy(clip_blocks(W, grid, group=size, importance=importance, signed=signed).step).to(
            blocks.device
        )
    h = None if importance is None else torch.from_numpy(importance).to(blocks.device).reshape(columns, size)
    return device_steps(blocks, h, grid=grid, signed=signed)[0]


def minimax_groups(blocks: Tensor, grid: Grid, *, importance: Floats, objective: str, signed: bool = False) -> Tensor:
    """Returns the scale of every group with the lowest error of the worst language, (out, groups) in float64.

    `importance` is (languages, groups · weights); `minimax_blocks` explains it and the objectives "worst" and "regret".
    """
    out, columns, size = blocks.shape
    if not _on_device(blocks):
        W = blocks.cpu().float().reshape(out, -1).numpy()
        found = minimax_blocks(W, grid, group=size, importance=importance, objective=objective, signed=signed)
        return torch.from_numpy(found.step).to(blocks.device)
    scaled = np.stack([near_one(h)[0] for h in importance])
    scaled = scaled / scaled.mean(axis=1, keepdims=True)
    H = torch.from_numpy(scaled).to(blocks.device).reshape(len(scaled), columns, size)
    scales = torch.ones(len(H), 1, dtype=torch.float64, device=blocks.device)
    if objective == "regret":
        own = torch.stack([device_steps(blocks, h, grid=grid, signed=signed)[1].flatten() for h in H])
        energy = torch.einsum("rcs,cs->rc", blocks.double().square(), H.mean(0)).flatten()
        scales = 1 / torch.maximum(own, 1e-12 * energy + 1e-300)
    steps = minimax_steps(blocks.reshape(-1, size), H, scales=scales, grid=grid, signed=signed).reshape(out, columns)
    return _finite(steps)


def device_steps(blocks: Tensor, h: Tensor | None, *, grid: Grid, signed: bool = False) -> tuple[Tensor, Tensor]:
    """Returns the exact step of every group of blocks (out, groups, weights) and its error, both (out, groups).

    `h` (groups, weights) is the importance, the same for every row, in float64; None stands for ones. A negative step
    is the step of the negated weights.
    """
    if signed:
        steps, errors = device_steps(blocks, h, grid=grid)
        others, lower = device_steps(-blocks, h, grid=grid)
        turned = lower < errors
        return torch.where(turned, -others, steps), torch.where(turned, lower, errors)
    out, columns, size = blocks.shape
    W, search_groups = blocks.reshape(-1, size).contiguous(), triton_search()
    if search_groups is None or grid.offset:
        steps, errors = exact_steps(W, h, grid=grid)
    else:
        unit = None if h is None else power_of_two_above(h.amax(1))
        near = None if h is None or unit is None else h / unit[:, None]
        steps, errors, undone = search_groups(W, near, caps=grid.caps)
        if unit is not None:
            errors = (errors.reshape(out, columns) * unit).flatten()
        for rest in torch.split(undone.nonzero()[:, 0], max(1, GPU_SEARCHED_WEIGHTS // size)):
            if len(rest):
                steps[rest], errors[rest] = exact_steps(W[rest], None if h is None else h[rest % columns], grid=grid)
    return _finite(steps.reshape(out, columns)), errors.reshape(out, columns)


@cache
def triton_search() -> Any:
    """Returns `clip_triton.search_groups`; None where Triton, or the C compiler that it needs, is missing."""
    compilers = (os.environ.get("CC"), "cc", "gcc", "clang")
    if not any(shutil.which(name) for name in compilers if name):
        return None
    try:
        from fairbits.models.scales.clip_triton import search_groups
    except ImportError:
        return None
    return search_groups


def _on_device(blocks: Tensor) -> bool:
    return blocks.is_cuda and blocks.shape[2] <= LONG


def _finite(steps: Tensor) -> Tensor:
    bad = steps.isnan().nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(
            f"W holds NaN or infinite weights in {len(bad)} block(s), the first in row {row}, block {column}; "
            "every weight must be finite: repair or exclude that tensor"
        )
    return steps
