"""UnpackedCheckpoint: a quantized checkpoint as the plain float32 model that a loader makes of it, tensor by tensor."""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationConfig  # type: ignore[import-untyped]
from compressed_tensors.utils.match import match_named_modules, match_targets  # type: ignore[import-untyped]
from torch import Tensor
from transformers import PretrainedConfig
from transformers.integrations.compressed_tensors import get_experts_scheme

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Architecture, Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.compressed_tensors import BYTES, PACKED, WORD_BITS, read_packed
from fairbits.models.io.safetensors_files import TensorInfo
from fairbits.models.scales.groups import dequantize_in_float32

UNDERSTOOD = ("quant_method", "format", "quantization_status", "config_groups", "ignore")  # what it may say
MEANINGLESS = ("version", "global_compression_ratio")  # what it may also say, which changes nothing


class UnreadableLayoutError(Exception):
    """A quantized checkpoint whose layout only its own loader reads, and what shows it."""


class UnpackedCheckpoint(Checkpoint):
    """A checkpoint in the layout of `packed`, with the names, shapes and values of the weights before packing."""

    def __init__(self, stored: Checkpoint) -> None:
        """Reads the shapes, and raises UnreadableLayoutError if weights are stored in another layout."""
        computed = ("config", "architecture", "fingerprint")
        self.__dict__.update({name: value for name, value in vars(stored).items() if name not in computed})
        self._stored = stored
        self._settings = _settings(stored)
        self._parts = dict(_parts(stored.tensors))
        self._bits = {name: _bits(stored, parts) for name, parts in self._parts.items() if len(parts) > 1}
        self.tensors = MappingProxyType({name: self._plain(name) for name in self._parts})

    @property
    def stored(self) -> Checkpoint:
        return self._stored

    @cached_property
    def config(self) -> PretrainedConfig:
        plain = copy.deepcopy(self.stored.config)
        del plain.quantization_config
        return plain

    @cached_property
    def architecture(self) -> Architecture:
        try:
            architecture = super().architecture
        except InputError as problem:
            raise UnreadableLayoutError(str(problem)) from None
        self._check_schemes(architecture)
        self._check_used(architecture)
        return architecture

    def read(self, name: str) -> Tensor:
        return self.unpack(self._info(name).name, self.stored.read)

    def parts(self, name: str) -> tuple[str, ...]:
        return self._parts[name]

    def unpack(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        tensors = {part: read(part) for part in self._parts[name]}
        if name not in self._bits:
            return tensors[name]
        return dequantize_in_float32(read_packed(tensors, name, bits=self._bits[name]))

    def _plain(self, name: str) -> TensorInfo:
        info = self.stored.tensors[self._parts[name][0]]
        if name not in self._bits:
            if info.dtype.itemsize == 1 and len(info.shape) > 1 and info.dtype != torch.bool:
                raise UnreadableLayoutError(f"{name} is stored as {info.dtype}, without what it takes to read that")
            return info
        shape = info.shape if len(self._parts[name]) == 2 else self.stored.read(f"{name}_shape").tolist()
        return replace(info, name=name, shape=tuple(shape), dtype=torch.float32)

    def _check_schemes(self, architecture: Architecture) -> None:
        targets = {target: group for group in self._settings.config_groups.values() for target in group.targets}
        modules = match_named_modules(self.meta_model(), targets, self._settings.ignore)
        named = {name: targets[match_targets(name, module, targets)[0]] for name, module in modules}
        experts = get_experts_scheme(self._settings)  # type: ignore[no-untyped-call]
        for name, weight in architecture.weights.items():
            packed = name in self._bits
            scheme = named.get(weight.module) if weight.expert is None else experts
            if packed and (scheme is None or not self._follows(name, weight, scheme)):
                raise UnreadableLayoutError(f"{name} is not packed as its quantization_config says")
            if not packed and scheme is not None and weight.expert is None and (weight.linear or weight.is_embedding):
                raise UnreadableLayoutError(f"{name} is not packed, although its quantization_config says so")

    def _follows(self, name: str, weight: Weight, scheme: Any) -> bool:
        how, (out, columns) = scheme.weights, weight.shape
        groups = {"channel": 1, "group": columns // how.group_size if how.group_size else 0}.get(how.strategy, 0)
        return (
            (scheme.format or self._settings.format) == (PACKED if len(self._parts[name]) == 3 else BYTES)
            and (how.type, how.num_bits, how.symmetric, how.dynamic) == ("int", self._bits[name], True, False)
            and self.stored.tensors[f"{name}_scale"].shape == (out, groups)
        )

    def _check_used(self, architecture: Architecture) -> None:
        used = {part for parts in self._parts.values() for part in parts}
        for name in self.stored.tensors.keys() - used:
            tied = architecture.tied.get(name.removesuffix("_scale"), name)
            scale = f"{tied}_scale"
            if scale not in used or not torch.equal(self.stored.read(name), self.stored.read(scale)):
                raise UnreadableLayoutError(f"its files hold {name}, which belongs to no packed weight")


def _settings(checkpoint: Checkpoint) -> Any:
    entry = checkpoint.config.quantization_config
    method = entry.get("quant_method") if isinstance(entry, dict) else None
    if method != "compressed-tensors":
        raise UnreadableLayoutError(f"its weights are packed by {method or 'a method without a name'}")
    unknown = next((name for name in entry if entry[name] and name not in (*UNDERSTOOD, *MEANINGLESS)), None)
    if unknown is not None:
        raise UnreadableLayoutError(f"its quantization_config has {unknown}")
    try:
        settings = QuantizationConfig.model_validate(copy.deepcopy(entry))  # which changes its argument
    except (ValueError, NotImplementedError) as problem:
        raise UnreadableLayoutError(
            f"its quantization_config is not valid ({' '.join(str(problem).split())})"
        ) from None
    if settings.quantization_status != "compressed":
        raise UnreadableLayoutError(f"its quantization_status is {settings.quantization_status}")
    if not settings.config_groups:
        raise UnreadableLayoutError("its quantization_config has no group")
    for group in settings.config_groups.values():
        if group.input_activations is not None or group.output_activations is not None:
            raise UnreadableLayoutError("its activations are quantized too")
        if group.weights is None:
            raise UnreadableLayoutError("its quantization_config has a group without weights")
    return settings


def _parts(tensors: Mapping[str, TensorInfo]) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yields each weight, and the tensors that hold it. A scale without a weight belongs to a tied one."""
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
