"""UnpackedCheckpoint: a quantized checkpoint as the plain float32 model that its files describe, tensor by tensor.

Every tensor of the files is used or refused, and so is every field that says how they are to be read. What is rounded
while the model computes, inputs of layers and cached keys and values, is rounded by hooks (`rounding`).
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from compressed_tensors.utils.match import match_name  # type: ignore[import-untyped]
from torch import Tensor
from transformers import PretrainedConfig, PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Architecture, Weight
from fairbits.models.architecture.assemble import map_architecture
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu
from fairbits.models.io.quantization_settings import LINEAR, QuantizationSettings, read_settings
from fairbits.models.io.safetensors_files import TensorInfo
from fairbits.models.io.stored_weights import FINDERS, StoredWeight, in_words
from fairbits.models.rounded_activations import Projection, Rounding, round_experts, round_keys_and_values, round_layer
from fairbits.models.streaming_model import StreamingModel


class UnpackedCheckpoint(Checkpoint):
    """A quantized checkpoint with the names, shapes and values that its weights have without packing."""

    def __init__(self, stored: Checkpoint) -> None:
        """Reads what is said of the quantization, and the shapes; weights are read when they are asked for."""
        computed = ("config", "architecture", "fingerprint", "tensors", "slices", "plain")
        self.__dict__.update({name: value for name, value in vars(stored).items() if name not in computed})
        assert stored.quantization is not None
        entry, self._where = stored.quantization
        self._stored = stored
        self.settings: QuantizationSettings = read_settings(entry, self._where)
        self.packed: Mapping[str, StoredWeight] = {weight.name: weight for weight in self._find()}
        beside = self._beside = dict(self._find_beside())
        hidden = {part for weight in self.packed.values() for part in weight.parts.values()} | beside.keys()
        kept = (info for name, info in stored.files.items() if name not in hidden and not self._is_tied_scale(name))
        plain = {info.name: self._check_plain(info) for info in kept}
        plain |= {
            name: TensorInfo(name, weight.shape, torch.float32, 4 * _count(weight.shape))
            for name, weight in self.packed.items()
        }
        self.tensors = MappingProxyType(plain)
        self.slices = {}

    @property
    def stored(self) -> Checkpoint:
        return self._stored

    @cached_property
    def config(self) -> PretrainedConfig:
        plain = copy.deepcopy(self.stored.config)
        if hasattr(plain, "quantization_config"):
            del plain.quantization_config
        return plain

    @cached_property
    def architecture(self) -> Architecture:
        self._check_schemes(self._mapped)
        return self._mapped

    @cached_property
    def _mapped(self) -> Architecture:
        shapes = {name: info.shape for name, info in self.tensors.items()}
        return map_architecture(self.config, shapes, trust_remote_code=self.trust_remote_code)

    @property
    def size_bytes(self) -> int:
        return self.stored.size_bytes

    def read(self, name: str) -> Tensor:
        return self.unpack(self._info(name).name, self.stored.read)

    def parts(self, name: str) -> tuple[str, ...]:
        return tuple(self.packed[name].parts.values()) if name in self.packed else (name,)

    def unpack(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        """Returns a weight in float32 on the device that its parts are read to."""
        if name not in self.packed:
            return read(name)
        weight = self._following[name]
        values = weight.values({kind: read(part) for kind, part in weight.parts.items()})
        if not bool(values.isfinite().all()):
            raise InputError(f"{name} of {self.target} has scales that make it infinite or no number; fetch it again")
        return values

    def load(
        self, dtype: torch.dtype = torch.float32, *, device: str = "cpu", read_only: bool = False
    ) -> PreTrainedModel:
        """Returns the model in eval mode, which rounds activations as the files say."""

        def read(name: str) -> Tensor:
            if name not in self.packed or not is_gpu(device):
                return self.read(name)
            return self.unpack(name, lambda part: self.stored.read_pinned(part).to(device, non_blocking=True))

        loaded = StreamingModel(self, device, dtype=dtype, read=read)
        loaded.load_all(copies=not read_only)
        return loaded.model

    def stored_as(self, name: str) -> tuple[str, str, int]:
        if name not in self.packed:
            return super().stored_as(name)
        scheme, weight = self._schemes[name], self.packed[name]
        inputs = "–" if scheme.input_activations is None else in_words(scheme.input_activations)
        stored = in_words(scheme.weights)
        if self.settings.layout in ("gptq", "awq"):
            stored = stored.replace(f"INT{scheme.weights.num_bits}", f"INT{weight.bits}")
        elif self.settings.layout == "bitsandbytes":
            stored = stored.replace("FP4", weight.kind)
        zeros = "" if scheme.weights.symmetric else ", zero points"
        return f"{stored}{zeros}", inputs, sum(self.stored.files[part].nbytes for part in weight.parts.values())

    def prepare(self, model: PreTrainedModel, device: torch.device | str) -> None:
        """Makes a model round the inputs of its layers, and its keys and values, as the files say."""
        self.architecture  # noqa: B018  # which raises if they cannot be rounded so
        for path, roundings in self._roundings.items():
            module, whole = model.get_submodule(path), roundings.get(None)
            if whole is not None:
                round_layer(module, whole)
            else:
                round_experts(module, {part: rounding for part, rounding in roundings.items() if part is not None})
        if self.settings.keys_and_values is not None:
            round_keys_and_values(model, self.settings.keys_and_values, self._cache_scales, device)

    @cached_property
    def activation_notes(self) -> tuple[str, ...]:
        """What a reader must know of activations that are rounded: as here, and as a server may do it."""
        notes = []
        for scheme in self.settings.groups:
            if scheme.input_activations is not None:
                inputs = scheme.input_activations
                said = f"weights {in_words(scheme.weights)}; activations {in_words(inputs)}, rounded here"
                four = inputs.type == "float" and inputs.num_bits < 8
                notes.append(
                    f"{said} as Blackwell GPUs do; older ones serve such weights with activations of 16 bits"
                    if four
                    else f"{said} as when the model is served"
                )
        if (cached := self.settings.keys_and_values) is not None:
            scales = "" if self._cache_scales else "; its files hold no scales for them, and 1 is used, as servers do"
            notes.append(f"keys and values {in_words(cached)}, rounded here as in a server's cache{scales}")
        return tuple(notes)

    def _find(self) -> Iterator[StoredWeight]:
        try:
            yield from FINDERS[self.settings.layout](self.stored.files, self.settings, self.stored.read)
        except (InputError, KeyError, ValueError) as problem:
            raise self._wrong(str(problem)) from None

    def _find_beside(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yields the tensors beside weights: the module they belong to, by its name in the files, and what they are."""
        for name in self.stored.files:
            for suffix, kind in self.settings.beside.items():
                if name.endswith(f".{suffix}"):
                    yield name, (name.removesuffix(f".{suffix}"), kind)

    def _is_tied_scale(self, name: str) -> bool:
        """Returns whether a tensor repeats the scale of a weight that its own is tied to, as fairbits writes heads."""
        weight = name.removesuffix("_scale")
        return weight != name and weight.endswith(".weight") and weight not in self.packed

    def _check_plain(self, info: TensorInfo) -> TensorInfo:
        if info.dtype.itemsize == 1 and len(info.shape) > 1 and info.dtype != torch.bool:
            raise self._wrong(f"{info.name} is stored as {info.dtype}, without what it takes to read that")
        return info

    @cached_property
    def _schemes(self) -> dict[str, Any]:
        """The scheme of every weight that has one, packed or not."""
        model = self.meta_model()
        weights = self._mapped.weights
        schemes = {name: self._scheme_of(weight, model) for name, weight in weights.items()}
        return {name: scheme for name, scheme in schemes.items() if scheme is not None and scheme.weights is not None}

    def _scheme_of(self, weight: Weight, model: PreTrainedModel) -> Any:
        if not self.settings.exact:
            return self.settings.groups[0] if weight.name in self.packed else None
        paths = (weight.module, weight.name.removesuffix(".weight"))
        stacked = weight.expert is not None or weight.stacked is not None
        kinds = {LINEAR} if stacked else {kind.__name__ for kind in type(model.get_submodule(weight.module)).__mro__}
        if any(name in kinds or any(match_name(path, name) for path in paths) for name in self.settings.ignore):
            return None
        found = [
            (0 if target in paths else 1 if target.startswith("re:") else 2, number)
            for number, scheme in enumerate(self.settings.groups)
            for target in scheme.targets
            if target in kinds or any(match_name(path, target) for path in paths)
        ]
        return self.settings.groups[min(found)[1]] if found else None  # a name counts more than a pattern or a class

    @cached_property
    def _following(self) -> dict[str, StoredWeight]:
        """The packed weights that the model uses, with their schemes."""
        following = {}
        for name in self.packed.keys() & self._schemes.keys():
            weight, scheme = self.packed[name], self._schemes[name]
            if self.settings.layout == "scaled":
                try:
                    weight.check(scheme.weights, self.stored.files, scheme.format or self.settings.format)
                except InputError as problem:
                    raise self._wrong(str(problem)) from None
            elif weight.bits != scheme.weights.num_bits and not self.settings.varies:
                raise self._wrong(f"{name} has {weight.bits} bits, and {scheme.weights.num_bits} are stated")
            following[name] = replace(weight, how=scheme.weights)
        return following

    def _check_schemes(self, architecture: Architecture) -> None:
        for name, weight in architecture.weights.items():
            scheme = self._schemes.get(name)
            if name in self.packed and scheme is None:
                raise self._wrong(f"{name} is packed, and nothing says how")
            if (
                name not in self.packed
                and scheme is not None
                and weight.expert is None
                and (weight.linear or weight.is_embedding)
            ):
                raise self._wrong(f"{name} is not packed, although it should be")
        self._following  # noqa: B018  # which raises if a weight is stored otherwise
        unplaced = self.packed.keys() - architecture.weights.keys() - architecture.ignored.keys()
        if unplaced:
            raise self._wrong(f"{min(unplaced)} belongs to no layer")
        self._check_tied_scales(architecture)
        used = {name for names in self._names_beside.values() for name in names.values()} | self._cache_names
        ignored = architecture.ignored
        unused = [name for name, (owner, _) in self._beside.items() if f"{owner}.weight" not in ignored]
        unused = sorted(set(unused) - used)
        if unused:
            raise self._wrong(f"its files hold {unused[0]}, which no scheme uses")
        self._roundings  # noqa: B018  # which raises if activations cannot be rounded as it says

    def _check_tied_scales(self, architecture: Architecture) -> None:
        scales = [name for name in self.stored.files if self._is_tied_scale(name) and name not in self._beside]
        used = {part for weight in self.packed.values() for part in weight.parts.values()}
        for name in set(scales) - used:
            scale = f"{architecture.tied.get(name.removesuffix('_scale'), name)}_scale"
            if scale not in used or not torch.equal(self.stored.read(name), self.stored.read(scale)):
                raise self._wrong(f"its files hold {name}, which belongs to no packed weight")

    @cached_property
    def _names_beside(self) -> dict[str, dict[str, str]]:
        """The tensors beside each weight that its scheme uses: their names, by what they are."""
        found: dict[str, dict[str, str]] = {}
        for name, (owner, kind) in self._beside.items():
            scheme = self._schemes.get(f"{owner}.weight")
            side = kind.partition("_")[0]
            how = None if scheme is None else getattr(scheme, f"{side}_activations", None)
            if how is not None and kind in _wanted(side, how):
                found.setdefault(f"{owner}.weight", {})[kind] = name
        return found

    @cached_property
    def _roundings(self) -> dict[str, dict[tuple[Projection, int | None] | None, Rounding]]:
        """How the inputs and outputs of modules are rounded, by their paths in the model; of experts, each."""
        found: dict[str, dict[tuple[Projection, int | None] | None, Rounding]] = {}
        for name, scheme in self._schemes.items():
            weight, (inputs, outputs) = (
                self._mapped.weights[name],
                (scheme.input_activations, scheme.output_activations),
            )
            expert = weight.expert is not None or weight.stacked is not None
            rounds = inputs is not None or outputs is not None
            if not rounds or weight.is_embedding or not (weight.linear or name in self.packed):
                continue
            if expert and outputs is not None:
                raise self._wrong(f"the outputs of the expert {name} are to be rounded, which is not done here")
            last: Projection = "down" if weight.role == "mlp_down" else "up"
            part = (last, weight.expert) if expert else None
            rounding = self._rounding(name, inputs, outputs)
            known = found.setdefault(weight.module, {}).setdefault(part, rounding)
            if not known.equals(rounding):
                raise self._wrong(f"{weight.module} joins layers whose inputs are rounded differently")
        return found

    def _rounding(self, name: str, inputs: Any, outputs: Any) -> Rounding:
        names = self._names_beside.get(name, {})
        values = {kind: self._beside_value(kind, file) for kind, file in names.items()}
        for side, how in (("input", inputs), ("output", outputs)):
            if how is None:
                continue
            lacking = [kind for kind in _wanted(side, how) if kind not in values]
            if lacking:
                raise self._wrong(f"its files lack {name.removesuffix('.weight')}.{lacking[0]} ({in_words(how)})")
            if how.dynamic is True and how.strategy == "tensor":
                raise self._wrong(
                    f"{side}s of {name} have one scale for all that is in a batch, which no batch repeats"
                )
            for kind in _wanted(side, how):
                if values[kind].numel() != 1 or not bool(values[kind].isfinite().all()):
                    raise self._wrong(f"{names[kind]} is {list(values[kind].shape)}; it must be one finite number")
        return Rounding(inputs, outputs, values, round_up=self.settings.round_up)

    def _beside_value(self, kind: str, file: str) -> Tensor:
        value = self.stored.read(file).float()
        if not bool((value > 0).all()) and not kind.endswith("zero_point"):
            raise self._wrong(f"{file} is not above 0")
        return 1 / value if kind in self.settings.inverted else value

    @cached_property
    def _cache_scales(self) -> dict[str, dict[str, Tensor]]:
        """The scales of keys and values, by the path of their attention in the model."""
        if self.settings.keys_and_values is None:
            return {}
        scales: dict[str, dict[str, Tensor]] = {}
        for name, (owner, kind) in self._beside.items():
            if kind in ("k_scale", "v_scale"):
                scales.setdefault(self._module_of(owner), {})[kind] = self._beside_value(kind, name)
        uneven = next((path for path, pair in scales.items() if len(pair) != 2), None)
        if uneven is not None:
            raise self._wrong(f"{uneven} has a scale for {'keys' if 'k_scale' in scales[uneven] else 'values'} only")
        return scales

    @property
    def _cache_names(self) -> set[str]:
        cached = self.settings.keys_and_values is not None
        return {name for name, (_, kind) in self._beside.items() if cached and kind in ("k_scale", "v_scale")}

    def _module_of(self, owner: str) -> str:
        """Returns the path in the model of a module that has this name in the files."""
        for name, weight in self._mapped.weights.items():
            if name.startswith(f"{owner}."):
                inside = name.removesuffix(".weight").removeprefix(owner)
                if weight.module.endswith(inside):
                    return weight.module.removesuffix(inside)
        raise self._wrong(f"{owner} has scales, and no weights")

    def _wrong(self, what: str) -> InputError:
        return InputError(
            f"{self.target} cannot be read: {what} ({self._where}, {self.settings.method}); nothing was evaluated: "
            "correct it, fetch the files again, or report a layout that should be known"
        )


def _wanted(side: str, how: Any) -> tuple[str, ...]:
    """Returns what the files must hold to round activations so."""
    if how.strategy == "tensor_group":
        return (f"{side}_global_scale",)
    if how.dynamic:
        return ()
    return (f"{side}_scale",) if how.symmetric else (f"{side}_scale", f"{side}_zero_point")


def _count(shape: tuple[int, ...]) -> int:
    return torch.Size(shape).numel()
