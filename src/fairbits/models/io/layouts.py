"""How quantized weights are stored: their codes and scales become float32 weights, in any layout that tools write.

Codes are packed in words or bytes, and scales belong to tiles of a matrix: a tile is the whole tensor, a row, a group
of neighbours in a row, or a block such as 128 × 128. Stacks of matrices, as of experts, have further dimensions in
front. Sums are left to the model: nothing here is rounded to 16 bits.

| layout | tensors of X | weight |
|---|---|---|
| integers, packed | weight_packed int32, weight_shape, weight_scale, weight_zero_point | (code − zero) · scale |
| whole bytes | weight int8 or float8, weight_scale, weight_zero_point | (code − zero) · scale |
| NVFP4, MXFP4, MXFP6 | weight_packed uint8, weight_scale, weight_global_scale | code · scale / global scale |
| GPTQ | qweight and qzeros int32, scales, g_idx | (code − zero[g]) · scale[g] |
| AWQ | qweight and qzeros int32 with eight columns in another order, scales | (code − zero) · scale |
| bitsandbytes | weight uint8, absmax, quant_map, nested_absmax, nested_quant_map | table[code] · absmax of its block |
| gpt-oss | X_blocks, X_scales uint8 | code · 2^(scale − 127), transposed |
"""

from collections.abc import Callable, Mapping

import torch
from compressed_tensors.compressors.pack_quantized import unpack_from_int32  # type: ignore[import-untyped]
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.memory import PACKED_WEIGHTS

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M3 = (*(m / 8 for m in range(8)), *((1 + m / 8) * 2.0**e for e in range(3) for m in range(8)))
MANTISSA_BITS = 23  # of float32; a scale that is a power of two is stored as the exponent, as in float32
NOT_A_NUMBER = 255  # as such a scale
AWQ_COLUMNS = (0, 4, 1, 5, 2, 6, 3, 7)  # where the eight columns of a word are in it

Tile = tuple[int, int]


def scaled(codes: Tensor, scales: Tensor, tile: Tile) -> Tensor:
    """Returns codes (…, rows, columns) in float32, each times the scale of its tile. It may change `codes`."""
    return _by_tile(codes, scales, tile, Tensor.mul_)


def shifted(codes: Tensor, zeros: Tensor, tile: Tile) -> Tensor:
    """Returns codes minus the zero point of their tile. It may change `codes`."""
    return _by_tile(codes, zeros, tile, Tensor.sub_)


def tiles(shape: tuple[int, ...], tile: Tile) -> tuple[int, ...]:
    """Returns how many tiles a matrix, or each of a stack, has below and next to each other."""
    return (*shape[:-2], -(-shape[-2] // tile[0]), -(-shape[-1] // tile[1]))


def _by_tile(codes: Tensor, per_tile: Tensor, tile: Tile, apply: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    values, (high, wide) = codes.float(), tile
    rows, columns = values.shape[-2:]
    wanted = tiles(tuple(values.shape), tile)
    per_tile = per_tile.float().reshape(wanted)
    if rows % high == 0 and columns % wide == 0:
        apart = values.view(*values.shape[:-2], wanted[-2], high, wanted[-1], wide)
        apply(apart, per_tile[..., :, None, :, None])
        return values
    spread = per_tile.repeat_interleave(high, -2)[..., :rows, :].repeat_interleave(wide, -1)[..., :columns]
    return apply(values, spread)


def unpack_integers(packed: Tensor, bits: int, shape: tuple[int, ...], *, along: int = 1) -> Tensor:
    """Returns the codes of a matrix, −2^(bits−1) … 2^(bits−1) − 1, that are packed densely along a dimension."""
    if along == 0:
        codes: Tensor = unpack_from_int32(packed, bits, torch.Size(shape), packed_dim=0)
        return codes
    step = max(1, PACKED_WEIGHTS // max(1, shape[1]))
    parts = [unpack_from_int32(part, bits, torch.Size((len(part), shape[1]))) for part in torch.split(packed, step)]
    return torch.cat(parts)


def unpack_e2m1(packed: Tensor) -> Tensor:
    """Returns the values of bytes that hold two numbers of 4 bits each, the first in the lower half."""
    values = torch.tensor([*E2M1, *(-value for value in E2M1)], device=packed.device)
    pairs = torch.stack([values.repeat(16), values.repeat_interleave(16)], dim=-1)
    return pairs[packed.int()].flatten(-2)


def unpack_e2m3(packed: Tensor) -> Tensor:
    """Returns the values of three bytes that hold four numbers of 6 bits each."""
    parts = packed.reshape(*packed.shape[:-1], -1, 3).int()
    word = parts[..., 0] | parts[..., 1] << 8 | parts[..., 2] << 16
    values = torch.tensor([*E2M3, *(-value for value in E2M3)], device=packed.device)
    return values[torch.stack([word >> shift & 63 for shift in (0, 6, 12, 18)], dim=-1)].flatten(-2)


def powers_of_two(exponents: Tensor, name: str) -> Tensor:
    """Returns scales that are stored as exponents."""
    if bool((exponents == NOT_A_NUMBER).any()):
        raise InputError(f"{name} has a scale that is no number (255); fetch the file again")
    bits = exponents.int() << MANTISSA_BITS
    return torch.where(bits == 0, 1 << (MANTISSA_BITS - 1), bits).view(torch.float32)


def group_numbers(stored: Tensor, columns: int, groups: int, name: str) -> Tensor:
    """Returns the group of every column, as it is stored."""
    if stored.shape != (columns,) or bool((stored < 0).any()) or bool((stored >= groups).any()):
        raise InputError(f"{name} must name one of {groups} groups for each of {columns} columns; fetch the file again")
    return stored.long()


def gptq_zeros(words: Tensor, *, bits: int, shape: tuple[int, int]) -> Tensor:
    """Returns the zero points of GPTQ's groups (groups, out) as they are stored."""
    return unpack_integers(words, bits, shape).float().add_(2 ** (bits - 1))


def gptq_weight(
    parts: Mapping[str, Tensor], name: str, *, bits: int, shape: tuple[int, ...], zero_added: int
) -> Tensor:
    """Returns a weight (out, in) of GPTQ, whose stored zero points lack `zero_added`."""
    out, columns = shape
    codes = unpack_integers(parts["qweight"], bits, (columns, out), along=0).float().add_(2 ** (bits - 1))
    groups = len(parts["scales"])
    zeros = gptq_zeros(parts["qzeros"], bits=bits, shape=(groups, out)).add_(zero_added)
    scales = parts["scales"].float()
    if "g_idx" in parts:
        group = group_numbers(parts["g_idx"], columns, groups, name)
        return codes.sub_(zeros[group]).mul_(scales[group]).T.contiguous()
    tile = (columns // groups, 1)
    return scaled(shifted(codes, zeros, tile), scales, tile).T.contiguous()


def awq_weight(parts: Mapping[str, Tensor], *, shape: tuple[int, ...]) -> Tensor:
    """Returns a weight (out, in) of AWQ, in 4 bits."""
    codes, zeros, scales = _awq_codes(parts["qweight"]), _awq_codes(parts["qzeros"]), parts["scales"]
    tile = (shape[1] // len(scales), 1)
    return scaled(shifted(codes, zeros, tile), scales, tile).T.contiguous()


def _awq_codes(words: Tensor) -> Tensor:
    shifts = torch.arange(0, 32, 4, device=words.device, dtype=torch.int32)
    nibbles = (words[:, :, None] >> shifts) & 15
    return nibbles[:, :, list(AWQ_COLUMNS)].flatten(1).float()


def unpack_table(packed: Tensor, table: Tensor) -> Tensor:
    """Returns the numbers of a table that bytes hold, two each, the first in the upper half."""
    pairs = torch.stack([table.repeat_interleave(16), table.repeat(16)], dim=-1)
    return pairs[packed.int()].flatten()


def scaled_in_blocks(values: Tensor, scales: Tensor, block: int) -> Tensor:
    """Returns a vector, each of its blocks times one scale."""
    return values * scales.repeat_interleave(block)[: len(values)]


def mxfp4_experts(parts: Mapping[str, Tensor], name: str) -> Tensor:
    """Returns the experts (count, in, out) that gpt-oss stores as blocks of 32 numbers of 4 bits."""
    values = unpack_e2m1(parts["blocks"]).mul_(powers_of_two(parts["scales"], name)[..., None])
    return values.flatten(-2).transpose(1, 2).contiguous()
