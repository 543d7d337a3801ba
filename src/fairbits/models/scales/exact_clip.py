"""The exact clip: for every group of weights the scale with the least squared error, on the device of the weights.

| device         | one importance, or none           | the worst of several languages |
|----------------|-----------------------------------|--------------------------------|
| CPU            | numba, `clip_kernels`             | numba, `minimax_kernels`       |
| GPU, Triton    | `clip_triton`, one warp per group | on the CPU                     |
| GPU, no Triton | on the CPU                        | on the CPU                     |

All of them return the certified global optimum. They add up in different orders, so where two steps have the same error
to about 1e-12, they may return different ones. Groups of more than `LONG` weights are sorted on the CPU, see
`sample_clip`. Triton needs a C compiler on the machine; without one it counts as missing.
"""

import os
import shutil
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fairbits.core.array_checks import Floats, nonnegative_array, representable
from fairbits.core.errors import InputError
from fairbits.core.numba_lock import LAUNCH
from fairbits.models.scales.clip_kernels import best_steps
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.minimax_kernels import minimax_steps
from fairbits.models.scales.sample_clip import clip_sample

LONG = 65_536  # longer groups are sorted, not scanned: equally fast at 50 (8 bit) to 130 (4 bit) thousand


@dataclass(frozen=True)
class BlockSteps:
    """The step of each block and Σ h(w − Q(w))² at it; both are (rows, blocks per row)."""

    step: Floats
    error: Floats


def clip_groups(blocks: Tensor, grid: Grid, *, importance: Floats | None = None, signed: bool = False) -> Tensor:
    """Returns the exact scale of every group, (out, groups) in float64; `importance` is h ≥ 0, (groups · weights,)."""
    _, columns, size = blocks.shape
    if not blocks.is_cuda or size > LONG or triton_search() is None:
        steps = clip_blocks(_rows(blocks), grid, group=size, importance=importance, signed=signed).step
        return torch.from_numpy(steps).to(blocks.device)
    h = None if importance is None else torch.from_numpy(importance).to(blocks.device).reshape(columns, size)
    return device_steps(blocks, h, grid=grid, signed=signed)[0]


def minimax_groups(blocks: Tensor, grid: Grid, *, importance: Floats, objective: str, signed: bool = False) -> Tensor:
    """Returns the scales (out, groups) of `minimax_blocks` for blocks (out, groups, weights), on their device."""
    size = blocks.shape[2]
    steps = minimax_blocks(_rows(blocks), grid, group=size, importance=importance, objective=objective, signed=signed)
    return torch.from_numpy(steps).to(blocks.device)


def clip_blocks(
    W: ArrayLike, grid: Grid, *, group: int | None = None, importance: ArrayLike | None = None, signed: bool = False
) -> BlockSteps:
    """Returns the exact optimum of Σ_j h_j (w_j − Q(w_j))² for every block of W (out, in), on the CPU.

    A block is `group` neighbouring weights of a row, or the whole row. `importance` is h ≥ 0, per input (in,) or per
    weight (out, in). `signed` lets the step of the twos grid be negative where that is better.
    """
    blocks, shape = _as_blocks(W, group)
    h = None if importance is None else nonnegative_array("importance", importance).reshape(-1, blocks.shape[1])
    steps, errors = (values.reshape(shape) for values in _cpu_steps(blocks, h, grid, signed))
    _refuse_nan(torch.from_numpy(steps))
    return BlockSteps(steps, representable("the squared error of a block", errors))


def minimax_blocks(
    W: ArrayLike,
    grid: Grid,
    *,
    importance: ArrayLike,
    group: int | None = None,
    objective: str = "worst",
    signed: bool = False,
) -> Floats:
    """Returns the step of every block (rows, blocks per row) that minimises the worst language's error, exactly.

    `importance` is (languages, in). `objective="worst"` takes max_λ f_λ with each language's importance scaled to
    mean 1, so that languages with large activations do not dominate; `"regret"` takes max_λ f_λ / f_λ*, with f_λ* the
    block's optimum for that language alone.
    """
    blocks, (out, columns) = _as_blocks(W, group)
    H = nonnegative_array("importance", importance, ndim=2)
    H = (H / H.mean(axis=1, keepdims=True)).reshape(len(H), columns, -1)
    scales = np.ones((len(H), 1))
    if objective == "regret":
        optima = np.array([_cpu_steps(blocks, h, grid, signed)[1] for h in H])
        squares = np.square(blocks, dtype=np.float64).reshape(out, columns, -1)
        energy = np.einsum("rcs,lcs->rcl", squares, H, optimize=True).mean(axis=2)
        scales = 1 / np.maximum(optima, 1e-12 * energy.ravel() + 1e-300)
    steps = np.empty(len(blocks))
    with LAUNCH:
        minimax_steps(blocks, H, scales, _caps(grid), signed, steps)
    _refuse_nan(torch.from_numpy(steps.reshape(out, columns)))
    return steps.reshape(out, columns)


def device_steps(blocks: Tensor, h: Tensor | None, *, grid: Grid, signed: bool = False) -> tuple[Tensor, Tensor]:
    """Returns steps and errors (out, groups), by Triton; what it leaves undone is searched on the CPU."""
    if signed:
        steps, errors = device_steps(blocks, h, grid=grid)
        turned, turned_errors = device_steps(-blocks, h, grid=grid)
        lower = turned_errors < errors
        return torch.where(lower, -turned, steps), torch.where(lower, turned_errors, errors)
    out, columns, size = blocks.shape
    W, search = blocks.reshape(-1, size).contiguous(), triton_search()
    if h is None:
        steps, errors, undone = search(W, None, caps=grid.caps)
    else:
        largest = h.amax(1)
        unit = torch.ldexp(torch.ones_like(largest), torch.frexp(largest).exponent.clamp(-1021, 1021))
        steps, errors, undone = search(W, h / unit[:, None], caps=grid.caps)
        errors = (errors.reshape(out, columns) * unit).flatten()
    rest = undone.nonzero()[:, 0]
    if len(rest):
        h_rest = None if h is None else h[rest % columns].cpu().numpy()
        on_cpu = _cpu_steps(W[rest].float().cpu().numpy(), h_rest, grid, signed=False)
        steps[rest], errors[rest] = (torch.from_numpy(values).to(W.device) for values in on_cpu)
    _refuse_nan(steps.reshape(out, columns))
    return steps.reshape(out, columns), errors.reshape(out, columns)


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


def _rows(blocks: Tensor) -> np.ndarray:
    rows: np.ndarray = blocks.cpu().float().reshape(len(blocks), -1).numpy()
    return rows


def _as_blocks(W: ArrayLike, group: int | None) -> tuple[np.ndarray, tuple[int, int]]:
    array = np.asarray(W)
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float64)
    size = group or array.shape[1]
    blocks = np.require(array, requirements=["C", "W"]).reshape(-1, size)  # a read-only array would be compiled again
    return blocks, (len(array), array.shape[1] // size)


def _caps(grid: Grid) -> tuple[float, float]:
    if grid.offset:
        raise InputError(f"the {grid.kind} grid has no level at 0; weights are rounded to the symmetric or twos grid")
    return float(grid.caps[0]), float(grid.caps[1])


def _cpu_steps(blocks: np.ndarray, h: Floats | None, grid: Grid, signed: bool) -> tuple[Floats, Floats]:
    """Returns step and error of every block (blocks, weights), NaN where one is not finite; block i has h[i % len]."""
    steps, errors = np.empty((2, len(blocks)))
    if blocks.shape[1] > LONG:
        for i, block in enumerate(blocks):
            steps[i], errors[i] = _long_block(block, None if h is None else h[i % len(h)], grid, signed)
        return steps, errors
    weights = None if h is None else np.require(h, requirements=["C", "W"])
    with LAUNCH:
        best_steps(blocks, weights, _caps(grid), signed, steps, errors)
    return steps, errors


def _long_block(block: np.ndarray, h: Floats | None, grid: Grid, signed: bool) -> tuple[float, float]:
    if not np.isfinite(block).all():
        return np.nan, np.nan
    largest = float(np.max(np.abs(block)))
    if largest == 0 or (h is not None and not block[h > 0].any()):
        return largest / max(grid.caps), 0.0
    best = clip_sample(block, grid, importance=h, signed=signed)
    return best.step, best.value


def _refuse_nan(steps: Tensor) -> None:
    bad = steps.isnan().nonzero()
    if len(bad):
        row, column = bad[0].tolist()
        raise InputError(
            f"W holds NaN or infinite weights in {len(bad)} block(s), the first in row {row}, block {column}; "
            "every weight must be finite: repair or exclude that tensor"
        )
