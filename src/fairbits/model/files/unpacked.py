"""UnpackedCheckpoint: a quantized checkpoint as the plain float32 model that a loader makes of it, tensor by tensor."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.model.checkpoint import Checkpoint
from fairbits.model.files.packed import WORD_BITS, read_packed
from fairbits.model.files.safetensors_files import TensorInfo
from fairbits.model.groups import dequantize_in_float32

if TYPE_CHECKING:
    from transformers import PretrainedConfig

NOT_READ = ("_zero_point", "_g_idx", "_global_scale", "input_scale", "output_scale")
"""How the names of tensors end that only other layouts have."""


class UnreadableLayoutError(Exception):
    """A quantized checkpoint whose layout only its own loader reads, and what shows it."""


class UnpackedCheckpoint(Checkpoint):
    """A checkpoint in the layout of `packed`, with the names, shapes and values of the weights before packing."""

    def __init__(self, stored: Checkpoint) -> None:
        """Reads the shapes, and raises UnreadableLayoutError if weights are stored in another layout."""
        own = ("config", "architecture", "fingerprint")
        self.__dict__.update({name: value for name, value in vars(stored).items() if name not in own})
        self._stored = stored
        _check_layout(stored)
        self._parts = dict(_parts(stored.tensors))
        self._bits = {name: _bits(stored, parts) for name, parts in self._parts.items() if len(parts) > 1}
        self.tensors = MappingProxyType({name: self._plain(name) for name in self._parts})

    @property
    def stored(self) -> Checkpoint:
        """The packed checkpoint."""
        return self._stored

    @cached_property
    def config(self) -> "PretrainedConfig":
        """The configuration of the model before it was quantized."""
        plain = copy.deepcopy(self.stored.config)
        del plain.quantization_config
        return plain

    def read(self, name: str) -> Tensor:
        """Returns one weight as it was before packing, in float32 if it was packed."""
        return self.unpack(self._info(name).name, self.stored.read)

    def parts(self, name: str) -> tuple[str, ...]:
        """Returns the tensors of the files that make up a weight."""
        return self._parts[name]

    def unpack(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        """Returns one weight from the tensors of the files, which `read` gives."""
        tensors = {part: read(part) for part in self._parts[name]}
        if name not in self._bits:
            return tensors[name]
        return dequantize_in_float32(read_packed(tensors, name, bits=self._bits[name]))

    def _plain(self, name: str) -> TensorInfo:
        info = self.stored.tensors[self._parts[name][0]]
        if name not in self._bits:
            return info
        shape = info.shape if len(self._parts[name]) == 2 else self.stored.read(f"{name}_shape").tolist()
        return replace(info, name=name, shape=tuple(shape), dtype=torch.float32)


def _check_layout(checkpoint: Checkpoint) -> None:
    settings = checkpoint.config.quantization_config
    method = settings.get("quant_method") if isinstance(settings, dict) else None
    if method != "compressed-tensors":
        raise UnreadableLayoutError(f"its weights are packed by {method or 'a method without a name'}")
    other = next((name for name in checkpoint.tensors if name.endswith(NOT_READ)), None)
    if other is not None:
        raise UnreadableLayoutError(f"its files hold {other}, which belongs to another layout")


def _parts(tensors: Mapping[str, TensorInfo]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields each weight, and the tensors that hold it. A scale without a weight is that of a tied one."""
    for name, info in tensors.items():
        weight = name.removesuffix("_packed")
        if weight != name:
            yield weight, (name, f"{weight}_scale", f"{weight}_shape")
        elif info.dtype == torch.int8 and f"{name}_scale" in tensors:
            yield name, (name, f"{name}_scale")
        elif not name.endswith((".weight_scale", ".weight_shape")):
            yield name, (name,)


def _bits(checkpoint: Checkpoint, parts: tuple[str, ...]) -> int:
    """Returns the bits of a packed weight: as many as fill its words without a gap."""
    if len(parts) == 2:
        return 8
    packed, _, shape = parts
    missing = [part for part in parts if part not in checkpoint.tensors]
    if missing:
        raise UnreadableLayoutError(f"its files lack {missing[0]}")
    if len(checkpoint.tensors[packed].shape) != 2 or checkpoint.tensors[shape].shape != (2,):
        raise UnreadableLayoutError(f"{packed} is not a matrix with a shape")
    words, columns = checkpoint.tensors[packed].shape[1], int(checkpoint.read(shape)[1])
    bits = words * WORD_BITS // max(columns, 1)
    if not 1 < bits <= 8 or words != -(-columns * bits // WORD_BITS):
        raise UnreadableLayoutError(f"{packed} has {words} words for {columns} codes, which are not packed densely")
    return bits
