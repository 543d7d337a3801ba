"""Inputs of experts whose matrices are stacked in one parameter: which positions reach an expert, what its maps see."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, int8, nn

from fairbits.models.architecture.tensor_names import is_replaced


@dataclass(frozen=True, eq=False)
class ExpertCall:
    """A call of a module of experts: hidden states (positions, width), and the experts of each position.

    In Llama 4 every expert has states of its own, (experts, positions, width): zero where a position does not reach it.
    """

    module: Any
    states: Tensor
    chosen: Tensor

    @classmethod
    def of(cls, module: nn.Module, arguments: Iterable[Any]) -> "ExpertCall | None":
        """Returns the call of a module with these arguments; None if it is not of the kind that transformers shares.

        These modules have a common form, so that kernels can replace their code: the hidden states, the numbers of the
        chosen experts and their weights come in, and attributes say how the matrices lie.
        """
        tensors = [each for each in arguments if isinstance(each, Tensor)]
        if is_replaced(module):
            own: Any = module
            states = tensors[0].reshape(len(own.down_proj), -1, tensors[0].shape[-1])
            return cls(module, states, _chosen(states.any(-1)))
        if len(tensors) < 2 or not hasattr(module, "has_gate") or tensors[0].ndim != 2:
            return None
        states, chosen = tensors[:2]
        if chosen.is_floating_point() or chosen.ndim != 2 or len(chosen) != len(states):
            return None
        return cls(module, states, chosen)

    @property
    def positions(self) -> int:
        """The number of positions."""
        return self.states.shape[-2]

    def reaches(self, expert: int) -> Tensor:
        """Returns for each position whether it reaches an expert."""
        return (self.chosen == expert).any(1)

    def inputs(self, expert: int, at: Tensor) -> Tensor:
        """Returns what an expert sees at these positions, which reach it."""
        return (self.states[expert] if self.states.ndim == 3 else self.states)[at]

    def hidden(self, expert: int, inputs: Tensor) -> Tensor:
        """Returns what the last map of an expert sees, given what the expert sees."""
        own = self.module
        if self.states.ndim == 3:
            gate, up = (inputs @ own.gate_up_proj[expert]).chunk(2, dim=-1)
            gated: Tensor = up * own.act_fn(gate)
            return gated
        W = own.gate_up_proj if own.has_gate else own.up_proj
        found = inputs @ W[expert] if own.is_transposed else inputs @ W[expert].T
        if own.has_bias:
            found = found + (own.gate_up_proj_bias if own.has_gate else own.up_proj_bias)[expert]
        result: Tensor = own._apply_gate(found) if own.has_gate else own.act_fn(found)
        return result


def _chosen(reached: Tensor) -> Tensor:
    """Returns the experts of each position, from (experts, positions); a number beyond them stands for none."""
    most = int(reached.sum(0).max())
    found = reached.T.to(int8).topk(most)
    return found.indices.masked_fill(found.values == 0, len(reached))
