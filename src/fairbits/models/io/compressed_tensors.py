"""The layouts of compressed-tensors: `pack-quantized` for a linear layer, whole bytes for what cannot be packed.

A layer X.weight (out, in) is stored as

    X.weight_packed  int32 (out, ⌈in·bits/32⌉): code j + 2^(bits−1) at bits [j·bits, (j+1)·bits) of its row
    X.weight_scale   (out, groups), in the type that the loader computes in
    X.weight_shape   int64 (2,)

transformers 5.22 loads neither embeddings nor the linear layers of T5 and its like in this form. They are stored as
whole bytes (`int-quantized`): X.weight int8 (out, in) and X.weight_scale. A head that is tied to an embedding has no
weight, and a copy of the scale.

`compressed_tensors_config` says in config.json which layer is stored how, and what the format cannot hold.
"""

import math
from collections.abc import Mapping

import torch
from compressed_tensors.compressors.pack_quantized import unpack_from_int32  # type: ignore[import-untyped]
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.memory import GPU_PACKED_WEIGHTS, PACKED_WEIGHTS
from fairbits.models.architecture.architecture import Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme

PACKED, BYTES, MIXED = "pack-quantized", "int-quantized", "mixed-precision"
WORD_BITS = 32
BYTE_BITS = 8
"""The bits of what is stored in whole bytes: the only ones that an embedding can have."""
SHAPE_BYTES = 2 * torch.int64.itemsize


def layer_tensors(weight: Weight, codes: Codes, *, tied: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Returns the tensors of a file that hold a layer; `tied` are the other parameters that are the same tensor."""
    if not weight.in_whole_bytes:
        return packed_tensors(weight.name, codes)
    scaled = (weight.name, *tied) if weight.is_embedding else (weight.name,)
    return {weight.name: codes.codes.contiguous(), **{f"{name}_scale": codes.scales.contiguous() for name in scaled}}


def layer_bytes(weight: Weight, scheme: Scheme, *, dtype: torch.dtype, tied: int = 0) -> int:
    """Returns the bytes of these tensors; packed they are out·(4⌈in·bits/32⌉ + groups·|dtype|) + 16."""
    out, columns = weight.shape
    scale_bytes = out * scheme.groups(columns) * dtype.itemsize
    if weight.in_whole_bytes:
        return out * columns + scale_bytes * (1 + tied if weight.is_embedding else 1)
    return out * math.ceil(columns * scheme.bits / WORD_BITS) * (WORD_BITS // 8) + scale_bytes + SHAPE_BYTES


def planned_bytes(checkpoint: Checkpoint, schemes: Mapping[str, Scheme]) -> int:
    """Returns the bytes of all tensors once those with a scheme are quantized, including those that are kept."""
    architecture, dtype, total = checkpoint.architecture, checkpoint.scale_dtype, 0
    for name, info in checkpoint.tensors.items():
        if name in schemes:
            tied = len(architecture.tied_parameters(name))
            total += layer_bytes(architecture.weights[name], schemes[name], dtype=dtype, tied=tied)
        elif name not in checkpoint.tied_copies:
            total += info.nbytes
    return total


def packed_tensors(name: str, codes: Codes) -> dict[str, Tensor]:
    """Returns the tensors of a file that hold the linear layer `name`, X.weight.

    >>> codes = Codes(torch.tensor([[1, -2]], dtype=torch.int8), torch.tensor([[0.5]]), bits=4)
    >>> {name: tensor.tolist() for name, tensor in packed_tensors("a.weight", codes).items()}
    {'a.weight_packed': [[105]], 'a.weight_scale': [[0.5]], 'a.weight_shape': [1, 2]}
    """
    room = GPU_PACKED_WEIGHTS if codes.codes.is_cuda else PACKED_WEIGHTS
    rows = torch.split(codes.codes, max(1, room // max(1, codes.codes.shape[1])))
    packed = torch.cat([pack_codes(part, codes.bits) for part in rows])
    shape = torch.tensor(codes.codes.shape, dtype=torch.int64)
    return {f"{name}_packed": packed, f"{name}_scale": codes.scales.contiguous(), f"{name}_shape": shape}


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Returns codes (out, in) as int32 words (out, ⌈in·bits/32⌉), on their device.

    `pack_to_int32` in compressed-tensors makes the same words, adding up the bits of each word by a scatter. Here
    32 codes fill `bits` words exactly, and every code is shifted to its place in one word, or in two.

    >>> pack_codes(torch.tensor([[1, -2]], dtype=torch.int8), 4).tolist()
    [[105]]
    """
    out, columns = codes.shape
    whole = -(-columns // WORD_BITS) * WORD_BITS
    unsigned = (codes.to(torch.int16) + 2 ** (bits - 1)).to(torch.uint8)
    unsigned = torch.nn.functional.pad(unsigned, (0, whole - columns)).reshape(out, -1, WORD_BITS)
    words = torch.zeros(out, unsigned.shape[1], bits, dtype=torch.int32, device=codes.device)
    for j in range(WORD_BITS):
        word, shift = divmod(j * bits, WORD_BITS)
        code = unsigned[:, :, j].to(torch.int32)
        words[:, :, word] |= code << shift
        if shift + bits > WORD_BITS:
            words[:, :, word + 1] |= code >> (WORD_BITS - shift)
    return words.reshape(out, -1)[:, : -(-columns * bits // WORD_BITS)].contiguous()


def read_packed(tensors: Mapping[str, Tensor], name: str, *, bits: int) -> Codes:
    """Returns the codes of `bits` bits that `layer_tensors` stored."""
    try:
        scales = tensors[f"{name}_scale"].clone()
        if name in tensors:
            return Codes(tensors[name].clone(), scales, bits)
        packed, shape = tensors[f"{name}_packed"], tensors[f"{name}_shape"]
    except KeyError as missing:
        raise InputError(f"{missing.args[0]} is missing; a quantized {name} must have it: write it again") from None
    columns = _columns(name, packed, shape, bits)
    rows = torch.split(packed, max(1, PACKED_WEIGHTS // max(1, columns)))
    codes = [unpack_from_int32(part, bits, torch.Size((len(part), columns))) for part in rows]
    return Codes(torch.cat(codes), scales, bits)


def _columns(name: str, packed: Tensor, shape: Tensor, bits: int) -> int:
    """Returns the columns of a packed layer, or of some of its rows, if its words hold that many codes."""
    stated, words = shape.tolist(), packed.dtype == torch.int32 and packed.ndim == 2
    if words and shape.dtype == torch.int64 and shape.shape == (2,) and stated[1] > 0:
        columns = int(stated[1])
        if packed.shape[1] == -(-columns * bits // WORD_BITS):
            return columns
    raise InputError(
        f"{name}_packed is {packed.dtype} {list(packed.shape)} and {name}_shape says {stated!s:.60}; a row must hold "
        f"{bits} bits for every code in whole words: write it again"
    )
