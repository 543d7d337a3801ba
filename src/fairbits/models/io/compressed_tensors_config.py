"""The quantization_config of compressed-tensors, and what the format cannot hold."""

import copy
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from fairbits.core.errors import InputError
from fairbits.models.io.stored_weights import in_whole_bytes, is_table, scale_dtype, tied_copies, tied_parameters
from fairbits.models.scales.scheme import Scheme

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fairbits.models.architecture.records import Architecture, Weight
    from fairbits.models.checkpoint import Checkpoint

PACKED, BYTES, MIXED = "pack-quantized", "int-quantized", "mixed-precision"
SCALE_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
BYTE_BITS = 8
"""The bits of what is stored in whole bytes."""
EXPERTS = ["re:.*experts.*"]  # how transformers finds the scheme of experts among several
PLAIN_VERSION = "0.15.0"  # transformers 5 asks for it
DENSE_VERSION = "0.18.0"  # before it, codes of 3, 5, 6 or 7 bits never crossed a word
BYTES_VERSION = "0.20.0"  # the one that whole bytes were tried with


def check_storable(checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> None:
    """Raises unless compressed-tensors can hold the tensors named in `schemes` so that transformers loads them."""
    stored = {name: scheme.as_stored for name, scheme in schemes.items()}
    if not stored:
        raise InputError("no tensor is to be quantized; give at least one linear layer fewer bits")
    from fairbits.models.architecture.tensor_names import joined_groups

    architecture = checkpoint.architecture
    dtype = scale_dtype(checkpoint)
    if dtype not in SCALE_DTYPES:
        raise InputError(f"{checkpoint.target} computes in {dtype}; it must be float16, bfloat16 or float32")
    copies = tied_copies(checkpoint)
    for name, how in stored.items():
        weight = architecture.weights.get(name)
        if weight is None:
            raise InputError(f"{checkpoint.target} has no weight {name!r}; only its own tensors can be quantized")
        reason = why_not(weight, how)
        if reason is not None:
            raise InputError(reason)
        _check_ties(weight, architecture, copies=copies)
        how.groups(weight.shape[1])
    _check_fused(architecture, stored)
    _check_experts(architecture, stored)
    model = _skeleton(checkpoint)
    joined_groups(model, architecture)  # which raises if they cannot be written
    _check_modules(model, checkpoint, stored=stored)


def quantization_config(checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> dict[str, Any]:
    """Returns the entry `quantization_config` of config.json, if compressed-tensors accepts it.

    Where all layers of the blocks are stored alike, their group names the class Linear and `ignore` what is kept.
    A head that is stored as they are is named too, as vLLM's class of heads is no Linear.
    Otherwise every group names its modules, as vLLM looks for a class before it looks into layers that it has fused.
    The class comes last: compressed-tensors warns of names that it finds after it.
    """
    weights = checkpoint.architecture.weights
    stored = {name: scheme.as_stored for name, scheme in schemes.items()}
    tables = {name: how for name, how in stored.items() if is_table(weights[name])}
    maps = {name: how for name, how in stored.items() if name not in tables}
    inside = {how for name, how in maps.items() if weights[name].block is not None}
    heads = {weights[name].module for name in maps if weights[name].block is None}
    groups: list[dict[str, Any]] = []
    for how in sorted(set(tables.values()), key=lambda how: how.group_size or 0):
        modules = (_modules_of(checkpoint, name) for name, other in tables.items() if other == how)
        groups.append(_group(sorted({module for some in modules for module in some}), how, BYTES))
    for how in sorted(set(maps.values()), key=lambda how: (how in inside, how.bits, how.group_size or 0)):
        named = {weights[name].module for name, other in maps.items() if other == how}
        experts = any(weights[name].expert is not None for name, other in maps.items() if other == how)
        alike = [*EXPERTS * experts, *sorted(named & heads), "Linear"]
        whole = all(in_whole_bytes(weights[name]) for name in maps)
        groups.append(_group(alike if inside == {how} else sorted(named), how, BYTES if whole else PACKED))
    layouts = {group["format"] for group in groups}
    entry = {
        "quant_method": "compressed-tensors",
        "version": _needed_version(stored.values(), whole=BYTES in layouts),
        "format": layouts.pop() if len(layouts) == 1 else MIXED,
        "quantization_status": "compressed",
        "config_groups": {f"group_{i}": group for i, group in enumerate(groups)},
        "ignore": _ignored(checkpoint, stored),
    }
    return _validated(entry)


def _validated(entry: dict[str, Any]) -> dict[str, Any]:
    """Returns the entry, if it is what the library itself reads."""
    from compressed_tensors.quantization import QuantizationConfig  # type: ignore[import-untyped]

    try:
        QuantizationConfig.model_validate(copy.deepcopy(entry))  # which changes what it is given
    except (ValueError, NotImplementedError) as problem:
        raise InputError(
            f"compressed-tensors refuses the quantization_config that would be written ({problem}); nothing was "
            "written: choose other bits or another group, and report this"
        ) from None
    return entry


def _group(targets: list[str], how: Scheme, layout: str) -> dict[str, Any]:
    weights = {
        "num_bits": how.bits,
        "type": "int",
        "symmetric": True,
        "strategy": "channel" if how.group_size is None else "group",
        "group_size": how.group_size,
        "dynamic": False,
    }
    return {
        "targets": targets,
        "weights": weights,
        "input_activations": None,
        "output_activations": None,
        "format": layout,
    }


def _needed_version(stored: Iterable[Scheme], *, whole: bool) -> str:
    """Returns the oldest compressed-tensors that reads the file."""
    if whole:
        return BYTES_VERSION
    return DENSE_VERSION if any(how.bits not in (2, 4, 8) for how in stored) else PLAIN_VERSION


def _ignored(checkpoint: "Checkpoint", stored: Mapping[str, Scheme]) -> list[str]:
    """Returns the modules of linear layers that are kept; routers too, which other loaders hold for linear layers.

    Where the file has another name for one, both are there: vLLM knows the modules of many classes by names in files.
    """
    architecture = checkpoint.architecture
    quantized = {module for name in stored for module in _modules_of(checkpoint, name)}
    maps = {weight.module for weight in architecture.linears.values()}
    layers = {path for path, module in _skeleton(checkpoint).named_modules() if isinstance(module, nn.Linear)}
    kept = (maps | layers) - quantized
    named = {each.name.removesuffix(".weight") for each in architecture.weights.values() if each.module in kept}
    stacks = {each.module for each in architecture.weights.values() if each.stacked is not None} & kept
    patterns = {_inside(module) for module in stacks}
    return sorted(kept | {name for name in named if f"{name}.weight" in architecture.weights} | patterns)


def _inside(module: str) -> str:
    """Returns the pattern of all names inside a module: vLLM asks for experts of a stack one by one.

    It begins at the number of the block, as vLLM has other prefixes for models that also read images.

    >>> _inside("model.layers.0.mlp.experts")
    're:.*\\\\.0\\\\.mlp\\\\.experts\\\\..*'
    """
    number = re.search(r"\.\d+\.", module)
    return f"re:.*{re.escape(module[number.start() :] if number else module)}\\..*"


def _modules_of(checkpoint: "Checkpoint", name: str) -> tuple[str, ...]:
    """Returns the module of a tensor, and for an embedding those that are tied to it."""
    weight = checkpoint.architecture.weights[name]
    tied = tied_parameters(checkpoint, name) if is_table(weight) else ()
    return (weight.module, *(parameter.removesuffix(".weight") for parameter in tied))


def _skeleton(checkpoint: "Checkpoint") -> "PreTrainedModel":
    from fairbits.models.architecture.meta_model import meta_model, model_class

    cls = model_class(checkpoint.config, trust_remote_code=checkpoint.trust_remote_code)
    return meta_model(checkpoint.config, cls)


def why_not(weight: "Weight", scheme: Scheme) -> str | None:
    """Returns why compressed-tensors cannot hold a tensor with this scheme; None if it can."""
    if is_table(weight):
        return (
            None
            if scheme.bits == BYTE_BITS
            else (
                f"{weight.name} is an embedding and was to have {scheme.bits} bits; transformers loads embeddings of "
                f"compressed-tensors only as whole bytes: give it {BYTE_BITS} bits, or keep it"
            )
        )
    if not weight.linear:
        return f"{weight.name} ({weight.role}) is not a linear layer; norms, biases and the like are kept"
    if weight.is_control:
        return f"{weight.name} ({weight.role}) is small and decides what others do; such maps are kept: leave it out"
    if weight.stacked is not None:
        return (
            f"{weight.name} holds {weight.stacked} experts in one tensor; compressed-tensors holds one layer at a "
            "time, and transformers has no names for single experts of this class: keep it"
        )
    if weight.transposed:
        return _no_linear(weight, "a transposed map (in, out), like GPT-2's Conv1D")
    if weight.needs_weight and scheme.bits != BYTE_BITS:
        return (
            f"{weight.name} was to have {scheme.bits} bits, but transformers does not load packed weights into this "
            f"class, as its code asks for X.weight meanwhile; it loads whole bytes: use {BYTE_BITS} bits, or measure "
            "other widths in memory (fairbits compare, fairbits sweep)"
        )
    return None


def _no_linear(weight: "Weight", what: str) -> str:
    return (
        f"{weight.name} is {what}; compressed-tensors unpacks nn.Linear only, so that no file can hold the quantized "
        "model: measure it in memory (fairbits compare, fairbits sweep), or quantize a model of another family"
    )


def _check_ties(weight: "Weight", architecture: "Architecture", *, copies: frozenset[str]) -> None:
    if weight.name in copies:
        raise InputError(
            f"{weight.name} is tied to {weight.tied_to}; the two are stored once: quantize {weight.tied_to} (as an "
            f"embedding, with {BYTE_BITS} bits), or keep both"
        )
    others = [other for other in architecture.weights.values() if other.tied_to == weight.name]
    if weight.tied_to is not None or any(other.name not in copies for other in others):
        raise InputError(
            f"{weight.name} is tied by the configuration to a tensor of other values; loaders differ in what they make "
            "of that: keep both, or set tie_word_embeddings to false in config.json"
        )


def _check_fused(architecture: "Architecture", stored: Mapping[str, Scheme]) -> None:
    for members in architecture.fused_groups.values():
        found = {weight.name: stored.get(weight.name) for weight in members}
        if len(set(found.values())) > 1:
            listed = ", ".join(f"{name}: {_said(how)}" for name, how in found.items())
            raise InputError(f"layers that vLLM fuses differ ({listed}); they must be stored alike")


def _said(how: Scheme | None) -> str:
    if how is None:
        return "kept"
    return f"{how.bits} bits, {'per channel' if how.group_size is None else f'group {how.group_size}'}"


def _check_experts(architecture: "Architecture", stored: Mapping[str, Scheme]) -> None:
    """Raises unless experts are all stored as all other linear layers of the blocks: loaders look up one scheme."""
    experts = [name for name, weight in architecture.linears.items() if weight.expert is not None]
    if not any(name in stored for name in experts):
        return
    inside = {how for name, how in stored.items() if architecture.weights[name].block is not None}
    if len(inside) > 1 or not all(name in stored for name in experts):
        raise InputError(
            f"the experts of {architecture.family} are to be stored in several ways; transformers reads all of them "
            "with one scheme: give every linear layer of the blocks the same bits and group, or keep all experts"
        )


def _check_modules(model: "PreTrainedModel", checkpoint: "Checkpoint", *, stored: Mapping[str, Scheme]) -> None:
    """Raises unless every map is an nn.Linear, and transformers initializes a model that lacks the packed weights."""
    from fairbits.models.architecture.meta_model import initializes

    weights = checkpoint.architecture.weights
    packed: list[nn.Module] = []
    for name in stored:
        weight = weights[name]
        if weight.expert is not None or is_table(weight):
            continue
        module = model.get_submodule(weight.module)
        if not isinstance(module, nn.Linear):
            raise InputError(_no_linear(weight, f"in a {type(module).__name__}"))
        if not weight.needs_weight:
            packed.append(module)
    for module in packed:
        del module.weight
    if not initializes(model):  # such as a head that the code of its class asks for
        raise InputError(
            f"transformers cannot load packed layers into {type(model).__name__}, whose code asks for X.weight "
            "meanwhile; keep embedding and head (--embeddings keep)"
        )
