"""Experts whose matrices are stacked in one parameter: what reaches each of them, and how often (ExpertCounter)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairbits.forward.batches import Batch
from fairbits.models.architecture.architecture import Architecture
from fairbits.models.architecture.parameter_mapping import is_replaced

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BlockExperts:
    """How many positions of text the router of a block sends to each expert."""

    block: int
    per_position: int  # the experts that it chooses for every position
    counts: Counts  # (languages, experts)


@dataclass(frozen=True)
class ExpertPoint:
    """A module that computes the experts of a block, and how many they are."""

    block: int
    stack: str
    module: str
    experts: int


def expert_points(architecture: Architecture) -> tuple[ExpertPoint, ...]:
    """Returns the modules of a model whose experts have their matrices stacked in one parameter."""
    sizes: dict[tuple[int, str, str], int] = {}
    for block in architecture.blocks:
        for weight in block.linears.values():
            count = weight.stacked or (0 if weight.expert is None else weight.expert + 1)
            place = block.index, block.stack, weight.module
            if count:
                sizes[place] = max(sizes.get(place, 0), count)
    return tuple(ExpertPoint(*place, count) for place, count in sizes.items())


@dataclass(frozen=True, eq=False)
class ExpertCall:
    """A call of experts: hidden states and the experts of each position; in Llama 4 each expert has its own states."""

    module: Any
    states: Tensor
    chosen: Tensor

    @classmethod
    def of(cls, module: nn.Module, arguments: Iterable[Any]) -> "ExpertCall | None":
        """Returns the call of a module with these arguments; None if it has not the common form of transformers."""
        tensors = [value for value in arguments if isinstance(value, Tensor)]
        if is_replaced(module):
            experts: Any = module
            states = tensors[0].reshape(len(experts.down_proj), -1, tensors[0].shape[-1])
            return cls(module, states, _chosen(states.any(-1)))
        if len(tensors) < 2 or not hasattr(module, "has_gate") or tensors[0].ndim != 2:
            return None
        states, chosen = tensors[:2]
        if chosen.is_floating_point() or chosen.ndim != 2 or len(chosen) != len(states):
            return None
        return cls(module, states, chosen)

    @property
    def positions(self) -> int:
        return self.states.shape[-2]

    def reaches(self, expert: int) -> Tensor:
        return (self.chosen == expert).any(1)

    def inputs(self, expert: int, at: Tensor) -> Tensor:
        """Returns what an expert sees at these positions, which reach it."""
        return (self.states[expert] if self.states.ndim == 3 else self.states)[at]

    def hidden(self, expert: int, inputs: Tensor) -> Tensor:
        """Returns what the last layer of an expert sees, given what the expert sees."""
        module = self.module
        if self.states.ndim == 3:
            gate, up = (inputs @ module.gate_up_proj[expert]).chunk(2, dim=-1)
            gated: Tensor = up * module.act_fn(gate)
            return gated
        W = module.gate_up_proj if module.has_gate else module.up_proj
        hidden = inputs @ W[expert] if module.is_transposed else inputs @ W[expert].T
        if module.has_bias:
            hidden = hidden + (module.gate_up_proj_bias if module.has_gate else module.up_proj_bias)[expert]
        result: Tensor = module._apply_gate(hidden) if module.has_gate else module.act_fn(hidden)
        return result


class ExpertCounter:
    """The counts over all batches so far. Per batch: `start`, then run the model with the hooks of `attach`."""

    def __init__(self, points: Iterable[ExpertPoint], rows: Tensor, *, device: str | torch.device) -> None:
        self.points = tuple(points)
        self._table_rows, self._device = rows, torch.device(device)
        self._counts: dict[str, Tensor] = {}
        self._per_position: dict[str, int] = {}
        self._strange: set[str] = set()  # modules that are not called as transformers calls them
        self._passed: set[str] = set()

    def start(self, batch: Batch) -> None:
        self._passed.clear()  # a recomputed block calls its experts a second time
        rows = self._table_rows[batch.document][:, None]
        self._rows = {
            stack: torch.where(batch.positions(stack).text.to(rows.device) > 0, rows, -1).flatten().to(self._device)
            for stack in {point.stack for point in self.points}
        }

    def attach(self, modules: Mapping[str, nn.Module], *, block: int | None = None) -> list[RemovableHandle]:
        return [
            modules[point.module].register_forward_pre_hook(partial(self._count, point), with_kwargs=True)
            for point in self.points
            if block is None or point.block == block
        ]

    def tables(self) -> tuple[BlockExperts, ...]:
        """Returns the counts of every block, in the order of blocks; a second module's experts follow the first's."""
        modules: dict[int, list[str]] = {}
        for point in sorted(self.points, key=lambda point: point.block):
            if point.module in self._counts:
                modules.setdefault(point.block, []).append(point.module)
        return tuple(
            BlockExperts(
                block,
                sum(self._per_position[name] for name in names),
                np.concatenate([self._counts[name].cpu().numpy() for name in names], axis=1),
            )
            for block, names in modules.items()
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: which experts could not be counted."""
        blocks = sorted({point.block for point in self.points if point.module in self._strange})
        if not blocks:
            return ()
        some = ", ".join(map(str, blocks[:8])) + (" …" if len(blocks) > 8 else "")
        return (f"expert usage is not counted in blocks {some}: these modules do not receive the router's choice",)

    @torch.no_grad()
    def _count(self, point: ExpertPoint, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if point.module in self._passed:
            return
        self._passed.add(point.module)
        call = ExpertCall.of(module, (*args, *kwargs.values()))
        rows = self._rows[point.stack]
        if call is None or len(call.chosen) != len(rows):
            self._strange.add(point.module)
        else:
            self._add(point, call.chosen, rows[:, None])

    def _add(self, point: ExpertPoint, chosen: Tensor, rows: Tensor) -> None:
        if point.module not in self._counts:
            shape = int(self._table_rows.max()) + 1, point.experts
            self._counts[point.module] = torch.zeros(shape, dtype=torch.int64, device=self._device)
            self._per_position[point.module] = chosen.shape[1]
        counted = (rows >= 0) & (chosen < point.experts)  # numbers beyond are experts without weights
        places = rows.clamp(min=0) * point.experts + chosen.clamp(max=point.experts - 1)
        self._counts[point.module].view(-1).index_add_(0, places.flatten(), counted.long().flatten())


def _chosen(reached: Tensor) -> Tensor:
    """Returns the experts of each position, from (experts, positions); a number beyond them stands for none."""
    most = int(reached.sum(0).max())
    top = reached.T.to(torch.int8).topk(most)
    return top.indices.masked_fill(top.values == 0, len(reached))
