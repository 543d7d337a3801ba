"""PackedWeights: the quantized weights of a checkpoint as the plain float32 ones that its files describe.

Every tensor of the files is used or refused, and so is every field that says how they are to be read. What is rounded
while the model computes, inputs of layers and cached keys and values, is rounded by hooks (`rounded_activations`).
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from compressed_tensors.utils.match import match_name  # type: ignore[import-untyped]
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Architecture, Weight
from fairbits.models.cache_types import SCALED_BY_FILES
from fairbits.models.io.quantization_settings import LINEAR, QuantizationSettings, read_settings
from fairbits.models.io.safetensors_files import StoredTensor, TensorInfo
from fairbits.models.io.stored_weights import FINDERS, IntegerWeight, StoredWeight, in_words
from fairbits.models.kv_cache import cached_layers, round_states, store_rounded
from fairbits.models.rounded_activations import Projection, Rounding, round_experts, round_keys_and_values, round_layer


class PackedWeights:
    """The quantized weights in the files of a checkpoint.

    `tensors`  the plain tensors that the files stand for, weights of float32 among them
    `packed`   the weights that are quantized, by their names among these
    """

    def __init__(
        self,
        target: str,
        files: Mapping[str, StoredTensor],
        quantization: tuple[Mapping[str, Any], str],
        read: Callable[[str], Tensor],
    ) -> None:
        """Reads what is said of the quantization, and the shapes; weights are read when they are asked for."""
        self._target, self._files, self._read = target, files, read
        entry, self._where = quantization
        self.settings: QuantizationSettings = read_settings(entry, self._where)
        self.packed: Mapping[str, StoredWeight] = {weight.name: weight for weight in self._find()}
        self._side_tensors = dict(self._find_side_tensors())
        hidden = {part for weight in self.packed.values() for part in weight.parts.values()} | self._side_tensors.keys()
        kept = (info for name, info in files.items() if name not in hidden and not self._is_tied_scale(name))
        plain = {info.name: self._check_plain(info) for info in kept}
        for name, weight in self.packed.items():
            plain[name] = TensorInfo(name, weight.shape, torch.float32, 4 * torch.Size(weight.shape).numel())
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType(plain)

    def follow(self, architecture: Architecture, model: PreTrainedModel) -> None:
        """Tells which weight is where in the model; raises unless all is as the settings say, and all is used."""
        self.architecture = architecture
        schemes = {name: self._scheme_of(weight, model) for name, weight in architecture.weights.items()}
        self._schemes = {name: scheme for name, scheme in schemes.items() if scheme is not None}
        self._check_schemes(architecture)
        if self.settings.keys_and_values is not None:
            self._check_cache(model)

    def unpack(self, name: str, read: Callable[[str], Tensor]) -> Tensor:
        """Returns a weight in float32 on the device that its parts are read to."""
        if name not in self.packed:
            return read(name)
        weight = self._following[name]
        with self._explained():
            values = weight.values({kind: read(part) for kind, part in weight.parts.items()})
        if not bool(values.isfinite().all()):
            raise self._wrong(f"{name} has scales that make it infinite or no number")
        return values

    def stored_as(self, name: str) -> tuple[str, str, int]:
        """Returns how a packed weight is stored, how the inputs of its layer are rounded, and its bytes."""
        scheme, weight = self._schemes[name], self.packed[name]
        inputs = "–" if scheme.input_activations is None else in_words(scheme.input_activations)
        stored = in_words(scheme.weights)
        if self.settings.layout in ("gptq", "awq"):
            stored = stored.replace(f"INT{scheme.weights.num_bits}", f"INT{weight.bits}")
        elif self.settings.layout == "bitsandbytes":
            stored = stored.replace("FP4", weight.kind)
        zeros = "" if scheme.weights.symmetric else ", zero points"
        return f"{stored}{zeros}", inputs, sum(self._files[part].nbytes for part in weight.parts.values())

    def prepare(self, model: PreTrainedModel, device: torch.device | str, *, cache: str | None = None) -> None:
        """Makes a model round the inputs of its layers, and its keys and values, as the files say.

        Keys and values are rounded to the type `cache` instead, if one is given.
        """
        for path, roundings in self._roundings.items():
            module, whole = model.get_submodule(path), roundings.get(None)
            if whole is not None:
                round_layer(module, whole)
            else:
                round_experts(module, {part: rounding for part, rounding in roundings.items() if part is not None})
        if cache is not None and not self.states_cache(cache):
            store_rounded(model, round_states(cache))
        elif self.settings.keys_and_values is not None:
            round_keys_and_values(model, self.settings.keys_and_values, self._cache_scales, device)

    def states_cache(self, cache: str) -> bool:
        """Returns whether the files themselves round keys and values to this type; raises if they contradict it."""
        stated = self.settings.keys_and_values
        if stated is None or cache not in SCALED_BY_FILES:
            return False
        if cache != "fp8_e4m3" or (stated.type, stated.num_bits) != ("float", 8):
            raise self._wrong(f"its scales of keys and values are for {in_words(stated)}, and not for {cache}")
        return True

    @cached_property
    def activation_notes(self) -> tuple[str, ...]:
        """What a reader must know of activations that are rounded: as here, and as a server may do it."""
        notes = self.input_notes
        if (cached := self.settings.keys_and_values) is not None:
            scales = "" if self._cache_scales else "; its files hold no scales for them, and 1 is used, as servers do"
            notes += (f"keys and values {in_words(cached)}, rounded here as in a server's cache{scales}",)
        return notes

    @cached_property
    def input_notes(self) -> tuple[str, ...]:
        """The same of inputs of layers alone."""
        notes = []
        for scheme in self.settings.groups:
            if scheme.input_activations is not None:
                inputs = scheme.input_activations
                words = f"weights {in_words(scheme.weights)}; activations {in_words(inputs)}, rounded here"
                four = inputs.type == "float" and inputs.num_bits < 8
                notes.append(
                    f"{words} as Blackwell GPUs do; older ones serve such weights with activations of 16 bits"
                    if four
                    else f"{words} too, as compressed-tensors rounds them"
                )
        return tuple(notes)

    def _find(self) -> Iterator[StoredWeight]:
        with self._explained():
            yield from FINDERS[self.settings.layout](self._files, self.settings, self._read)

    def _find_side_tensors(self) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yields the tensors beside weights: the module they belong to, by its name in the files, and what they are."""
        for name in self._files:
            for suffix, kind in self.settings.side_parts.items():
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

    def _scheme_of(self, weight: Weight, model: PreTrainedModel) -> Any:
        if not self.settings.exact:
            return self.settings.groups[0] if weight.name in self.packed else None
        paths = (weight.module, weight.name.removesuffix(".weight"))
        stacked = weight.expert is not None or weight.stacked is not None
        kinds = {LINEAR} if stacked else {kind.__name__ for kind in type(model.get_submodule(weight.module)).__mro__}
        if any(name in kinds or any(match_name(path, name) for path in paths) for name in self.settings.ignore):
            return None
        matching = [
            (0 if target in paths else 1 if target.startswith("re:") else 2, number)
            for number, scheme in enumerate(self.settings.groups)
            for target in scheme.targets
            if target in kinds or any(match_name(path, target) for path in paths)
        ]
        return (
            self.settings.groups[min(matching)[1]] if matching else None
        )  # a name counts more than a pattern or a class

    @cached_property
    def _following(self) -> dict[str, StoredWeight]:
        """The packed weights that the model uses, with their schemes."""
        following = {}
        for name in self.packed.keys() & self._schemes.keys():
            weight, scheme = self.packed[name], self._schemes[name]
            if self.settings.layout == "scaled":
                with self._explained():
                    weight.check(scheme.weights, self._files, scheme.format or self.settings.format)
            elif weight.bits != scheme.weights.num_bits and not self.settings.varies:
                raise self._wrong(f"{name} has {weight.bits} bits, and {scheme.weights.num_bits} are stated")
            if isinstance(weight, IntegerWeight) and weight.zero_added:
                with self._explained():
                    weight.check_zeros(self._read(weight.parts["qzeros"]))
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
        used = {name for names in self._used_side_tensors.values() for name in names.values()} | self._cache_names
        ignored = architecture.ignored
        unused = [name for name, (owner, _) in self._side_tensors.items() if f"{owner}.weight" not in ignored]
        unused = sorted(set(unused) - used)
        if unused:
            raise self._wrong(f"its files hold {unused[0]}, which no scheme uses")
        self._roundings  # noqa: B018  # which raises if activations cannot be rounded as it says

    def _check_tied_scales(self, architecture: Architecture) -> None:
        scales = [name for name in self._files if self._is_tied_scale(name) and name not in self._side_tensors]
        used = {part for weight in self.packed.values() for part in weight.parts.values()}
        for name in set(scales) - used:
            scale = f"{architecture.tied.get(name.removesuffix('_scale'), name)}_scale"
            if scale not in used or not torch.equal(self._read(name), self._read(scale)):
                raise self._wrong(f"its files hold {name}, which belongs to no packed weight")

    @cached_property
    def _used_side_tensors(self) -> dict[str, dict[str, str]]:
        """The tensors beside each weight that its scheme uses: their names, by what they are."""
        used: dict[str, dict[str, str]] = {}
        for name, (owner, kind) in self._side_tensors.items():
            scheme = self._schemes.get(f"{owner}.weight")
            side = kind.partition("_")[0]
            how = None if scheme is None else getattr(scheme, f"{side}_activations", None)
            if how is not None and kind in _wanted(side, how):
                used.setdefault(f"{owner}.weight", {})[kind] = name
        return used

    @cached_property
    def _roundings(self) -> dict[str, dict[tuple[Projection, int | None] | None, Rounding]]:
        """How the inputs and outputs of modules are rounded, by their paths in the model; of experts, each."""
        roundings: dict[str, dict[tuple[Projection, int | None] | None, Rounding]] = {}
        for name, scheme in self._schemes.items():
            weight, (inputs, outputs) = (
                self.architecture.weights[name],
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
            first = roundings.setdefault(weight.module, {}).setdefault(part, rounding)
            if not first.equals(rounding):
                raise self._wrong(f"{weight.module} joins layers whose inputs are rounded differently")
        return roundings

    def _rounding(self, name: str, inputs: Any, outputs: Any) -> Rounding:
        names = self._used_side_tensors.get(name, {})
        values = {kind: self._side_value(kind, file) for kind, file in names.items()}
        for side, how in (("input", inputs), ("output", outputs)):
            if how is None:
                continue
            lacking = [kind for kind in _wanted(side, how) if kind not in values]
            if lacking:
                raise self._wrong(f"its files lack {name.removesuffix('.weight')}.{lacking[0]} ({in_words(how)})")
            features = self.architecture.weights[name].shape[1 if side == "input" else 0]
            odd = (how.type == "float" and not how.symmetric) or (how.group_size and features % how.group_size)
            odd = odd or (how.strategy == "tensor_group") != (how.dynamic == "local")
            if odd or (how.scale_dtype == torch.uint8 and how.group_size != 32):
                raise self._wrong(f"{side}s of {name} are rounded to {in_words(how)}, in a way that is not known")
            if how.dynamic is True and how.strategy == "tensor":
                raise self._wrong(f"{side}s of {name} have one scale for a batch, so that results depend on it")
            for kind in _wanted(side, how):
                if values[kind].numel() != 1 or not bool(values[kind].isfinite().all()):
                    raise self._wrong(f"{names[kind]} is {list(values[kind].shape)}; it must be one finite number")
        return Rounding(inputs, outputs, values, round_up=self.settings.round_up)

    def _side_value(self, kind: str, file: str) -> Tensor:
        value = self._read(file).float()
        if not bool((value > 0).all()) and not kind.endswith("zero_point"):
            raise self._wrong(f"{file} is not above 0")
        return 1 / value if kind in self.settings.inverted else value

    @cached_property
    def _cache_scales(self) -> dict[str, dict[str, Tensor]]:
        """The scales of keys and values, by the path of their attention in the model."""
        if self.settings.keys_and_values is None:
            return {}
        scales: dict[str, dict[str, Tensor]] = {}
        for name, (owner, kind) in self._side_tensors.items():
            if kind in ("k_scale", "v_scale"):
                scales.setdefault(self._module_of(owner), {})[kind] = self._side_value(kind, name)
        by_tensor = self.settings.keys_and_values.strategy == "tensor"
        for path, pair in scales.items():
            if by_tensor and any(value.numel() != 1 for value in pair.values()):
                raise self._wrong(f"{path} has scales of keys and values that do not fit their scheme")
        uneven = next((path for path, pair in scales.items() if len(pair) != 2), None)
        if uneven is not None:
            raise self._wrong(f"{uneven} has a scale for {'keys' if 'k_scale' in scales[uneven] else 'values'} only")
        return scales

    def _check_cache(self, model: PreTrainedModel) -> None:
        """Raises unless the layers that cache keys and values are those with scales, or none has any."""
        with self._explained():
            layers = cached_layers(model).keys()
            scaled: set[Any] = {getattr(model.get_submodule(path), "layer_idx", path) for path in self._cache_scales}
            if scaled and scaled != layers:
                raise InputError(
                    f"not the same layers have scales of keys and values ({scaled}) and cache them ({layers})"
                )

    @property
    def _cache_names(self) -> set[str]:
        cached = self.settings.keys_and_values is not None
        return {name for name, (_, kind) in self._side_tensors.items() if cached and kind in ("k_scale", "v_scale")}

    def _module_of(self, owner: str) -> str:
        """Returns the path in the model of a module that has this name in the files."""
        for name, weight in self.architecture.weights.items():
            if name.startswith(f"{owner}."):
                inside = name.removesuffix(".weight").removeprefix(owner)
                if weight.module.endswith(inside):
                    return weight.module.removesuffix(inside)
        raise self._wrong(f"{owner} has scales, and no weights")

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except (InputError, KeyError, ValueError) as problem:
            raise self._wrong(str(problem)) from None

    def _wrong(self, what: str) -> InputError:
        return InputError(
            f"{self._target} cannot be read: {what} ({self._where}, {self.settings.method}); nothing was evaluated: "
            "correct it, fetch the files again, or report a layout that should be known"
        )


def _wanted(side: str, how: Any) -> tuple[str, ...]:
    """Returns what the files must hold to round activations so."""
    if how.strategy == "tensor_group":
        return (f"{side}_global_scale",)
    if how.dynamic:
        return ()
    return (f"{side}_scale",) if how.symmetric else (f"{side}_scale", f"{side}_zero_point")
