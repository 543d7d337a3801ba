"""Tensors that transformers joins when it loads a model, such as convolutions of q, k and v.

In a file with packed weights it joins packed tensors only, so that what is kept must be there as it is in the model.
"""

import copy
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor
from transformers import PreTrainedModel
from transformers.core_model_loading import WeightConverter

from fairbits.errors import InputError
from fairbits.model.architecture.names import target_of
from fairbits.model.architecture.stacked_experts import conversions

if TYPE_CHECKING:
    from fairbits.model.architecture.records import Architecture

LEAF = ".weight"
"""How names end that transformers looks for in another form, where weights are packed."""


def joined_groups(model: PreTrainedModel, architecture: "Architecture") -> dict[str, dict[str, str]]:
    """Returns, by parameter, the tensors that are joined into it, each with the pattern of its name; no experts."""
    transforms, entries = conversions(model), dict(model.state_dict(keep_vars=True))
    converters = _by_pattern(model)
    groups: dict[str, dict[str, str]] = defaultdict(dict)
    for name, weight in architecture.weights.items():
        if weight.linear or weight.expert is not None or weight.stacked is not None:
            continue
        parameter, pattern = target_of(name, transforms, model=model, entries=entries)
        if pattern is not None and all(each.endswith(LEAF) for each in converters[pattern].source_patterns):
            groups[parameter][name] = pattern
    for parameter, members in groups.items():
        if target_of(parameter, transforms, model=model, entries=entries) != (parameter, None):
            raise InputError(
                f"transformers joins {' and '.join(members)} into {parameter}, which it does not read under that name, "
                "and in a file with packed weights it does not join them, so that no file can hold the quantized "
                "model: measure it in memory (fairbits compare, fairbits sweep), or quantize a model of another family"
            )
    return dict(groups)


def join(
    model: PreTrainedModel, parameter: str, members: Mapping[str, str], *, read: Callable[[str], Tensor]
) -> Tensor:
    """Returns a parameter, as transformers makes it from the tensors that `read` gives by name."""
    converter = copy.deepcopy(_by_pattern(model)[next(iter(members.values()))])
    for name, pattern in members.items():
        converter.add_tensor(parameter, name, pattern, read(name))  # type: ignore[arg-type]
    (made,) = converter.convert(parameter).values()
    whole: Tensor = made[0] if isinstance(made, list) else made
    return whole.contiguous()


def _by_pattern(model: PreTrainedModel) -> dict[str, WeightConverter]:
    converters = [each for each in conversions(model) if isinstance(each, WeightConverter)]
    return {pattern: each for each in converters for pattern in each.source_patterns}
