"""Checkpoints in the formats of compressed-tensors: what can be stored, and what config.json and the indices say.

The `quantization_config` in config.json says which layer is stored how; `layer_files` has the tensors of each.

Some tensors may be read by only one of two loaders, so that a checkpoint may have two indices:

    shapes.safetensors                   X.weight_shape that vLLM would rearrange like rows of attention heads
    joined.safetensors                   convolutions of q, k and v as transformers would join them in a plain file
    parts.safetensors                    the same as they are in the original file
    model.safetensors.index.json         everything without shapes and joined tensors: what vLLM reads
    transformers.safetensors.index.json  everything without parts: `transformers_weights` in config.json names it
"""

import copy
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.quantization import QuantizationConfig  # type: ignore[import-untyped]
from torch import Tensor, nn
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.core.files import write_whole
from fairbits.models.architecture.architecture import Architecture, Weight
from fairbits.models.architecture.meta_model import initializes
from fairbits.models.architecture.parameter_mapping import Conversions, joined_groups
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.file_names import INDEX, INDEX_SUFFIX
from fairbits.models.io.layer_files import BYTES, PACKED, layer_bytes, layout, preset
from fairbits.models.io.safetensors_files import EXPLICIT, StoredTensor, in_memory, read_header, write_tensors
from fairbits.models.scales.scheme import BYTE_BITS, Scheme

MIXED = "mixed-precision"


def planned_bytes(checkpoint: Checkpoint, schemes: Mapping[str, Scheme]) -> int:
    """Returns the bytes of all tensors once those with a scheme are quantized, including those that are kept."""
    architecture, dtype, total = checkpoint.architecture, checkpoint.scale_dtype, 0
    for name in checkpoint.tensors:
        if name in schemes:
            tied = len(architecture.tied_parameters(name))
            total += layer_bytes(architecture.weights[name], schemes[name], dtype=dtype, tied=tied)
        elif name not in checkpoint.tied_copies:
            total += checkpoint.kept_info(name).nbytes
    return total


SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
EXPERT_TARGETS = ["re:.*experts.*"]  # how transformers finds the scheme of experts among several
ROUTED_EXPERTS = [r"re:.*\.experts\..*"]  # the same without shared experts, which may have another scheme
PLAIN_VERSION = "0.15.0"  # transformers 5 asks for it
DENSE_VERSION = "0.18.0"  # before it, codes of 3, 5, 6 or 7 bits never crossed a word
BYTES_VERSION = "0.20.0"  # the one that whole bytes were tried with


def check_storable(checkpoint: Checkpoint, schemes: Mapping[str, Scheme]) -> None:
    """Raises unless compressed-tensors can hold the tensors named in `schemes` so that transformers loads them."""
    stored = {name: scheme.as_stored for name, scheme in schemes.items()}
    if not stored:
        raise InputError("no tensor is to be quantized; give at least one linear layer fewer bits")
    architecture = checkpoint.architecture
    if checkpoint.scale_dtype not in SCALE_DTYPES:
        dtype = checkpoint.scale_dtype
        raise InputError(f"{checkpoint.target} computes in {dtype}; it must be float16, bfloat16 or float32")
    for name, scheme in stored.items():
        weight = architecture.weights.get(name)
        if weight is None:
            raise InputError(f"{checkpoint.target} has no weight {name!r}; only its own tensors can be quantized")
        reason = why_not_storable(weight, scheme)
        if reason is not None:
            raise InputError(reason)
        _check_ties(weight, architecture, copies=checkpoint.tied_copies)
        scheme.groups(weight.shape[1])
    _check_fused(architecture, stored)
    _check_experts(architecture, stored)
    model = checkpoint.meta_model()
    joined_groups(model, architecture)  # which raises if they cannot be written
    _check_modules(model, [architecture.weights[name] for name in stored])


def why_not_storable(weight: Weight, scheme: Scheme) -> str | None:
    """Returns why compressed-tensors cannot hold a tensor with this scheme; None if it can."""
    if weight.is_embedding:
        if scheme.bits == BYTE_BITS:
            return None
        return (
            f"{weight.name} is an embedding and was to have {scheme.bits} bits; transformers loads embeddings of "
            f"compressed-tensors only as whole bytes: give it {BYTE_BITS} bits, or keep it"
        )
    if not weight.linear:
        return f"{weight.name} ({weight.role}) is not a linear layer; norms, biases and the like are kept"
    if weight.is_control:
        return f"{weight.name} ({weight.role}) is small and controls other layers; such layers are kept: leave it out"
    if weight.stacked is not None:
        return (
            f"{weight.name} holds {weight.stacked} experts in one tensor; compressed-tensors holds one layer at a "
            "time, and transformers has no names for single experts of this class: keep it"
        )
    if weight.transposed:
        return _not_linear(weight, "transposed (in, out), like GPT-2's Conv1D")
    if weight.needs_weight and scheme.format != "integer":
        return (
            f"{weight.name} was to be stored as {scheme.format}; transformers loads only integers of {BYTE_BITS} bits "
            "into this class, whose code asks for X.weight: leave --scheme out"
        )
    if weight.needs_weight and scheme.bits != BYTE_BITS:
        return (
            f"{weight.name} was to have {scheme.bits} bits, but transformers does not load packed weights into this "
            f"class, whose code asks for X.weight; it loads whole bytes: use {BYTE_BITS} bits, or measure other bit "
            "widths in memory (fairbits compare, fairbits sweep)"
        )
    return None


def _not_linear(weight: Weight, what: str) -> str:
    return (
        f"{weight.name} is {what}; compressed-tensors unpacks nn.Linear only, so that no file can hold the quantized "
        "model: measure it in memory (fairbits compare, fairbits sweep), or quantize a model of another family"
    )


def _check_ties(weight: Weight, architecture: Architecture, *, copies: frozenset[str]) -> None:
    if weight.name in copies:
        raise InputError(
            f"{weight.name} is tied to {weight.tied_to}; the two are stored once: quantize {weight.tied_to} (as an "
            f"embedding, with {BYTE_BITS} bits), or keep both"
        )
    tied = [name for name, tied in architecture.weights.items() if tied.tied_to == weight.name]
    if weight.tied_to is not None or not copies.issuperset(tied):
        raise InputError(
            f"{weight.name} is tied by the configuration to a tensor of other values; loaders differ in what they make "
            "of that: keep both, or set tie_word_embeddings to false in config.json"
        )


def _check_fused(architecture: Architecture, stored: Mapping[str, Scheme]) -> None:
    for members in architecture.fused_groups.values():
        schemes = {weight.name: stored.get(weight.name) for weight in members}
        if len(set(schemes.values())) > 1:
            listed = ", ".join(f"{name}: {_in_words(scheme)}" for name, scheme in schemes.items())
            raise InputError(f"layers that vLLM fuses differ ({listed}); they must be stored alike")


def _in_words(scheme: Scheme | None) -> str:
    if scheme is None:
        return "kept"
    if scheme.format != "integer":
        return scheme.format
    return f"{scheme.bits} bits, {'per channel' if scheme.group_size is None else f'group {scheme.group_size}'}"


def _check_experts(architecture: Architecture, stored: Mapping[str, Scheme]) -> None:
    """Raises unless experts are all stored alike and, if they are integers, as all other layers of the blocks.

    transformers looks up one scheme for all of them; formats that only servers read are free of that.
    """
    experts = [name for name, weight in architecture.linears.items() if weight.expert is not None]
    if not any(name in stored for name in experts):
        return
    inside = {scheme for name, scheme in stored.items() if architecture.weights[name].block is not None}
    alike = len({stored.get(name) for name in experts}) == 1
    if not alike or (len(inside) > 1 and all(scheme.format == "integer" for scheme in inside)):
        raise InputError(
            f"the experts of {architecture.family} are to be stored in several ways; transformers reads all of them "
            "with one scheme: give every linear layer of the blocks the same bits and group, or keep all experts"
        )


def _check_modules(model: PreTrainedModel, weights: Iterable[Weight]) -> None:
    """Raises unless every layer is an nn.Linear, and transformers initializes a model that lacks the packed weights."""
    for weight in weights:
        if weight.expert is not None or weight.is_embedding:
            continue
        module = model.get_submodule(weight.module)
        if not isinstance(module, nn.Linear):
            raise InputError(_not_linear(weight, f"in a {type(module).__name__}"))
        if not weight.needs_weight:
            del module.weight
    if not initializes(model):  # such as a head that the code of its class asks for
        raise InputError(
            f"transformers cannot load packed layers into {type(model).__name__}, whose code asks for X.weight; keep "
            "embedding and head (--embeddings keep)"
        )


def quantization_config(checkpoint: Checkpoint, schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """Returns the entry `quantization_config` of config.json, if compressed-tensors accepts it.

    Where all layers of the blocks are stored alike, their group names the class Linear and `ignore` what is kept.
    A head that is stored as they are is named too, as vLLM's class of heads is not a Linear.
    Otherwise every group names its modules, as vLLM looks for a class before it looks into layers that it has fused.
    The class comes last: compressed-tensors warns of names that it finds after it.
    """
    architecture = checkpoint.architecture
    weights = architecture.weights
    stored = {name: scheme.as_stored for name, scheme in schemes.items()}
    tables: dict[Scheme, list[str]] = defaultdict(list)
    layers: dict[Scheme, list[str]] = defaultdict(list)
    for name, scheme in stored.items():
        (tables if weights[name].is_embedding else layers)[scheme].append(name)
    inside = {scheme for scheme, names in layers.items() if any(weights[name].block is not None for name in names)}
    groups: list[dict[str, Any]] = []
    for scheme in sorted(tables, key=lambda scheme: scheme.group_size or 0):
        modules = {module for name in tables[scheme] for module in _modules(architecture, name)}
        groups.append(_group(sorted(modules), scheme, BYTES))  # embeddings are whole bytes
    for scheme in sorted(layers, key=lambda scheme: (scheme in inside, scheme.bits, scheme.group_size or 0)):
        members = [weights[name] for name in layers[scheme]]
        heads = {weight.module for weight in members if weight.block is None}
        experts = EXPERT_TARGETS * any(weight.expert is not None for weight in members)
        modules = {weight.module for weight in members if weight.expert is None}
        alike = [*experts, *sorted(heads), "Linear"]
        targets = alike if inside == {scheme} else [*(ROUTED_EXPERTS if experts else ()), *sorted(modules)]
        # of T5 and its like some layers are whole bytes, and others packed
        groups.append(_group(targets, scheme, max(layout(weight, scheme) for weight in members)))
    layouts = {group["format"] for group in groups}
    dense = any(scheme.bits not in (2, 4, 8) for scheme in stored.values())
    entry = {
        "quant_method": "compressed-tensors",
        "version": BYTES_VERSION if BYTES in layouts else DENSE_VERSION if dense else PLAIN_VERSION,
        "format": layouts.pop() if len(layouts) == 1 else MIXED,
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
        "ignore": _ignored(architecture, checkpoint.meta_model(), stored),
    }
    try:
        QuantizationConfig.model_validate(copy.deepcopy(entry))  # which changes its argument
    except (ValueError, NotImplementedError) as problem:
        raise InputError(
            f"compressed-tensors refuses the quantization_config that would be written ({problem}); nothing was "
            "written: choose other bits or another group, and report this"
        ) from None
    return entry


def _group(targets: list[str], scheme: Scheme, layout: str) -> dict[str, Any]:
    if scheme.format != "integer":
        return {**preset(scheme.format, targets).model_dump(mode="json"), "format": layout}
    weights = {
        "num_bits": scheme.bits,
        "type": "int",
        "symmetric": True,
        "strategy": "channel" if scheme.group_size is None else "group",
        "group_size": scheme.group_size,
        "dynamic": False,
    }
    activations = {"input_activations": None, "output_activations": None}
    return {"targets": targets, "weights": weights, **activations, "format": layout}


def _ignored(architecture: Architecture, model: PreTrainedModel, stored: Mapping[str, Scheme]) -> list[str]:
    """Returns the modules that are kept, also by their names in the file, by which vLLM knows many of them."""
    weights = architecture.weights.values()
    quantized = {module for name in stored for module in _modules(architecture, name)}
    mapped = {weight.module for weight in architecture.linears.values()}
    linear = {path for path, module in model.named_modules() if isinstance(module, nn.Linear)}
    kept = (mapped | linear) - quantized
    in_files = {weight.name.removesuffix(".weight") for weight in weights if weight.module in kept}
    stacks = {weight.module for weight in weights if weight.stacked is not None} & kept
    patterns = {_pattern_inside(module) for module in stacks}
    named = {name for name in in_files if f"{name}.weight" in architecture.weights}
    return sorted(kept | named | patterns)


def _pattern_inside(module: str) -> str:
    """Returns the pattern of names inside a module of any prefix: vLLM asks for stacked experts one by one."""
    number = re.search(r"\.\d+\.", module)
    return f"re:.*{re.escape(module[number.start() :] if number else module)}\\..*"


def _modules(architecture: Architecture, name: str) -> tuple[str, ...]:
    weight = architecture.weights[name]
    tied = architecture.tied_parameters(name) if weight.is_embedding else ()
    return (weight.module, *(parameter.removesuffix(".weight") for parameter in tied))


SHAPES, JOINED, JOINED_PARTS = "shapes.safetensors", "joined.safetensors", "parts.safetensors"
COMPLETE = f"transformers{INDEX_SUFFIX}"
REARRANGED = {"bloom": ".query_key_value", "gpt_neox": ".query_key_value"}  # modules that vLLM rearranges blindly


@dataclass(frozen=True, eq=False)
class SplitIndex:
    """What is stored apart: tensors that only transformers reads, and `parts`, which only others read."""

    shapes: Mapping[str, Tensor] = field(default_factory=dict)
    joined: Mapping[str, Tensor] = field(default_factory=dict)
    parts: Mapping[str, Tensor] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self._files)

    def write(self, directory: Path) -> None:
        for file, tensors in self._files.items():
            write_tensors(directory / file, in_memory(tensors))

    def write_indices(self, directory: Path, shards: Iterable[str], *, size_bytes: int) -> None:
        files = {shard: read_header(directory / shard) for shard in (*shards, *self._files)}
        complete = {shard: tensors for shard, tensors in files.items() if shard != JOINED_PARTS}
        usual = {shard: tensors for shard, tensors in files.items() if shard not in (SHAPES, JOINED)}
        if (size := _stored_bytes(complete)) != size_bytes:
            raise InputError(f"the tensors take {size:,} bytes and {size_bytes:,} were planned; report this")
        if self:
            _write_index(directory / COMPLETE, complete)
        _write_index(directory / INDEX, usual)

    @property
    def config_entries(self) -> dict[str, str]:
        return {EXPLICIT: COMPLETE} if self else {}

    @cached_property
    def _files(self) -> dict[str, Mapping[str, Tensor]]:
        files = {SHAPES: self.shapes, JOINED: self.joined, JOINED_PARTS: self.parts}
        return {file: tensors for file, tensors in files.items() if tensors}


def split_index(checkpoint: Checkpoint, schemes: Mapping[str, Scheme]) -> SplitIndex:
    """Returns the shapes that vLLM cannot load, and what transformers joins, of a checkpoint that is quantized."""
    architecture = checkpoint.architecture
    end = REARRANGED.get(architecture.family)
    weights = [architecture.weights[name] for name in schemes]
    packed = [weight for weight in weights if layout(weight, schemes[weight.name]) == PACKED]
    unread = [weight for weight in packed if end is not None and weight.module.endswith(end)]
    model = checkpoint.meta_model()
    groups, conversions = joined_groups(model, architecture), Conversions(model)
    return SplitIndex(
        {f"{weight.name}_shape": torch.tensor(weight.shape) for weight in unread},
        {
            parameter: next(iter(conversions.convert(parameter, parts, checkpoint.read_kept).values())).contiguous()
            for parameter, parts in groups.items()
        },
        {name: checkpoint.read_kept(name) for parts in groups.values() for name in parts},
    )


def _stored_bytes(shards: Mapping[str, Mapping[str, StoredTensor]]) -> int:
    return sum(info.nbytes for tensors in shards.values() for info in tensors.values())


def _write_index(path: Path, shards: Mapping[str, Mapping[str, StoredTensor]]) -> None:
    weight_map = {name: shard for shard, tensors in shards.items() for name in tensors}
    content = {"metadata": {"total_size": _stored_bytes(shards)}, "weight_map": dict(sorted(weight_map.items()))}
    write_whole({path: [json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"]})
