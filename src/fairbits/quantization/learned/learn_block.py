"""Distillation of one block at a time: with its codes it is to give what the full-precision model gives there.

The error at a position is Σ_j h_j (ŷ_j − y_j)² / ‖y‖². ŷ is the output of the block with its codes, given what the
quantized blocks before it produce; y are the hidden states of the full-precision model after the block. So a block also
corrects for what the blocks before it have lost. h is the importance of channels (`output_importance`). Without h and
‖y‖² most of the error would come from a few huge channels and positions, which matter little. The error of a language
is the sum over its positions, divided by the sum of Σ_j h_j y_j² / ‖y‖².
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import parametrize

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.forward.lockstep import PausedBatch
from fairbits.models.device import autocast
from fairbits.models.scales.groups import Codes
from fairbits.quantization.gptq.block_rounding import BlockContext
from fairbits.quantization.learned.holdout import HoldoutSplit
from fairbits.quantization.learned.learn import LearningState, distill
from fairbits.quantization.learned.learnable_codes import learnable_codes
from fairbits.quantization.plan import Learning

Importance = Callable[[], Mapping[int, Tensor]]  # gives the importance of the channels after each block, by its index


@dataclass(frozen=True, eq=False)
class BlockBatch:
    """A batch before a block, with what the block is to give for it."""

    paused: PausedBatch
    target: Tensor  # the full-precision hidden states after the block, (rows, length, channels)
    importance: Tensor  # of their channels, (channels,)
    at: Tensor  # the positions that hold text, counted through all rows
    language: Tensor  # the language of each of them

    def squared_error(self) -> Tensor:
        """Returns Σ h (ŷ − y)² / ‖y‖² at every position of text."""
        difference = (self._at_text(self.paused.output()) - self._at_text(self.target)).float()
        return (difference.square() * self.importance).sum(1) / self._sizes

    def energy(self) -> Tensor:
        """Returns Σ h y² / ‖y‖² at every position of text."""
        return (self._at_text(self.target).float().square() * self.importance).sum(1) / self._sizes

    def add_gradients(self, weights: Floats) -> None:
        """Adds the gradients of Σ_λ weight_λ Σ (error at a position) to the block's learnable codes."""
        with autocast(self.target.device):
            error = self.squared_error()
        by_position = torch.from_numpy(weights).float().to(error.device)[self.language]
        (error * by_position).sum().backward()  # type: ignore[no-untyped-call]

    @cached_property
    def _sizes(self) -> Tensor:
        return self._at_text(self.target).float().square().sum(1).clamp_(min=torch.finfo(torch.float32).tiny)

    def _at_text(self, states: Tensor) -> Tensor:
        return states.reshape(-1, states.shape[-1])[self.at]


@dataclass(frozen=True, eq=False)
class BlockDistiller:
    """Learns the codes of blocks one by one; `held_out` documents are for evaluation."""

    learning: Learning
    languages: tuple[str, ...]
    language_of: Tensor
    held_out: frozenset[int]
    importance: Importance
    seed: int

    @classmethod
    def of(cls, learning: Learning, split: HoldoutSplit, *, importance: Importance, seed: int) -> "BlockDistiller":
        """Returns what refines blocks; if the model is learned afterwards, no language gets more weight until then."""
        if learning.model_steps:
            learning = replace(learning, objective="mean")
        text = split.text
        language_of, held_out = torch.from_numpy(text.language_of), split.held_out_documents
        return cls(learning, text.languages, language_of, held_out, importance, seed)

    @property
    def ticks(self) -> int:
        return self.learning.block_steps

    def __call__(self, context: BlockContext) -> dict[str, Codes]:
        """Returns the best codes on held-out text that give no language a larger error than at the start."""
        sides: tuple[list[BlockBatch], list[BlockBatch]] = ([], [])
        for paused, target in zip(context.batches, context.targets, strict=True):
            held_out = int(paused.batch.document[0]) in self.held_out
            sides[held_out].append(self.block_batch(paused, target, context))
        seeds, how = (self.seed, context.index), self.learning
        distillation = BlockDistillation(*sides, len(self.languages), how, seeds=seeds, tick=context.tick)
        with learnable_codes(context.model, context.weights, context.start) as codes:
            state = distill(codes, distillation, learning=how, steps=how.block_steps, rate=how.rate, seed=self.seed)
        return state.best_codes or {name: codes for name, (codes, _) in context.start.items()}

    def block_batch(self, paused: PausedBatch, target: Tensor, context: BlockContext) -> BlockBatch:
        text = paused.batch.positions(context.stack).text
        at = text.flatten().nonzero()[:, 0]
        language = self.language_of[paused.batch.document[at // text.shape[1]]]
        importance = self.importance()[context.index].to(target.device)
        return BlockBatch(paused, target, importance, at.to(target.device), language.to(target.device))


@dataclass(frozen=True, eq=False)
class BlockDistillation:
    """The `Distillation` of one block, for `count` languages."""

    training: Sequence[BlockBatch]
    held_out: Sequence[BlockBatch]
    count: int
    learning: Learning
    seeds: tuple[int, ...]
    tick: Callable[[], None]
    single_backward = False

    def batches(self) -> Iterator[list[BlockBatch]]:
        """Yields the batches of every step, `rows` windows or more: all in random order, then all in another."""
        rng = np.random.default_rng(self.seeds)
        left: list[int] = []
        for _ in range(self.learning.block_steps):
            chosen: list[BlockBatch] = []
            while sum(len(batch.target) for batch in chosen) < self.learning.rows:
                left = left or rng.permutation(len(self.training)).tolist()
                chosen.append(self.training[left.pop()])
            yield chosen

    def backward(self, batch: list[BlockBatch], weights: Floats) -> None:
        """Adds the gradients of Σ_λ weight_λ · (error of λ), relative to the energy of all training text of λ."""
        for part in batch:
            part.add_gradients(weights / self._energy)

    def damage(self) -> Floats:
        return relative_error(self.held_out, self.count)

    def report(self, _state: LearningState) -> None:
        self.tick()

    @cached_property
    def _energy(self) -> Floats:
        return _energy(self.training, self.count)


@torch.no_grad()
def relative_error(batches: Sequence[BlockBatch], count: int) -> Floats:
    """Returns the error of each of `count` languages."""
    with parametrize.cached():  # of one block
        sums = _sum_by_language(batches, (batch.squared_error() for batch in batches), count)
    errors: Floats = sums / _energy(batches, count)
    if not np.isfinite(errors).all():
        raise InputError("a block gives NaN or infinity on the calibration text; check the model's weights")
    return errors


def _energy(batches: Sequence[BlockBatch], count: int) -> Floats:
    """Returns the sum of energies of each language; above 0 for one without text here, whose error is 0."""
    sums = _sum_by_language(batches, (batch.energy() for batch in batches), count)
    return np.maximum(sums, np.finfo(np.float64).tiny)


def _sum_by_language(batches: Sequence[BlockBatch], values: Iterator[Tensor], count: int) -> Floats:
    sums = np.zeros(count)
    for batch, positions in zip(batches, values, strict=True):
        sums += np.bincount(batch.language.cpu(), positions.double().cpu(), minlength=count)
    return sums
