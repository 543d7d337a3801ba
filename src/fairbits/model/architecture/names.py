"""Which parameter each tensor of a checkpoint becomes, as transformers maps it, and which tensors are unused."""

import copy
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import (
    Transpose,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    rename_source_key,
)

from fairbits.errors import InputError
from fairbits.model.architecture.stacked_experts import conversions

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Source:
    """A tensor of the checkpoint: the parameter or buffer that it becomes or becomes a part of."""

    name: str
    parameter: str
    expert: int | None = None
    part: int = 0  # its place among the kinds of tensors that the parameter joins, e.g. 0 gate, 1 up
    n_parts: int = 1
    turned: bool = False  # transposed on the way


@dataclass(frozen=True)
class Names:
    """All tensors of a checkpoint, those that are ignored, and the parameters that are tied to others."""

    sources: Mapping[str, Source]
    ignored: Mapping[str, str]  # tensor -> why the model does not need it
    tied: Mapping[str, str]  # parameter without a tensor of its own -> tensor of the checkpoint
    tied_to: Mapping[str, str]  # tensor -> another tensor of the file that the configuration ties it to


def resolve(model: PreTrainedModel, shapes: Mapping[str, Shape]) -> Names:
    """Returns where every tensor goes; raises if one is missing, out of place or of another shape."""
    transforms = conversions(model)
    by_pattern = {pattern: c for c in transforms if isinstance(c, WeightConverter) for pattern in c.source_patterns}
    entries: dict[str, torch.Tensor] = dict(model.state_dict(keep_vars=True))  # parameters and persistent buffers

    sources: dict[str, Source] = {}
    unused: dict[str, str] = {}
    taken: dict[str, str] = {}
    joined: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for name, shape in shapes.items():
        target, pattern = target_of(name, transforms, model=model, entries=entries)
        if target not in entries:
            unused[name] = target
        elif pattern is None:
            _check_shape(name, shape, wanted=tuple(entries[target].shape), model=model)
            if target in taken:
                raise InputError(f"{taken[target]!r} and {name!r} are both {target!r}; the file must hold only one")
            taken[target] = name
            sources[name] = Source(name, target)
        else:
            joined[target].append((name, pattern))
    for target, members in joined.items():
        converter = by_pattern[members[0][1]]
        _check_conversion(converter, members, shapes=shapes, target=target, wanted=tuple(entries[target].shape))
        sources |= {s.name: s for s in _joined_sources(converter, members, target=target)}
    ignored = left_aside(model, unused, shapes)
    tied, tied_to = _tied(model, sources)
    return Names({name: sources[name] for name in shapes if name in sources}, ignored, tied, tied_to)


def target_of(
    name: str, transforms: Iterable[WeightTransform], *, model: PreTrainedModel, entries: dict[str, torch.Tensor]
) -> tuple[str, str | None]:
    """Returns the parameter that a tensor becomes, and the pattern of its name if it is converted on the way."""
    listed = list(transforms)
    renamings = [each for each in listed if isinstance(each, WeightRenaming)]
    converters = [each for each in listed if isinstance(each, WeightConverter)]
    target, pattern = rename_source_key(name, renamings, converters, model.base_model_prefix, entries)
    if target not in entries:  # a name that is right as it is may look like one to convert
        plain, _ = rename_source_key(name, [], [], model.base_model_prefix, entries)
        if plain in entries:
            return plain, None
    return target, pattern


def _check_shape(name: str, shape: Shape, *, wanted: Shape, model: PreTrainedModel) -> None:
    if tuple(shape) != wanted:
        raise InputError(
            f"the tensor {name!r} has shape {tuple(shape)}, but {type(model).__name__} with this configuration "
            f"needs {wanted}; config.json and weights must belong together"
        )


def _check_conversion(
    converter: WeightConverter,
    members: list[tuple[str, str]],
    *,
    shapes: Mapping[str, Shape],
    target: str,
    wanted: Shape,
) -> None:
    counts = Counter((pattern, tuple(shapes[name])) for name, pattern in members)
    usual = dict(shape for shape, _ in reversed(counts.most_common()))
    for name, pattern in members:
        if tuple(shapes[name]) != usual[pattern]:
            raise InputError(
                f"the tensor {name!r} has shape {tuple(shapes[name])}, but its siblings have {usual[pattern]}; "
                "all experts of a block must have one shape"
            )
    own = copy.deepcopy(converter)
    for name, pattern in members:
        own.add_tensor(target, name, pattern, torch.empty(shapes[name], device="meta"))  # type: ignore[arg-type]
    try:
        results = own.convert(target)
    except Exception as error:  # every converter of transformers fails in its own way
        raise InputError(f"{_some(n for n, _ in members)} cannot be joined into {target!r}: {error}") from error
    got = {name: tuple((t[0] if isinstance(t, list) else t).shape) for name, t in results.items()}
    if len(got) > 1:
        raise InputError(
            f"transformers splits {_some(n for n, _ in members)} into {_some(got)}; a tensor that becomes several "
            "cannot be mapped: load the model in transformers and write it with "
            "save_pretrained(..., save_original_format=False)"
        )
    if got != {target: wanted}:
        raise InputError(
            f"{_some(n for n, _ in members)} give {got}, but the configuration needs {{{target!r}: {wanted}}}; "
            "the file must hold every expert, and config.json and weights must belong together"
        )


def _joined_sources(converter: WeightConverter, members: list[tuple[str, str]], *, target: str) -> Iterable[Source]:
    patterns = list(converter.source_patterns)
    turned = sum(isinstance(op, Transpose) for op in converter.operations) % 2 == 1
    for name, pattern in members:
        yield Source(name, target, _expert(name, pattern), patterns.index(pattern), len(patterns), turned)


def _expert(name: str, pattern: str) -> int | None:
    if "*" not in pattern:
        return None
    found = re.search(r"(\d+)" + re.escape(pattern.split("*", 1)[1]), name)
    if found is None:
        raise InputError(f"the tensor {name!r} is read as {pattern!r}, but its expert number cannot be determined")
    return int(found.group(1))


def _tied(model: PreTrainedModel, sources: Mapping[str, Source]) -> tuple[dict[str, str], dict[str, str]]:
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
        held = [holders[name] for name in names if name in holders]
        if not held:
            missing += [] if names[0] in computed else [names[0]]
            continue
        tied |= {name: held[0] for name in names if name not in holders}
        tied_to |= dict.fromkeys(held[1:], held[0])
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


def left_aside(
    model: PreTrainedModel, unused: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> Mapping[str, str]:
    """Returns why each tensor, given by name and place, is not needed; raises if the model would not be the same.

    Files often contain heads for other tasks and poolers, which transformers ignores. But an unused tensor among the
    layers or in a module that the model has, or a large share of unused weights, means that file and configuration do
    not belong together.
    """
    reasons = {name: _known(model, place, len(shapes[name])) for name, place in unused.items()}
    others = [name for name, reason in reasons.items() if reason is None]
    for name in others:
        if _belongs(model, unused[name]):
            raise _misfit(model, name, tuple(shapes[name]), say="in a part that the model has")
    share = sum(math.prod(shapes[name]) for name in others) / max(sum(map(math.prod, shapes.values())), 1)
    if share > LARGEST_SHARE:
        largest = max(others, key=lambda name: math.prod(shapes[name]))
        raise _misfit(model, largest, tuple(shapes[largest]), say=f"{share:.1%} of the weights with others like it")
    return {name: reason or f"{type(model).__name__} has no such module" for name, reason in reasons.items()}


def _known(model: PreTrainedModel, place: str, n_dimensions: int) -> str | None:
    by_name = _COMPUTED.search(place) or (_MASK.search(place) and n_dimensions == 4)
    if by_name or any(place == name for name, _ in model.named_buffers()):
        return "transformers computes it"
    if any(re.search(pattern, place) for pattern in model._keys_to_ignore_on_load_unexpected or ()):
        return "transformers ignores it"
    return None


def _belongs(model: PreTrainedModel, place: str) -> bool:
    """Returns whether a tensor lies in a list of layers, or in a module that has weights already."""
    prefix = f"{model.base_model_prefix}."  # which files of a bare model leave out
    places = (place, f"{prefix}{place}", place.removeprefix(prefix))
    return any(
        other.startswith(f"{path}.")
        for path, module in model.named_modules()
        if path and (isinstance(module, nn.ModuleList) or next(module.parameters(recurse=False), None) is not None)
        for other in places
    )


def _misfit(model: PreTrainedModel, name: str, shape: tuple[int, ...], *, say: str) -> InputError:
    return InputError(
        f"the checkpoint holds {name!r} {shape} ({say}), which {type(model).__name__} does not have; "
        "config.json and weights must belong together (is the file already quantized, or an adapter?)"
    )
