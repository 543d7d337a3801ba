"""Quantized weights in the files of a checkpoint: which tensors make up each, and its float32 values.

What a weight is stored as must be what the settings say, or it is refused.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.models.io import layouts
from fairbits.models.io.layouts import Tile
from fairbits.models.io.quantization_settings import QuantizationSettings
from fairbits.models.io.safetensors_files import StoredTensor

FLOAT8 = torch.float8_e4m3fn
SCALES = (torch.float16, torch.bfloat16, torch.float32)
FORMATS: Mapping[str, tuple[str, ...]] = {  # the kinds of codes that the formats of compressed-tensors hold
    "pack-quantized": ("int words",),
    "int-quantized": ("int8",),
    "float-quantized": ("float8",),
    "naive-quantized": ("int8", "float8"),
    "nvfp4-pack-quantized": ("float4",),
    "mxfp4-pack-quantized": ("float4, powers of two",),
    "mxfp6-pack-quantized": ("float6, powers of two",),
    "mxfp8-quantized": ("float8, powers of two",),
    "dense": (),
}
WORD_BITS = 32

Files = Mapping[str, StoredTensor]
Read = Callable[[str], Tensor]


@dataclass(frozen=True)
class StoredWeight:
    """A quantized weight of integers or floats with scales: what its parts are called in the files, and its shape.

    `kind` says what a code is: "int words" (packed in 32 bits), "int8", "float8", "float6" or "float4"; `how` is the
    scheme of its module, once that is known. A scale of the whole tensor may be stored `inverted`.
    """

    name: str
    parts: Mapping[str, str]
    shape: tuple[int, ...]
    kind: str
    bits: int
    inverted: bool = False
    how: Any = None

    def check(self, how: Any, files: Files, layout: str | None) -> None:
        """Raises if the files hold something else than a scheme and the format say."""
        scale, words = files[self.parts["scale"]], in_words(how)
        kind = f"{self.kind}{', powers of two' * (scale.dtype == torch.uint8)}"
        self._check_kind(how, layout, kind, words=files[self.parts["codes"]].shape[-1])
        grouped = how.strategy in ("group", "tensor_group")
        powers = how.type == "float" and how.strategy == "group" and how.group_size == 32
        types = (torch.uint8,) if powers else (FLOAT8,) if how.strategy == "tensor_group" else SCALES
        if scale.dtype not in types or how.scale_dtype not in (None, scale.dtype):
            raise InputError(f"{scale.name} is {scale.dtype}, which {words} does not have")
        wanted = layouts.tiles(self.shape, self._tile(how))
        if scale.shape not in _written(wanted, how.strategy) or (grouped and self.shape[-1] % how.group_size):
            raise InputError(f"{scale.name} is {list(scale.shape)}, and {words} needs {list(wanted)}")
        overall = [files[name].numel for kind, name in self.parts.items() if kind == "global_scale"]
        if overall != ([1] if how.strategy == "tensor_group" else []):
            raise InputError(f"{self.name} has {len(overall) or 'no'} scale of the whole tensor ({words})")
        if ("zero_point" in self.parts) == how.symmetric:
            raise InputError(f"{self.name} has {'' if how.symmetric else 'no '}zero points ({words})")
        if "zero_point" in self.parts:
            zeros, rows = files[self.parts["zero_point"]], -(-wanted[0] * how.num_bits // WORD_BITS)
            packed = zeros.dtype == torch.int32 and self.kind == "int words" and zeros.shape == (rows, *wanted[1:])
            if not packed and (zeros.dtype != torch.int8 or zeros.shape != wanted):
                raise InputError(f"{zeros.name} is {zeros.dtype} {list(zeros.shape)}; {words} needs {list(wanted)}")

    def _check_kind(self, how: Any, layout: str | None, kind: str, *, words: int) -> None:
        kinds = {"float": (f"float{how.num_bits}",), "int": ("int words", "int8")}[how.type]
        fits = how.num_bits <= 8 if self.kind == "int8" else how.num_bits == self.bits
        if self.kind == "int words":  # a narrow matrix has room for more bits than it holds
            fits = words == -(-self.shape[1] * how.num_bits // WORD_BITS)
        if self.kind not in kinds or not fits or how.dynamic:
            raise InputError(f"{self.name} is stored as {self.kind}, {self.bits} bits, and {in_words(how)} is stated")
        if layout is not None and layout in FORMATS and kind not in FORMATS[layout]:
            raise InputError(f"{self.name} is stored as {kind}, which the format {layout} does not hold")

    def values(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Returns the weight in float32, on the device of its parts."""
        tile, scales = self._tile(self.how), parts["scale"]
        scales = layouts.powers_of_two(scales, self.parts["scale"]) if scales.dtype == torch.uint8 else scales.float()
        if "global_scale" in parts:
            overall = parts["global_scale"].float().reshape(())
            scales = scales * overall if self.inverted else scales / overall
        codes = self._codes(parts["codes"])
        if "zero_point" in parts:
            codes = layouts.shifted(codes, self._zero_points(parts["zero_point"], tile), tile)
        if "g_idx" in parts and not bool((parts["g_idx"] < 0).any()):  # −1 stands for the order of columns
            groups = layouts.group_numbers(parts["g_idx"], self.shape[1], scales.shape[1], self.parts["g_idx"])
            return codes.float() * scales[:, groups]
        return layouts.scaled(codes, scales, tile)

    def _codes(self, codes: Tensor) -> Tensor:
        if self.kind == "int words":
            return layouts.unpack_integers(codes, self.how.num_bits, self.shape)
        if (
            self.kind == "int8"
            and self.how.num_bits < 8
            and bool((codes.int().abs() > 2 ** (self.how.num_bits - 1)).any())
        ):
            raise InputError(f"{self.name} holds codes of more than {self.how.num_bits} bits")
        unpack = {"float4": layouts.unpack_e2m1, "float6": layouts.unpack_e2m3}.get(self.kind)
        return codes if unpack is None else unpack(codes)

    def _zero_points(self, zeros: Tensor, tile: Tile) -> Tensor:
        if zeros.dtype != torch.int32:
            return zeros
        return layouts.unpack_integers(zeros, self.how.num_bits, layouts.tiles(self.shape, tile), along=0)

    def _tile(self, how: Any) -> Tile:
        rows, columns = self.shape[-2:]
        if how.strategy == "block":
            return min(int(how.block_structure[0]), rows), min(int(how.block_structure[1]), columns)
        return {"tensor": (rows, columns), "channel": (1, columns)}.get(how.strategy, (1, how.group_size))


def find_scaled(files: Files, settings: QuantizationSettings, read: Read) -> Iterator[StoredWeight]:
    """Yields the weights that have scales in the layouts of compressed-tensors."""
    ends = [suffix for suffix, part in settings.parts.items() if suffix and part in ("codes", "scale")]
    for name in sorted({name.removesuffix(end) for name in files for end in ends if name.endswith(end)}):
        parts = {part: f"{name}{suffix}" for suffix, part in settings.parts.items() if f"{name}{suffix}" in files}
        if "scale" not in parts:
            raise InputError(f"its files lack {name}_scale")
        if "codes" in parts and files[parts["codes"]].dtype.itemsize in (1, 4):
            yield StoredWeight(name, parts, *_shape(name, parts, files, read), "global_scale" in settings.inverted)


def _shape(name: str, parts: Mapping[str, str], files: Files, read: Read) -> tuple[tuple[int, ...], str, int]:
    codes, scale = (files[parts[part]] for part in ("codes", "scale"))
    if codes.dtype == torch.int32:
        return _shape_of_words(name, parts, files, read)
    if len(codes.shape) < 2 or codes.dtype not in (torch.uint8, torch.int8, FLOAT8):
        raise InputError(f"{codes.name} is {codes.dtype} {list(codes.shape)}, a layout that is not known")
    if codes.dtype != torch.uint8:
        return codes.shape, "float8" if codes.dtype == FLOAT8 else "int8", 8
    columns = (16 if scale.dtype == FLOAT8 else 32) * (scale.shape[-1] if scale.shape else 0)
    bits = codes.shape[-1] * 8 // max(columns, 1)
    if bits not in (4, 6) or codes.shape[-1] * 8 != columns * bits:
        raise InputError(f"{codes.name} {list(codes.shape)} does not fit its scales {list(scale.shape)}")
    return (*codes.shape[:-1], columns), f"float{bits}", bits


def _shape_of_words(name: str, parts: Mapping[str, str], files: Files, read: Read) -> tuple[tuple[int, ...], str, int]:
    words = files[parts["codes"]]
    if "shape" not in parts:
        raise InputError(f"its files lack {name}_shape")
    if len(words.shape) != 2 or files[parts["shape"]].shape != (2,):
        raise InputError(f"{words.name} is not a matrix with a shape")
    rows, columns = map(int, read(parts["shape"]))
    bits = max((bits for bits in range(2, 9) if words.shape[1] == -(-columns * bits // WORD_BITS)), default=0)
    if rows != words.shape[0] or not bits:
        raise InputError(
            f"{words.name} has {words.shape[0]} rows of {words.shape[1]} words for {rows} rows of {columns} codes, "
            "which are not packed densely"
        )
    return (rows, columns), "int words", bits


@dataclass(frozen=True)
class IntegerWeight(StoredWeight):
    """A weight in the layout of GPTQ, whose zero points may lack `zero_added`, or of AWQ."""

    awq: bool = False
    zero_added: int = 0
    groups: int = 1

    def check_zeros(self, words: Tensor) -> None:
        """Raises if programs would read a stored zero point differently."""
        zeros = layouts.gptq_zeros(words, bits=self.bits, shape=(self.groups, self.shape[0]))
        if self.zero_added and bool((zeros == 2**self.bits - 1).any()):
            raise InputError(
                f"{self.name} has a zero point that is stored as {2**self.bits - 1}, which GPTQModel reads as 0, with "
                f"a carry, and vLLM as {2**self.bits}; write it again in the second version of the layout (gptq_v2)"
            )

    def values(self, parts: Mapping[str, Tensor]) -> Tensor:
        if self.awq:
            return layouts.awq_weight(parts, shape=self.shape)
        return layouts.gptq_weight(parts, self.name, bits=self.bits, shape=self.shape, zero_added=self.zero_added)


def find_integers(files: Files, settings: QuantizationSettings, _read: Read) -> Iterator[StoredWeight]:
    """Yields the weights in the layout of GPTQ or AWQ."""
    awq, size = settings.layout == "awq", settings.groups[0].weights.group_size
    kinds = ("qweight", "qzeros", "scales", *(() if awq else ("g_idx",)))
    for path in sorted(name.removesuffix(".qweight") for name in files if name.endswith(".qweight")):
        parts = {kind: f"{path}.{kind}" for kind in kinds if f"{path}.{kind}" in files}
        lacking = {"qzeros", "scales"} - parts.keys()
        if lacking:
            raise InputError(f"its files lack {path}.{min(lacking)}")
        words, zeros, scales = (files[parts[kind]] for kind in ("qweight", "qzeros", "scales"))
        if any(len(info.shape) != 2 for info in (words, zeros, scales)) or not (
            words.dtype == zeros.dtype == torch.int32 and scales.dtype in SCALES
        ):
            raise InputError(f"{words.name}, its zero points and scales are not matrices of words and numbers")
        (rows, wide), (groups, out) = words.shape, scales.shape
        if awq:
            columns, bits, fits = rows, 4, wide * 8 == out
        else:
            columns = files[parts["g_idx"]].numel if "g_idx" in parts else groups * (size or 0)
            bits = WORD_BITS * rows // max(columns, 1)
            fits = wide == out and bits in (2, 3, 4, 8) and rows == -(-columns * bits // WORD_BITS)
        fits &= zeros.shape == (groups, -(-out * bits // WORD_BITS)) and groups == -(-columns // (size or columns or 1))
        if not fits:
            raise InputError(
                f"{words.name} {list(words.shape)}, zero points {list(zeros.shape)} and scales {list(scales.shape)} "
                f"do not fit groups of {size}"
            )
        name, shape = f"{path}.weight", (out, columns)
        yield IntegerWeight(
            name, parts, shape, "int words", bits, awq=awq, zero_added=settings.zero_added, groups=groups
        )


@dataclass(frozen=True)
class BlockedExperts(StoredWeight):
    """All experts of a block of gpt-oss, (count, in, out)."""

    def values(self, parts: Mapping[str, Tensor]) -> Tensor:
        return layouts.mxfp4_experts(parts, self.parts["scales"])


def find_blocked_experts(files: Files, _settings: QuantizationSettings, _read: Read) -> Iterator[StoredWeight]:
    """Yields the experts of gpt-oss."""
    for name in sorted(name.removesuffix("_blocks") for name in files if name.endswith("_blocks")):
        parts = {"blocks": f"{name}_blocks", "scales": f"{name}_scales"}
        blocks, scales = files[parts["blocks"]], files.get(parts["scales"])
        if scales is None or {blocks.dtype, scales.dtype} != {torch.uint8} or len(scales.shape) != 3:
            raise InputError(f"{blocks.name} is not a stack of blocks with scales")
        if blocks.shape != (*scales.shape, 16):
            raise InputError(f"{blocks.name} {list(blocks.shape)} does not fit its scales {list(scales.shape)}")
        experts, out, groups = scales.shape
        yield BlockedExperts(name, parts, (experts, groups * 32, out), "float4", 4)


STATE = ".quant_state.bitsandbytes__"
STATE_FIELDS = ["quant_type", "blocksize", "dtype", "shape", "nested_blocksize", "nested_dtype", "nested_offset"]


@dataclass(frozen=True)
class TableWeight(StoredWeight):
    """A weight of bitsandbytes: numbers of a table of 16, in blocks of the whole tensor; scales may be codes too."""

    block: int = 0
    nested_block: int = 0
    nested_offset: float = 0.0

    def values(self, parts: Mapping[str, Tensor]) -> Tensor:
        scales = parts["absmax"].float()
        if self.nested_block:
            table, overall = parts["nested_quant_map"].float(), parts["nested_absmax"].float()
            coded = table[parts["absmax"].int()]
            scales = layouts.scaled_in_blocks(coded, overall, self.nested_block).add_(self.nested_offset)
        values = layouts.unpack_table(parts["codes"].flatten(), parts["quant_map"].float())
        count = torch.Size(self.shape).numel()
        return layouts.scaled_in_blocks(values[:count], scales, self.block).reshape(self.shape)


def find_tables(files: Files, _settings: QuantizationSettings, read: Read) -> Iterator[StoredWeight]:
    """Yields the weights that bitsandbytes stores in 4 bits."""
    for state in sorted(name for name in files if STATE in name):
        name, stated = state.partition(STATE)[0], json.loads(bytes(read(state).tolist()))
        kinds = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
        parts = {kind: f"{name}.{kind}" for kind in kinds if f"{name}.{kind}" in files}
        unknown = stated.keys() - set(STATE_FIELDS)
        nested = stated.get("nested_blocksize") or 0
        if unknown or name not in files or {"absmax", "quant_map"} - parts.keys() or bool(nested) != (len(parts) == 4):
            raise InputError(f"{state} does not fit the tensors beside it ({', '.join(sorted(unknown) or parts)})")
        shape, block = tuple(map(int, stated["shape"])), int(stated["blocksize"])
        blocks, count = files[parts["absmax"]].numel, torch.Size(shape).numel()
        fits = files[name].dtype == torch.uint8 and files[name].numel == -(-count // 2) and blocks == -(-count // block)
        fits &= files[parts["absmax"]].dtype == (torch.uint8 if nested else torch.float32)
        fits &= files[parts["quant_map"]].numel == 16
        if nested:
            fits &= files[parts["nested_absmax"]].numel == -(-blocks // nested)
            fits &= files[parts["nested_quant_map"]].numel == 256
        if not fits:
            raise InputError(f"{name} {list(files[name].shape)} does not fit {list(shape)} in blocks of {block}")
        offset = float(stated.get("nested_offset") or 0)
        parts = {"codes": name, "state": state, **parts}
        yield TableWeight(
            name,
            parts,
            shape,
            str(stated["quant_type"]).upper(),
            4,
            block=block,
            nested_block=int(nested),
            nested_offset=offset,
        )


FINDERS: Mapping[str, Callable[[Files, QuantizationSettings, Read], Iterator[StoredWeight]]] = {
    "scaled": find_scaled,
    "gptq": find_integers,
    "awq": find_integers,
    "mxfp4": find_blocked_experts,
    "bitsandbytes": find_tables,
}


def in_words(how: Any) -> str:
    """Returns a scheme for weights or activations as a reader would say it."""
    number = f"{'FP' if how.type == 'float' else 'INT'}{how.num_bits}"
    if how.block_structure:
        return f"{number}, blocks of {how.block_structure[0]} × {how.block_structure[1]}"
    return (
        f"{number}, groups of {how.group_size}"
        if how.group_size
        else f"{number} per {how.strategy}".replace("attn_head", "head")
    )


def _written(tiles: tuple[int, ...], strategy: str) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes in which tools write scales of so many tiles."""
    shapes = {
        "block": ((*tiles[:-1], 1, tiles[-1], 1),),
        "tensor": (tiles[:-2],),
        "channel": (tiles[:-1],),
    }
    return (tiles, *shapes.get(strategy, ()), *([(1,), ()] if tiles == (1, 1) else []))
