"""SwappedModel: a loaded model whose linear layers are replaced in place, and restored bit for bit."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Weight
from fairbits.models.architecture.parameter_mapping import is_replaced
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.rounded_activations import round_layer, scheme_rounding
from fairbits.models.scales.groups import Codes, dequantize_in_float32
from fairbits.models.scales.scheme import Scheme

NO_SCHEMES: Mapping[str, Scheme] = MappingProxyType({})
GATED_EXPERTS = {"mlp_gate": "gate_up_proj", "mlp_up": "gate_up_proj", "mlp_down": "down_proj"}
PLAIN_EXPERTS = {"mlp_up": "up_proj", "mlp_down": "down_proj"}
"""The parameter in which a module of experts stacks the matrices of a role, with gates and without."""


class SwappedModel:
    """A loaded model; what is replaced is read from its checkpoint again at the end of a `with` statement.

    `as_written`: it is what `fairbits evaluate` measures of a written model. Codes are multiplied in float32, and what
    is not replaced has the values that are written, not those of the reference.
    """

    def __init__(self, checkpoint: Checkpoint, model: PreTrainedModel, *, as_written: bool = False) -> None:
        self.checkpoint, self.model = checkpoint, model
        self.as_written = as_written
        self._replaced: set[str] = set()
        self._hooks: dict[str, list[RemovableHandle]] = {}

    @classmethod
    def load(cls, checkpoint: Checkpoint, *, device: str = "cpu", as_written: bool = False) -> "SwappedModel":
        model = checkpoint.load(device=device)
        if as_written and checkpoint.scale_dtype != checkpoint.stated_dtype:
            for name, parameter in model.named_parameters():
                if not checkpoint.keeps_float32(name):
                    parameter.data.copy_(parameter.data.to(checkpoint.scale_dtype))
        return cls(checkpoint, model, as_written=as_written)

    def replace(self, layers: Mapping[str, Codes | Tensor], schemes: Mapping[str, Scheme] = NO_SCHEMES) -> None:
        """Replaces linear layers or embeddings, with heads tied to them, by codes or matrices (out, in).

        Layers round their inputs if their `schemes` say so.
        """
        for name, new in layers.items():
            if isinstance(new, Codes) and name in schemes and schemes[name].inputs != "kept":
                self._round_inputs(name, new, schemes[name])
            W = new if isinstance(new, Tensor) else dequantize_in_float32(new) if self.as_written else new.dequantized
            parameter = self._parameter(name, tuple(W.shape))
            self._replaced.add(name)  # before anything is written, so that an interrupted write is restored too
            parameter.copy_(W)

    def restore(self, names: Iterable[str] | None = None) -> None:
        """Restores the named tensors that were replaced (by default all), exactly as they were loaded."""
        for name in sorted(self._replaced if names is None else self._replaced.intersection(names)):
            stored = self.checkpoint.read_kept(name) if self.as_written else self.checkpoint.read(name)
            W = stored.T if self.checkpoint.architecture.weights[name].transposed else stored
            self._parameter(name, tuple(W.shape)).copy_(W)
            for handle in self._hooks.pop(name, []):
                handle.remove()
            self._replaced.discard(name)

    def __enter__(self) -> "SwappedModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.restore()

    def _round_inputs(self, name: str, codes: Codes, scheme: Scheme) -> None:
        weight = self.checkpoint.architecture.weights[name]
        if weight.expert is not None:
            raise InputError(
                f"{scheme.format} rounds the inputs of every expert, which a model in memory cannot do here: write the "
                "quantized model and evaluate that"
            )
        self._hooks[name] = round_layer(self.model.get_submodule(weight.module), scheme_rounding(scheme, codes))

    def _parameter(self, name: str, shape: tuple[int, ...]) -> Tensor:
        weight = self.checkpoint.architecture.weights[name]
        matrix = matrix_at(self.model, weight.module, transposed=weight.transposed)
        if matrix is None and weight.expert is not None:
            matrix = expert_matrix(self.model, weight)
        if matrix is None or matrix.shape != shape:
            has = "no matrix" if matrix is None else f"a matrix of shape {tuple(matrix.shape)}"
            raise InputError(
                f"{name} of shape {shape} cannot be replaced: {type(self.model).__name__} has {has} "
                f"at {weight.module}; do not quantize this tensor, or write the quantized model and evaluate that"
            )
        return matrix


def matrix_at(model: torch.nn.Module, module: str, *, transposed: bool) -> Tensor | None:
    """Returns the weights of a module as a writable (out, in) view; None if it has no matrix."""
    try:
        parameter = getattr(model.get_submodule(module), "weight", None)
    except AttributeError:  # there is no such module
        return None
    if not isinstance(parameter, Tensor) or parameter.ndim != 2:
        return None
    return parameter.data.T if transposed else parameter.data


def expert_matrix(model: torch.nn.Module, weight: Weight) -> Tensor | None:
    """Returns the matrix of an expert as a writable (out, in) slice of what its module stacks; None if it has none."""
    module = model.get_submodule(weight.module)
    replaced = is_replaced(module)
    gated = replaced or bool(getattr(module, "has_gate", False))
    stacked = getattr(module, (GATED_EXPERTS if gated else PLAIN_EXPERTS).get(weight.role, ""), None)
    if not isinstance(stacked, Tensor) or stacked.ndim != 3 or weight.expert is None:
        return None
    expert = stacked.data[weight.expert]
    W = expert.T if replaced or module.is_transposed else expert
    if not gated or weight.role == "mlp_down":
        return W
    half, second = len(W) // 2, weight.role == "mlp_up"
    return W[half * second :][:half] if replaced or module.is_concatenated else W[second::2]
