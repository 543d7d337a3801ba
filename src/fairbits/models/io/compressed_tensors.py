"""The layouts of compressed-tensors: `pack-quantized` for a linear layer, whole bytes for what cannot be packed.

A map X.weight (out, in) is stored as

    X.weight_packed  int32 (out, ⌈in·bits/32⌉): code j + 2^(bits−1) at bits [j·bits, (j+1)·bits) of its row
    X.weight_scale   (out, groups), in the type that the loader computes in
    X.weight_shape   int64 (2,)

transformers 5.22 does not load embeddings so, nor the linear layers of T5 and its like. They are stored as whole bytes
(`int-quantized`): X.weight int8 (out, in) and X.weight_scale. A head that is tied to an embedding has no weight, and a
scale of its own.

CompressedTensors: the format of compressed-tensors, which transformers and vLLM load.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.memory import GPU_PACKED_WEIGHTS, PACKED_WEIGHTS
from fairbits.models.io.compressed_tensors_config import BYTE_BITS, check_storable, quantization_config, why_not
from fairbits.models.io.split_index import SplitIndex, joined_tensors, vllm_unreadable_shapes
from fairbits.models.io.stored_weights import in_whole_bytes, is_table
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme

if TYPE_CHECKING:
    from fairbits.models.architecture.records import Weight
    from fairbits.models.checkpoint import Checkpoint


WORD_BITS = 32
SHAPE_BYTES = 2 * torch.int64.itemsize


def packed_tensors(name: str, codes: Codes) -> dict[str, Tensor]:
    """Returns the tensors of a file that hold the linear layer `name`, X.weight.

    >>> codes = Codes(torch.tensor([[1, -2]], dtype=torch.int8), torch.tensor([[0.5]]), bits=4)
    >>> {name: tensor.tolist() for name, tensor in packed_tensors("a.weight", codes).items()}
    {'a.weight_packed': [[105]], 'a.weight_scale': [[0.5]], 'a.weight_shape': [1, 2]}
    """
    rows = torch.split(codes.codes, _rows_at_once(codes.codes))
    packed = torch.cat([pack_codes(part, codes.bits) for part in rows])
    shape = torch.tensor(codes.codes.shape, dtype=torch.int64)
    return {f"{name}_packed": packed, f"{name}_scale": codes.scales.contiguous(), f"{name}_shape": shape}


def pack_codes(codes: Tensor, bits: int) -> Tensor:
    """Returns codes (out, in) as int32 words (out, ⌈in·bits/32⌉), on their device.

    The words are those of compressed-tensors' `pack_to_int32`, which adds up the bits of each word by a scatter. Here
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


def byte_tensors(name: str, codes: Codes, *, tied: tuple[str, ...] = ()) -> dict[str, Tensor]:
    """Returns the tensors that hold `name` in whole bytes; `tied` are the other parameters that are the same."""
    scales = {f"{each}_scale": codes.scales.contiguous() for each in (name, *tied)}
    return {name: codes.codes.contiguous()} | scales


def read_packed(tensors: Mapping[str, Tensor], name: str, *, bits: int) -> Codes:
    """Returns the codes of `bits` bits that `packed_tensors` or `byte_tensors` wrote."""
    try:
        scales = tensors[f"{name}_scale"].clone()
        if name in tensors:
            return Codes(tensors[name].clone(), scales, bits)
        packed, shape = tensors[f"{name}_packed"], tensors[f"{name}_shape"]
    except KeyError as missing:
        raise InputError(f"{missing.args[0]} is missing; a quantized {name} must have it: write it again") from None
    from compressed_tensors.compressors.pack_quantized import unpack_from_int32  # type: ignore[import-untyped]

    columns = _columns(name, packed, shape, bits)
    rows = torch.split(packed, max(1, PACKED_WEIGHTS // max(1, columns)))
    codes = [unpack_from_int32(part, bits, torch.Size((len(part), columns))) for part in rows]
    return Codes(torch.cat(codes), scales, bits)


def _columns(name: str, packed: Tensor, shape: Tensor, bits: int) -> int:
    """Returns the columns of a packed map, or of some of its rows, if its words hold that many codes."""
    stated, words = shape.tolist(), packed.dtype == torch.int32 and packed.ndim == 2
    if words and shape.dtype == torch.int64 and shape.shape == (2,) and stated[1] > 0:
        columns = int(stated[1])
        if packed.shape[1] == -(-columns * bits // WORD_BITS):
            return columns
    raise InputError(
        f"{name}_packed is {packed.dtype} {list(packed.shape)} and {name}_shape says {stated!s:.60}; a row must hold "
        f"{bits} bits for every code in whole words: write it again"
    )


def stored_bytes(shape: tuple[int, ...], scheme: Scheme, dtype: torch.dtype, *, whole: bool = False) -> int:
    """Returns the bytes of a map (out, in) with scales of `dtype`: out·(4⌈in·bits/32⌉ + groups·|dtype|) + 16.

    >>> stored_bytes((10, 64), Scheme(3, 32), torch.float16)
    296
    """
    out, columns = shape
    scale_bytes = out * scheme.groups(columns) * dtype.itemsize
    if whole:
        return out * columns + scale_bytes
    return out * math.ceil(columns * scheme.bits / WORD_BITS) * (WORD_BITS // 8) + scale_bytes + SHAPE_BYTES


def _rows_at_once(codes: Tensor) -> int:
    room = GPU_PACKED_WEIGHTS if codes.is_cuda else PACKED_WEIGHTS
    return max(1, room // max(1, codes.shape[1]))


class CompressedTensors:
    """The output format of compressed-tensors; `OutputFormat` says what its methods return."""

    embedding_bits = BYTE_BITS

    def why_not(self, weight: "Weight", scheme: Scheme) -> str | None:
        """Returns why a tensor cannot be stored with this scheme; None if it can."""
        return why_not(weight, scheme)

    def check(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> None:
        """Raises unless transformers loads a checkpoint in which these tensors are packed."""
        check_storable(checkpoint, schemes)

    def layer_bytes(self, weight: "Weight", scheme: Scheme, *, dtype: torch.dtype, tied: int = 0) -> int:
        """Returns the bytes of a tensor; a parameter that is tied to an embedding has scales of its own."""
        scale_bytes = weight.shape[0] * scheme.groups(weight.shape[1]) * dtype.itemsize
        others = tied * scale_bytes if is_table(weight) else 0
        return stored_bytes(weight.shape, scheme, dtype, whole=in_whole_bytes(weight)) + others

    def tensors(self, weight: "Weight", codes: Codes, *, tied: tuple[str, ...] = ()) -> dict[str, Tensor]:
        """Returns a packed linear layer, or what cannot be packed in whole bytes."""
        if not in_whole_bytes(weight):
            return packed_tensors(weight.name, codes)
        return byte_tensors(weight.name, codes, tied=tied if is_table(weight) else ())

    def apart(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> SplitIndex:
        """Returns the shapes that vLLM cannot load, and what transformers joins."""
        weights = checkpoint.architecture.weights
        packed = [name for name in schemes if not in_whole_bytes(weights[name])]
        return SplitIndex(vllm_unreadable_shapes(checkpoint.architecture, packed), *joined_tensors(checkpoint))

    def read(self, tensors: Mapping[str, Tensor], name: str, *, bits: int) -> Codes:
        """Returns the codes of a linear layer or an embedding."""
        return read_packed(tensors, name, bits=bits)

    def config_entries(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> dict[str, Any]:
        """Returns the quantization_config, which compressed-tensors itself has checked."""
        return {"quantization_config": quantization_config(checkpoint, schemes)}

    def extra_files(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> dict[str, bytes]:  # noqa: ARG002
        """Returns none: config.json says everything."""
        return {}
