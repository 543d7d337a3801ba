"""Rounding while a model computes: the inputs and outputs of layers, and the keys and values that attention caches.

The arithmetic is compressed-tensors' own, in float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from compressed_tensors.modeling.kvcache import initialize_hooked_kv_cache  # type: ignore[import-untyped]
from compressed_tensors.quantization import QuantizationScheme, QuantizationStatus  # type: ignore[import-untyped]
from compressed_tensors.quantization.lifecycle.forward import fake_quantize  # type: ignore[import-untyped]
from compressed_tensors.quantization.utils import (  # type: ignore[import-untyped]
    KV_CACHE_TARGETS,
    compute_dynamic_scales_and_zp,
)
from compressed_tensors.utils.match import match_named_modules  # type: ignore[import-untyped]
from torch import Tensor, nn
from transformers import PreTrainedModel

from fairbits.core.errors import InputError


@dataclass(frozen=True, eq=False)
class Rounding:
    """How the inputs and outputs of a layer are rounded; `values` are the static scales and zero points.

    With `round_up` the scales of groups are powers of two, the next ones above.
    """

    inputs: Any = None
    outputs: Any = None
    values: Mapping[str, Tensor] = field(default_factory=dict)
    round_up: bool = False

    def rounded(self, x: Tensor, side: str) -> Tensor:
        """Returns inputs or outputs (…, features) as the layer computes with them."""
        how = self.inputs if side == "input" else self.outputs
        if not x.numel():
            return x
        size = x.shape[-1]
        wide = x.float().reshape(1, -1, size)  # tokens, whatever else they are arranged in
        if how.group_size:
            wide = nn.functional.pad(wide, (0, -size % how.group_size))
        overall = self._value(f"{side}_global_scale", x)
        if how.dynamic:
            scale, zero = compute_dynamic_scales_and_zp(wide, how, None, global_scale=overall)
            scale = torch.exp2(torch.ceil(torch.log2(scale))) if self.round_up else scale
        else:
            scale, zero = self._value(f"{side}_scale", x), self._value(f"{side}_zero_point", x)
        result: Tensor = fake_quantize(wide, scale, zero, how, global_scale=overall)
        return result[..., :size].reshape(x.shape).to(x.dtype)

    def equals(self, other: "Rounding") -> bool:
        same = (self.inputs, self.outputs, self.values.keys()) == (other.inputs, other.outputs, other.values.keys())
        return same and all(torch.equal(value, other.values[name]) for name, value in self.values.items())

    def _value(self, name: str, like: Tensor) -> Tensor | None:
        value = self.values.get(name)
        return None if value is None else value.reshape(1).to(like.device)


def round_layer(module: nn.Module, rounding: Rounding) -> None:
    """Makes a layer round what it gets and what it returns."""
    if rounding.inputs is not None:
        module.register_forward_pre_hook(partial(_round_inputs, rounding=rounding))
    if rounding.outputs is not None:
        module.register_forward_hook(partial(_round_output, rounding=rounding))


def _round_inputs(_module: nn.Module, inputs: tuple[Tensor, ...], *, rounding: Rounding) -> tuple[Tensor, ...]:
    return (rounding.rounded(inputs[0], "input"), *inputs[1:])


def _round_output(_module: nn.Module, _inputs: Any, output: Tensor, *, rounding: Rounding) -> Tensor:
    return rounding.rounded(output, "output")


def round_keys_and_values(
    model: PreTrainedModel, how: Any, scales: Mapping[str, Mapping[str, Tensor]], device: torch.device | str
) -> None:
    """Makes every attention round its keys and values; where there are no scales for any, these are 1."""
    found = {name for name, _ in match_named_modules(model, KV_CACHE_TARGETS)}
    if not found or (scales and found != scales.keys()):
        missing = min(found ^ scales.keys(), default=type(model).__name__)
        raise InputError(f"keys and values are to be rounded, and {missing} has no attention or no scales for that")
    for path in found:
        module: Any = model.get_submodule(path)
        module.quantization_scheme = QuantizationScheme(targets=[path], input_activations=how)
        module.quantization_status = QuantizationStatus.COMPRESSED
        for name, value in (scales.get(path) or {"k_scale": torch.ones(1), "v_scale": torch.ones(1)}).items():
            setattr(module, name, value.to(device))
        initialize_hooked_kv_cache(model, module)
