"""Floating-point grids on tensors: the nearest code of a number, the value of a code, and the scales of groups.

A scale is stored as a power of two (MXFP4, MXFP8), in 8 bits (NVFP4), or in the type of the model. Of the first two
kinds few can be the best one, and all of these are tried. Of the third kind, OCTAVE scales are tried, as the errors of
floating-point numbers repeat when the scale doubles. One scale of a whole tensor is set by the largest weight: servers
want it to be the same in all layers that they join.
"""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from fairbits.core.array_checks import Floats
from fairbits.models.scales.grid import FLOAT_GRIDS, FloatGrid, Grid
from fairbits.models.scales.scheme import BLOCK_SIZE, Numbers, Objective, Scheme

AnyGrid = Grid | FloatGrid
OCTAVE = 16
E4M3 = FLOAT_GRIDS["e4m3"]
BELOW, ABOVE = 10, 4  # scales in 8 bits that are tried below and above the one of the largest weight; an octave has 8
LEAST_EXPONENT, LARGEST_EXPONENT = -126, 127  # of a scale that is a power of two
ERRORS_AT_ONCE = 2**23  # errors that are compared at a time: 32 MiB


def grid_codes(ratios: Tensor, grid: AnyGrid) -> Tensor:
    """Returns the nearest code of each ratio in float32; it may change the ratios. Halves go to the even code."""
    if isinstance(grid, Grid):
        return ratios.round_().clamp_(grid.lowest, grid.highest)
    edges = (grid.values[1:] + grid.values[:-1]) / 2
    edges[1::2] = np.nextafter(edges[1::2], np.float32(0))
    codes = torch.bucketize(ratios.abs(), torch.from_numpy(edges).to(ratios.device), out_int32=True)
    return codes.float().copysign_(ratios)


def code_values(codes: Tensor, numbers: Numbers) -> Tensor:
    """Returns the numbers that codes stand for: integers themselves, or floating-point numbers in float32."""
    if numbers == "int":
        return codes
    values = torch.from_numpy(FLOAT_GRIDS[numbers].values)
    table = torch.cat([-values.flip(0)[:-1], values]).to(codes.device)
    return table[codes.int() + FLOAT_GRIDS[numbers].highest]


def code_gaps(codes: Tensor, numbers: Numbers) -> Tensor | float:
    """Returns how far a number moves when its code moves by 1, on average of up and down."""
    if numbers == "int":
        return 1.0
    return torch.from_numpy(FLOAT_GRIDS[numbers].gaps).to(codes.device)[codes.int().abs()]


def in_8_bits(scales: Tensor, global_scale: Tensor) -> Tensor:
    """Returns scales as they are after being stored in 8 bits, with a scale of the whole tensor."""
    overall = global_scale.to(scales.device)
    return (scales * overall).clamp(max=E4M3.largest).to(torch.float8_e4m3fn).float() / overall


def full_global_scale(largest: Tensor) -> Tensor:
    """Returns the scale of a tensor that lets its scales in 8 bits use their whole range, given its largest number."""
    full = FLOAT_GRIDS["e2m1"].largest * E4M3.largest
    return (full / torch.where(largest > 0, largest, full).float()).reshape(1)


def float_scales(
    W: Tensor, scheme: Scheme, *, importance: Floats | None, dtype: torch.dtype, largest: Tensor
) -> Tensor:
    """Returns scales (out, groups) of W (out, in) for a floating-point grid, each of which can be stored.

    `largest` is the largest |w| of all layers that servers join with this one.

    The exact clip chooses among them by Σ_j h_j (w_j − Q(w_j))²; `importance` is h_j of each language, or of their
    mean. The objective is the worst of them, or the worst in relation to its own best scale.
    """
    if scheme.group == "tensor":
        scale = (largest / FLOAT_GRIDS[scheme.numbers].largest).to(W.device).float()
        return scale.expand(len(W), 1).contiguous()
    columns, groups = W.shape[1], scheme.groups(W.shape[1])
    h = np.ones((1, columns)) if importance is None else importance
    weights = torch.from_numpy(h).float().to(W.device).reshape(len(h), groups, 1, -1)
    height = BLOCK_SIZE if scheme.group == "block" else 1
    tries = BELOW + ABOVE + 1 if scheme.scales == "e4m3" else OCTAVE
    at_once = min(ERRORS_AT_ONCE // (tries * len(h) * groups), ERRORS_AT_ONCE // (8 * columns * height))
    rows = max(at_once, 1) * height
    parts = []
    for part in torch.split(W.float(), rows):
        whole = torch.nn.functional.pad(part, (0, 0, 0, -len(part) % height))
        tiles = whole.reshape(-1, height, groups, columns // groups).transpose(1, 2).contiguous()
        scales = _candidates(tiles, scheme, dtype, full_global_scale(largest))
        chosen = next(scales) if scheme.clip == "absmax" else _best(tiles, scales, weights, scheme)
        parts.append(chosen.repeat_interleave(height, 0)[: len(part)])
    return torch.cat(parts)


def _candidates(tiles: Tensor, scheme: Scheme, dtype: torch.dtype, global_scale: Tensor) -> Iterator[Tensor]:
    """Yields the scales that may be best for tiles (rows, groups, height, width); first that of the largest weight."""
    grid, largest = FLOAT_GRIDS[scheme.numbers], tiles.abs().amax((2, 3))
    if scheme.scales == "e8m0":
        # as compressed-tensors does: a largest weight beyond 7/8 of a power of two counts as that power
        mantissa, exponent = torch.frexp(largest)
        exponent = exponent - 1 + (mantissa >= 0.875).int() - int(np.log2(grid.largest))
        for offset in (0, 1, -1):
            power = (exponent + offset).clamp(LEAST_EXPONENT, LARGEST_EXPONENT)
            yield torch.ldexp(torch.ones_like(largest), power)
    elif scheme.scales == "e4m3":
        overall = global_scale.to(tiles.device)
        code = grid_codes(largest / grid.largest * overall, E4M3)
        for offset in (0, *range(-BELOW, 0), *range(1, ABOVE + 1)):
            near = torch.where(code > 0, (code + offset).clamp(1, E4M3.highest), 0)
            yield code_values(near, E4M3.numbers) / overall
    else:
        limits = torch.finfo(dtype)
        least = torch.full_like(largest, limits.smallest_normal * limits.eps)  # the smallest number above 0
        for i in range(OCTAVE):
            wanted = largest * (2 ** (i / OCTAVE) / grid.largest)
            yield torch.where(wanted > 0, torch.maximum(wanted, least), 0).to(dtype).float()


def _best(tiles: Tensor, candidates: Iterator[Tensor], weights: Tensor, scheme: Scheme) -> Tensor:
    """Returns the candidate with the least error of each tile; `weights` are (languages, groups, 1, width)."""
    tried, errors = [], []
    for scales in candidates:
        divisors = torch.where(scales == 0, 1.0, scales)[:, :, None, None]
        codes = grid_codes(tiles / divisors, FLOAT_GRIDS[scheme.numbers])
        change = code_values(codes, scheme.numbers).mul_(scales[:, :, None, None]).sub_(tiles).square_()
        tried.append(scales)
        errors.append(torch.stack([(change * weight).sum((2, 3)) for weight in weights]))
    damage = _damage(torch.stack(errors), scheme.objective)
    return torch.stack(tried).gather(0, damage.argmin(0)[None])[0]


def _damage(errors: Tensor, objective: Objective | None) -> Tensor:
    """Returns what is minimised, (tried, rows, groups), of errors (tried, languages, rows, groups)."""
    if objective == "regret":
        errors = errors / errors.amin(0).clamp_(min=torch.finfo(errors.dtype).tiny)
    return errors.amax(1)
