"""ExpertCounter: counts the positions of text that the routers of a model send to each expert.

BlockExperts: how often the router of a block chose each expert, by language.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fairbits.forward.batches import Batch
from fairbits.forward.expert_inputs import ExpertCall
from fairbits.models.architecture.architecture import Architecture

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BlockExperts:
    """How many positions of text the router of a block sends to each expert.

    `per_position`  the experts that it chooses for every position
    `counts`        (languages, experts)
    """

    block: int
    per_position: int
    counts: Counts


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


class ExpertCounter:
    """The counts over all batches so far. Per batch: `start`, then run the model with the hooks of `attach`."""

    def __init__(self, points: Iterable[ExpertPoint], row_of: Tensor, *, device: str | torch.device) -> None:
        """`row_of` says in which row of the tables a document is counted: that of its language, or its own."""
        self.points = tuple(points)
        self._row_of, self._device = row_of, torch.device(device)
        self._counts: dict[str, Tensor] = {}
        self._per_position: dict[str, int] = {}
        self._strange: set[str] = set()  # modules that are not called as those of transformers are
        self._passed: set[str] = set()

    def start(self, batch: Batch) -> None:
        """Makes this batch the one that is counted."""
        self._passed.clear()  # a recomputed block calls its experts a second time
        rows = self._row_of[batch.document][:, None]
        self._rows = {
            stack: torch.where(batch.positions(stack).text.to(rows.device) > 0, rows, -1).flatten().to(self._device)
            for stack in {point.stack for point in self.points}
        }

    def attach(self, modules: Mapping[str, nn.Module], *, block: int | None = None) -> list[RemovableHandle]:
        """Returns the handles of the hooks on all modules of experts, or on those of one block."""
        return [
            modules[point.module].register_forward_pre_hook(self._hook(point), with_kwargs=True)
            for point in self.points
            if block is None or point.block == block
        ]

    def tables(self) -> tuple[BlockExperts, ...]:
        """Returns the counts of every block, in the order of blocks; a second module's experts follow the first's."""
        counted = sorted((each for each in self.points if each.module in self._counts), key=lambda each: each.block)
        return tuple(
            BlockExperts(
                block,
                sum(self._per_position[each.module] for each in own),
                np.concatenate([self._counts[each.module].cpu().numpy() for each in own], axis=1),
            )
            for block, found in groupby(counted, key=lambda each: each.block)
            for own in [list(found)]
        )

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: which experts could not be counted."""
        blocks = sorted({point.block for point in self.points if point.module in self._strange})
        if not blocks:
            return ()
        some = ", ".join(map(str, blocks[:8])) + (" …" if len(blocks) > 8 else "")
        return (f"which text reaches the experts of blocks {some} is not counted: their modules do not get the choice",)

    def _hook(self, point: ExpertPoint) -> Callable[..., None]:
        @torch.no_grad()
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if point.module in self._passed:
                return
            self._passed.add(point.module)
            call = ExpertCall.of(module, (*args, *kwargs.values()))
            rows = self._rows[point.stack]
            if call is None or len(call.chosen) != len(rows):
                self._strange.add(point.module)
                return
            self._add(point, call.chosen, rows[:, None])

        return hook

    def _add(self, point: ExpertPoint, chosen: Tensor, rows: Tensor) -> None:
        """Adds the chosen experts of all positions. Sums of whole numbers do not depend on their order."""
        if point.module not in self._counts:
            shape = int(self._row_of.max()) + 1, point.experts
            self._counts[point.module] = torch.zeros(shape, dtype=torch.int64, device=self._device)
            self._per_position[point.module] = chosen.shape[1]
        counted = (rows >= 0) & (chosen < point.experts)  # numbers beyond are experts without weights
        places = rows.clamp(min=0) * point.experts + chosen.clamp(max=point.experts - 1)
        self._counts[point.module].view(-1).index_add_(0, places.flatten(), counted.long().flatten())
