"""The columns of a panel of GPTQ on the CPU, in one loop that numba compiles.

In torch every column is about ten operations on a vector of a few hundred rows, most of whose time is spent calling
them. Rows do not depend on each other: the loop takes a few rows at a time, whose errors stay in the cache, through all
columns of the panel, and as many threads as there are cores take other rows.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

from fairbits.core.numba_lock import LAUNCH
from fairbits.models.scales.float_scales import AnyGrid
from fairbits.models.scales.grid import FloatGrid

ROWS_AT_ONCE = 256  # rows that one thread takes at a time: with 128 columns, errors of 256 KiB in float64
PRECISION = {torch.bfloat16: (8, -133), torch.float16: (11, -24)}
"""Digits of a type in binary, and the exponent of its smallest number."""
NATIVE = (0, 0)  # stands for float32, in which the product of code and scale is computed in any case
INTEGERS = np.empty(0, np.float32)  # stands for the values of codes that are their own values


@njit(cache=True)
def _loaded(product, digits, least):  # type: ignore[no-untyped-def]
    """Returns a product of code and scale in the stored type, as a loader will compute it."""
    value = np.float64(product)
    if digits == 0 or value == 0.0:
        return value
    exponent = max(math.frexp(value)[1] - digits, least)
    return math.ldexp(np.rint(math.ldexp(value, -exponent)), exponent)


@njit(cache=True)
def _float_code(ratio, values, mantissa, exponent):  # type: ignore[no-untyped-def]
    """Returns the code of the nearest of the numbers `values` that have so many bits and this least exponent."""
    size = min(abs(np.float64(np.float32(ratio))), np.float64(values[-1]))
    if size == 0.0:  # which has no exponent
        return 0
    e = max(math.frexp(size)[1] - 1, exponent)
    code = (e - exponent) * 2**mantissa + int(np.rint(math.ldexp(size, mantissa - e)))
    return -code if ratio < 0 else code


@njit(cache=True, parallel=True, fastmath={"contract", "nsz"})
def _round(  # type: ignore[no-untyped-def]
    wanted,
    weights,
    feedback,
    scales,
    divide_by,
    group,
    lowest,
    highest,
    values,
    mantissa,
    exponent,
    digits,
    least,
    codes,
    errors,
):
    columns, out = wanted.shape
    for task in prange((out + ROWS_AT_ONCE - 1) // ROWS_AT_ONCE):
        first = task * ROWS_AT_ONCE
        last = min(out, first + ROWS_AT_ONCE)
        for k in range(columns):
            current = wanted[k, first:last]
            for j in range(k):
                share, error = feedback[k, j], errors[j, first:last]
                for r in range(last - first):
                    current[r] -= share * error[r]
            if values.size:
                for r in range(first, last):
                    code = _float_code(wanted[k, r] / divide_by[group[k], r], values, mantissa, exponent)
                    codes[k, r] = np.int8(code)
                    number = -values[-code] if code < 0 else values[code]
                    errors[k, r] = _loaded(number * scales[group[k], r], digits, least) - weights[k, r]
            else:
                for r in range(first, last):
                    code = min(max(np.rint(wanted[k, r] / divide_by[group[k], r]), lowest), highest)
                    codes[k, r] = np.int8(code)
                    errors[k, r] = _loaded(np.float32(code) * scales[group[k], r], digits, least) - weights[k, r]


@dataclass(frozen=True, eq=False)
class Panel:
    """Columns (columns, out) that are rounded together; `codes` and `errors`, which are ŵ − w, are written."""

    wanted: Tensor  # the weights less what earlier panels contribute; afterwards, what each column was rounded from
    weights: Tensor
    feedback: Tensor  # (columns, columns) of these columns; need not be contiguous, all others are
    scales: Tensor  # (groups, out), and `divide_by` the same as divisors
    divide_by: Tensor
    group: Tensor  # which of them a column has, as int32
    codes: Tensor
    errors: Tensor


def round_panel(panel: Panel, grid: AnyGrid) -> None:
    """Rounds the columns of a panel on the CPU; tensors of a GPU are copied there and back."""
    digits, least = PRECISION.get(panel.scales.dtype, NATIVE)
    changed = panel.wanted, panel.codes, panel.errors
    wanted, codes, errors = (tensor.cpu() for tensor in changed)
    scales, feedback = panel.scales.float(), panel.feedback.contiguous()
    read = (tensor.cpu().numpy() for tensor in (panel.weights, feedback, scales, panel.divide_by, panel.group))
    bounds = float(grid.lowest), float(grid.highest)
    numbers = (grid.values, grid.mantissa, grid.least) if isinstance(grid, FloatGrid) else (INTEGERS, 0, 0)
    how = (*bounds, *numbers, digits, least)
    with LAUNCH:
        _round(wanted.numpy(), *read, *how, codes.numpy(), errors.numpy())  # type: ignore[call-arg]
    if panel.codes.is_cuda:
        for tensor, result in zip(changed, (wanted, codes, errors), strict=True):
            tensor.copy_(result)
