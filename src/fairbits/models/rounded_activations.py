"""Rounding while a model computes: the inputs and outputs of layers, and the keys and values that attention caches.

The arithmetic is compressed-tensors' own, in float32.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from compressed_tensors.quantization.lifecycle.forward import fake_quantize  # type: ignore[import-untyped]
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.models.io.layer_files import preset
from fairbits.models.kv_cache import store_rounded
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme


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
        wide = x.float().reshape(1, -1, x.shape[-1])  # tokens, whatever else they are arranged in
        overall = self._value(f"{side}_global_scale", x)
        if how.dynamic:
            scale, zero = compute_dynamic_scales_and_zp(wide, how, None, global_scale=overall)
            scale = torch.exp2(torch.ceil(torch.log2(scale))) if self.round_up else scale
        else:
            scale, zero = self._value(f"{side}_scale", x), self._value(f"{side}_zero_point", x)
        result: Tensor = fake_quantize(wide, scale, zero, how, global_scale=overall)
        return result.reshape(x.shape).to(x.dtype)

    def equals(self, other: "Rounding") -> bool:
        same = (self.inputs, self.outputs, self.values.keys()) == (other.inputs, other.outputs, other.values.keys())
        return same and all(torch.equal(value, other.values[name]) for name, value in self.values.items())

    def _value(self, name: str, like: Tensor) -> Tensor | None:
        value = self.values.get(name)
        return None if value is None else value.reshape(1).to(like.device)


def scheme_rounding(scheme: Scheme, codes: Codes) -> Rounding:
    """Returns how a layer that is stored with these codes rounds its inputs."""
    return Rounding(preset(scheme.format, ()).input_activations, values=codes.constants)


class _RoundedInputs(torch.autograd.Function):
    """Inputs as they are rounded, whose backward pass takes the rounding as the identity."""

    @staticmethod
    def forward(_ctx: Any, x: Tensor, rounding: Rounding) -> Tensor:
        return rounding.rounded(x, "input")

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def round_layer(module: nn.Module, rounding: Rounding) -> list[RemovableHandle]:
    """Makes a layer round what it gets and what it returns; returns what undoes it."""
    handles = []
    if rounding.inputs is not None:
        handles.append(module.register_forward_pre_hook(partial(_round_inputs, rounding=rounding)))
    if rounding.outputs is not None:
        handles.append(module.register_forward_hook(partial(_round_output, rounding=rounding)))
    return handles


def _round_inputs(_module: nn.Module, inputs: tuple[Tensor, ...], *, rounding: Rounding) -> tuple[Tensor, ...]:
    return (_RoundedInputs.apply(inputs[0], rounding), *inputs[1:])  # type: ignore[no-untyped-call]


def _round_output(_module: nn.Module, _inputs: Any, output: Tensor, *, rounding: Rounding) -> Tensor:
    return rounding.rounded(output, "output")


Projection = Literal["up", "down"]  # the first of an expert, with its gate, and the last
Experts = Mapping[tuple[Projection, int | None], Rounding]


def round_experts(module: nn.Module, roundings: Experts) -> None:
    """Makes experts, whose weights are in one tensor, round the inputs of each; None stands for all experts."""
    if not hasattr(module, "_apply_gate"):
        raise InputError(f"the inputs of experts are to be rounded, which is not known for {type(module).__name__}")
    module.forward = partial(_rounded_experts, module, roundings)


def _rounded_experts(
    experts: Any, roundings: Experts, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor
) -> Tensor:
    """Returns what the experts of a block add up to, one expert after the other."""
    result = torch.zeros_like(hidden_states)
    for expert in torch.unique(top_k_index[top_k_index < experts.num_experts]).tolist():
        token, choice = torch.where(top_k_index == expert)

        def project(x: Tensor, name: str, side: Projection, number: int = expert) -> Tensor:
            rounding = roundings.get((side, number)) or roundings.get((side, None))
            weight = getattr(experts, name)[number]
            x = x if rounding is None else rounding.rounded(x, "input")
            bias = getattr(experts, f"{name}_bias")[number] if experts.has_bias else None
            return nn.functional.linear(x, weight.T if experts.is_transposed else weight, bias)

        inner = project(hidden_states[token], "gate_up_proj" if experts.has_gate else "up_proj", "up")
        inner = experts._apply_gate(inner) if experts.has_gate else experts.act_fn(inner)
        output = project(inner, "down_proj", "down")
        output = experts.post_expert_norm(output) if experts.has_post_expert_norm else output
        result.index_add_(0, token, (output * top_k_weights[token, choice, None]).to(result.dtype))
    return result


def round_keys_and_values(
    model: PreTrainedModel, how: Any, scales: Mapping[str, Mapping[str, Tensor]], device: torch.device | str
) -> None:
    """Makes every attention round its keys and values; where there are no scales for any, these are 1."""
    by_layer: dict[int, Mapping[str, Tensor]] = {}
    for path, pair in scales.items():
        layer: Any = model.get_submodule(path)
        by_layer[layer.layer_idx] = {name: value.to(device) for name, value in pair.items()}
    one = torch.ones(1, device=device)

    def rounded(x: Tensor, layer: int, side: str) -> Tensor:
        result: Tensor = fake_quantize(x, by_layer[layer][f"{side}_scale"] if scales else one, None, how)
        return result

    store_rounded(model, rounded)
