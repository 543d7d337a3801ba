"""The tensors of a file that hold a quantized layer X.weight (out, in), in the formats of compressed-tensors.

    pack-quantized        weight_packed int32 (out, ⌈in·bits/32⌉): code j + 2^(bits−1) at bits [j·bits, (j+1)·bits)
                          weight_shape int64 (2,)
    int-quantized         weight int8 (out, in)
    float-quantized       weight float8 (out, in)
    mxfp8-quantized       the same; weight_scale is an exponent of 2 in 8 bits
    mxfp4-pack-quantized  weight_packed (out, in/2): two numbers in a byte, the first in its lower half; weight_scale
                          as of mxfp8
    nvfp4-pack-quantized  weight_packed as of mxfp4; weight_scale float8, to be divided by weight_global_scale (1,)

All have weight_scale (out, groups), of blocks (⌈out/128⌉, in/128), where nothing is said in the type that the loader
computes in. A static scale of inputs is input_scale (1,), or in NVFP4 input_global_scale (1,).

transformers 5.22 loads neither embeddings nor the linear layers of T5 and its like in packed form. They are stored as
whole bytes. A head that is tied to an embedding has no weight, and a copy of the scale.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import torch
from compressed_tensors.compressors.pack_quantized import unpack_from_int32  # type: ignore[import-untyped]
from compressed_tensors.quantization import QuantizationScheme, preset_name_to_scheme  # type: ignore[import-untyped]
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.memory import GPU_PACKED_WEIGHTS, PACKED_WEIGHTS
from fairbits.models.architecture.architecture import Weight
from fairbits.models.io.layouts import powers_of_two
from fairbits.models.scales.groups import WEIGHT_GLOBAL_SCALE, Codes, planned_constants
from fairbits.models.scales.scheme import BLOCK_SIZE, BYTE_BITS, Numbers, ScaleNumbers, Scheme

PACKED, BYTES, FLOATS = "pack-quantized", "int-quantized", "float-quantized"
NVFP4, MXFP4, MXFP8 = "nvfp4-pack-quantized", "mxfp4-pack-quantized", "mxfp8-quantized"
LAYOUTS: Mapping[tuple[Numbers, ScaleNumbers], str] = {
    ("e4m3", "model"): FLOATS,
    ("e4m3", "e8m0"): MXFP8,
    ("e2m1", "e4m3"): NVFP4,
    ("e2m1", "e8m0"): MXFP4,
}
WORD_BITS = 32
SHAPE_BYTES = 2 * torch.int64.itemsize
EXPONENT_OF_ONE = 127  # in 8 bits


def preset(name: str, targets: Iterable[str]) -> QuantizationScheme:
    """Returns a format as compressed-tensors knows it."""
    return preset_name_to_scheme(name, list(targets))


def layout(weight: Weight, scheme: Scheme) -> str:
    """Returns the format of compressed-tensors in which a layer is stored."""
    if scheme.numbers == "int":
        return BYTES if weight.in_whole_bytes or scheme.format == "W8A8" else PACKED
    return LAYOUTS[scheme.numbers, scheme.scales]


INTEGERS = Scheme()


def layer_tensors(
    weight: Weight, codes: Codes, scheme: Scheme = INTEGERS, *, tied: tuple[str, ...] = ()
) -> dict[str, Tensor]:
    """Returns the tensors of a file that hold a layer; `tied` are the other parameters that are the same tensor."""
    name, stored = weight.name, layout(weight, scheme)
    path = name.removesuffix("weight")
    constants = {path + constant: tensor.clone() for constant, tensor in codes.constants.items()}
    if stored == PACKED:
        return packed_tensors(name, codes) | constants
    scaled = (name, *tied) if weight.is_embedding else (name,)
    scales = {f"{scaled_name}_scale": stored_scales(codes, scheme) for scaled_name in scaled}
    if stored == BYTES:
        return {name: codes.codes.contiguous()} | scales | constants
    bits = codes.codes.abs().to(torch.uint8) | (codes.codes < 0).to(torch.uint8) << (codes.bits - 1)
    if codes.bits == BYTE_BITS:
        return {name: bits.view(torch.float8_e4m3fn)} | scales | constants
    return {f"{name}_packed": bits[:, ::2] | bits[:, 1::2] << 4} | scales | constants


def stored_scales(codes: Codes, scheme: Scheme) -> Tensor:
    """Returns scales as a file has them."""
    scales = codes.scales[:: height(scheme, len(codes.scales))]
    if scheme.group == "tensor" and scheme.has_tensor_scale:
        return scales[0].clone()
    if scheme.scales == "e8m0":
        return (torch.frexp(scales).exponent - 1 + EXPONENT_OF_ONE).to(torch.uint8)
    if scheme.scales == "e4m3":
        return (scales * codes.constants[WEIGHT_GLOBAL_SCALE].to(scales.device)).to(torch.float8_e4m3fn)
    return scales.contiguous()


def height(scheme: Scheme, rows: int) -> int:
    """Returns how many rows share a scale in a file."""
    if scheme.format == "integer":
        return 1
    return {"block": BLOCK_SIZE, "tensor": rows}.get(str(scheme.group), 1)


def layer_bytes(weight: Weight, scheme: Scheme, *, dtype: torch.dtype, tied: int = 0) -> int:
    """Returns the bytes of these tensors; packed they are out·(4⌈in·bits/32⌉ + groups·|dtype|) + 16."""
    out, columns = weight.shape
    rows = -(-out // height(scheme, out))
    scale_bytes = rows * scheme.groups(columns) * (dtype.itemsize if scheme.scales == "model" else 1)
    constants = len(planned_constants(scheme)) * torch.float32.itemsize
    if layout(weight, scheme) == PACKED:
        words = math.ceil(columns * scheme.bits / WORD_BITS) * (WORD_BITS // 8)
        return out * words + scale_bytes + SHAPE_BYTES + constants
    bits = BYTE_BITS if scheme.numbers == "int" else scheme.bits
    return out * columns * bits // 8 + scale_bytes * (1 + tied if weight.is_embedding else 1) + constants


def packed_tensors(name: str, codes: Codes) -> dict[str, Tensor]:
    """Returns the tensors of a file that hold the linear layer `name`, X.weight."""
    room = GPU_PACKED_WEIGHTS if codes.codes.is_cuda else PACKED_WEIGHTS
    rows = torch.split(codes.codes, max(1, room // max(1, codes.codes.shape[1])))
    packed = torch.cat([pack_codes(part, codes.bits) for part in rows])
    shape = torch.tensor(codes.codes.shape, dtype=torch.int64)
    return {f"{name}_packed": packed, f"{name}_scale": codes.scales.contiguous(), f"{name}_shape": shape}


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Returns codes (out, in) as int32 words (out, ⌈in·bits/32⌉), on their device.

    `pack_to_int32` in compressed-tensors makes the same words, adding up the bits of each word by a scatter. Here
    32 codes fill `bits` words exactly, and every code is shifted to its place in one word, or in two.
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


def read_layer(tensors: Mapping[str, Tensor], weight: Weight, scheme: Scheme) -> Codes:
    """Returns the codes that `layer_tensors` stored."""
    name, bits = weight.name, scheme.bits
    path = name.removesuffix("weight")
    with _complete(name):
        constants = {constant: tensors[path + constant].clone() for constant in sorted(planned_constants(scheme))}
        if scheme.numbers == "int":
            return replace(read_packed(tensors, name, bits=bits), constants=constants)
        scales, stored = tensors[f"{name}_scale"], tensors[name if bits == BYTE_BITS else f"{name}_packed"]
    if bits == BYTE_BITS:
        numbers = stored.view(torch.uint8)
    else:
        numbers = torch.stack([stored & 15, stored >> 4], dim=-1).flatten(1)
    sign = 1 << (bits - 1)
    size = (numbers & (sign - 1)).to(torch.int8)
    if scheme.scales == "e8m0":
        scales = powers_of_two(scales, f"{name}_scale")
    elif scheme.scales == "e4m3":
        scales = scales.float() / constants[WEIGHT_GLOBAL_SCALE]
    scales = scales.reshape(-1, scales.shape[-1]).repeat_interleave(height(scheme, len(numbers)), 0)[: len(numbers)]
    return Codes(torch.where(numbers & sign > 0, -size, size), scales, bits, scheme.numbers, constants)


def read_packed(tensors: Mapping[str, Tensor], name: str, *, bits: int) -> Codes:
    """Returns the integers of `bits` bits that `layer_tensors` stored."""
    with _complete(name):
        scales = tensors[f"{name}_scale"].clone()
        if name in tensors:
            return Codes(tensors[name].clone(), scales, bits)
        packed, shape = tensors[f"{name}_packed"], tensors[f"{name}_shape"]
    columns = _columns(name, packed, shape, bits)
    rows = torch.split(packed, max(1, PACKED_WEIGHTS // max(1, columns)))
    codes = [unpack_from_int32(part, bits, torch.Size((len(part), columns))) for part in rows]
    return Codes(torch.cat(codes), scales, bits)


@contextmanager
def _complete(name: str) -> Iterator[None]:
    try:
        yield
    except KeyError as missing:
        raise InputError(f"{missing.args[0]} is missing; a quantized {name} must have it: write it again") from None


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
