"""Which parameter each tensor of a checkpoint becomes, as transformers maps it, and which tensors are unused.

Experts that a file stacks in one tensor are told apart, under the names by which loaders read quantized experts:
compressed-tensors holds one layer at a time. transformers reads experts one by one where it has a rule that joins
tensors such as `experts.0.down_proj.weight` into `experts.down_proj`. Many classes have it, whether or not their files
use it. Llama 4 has none, but with packed weights its module of experts is replaced by a list of plain ones.

Other tensors are joined too, such as convolutions of q, k and v. In a file with packed weights transformers joins only
packed tensors, so that what is kept must be there as it is in the model.
"""

import copy
import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    PrefixChange,
    Transpose,
    WeightConverter,
    WeightRenaming,
    apply_renamings,
    rename_source_key,
)
from transformers.quantizers import base as quantizers

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import EXPERT_ROLES, Architecture
from fairbits.models.io.safetensors_files import StoredTensor

Shape = tuple[int, ...]
LEAF = ".weight"  # how names end that transformers looks for in another form, where weights are packed


class Conversions:
    """How transformers makes `entries`, parameters and persistent buffers, from the tensors of files."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._prefix = model.base_model_prefix
        self.entries: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
        transforms = list(get_model_conversion_mapping(model))
        if any(is_replaced(module) for module in model.modules()):
            names = [f"experts.*.{name}_proj.weight" for name in ("gate", "up", "down")]
            turn = Transpose(1, 2)
            transforms += [
                WeightConverter(names[:2], "experts.gate_up_proj", [MergeModulelist(0), Concatenate(1), turn]),
                WeightConverter(names[2:], "experts.down_proj", [MergeModulelist(0), turn]),
            ]
        self._renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
        self.converters = [transform for transform in transforms if isinstance(transform, WeightConverter)]
        self.by_pattern = {pattern: converter for converter in self.converters for pattern in converter.source_patterns}

    def target(self, name: str) -> tuple[str, str | None]:
        """Returns the parameter that a tensor becomes, and the pattern of its name if it is converted on the way."""
        target, pattern = rename_source_key(name, self._renamings, self.converters, self._prefix, self.entries)
        if target not in self.entries:  # a name that is right as it is may look like one to convert
            plain, _ = rename_source_key(name, [], [], self._prefix, self.entries)
            if plain in self.entries:
                return plain, None
        return target, pattern

    def convert(self, parameter: str, patterns: Mapping[str, str], read: Callable[[str], Tensor]) -> dict[str, Tensor]:
        """Returns what transformers makes of the tensors that `read` gives by name: the parameter, or parts of it."""
        converter = copy.deepcopy(self.by_pattern[next(iter(patterns.values()))])
        for name, pattern in patterns.items():
            converter.add_tensor(parameter, name, pattern, read(name))  # type: ignore[arg-type]
        results = converter.convert(parameter)
        return {name: value[0] if isinstance(value, list) else value for name, value in results.items()}


def is_replaced(module: nn.Module) -> bool:
    """Returns whether transformers replaces this module of experts (Llama 4) by a list, if weights are packed."""
    patches: dict[str, Any] = quantizers.MODULES_TO_PATCH_FOR_QUANTIZATION.get(type(module).__name__, {})
    return "compressed-tensors" in [method.value for method in patches.get("quantization_methods", ())]


@dataclass(frozen=True)
class ExpertSlice:
    """Where the matrix of an expert is in a tensor (experts, out, in), or (experts, in, out) if it is `turned`."""

    stacked: str
    expert: int
    shape: Shape
    start: int  # among the rows, or the columns if turned
    turned: bool

    def place(self, info: StoredTensor) -> StoredTensor:
        nbytes = info.nbytes // info.shape[0]
        return replace(info, shape=info.shape[1:], nbytes=nbytes, start=info.start + self.expert * nbytes)

    def cut(self, expert: Tensor) -> Tensor:
        """Returns the matrix, given all that belongs to its expert."""
        return (expert.T if self.turned else expert)[self.start : self.start + self.shape[0]]


def stacked_experts(shapes: Mapping[str, Shape]) -> dict[str, Shape]:
    """Returns the tensors that may hold the matrices of all experts of a block."""
    stacks = {name: shape for name, shape in shapes.items() if len(shape) == 3}
    return {name: shape for name, shape in stacks.items() if name.rpartition(".")[2] in EXPERT_ROLES}


def expert_slices(model: PreTrainedModel, stacks: Mapping[str, Shape]) -> dict[str, ExpertSlice]:
    """Returns the stacked experts for which transformers knows names under which a quantized file can hold them."""
    conversions, saved_name = Conversions(model), _saved_names(model)
    steps = MergeModulelist | Concatenate | Transpose
    merges = [
        converter
        for converter in conversions.converters
        if all(isinstance(step, steps) for step in converter.operations)
        and all("*" in pattern for pattern in converter.source_patterns)
    ]
    slices: dict[str, ExpertSlice] = {}
    for name, shape in stacks.items():
        target, pattern = conversions.target(name)
        entry = conversions.entries.get(target)
        if pattern is not None or entry is None or tuple(entry.shape) != tuple(shape):
            continue
        for merge in merges:
            ends = [source.partition("*")[2] for source in merge.source_patterns]
            experts = {saved_name(expert): place for expert, place in _slices(name, shape, ends, turned=_turns(merge))}
            targets = [conversions.target(expert) for expert in list(experts)[: len(ends)]]
            if targets == [(target, source) for source in merge.source_patterns]:
                slices |= experts
    return slices


def _slices(stacked: str, shape: Shape, ends: list[str], *, turned: bool) -> Iterator[tuple[str, ExpertSlice]]:
    experts, out, columns = (shape[0], shape[2], shape[1]) if turned else shape
    rows, module = out // len(ends), stacked.rpartition(".")[0]
    for expert in range(experts):
        for part, end in enumerate(ends):
            yield f"{module}.{expert}{end}", ExpertSlice(stacked, expert, (rows, columns), part * rows, turned)


def _saved_names(model: PreTrainedModel) -> Callable[[str], str]:
    transforms = get_model_conversion_mapping(model, add_legacy=False)
    renamings = [transform for transform in transforms if isinstance(transform, WeightRenaming)]
    plain = [renaming for renaming in renamings if not isinstance(renaming, PrefixChange)]
    reverse: list[Any] = [renaming.reverse_transform() for renaming in reversed(plain)]
    return lambda name: apply_renamings(name, reverse)


def _turns(converter: WeightConverter) -> bool:
    return sum(isinstance(operation, Transpose) for operation in converter.operations) % 2 == 1


@dataclass(frozen=True)
class TensorSource:
    """A tensor of the checkpoint: the parameter or buffer that it becomes or becomes a part of."""

    name: str
    parameter: str
    expert: int | None = None
    part: int = 0  # its place among the kinds of tensors that the parameter joins, e.g. 0 gate, 1 up
    n_parts: int = 1
    turned: bool = False  # transposed on the way
    pattern: str | None = None  # of its name, if it is converted on the way


@dataclass(frozen=True)
class TensorNames:
    """All tensors of a checkpoint, those that are ignored, and the parameters that are tied to others."""

    sources: Mapping[str, TensorSource]
    ignored: Mapping[str, str]  # tensor -> why the model does not need it
    tied: Mapping[str, str]  # parameter that the file leaves out -> tensor of the checkpoint
    tied_to: Mapping[str, str]  # tensor -> another tensor of the file that the configuration ties it to


def resolve_names(model: PreTrainedModel, shapes: Mapping[str, Shape]) -> TensorNames:
    """Returns where every tensor goes; raises if one is missing, out of place or of another shape."""
    conversions = Conversions(model)
    sources: dict[str, TensorSource] = {}
    unused: dict[str, str] = {}
    taken: dict[str, str] = {}
    joined: dict[str, dict[str, str]] = defaultdict(dict)
    for name, shape in shapes.items():
        target, pattern = conversions.target(name)
        if target not in conversions.entries:
            unused[name] = target
        elif pattern is None:
            wanted = tuple(conversions.entries[target].shape)
            if tuple(shape) != wanted:
                raise InputError(
                    f"the tensor {name!r} has shape {tuple(shape)}, but {type(model).__name__} with this configuration "
                    f"needs {wanted}; config.json and weights must belong together"
                )
            if target in taken:
                raise InputError(f"{taken[target]!r} and {name!r} are both {target!r}; the file must hold only one")
            taken[target] = name
            sources[name] = TensorSource(name, target)
        else:
            joined[target][name] = pattern
    for target, patterns in joined.items():
        _check_conversion(conversions, target, patterns, shapes)
        converter = conversions.by_pattern[next(iter(patterns.values()))]
        kinds = list(converter.source_patterns)
        for name, pattern in patterns.items():
            place = (_expert(name, pattern), kinds.index(pattern), len(kinds), _turns(converter), pattern)
            sources[name] = TensorSource(name, target, *place)
    ignored = explain_unused(model, unused, shapes)
    tied, tied_to = _tied(model, sources)
    return TensorNames({name: sources[name] for name in shapes if name in sources}, ignored, tied, tied_to)


def _check_conversion(
    conversions: Conversions, target: str, patterns: Mapping[str, str], shapes: Mapping[str, Shape]
) -> None:
    counts = Counter((pattern, tuple(shapes[name])) for name, pattern in patterns.items())
    usual = dict(shape for shape, _ in reversed(counts.most_common()))
    for name, pattern in patterns.items():
        if tuple(shapes[name]) != usual[pattern]:
            raise InputError(
                f"the tensor {name!r} has shape {tuple(shapes[name])}, but its siblings have {usual[pattern]}; "
                "all experts of a block must have one shape"
            )
    try:
        results = conversions.convert(target, patterns, lambda name: torch.empty(shapes[name], device="meta"))
    except Exception as error:  # every converter of transformers fails in its own way
        raise InputError(f"{_some(patterns)} cannot be joined into {target!r}: {error}") from error
    result_shapes = {name: tuple(tensor.shape) for name, tensor in results.items()}
    if len(results) > 1:
        raise InputError(
            f"transformers splits {_some(patterns)} into {_some(results)}; a tensor that becomes several "
            "cannot be mapped: load the model in transformers and write it with "
            "save_pretrained(..., save_original_format=False)"
        )
    wanted = tuple(conversions.entries[target].shape)
    if result_shapes != {target: wanted}:
        raise InputError(
            f"{_some(patterns)} give {result_shapes}, but the configuration needs {{{target!r}: {wanted}}}; "
            "the file must hold every expert, and config.json and weights must belong together"
        )


def _expert(name: str, pattern: str) -> int | None:
    if "*" not in pattern:
        return None
    match = re.search(r"(\d+)" + re.escape(pattern.split("*", 1)[1]), name)
    if match is None:
        raise InputError(f"the tensor {name!r} is read as {pattern!r}, but its expert number cannot be determined")
    return int(match.group(1))


def _tied(model: PreTrainedModel, sources: Mapping[str, TensorSource]) -> tuple[dict[str, str], dict[str, str]]:
    holders = {source.parameter: source.name for source in sources.values()}
    groups: dict[int, list[str]] = defaultdict(list)
    for parameter, value in model.named_parameters(remove_duplicate=False):
        groups[id(value)].append(parameter)
    tied: dict[str, str] = {}
    tied_to: dict[str, str] = {}
    missing: list[str] = []
    computed = model._keys_to_ignore_on_save or ()  # sinusoids, which transformers never writes
    for names in groups.values():
        names.sort(key=model.all_tied_weights_keys.__contains__)  # what others are tied to comes first
        tensors = [holders[name] for name in names if name in holders]
        if not tensors:
            missing += [] if names[0] in computed else [names[0]]
            continue
        tied |= {name: tensors[0] for name in names if name not in holders}
        tied_to |= dict.fromkeys(tensors[1:], tensors[0])
    if missing:
        raise InputError(
            f"the checkpoint lacks {_some(missing)} of {type(model).__name__}; "
            "every parameter must be there: is a shard missing, or does config.json belong to another model?"
        )
    return tied, tied_to


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 3} more" if len(listed) > 3 else ""
    return ", ".join(repr(name) for name in listed[:3]) + more


# Masks and angles that older versions of transformers saved with the weights and newer ones compute.
_COMPUTED = re.compile(r"(^|\.)(masked_bias|causal_mask|inv_freq|cos_cached|sin_cached|position_ids)$")
_MASK = re.compile(r"(^|\.)(attn|attention|self_attn)\.bias$")

# A heuristic: the pooler of the smallest BERT is 0.6 % of its weights, one layer or a head of any model is more.
LARGEST_SHARE = 0.01


def explain_unused(model: PreTrainedModel, unused: Mapping[str, str], shapes: Mapping[str, Shape]) -> Mapping[str, str]:
    """Returns why each tensor, given with its place, is not needed; raises if the model would not be the same.

    Files often contain heads for other tasks. But an unused tensor among the layers or in a module that the model has,
    or a large share of unused weights, means that file and configuration do not belong together.
    """
    reasons = {name: _harmless(model, place, len(shapes[name])) for name, place in unused.items()}
    unexplained = [name for name, reason in reasons.items() if reason is None]
    for name in unexplained:
        if _belongs(model, unused[name]):
            raise _misfit(model, name, tuple(shapes[name]), say="in a part that the model has")
    share = sum(math.prod(shapes[name]) for name in unexplained) / max(sum(map(math.prod, shapes.values())), 1)
    if share > LARGEST_SHARE:
        largest = max(unexplained, key=lambda name: math.prod(shapes[name]))
        raise _misfit(model, largest, tuple(shapes[largest]), say=f"{share:.1%} of the weights with others like it")
    return {name: reason or f"{type(model).__name__} has no such module" for name, reason in reasons.items()}


def _harmless(model: PreTrainedModel, place: str, n_dimensions: int) -> str | None:
    by_name = _COMPUTED.search(place) or (_MASK.search(place) and n_dimensions == 4)
    if by_name or any(place == name for name, _ in model.named_buffers()):
        return "transformers computes it"
    if any(re.search(pattern, place) for pattern in model._keys_to_ignore_on_load_unexpected or ()):
        return "transformers ignores it"
    return None


def _belongs(model: PreTrainedModel, place: str) -> bool:
    prefix = f"{model.base_model_prefix}."  # which files of a bare model leave out
    places = (place, f"{prefix}{place}", place.removeprefix(prefix))
    return any(
        place.startswith(f"{path}.")
        for path, module in model.named_modules()
        if path and (isinstance(module, nn.ModuleList) or next(module.parameters(recurse=False), None) is not None)
        for place in places
    )


def _misfit(model: PreTrainedModel, name: str, shape: Shape, *, say: str) -> InputError:
    return InputError(
        f"the checkpoint holds {name!r} {shape} ({say}), which {type(model).__name__} does not have; "
        "config.json and weights must belong together (is the file already quantized, or an adapter?)"
    )


def joined_groups(model: PreTrainedModel, architecture: Architecture) -> dict[str, dict[str, str]]:
    """Returns, by parameter, the tensors that are joined into it, each with the pattern of its name; no experts."""
    conversions = Conversions(model)
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for name, weight in architecture.weights.items():
        if weight.linear or weight.expert is not None or weight.stacked is not None:
            continue
        parameter, pattern = conversions.target(name)
        if pattern is not None and all(end.endswith(LEAF) for end in conversions.by_pattern[pattern].source_patterns):
            groups[parameter][name] = pattern
    for parameter, members in groups.items():
        if conversions.target(parameter) != (parameter, None):
            raise InputError(
                f"transformers joins {' and '.join(members)} into {parameter}, which it does not read under that name, "
                "and in a file with packed weights it does not join them, so that no file can hold the quantized "
                "model: measure it in memory (fairbits compare, fairbits sweep), or quantize a model of another family"
            )
    return dict(groups)
