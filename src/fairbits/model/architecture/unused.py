"""Tensors that a file holds and the model does not use: which may be left aside, and why."""

import math
import re
from collections.abc import Mapping

from torch import nn
from transformers import PreTrainedModel

from fairbits.errors import InputError

# Masks and angles that older versions of transformers saved with the weights and newer ones compute.
_COMPUTED = re.compile(r"(^|\.)(masked_bias|causal_mask|inv_freq|cos_cached|sin_cached|position_ids)$")
_MASK = re.compile(r"(^|\.)(attn|attention|self_attn)\.bias$")

# A heuristic: the pooler of the smallest BERT is 0.6 % of its weights, one layer or a head of any model is more.
LARGEST_SHARE = 0.01


def left_aside(
    model: PreTrainedModel, unused: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> Mapping[str, str]:
    """Returns why each tensor, given by name and place, is not needed; raises if the model would not be the same.

    Heads for other tasks and poolers often come with a file, and transformers passes over them. But a tensor among the
    layers or in a module that the model has, or much weight, says that file and configuration do not belong together.
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
        return "transformers passes over it"
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
