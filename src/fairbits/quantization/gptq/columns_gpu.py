"""The columns of a panel of GPTQ on a GPU, in one launch of a Triton kernel.

In torch every column is about ten launches, and a GPU waits for Python most of the time. The kernel holds a panel of
some rows in registers and goes through its columns: it rounds one, and at once subtracts what its error contributes to
the columns after it. `gptq` looks back at the errors instead; the sums are the same, added in another order.

Triton is optional. Where it is missing (`AVAILABLE`), the loop of `columns_cpu` does it.
"""

from contextlib import nullcontext

import torch

from fairbits.models.scales.float_scales import AnyGrid
from fairbits.models.scales.grid import FloatGrid
from fairbits.quantization.gptq.columns_cpu import Panel

try:
    import triton
    import triton.language as tl
except ImportError:  # pragma: no cover
    AVAILABLE = False
else:
    AVAILABLE = True

ROWS_AT_ONCE = 32
"""Rows of weights that one program of the kernel holds: with 128 columns, 32 numbers per thread of four warps."""
HALF_EVEN = {torch.float32: 1.5 * 2.0**23, torch.float64: 1.5 * 2.0**52}
"""Adding and subtracting it rounds small numbers to whole ones, halves to even, as torch.round does."""

if AVAILABLE:

    @triton.jit  # type: ignore[untyped-decorator,unused-ignore]
    def _panel(  # type: ignore[no-untyped-def]
        wanted,
        weights,
        errors,
        codes,
        feedback,
        down,
        across,
        scales,
        divide_by,
        group,
        out,
        lowest,
        highest,
        HALF_EVEN: tl.constexpr,
        LARGEST: tl.constexpr,
        MANTISSA: tl.constexpr,
        LEAST: tl.constexpr,
        DOUBLE: tl.constexpr,
        COLUMNS: tl.constexpr,
        PANEL: tl.constexpr,
        ROWS: tl.constexpr,
    ):
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.arange(0, PANEL)
        inside = row < out
        at = column[:, None].to(tl.int64) * out + row[None, :]
        present = (column < COLUMNS)[:, None] & inside[None, :]
        tile = tl.load(wanted + at, mask=present, other=0.0)
        for k in range(COLUMNS):
            current = tl.sum(tl.where(column[:, None] == k, tile, 0.0), axis=0)
            place = tl.load(group + k).to(tl.int64) * out + row
            divisor = tl.load(divide_by + place, mask=inside, other=1.0)
            scale = tl.load(scales + place, mask=inside, other=0.0)
            quotient = current / divisor if DOUBLE else tl.div_rn(current, divisor)
            if LARGEST:  # floating-point numbers, whose codes count through them
                number = quotient.to(tl.float32)
                size = tl.minimum(tl.abs(number), LARGEST)
                exponent = tl.maximum((size.to(tl.int32, bitcast=True) >> 23) - 127, LEAST)
                unit = ((exponent - MANTISSA + 127) << 23).to(tl.float32, bitcast=True)
                whole = (tl.div_rn(size, unit) + 12582912.0) - 12582912.0
                count = ((exponent - LEAST) << MANTISSA) + whole.to(tl.int32)
                code = tl.where(number < 0, -count, count)
                number = tl.where(number < 0, -whole * unit, whole * unit)
            else:
                code = tl.minimum(tl.maximum(quotient, lowest), highest)
                code = (code + HALF_EVEN) - HALF_EVEN
                number = code
            here = k * out + row
            tl.store(codes + here, code.to(tl.int8), mask=inside)
            # computed in the stored type, as a loader will
            value = (number.to(scale.dtype) * scale).to(tile.dtype)
            error = value - tl.load(weights + here, mask=inside, other=0.0)
            tl.store(errors + here, error, mask=inside)
            later = (column > k) & (column < COLUMNS)
            weight = tl.load(feedback + column.to(tl.int64) * down + k * across, mask=later, other=0.0)
            tile -= weight[:, None] * error[None, :]
        tl.store(wanted + at, tile, mask=present)


def round_panel(panel: Panel, grid: AnyGrid) -> None:
    """Rounds the columns of a panel on the GPU that has it."""
    columns, out = panel.wanted.shape
    numbers = (grid.largest, grid.mantissa, grid.least) if isinstance(grid, FloatGrid) else (0.0, 0, 0)
    with torch.cuda.device(panel.wanted.device) if panel.wanted.is_cuda else nullcontext():
        _panel[(triton.cdiv(out, ROWS_AT_ONCE),)](
            *(panel.wanted, panel.weights, panel.errors, panel.codes),
            *(panel.feedback, *panel.feedback.stride()),
            *(panel.scales, panel.divide_by, panel.group),
            *(out, float(grid.lowest), float(grid.highest)),
            HALF_EVEN=HALF_EVEN[panel.wanted.dtype],
            LARGEST=numbers[0],
            MANTISSA=numbers[1],
            LEAST=numbers[2],
            DOUBLE=panel.wanted.dtype == torch.float64,
            COLUMNS=columns,
            PANEL=max(triton.next_power_of_2(columns), 16),
            ROWS=ROWS_AT_ONCE,
        )
