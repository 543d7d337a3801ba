"""The exact step of every block (group, row or tensor) of a weight matrix, in one call."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, as_array, near_one, nonnegative_array, representable
from fairbits.core.checks import one_of, whole
from fairbits.core.errors import InputError
from fairbits.models.scales import block_kernels, minimax_kernels
from fairbits.models.scales import clip_kernels as kernels
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import check_signed, clip_sample

_LONG = 65_536
"""Longer blocks are sorted instead of scanned; both take equally long at 50 (8 bit) to 130 (4 bit) thousand weights."""


@dataclass(frozen=True)
class BlockSteps:
    """The step of each block and Σ h(w − Q(w))² at it; both are (rows, blocks per row)."""

    step: Floats
    error: Floats


@dataclass(frozen=True)
class SharedSteps:
    """The minimax step of each block, the error of each language, and the certificate.

    `error` and `multipliers` are (rows, blocks per row, languages). A multiplier above 0 marks a language that
    determines the step; they sum to 1, and Σμ_λf′_λ = 0 on the piece of the step, each f_λ scaled as in the objective.
    """

    step: Floats
    error: Floats
    multipliers: Floats


def clip_blocks(
    W: ArrayLike,
    grid: Grid,
    *,
    group: int | None = None,
    importance: ArrayLike | None = None,
    signed: bool = False,
) -> BlockSteps:
    """Returns the exact optimum of Σ_j h_j (w_j − Q(w_j))² for every block of W (out, in).

    A block is `group` neighbouring weights of a row, or the whole row. `importance` is h ≥ 0, per input (in,) or per
    weight (out, in). `signed` lets the step of the twos grid be negative where that is better.

    >>> found = clip_blocks([[0.5, 1.0, -0.25, 0.75]], Grid(4))
    >>> found.error.tolist()
    [[0.0]]
    """
    check_signed(grid, signed)
    weights, size = _as_blocks(W, group)
    out, columns = weights.shape[0], weights.shape[1] // size
    h = None if importance is None else _importance(importance, weights.shape, size)
    steps, errors = np.empty(out * columns), np.empty(out * columns)
    blocks = weights.reshape(-1, size)
    if size > _LONG:
        for i, block in enumerate(blocks):
            steps[i], errors[i] = _long_block(block, None if h is None else h[i % len(h)], grid, signed)
    else:
        caps = tuple(float(cap) for cap in grid.caps)
        with kernels.LAUNCH:
            block_kernels.best_steps(blocks, h, caps, grid.offset, signed, steps, errors)
    _raise_where_nan(steps, columns)
    representable("the squared error of a block", errors)
    return BlockSteps(steps.reshape(out, columns), errors.reshape(out, columns))


def minimax_blocks(
    W: ArrayLike,
    grid: Grid,
    *,
    importance: ArrayLike,
    group: int | None = None,
    objective: str = "worst",
    signed: bool = False,
) -> SharedSteps:
    """Returns the step of every block that minimises the worst language's error, exactly.

    `importance` is (languages, in). `objective="worst"` takes max_λ f_λ with each language's importance scaled to
    mean 1, so that languages with large activations do not dominate; `"regret"` takes max_λ f_λ / f_λ*, with f_λ* the
    block's optimum for that language alone.

    >>> w = [[0.9, -0.31, 0.2, 0.05]]
    >>> both = minimax_blocks(w, Grid(2), importance=[[1, 0.1, 0.1, 0.1], [0.1, 0.1, 1, 1]])
    >>> both.multipliers.round(2).tolist()
    [[[0.0, 1.0]]]
    """
    check_signed(grid, signed)
    one_of("objective", objective, ("worst", "regret"))
    weights, size = _as_blocks(W, group)
    out, columns = weights.shape[0], weights.shape[1] // size
    H = nonnegative_array("importance", importance, ndim=2)
    if H.shape[1] != weights.shape[1]:
        raise InputError(
            f"importance has shape {H.shape} and W {weights.shape}; the rows of importance must match W's inputs"
        )
    if not H.any(axis=1).all():
        raise InputError("importance is 0 everywhere for a language; leave that language out or measure it again")
    H = np.stack([near_one(h)[0] for h in H])  # so that the sums cannot overflow
    H = H / H.mean(axis=1, keepdims=True)
    scales = np.ones((len(H), 1))
    if objective == "regret":
        small = weights if weights.dtype == np.float32 else near_one(weights)[0]
        own = [clip_blocks(small, grid, group=group, importance=h, signed=signed).error.ravel() for h in H]
        squares = np.square(small, dtype=np.float64).reshape(out, columns, size)
        energy = np.einsum("rcs,lcs->rcl", squares, H.reshape(len(H), columns, size), optimize=True).mean(axis=2)
        scales = 1 / np.maximum(np.array(own), 1e-12 * energy.ravel() + 1e-300)
    steps = np.empty(out * columns)
    errors, multipliers = np.empty((2, out * columns, len(H)))
    caps = tuple(float(cap) for cap in grid.caps)
    blocks, parts = weights.reshape(-1, size), np.ascontiguousarray(H.reshape(len(H), columns, size))
    with kernels.LAUNCH:
        minimax_kernels.minimax_steps(blocks, parts, scales, caps, grid.offset, signed, steps, errors, multipliers)
    _raise_where_nan(steps, columns)
    representable("the squared error of a block", errors)
    shape = (out, columns)
    return SharedSteps(steps.reshape(shape), errors.reshape(*shape, -1), multipliers.reshape(*shape, -1))


def _as_blocks(W: ArrayLike, group: int | None) -> tuple[np.ndarray, int]:
    array = as_array("W", W)
    if array.dtype.kind not in "fiu" or array.ndim != 2 or array.size == 0:
        raise InputError(
            f"W has shape {array.shape} and type {array.dtype}; it must be a non-empty (out, in) matrix of numbers"
        )
    if array.dtype not in (np.float32, np.float64):
        array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
    size = array.shape[1] if group is None else whole("group", group, least=1)
    if array.shape[1] % size:
        raise InputError(f"W has {array.shape[1]} inputs, which groups of {size} do not divide; choose another group")
    return np.require(array, requirements=["C", "W"]), size  # a read-only array is another type: compiled again


def _importance(importance: ArrayLike, shape: tuple[int, ...], size: int) -> Floats:
    h = nonnegative_array("importance", importance)
    if h.shape not in ((shape[1],), shape):
        raise InputError(f"importance has shape {h.shape} and W {shape}; importance must have {(shape[1],)} or {shape}")
    return np.require(h.reshape(-1, size), requirements=["C", "W"])


def _long_block(block: np.ndarray, h: Floats | None, grid: Grid, signed: bool) -> tuple[float, float]:
    if not np.isfinite(block).all():
        return np.nan, np.nan
    largest = float(np.max(np.abs(block)))
    if largest == 0 or (h is not None and not block[h > 0].any()):
        return largest / max(grid.caps) if grid.offset == 0 else 0.0, 0.0
    found = clip_sample(block, grid, importance=h, signed=signed)
    return found.step, found.value


def _raise_where_nan(steps: Floats, columns: int) -> None:
    bad = np.flatnonzero(np.isnan(steps))
    if bad.size:
        row, column = divmod(int(bad[0]), columns)
        raise InputError(
            f"W holds NaN or infinite weights in {bad.size} block(s), the first in row {row}, block {column}; "
            "every weight must be finite: repair or exclude that tensor"
        )
