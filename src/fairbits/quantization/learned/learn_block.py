"""Distillation of one block at a time: with its codes it is to give what the full-precision model gives there.

The error at a position is Σ_j h_j (ŷ_j − y_j)² / ‖y‖². ŷ is the output of the block with its codes, given what the
quantized blocks before it produce; y are the hidden states of the full-precision model after the block. So a block also
corrects for what the blocks before it have lost. h is the importance of channels (`output_gradients`). Without h and
‖y‖² most of the error would be that of a few huge channels and positions, which matter little. The error of a language
is the sum over its positions, divided by that of Σ_j h_j y_j² / ‖y‖².
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
from fairbits.quantization.gptq.refinement import BlockContext
from fairbits.quantization.learned.holdout import HoldoutSplit
from fairbits.quantization.learned.learn import distill
from fairbits.quantization.learned.learnable_codes import learnable_codes
from fairbits.quantization.learned.learning_state import LearningState
from fairbits.quantization.plan import Learning

Importance = Callable[[], Mapping[int, Tensor]]
"""Gives the importance of the channels after each block, by its index."""


@dataclass(frozen=True, eq=False)
class BlockBatch:
    """A batch before a block, with what the block is to give for it.

    `target`      the full-precision hidden states after the block, (rows, length, width)
    `importance`  that of their channels, (width,)
    `at`          the positions that hold text, counted through all rows
    `language`    the language of each of them
    """

    paused: PausedBatch
    target: Tensor
    importance: Tensor
    at: Tensor
    language: Tensor

    def squared_error(self) -> Tensor:
        """Returns Σ h (ŷ − y)² / ‖y‖² at every position of text."""
        difference = (self._text_of(self.paused.output()) - self._text_of(self.target)).float()
        return (difference.square() * self.importance).sum(1) / self._sizes

    def energy(self) -> Tensor:
        """Returns Σ h y² / ‖y‖² at every position of text."""
        return (self._text_of(self.target).float().square() * self.importance).sum(1) / self._sizes

    def add_gradients(self, weights: Floats) -> None:
        """Adds the gradients of Σ_λ weight_λ Σ (error at a position) to those of the block's learnable codes."""
        with autocast(self.target.device):
            error = self.squared_error()
        own = torch.from_numpy(weights).float().to(error.device)[self.language]
        (error * own).sum().backward()  # type: ignore[no-untyped-call]

    @cached_property
    def _sizes(self) -> Tensor:
        """‖y‖² at every position of text."""
        return self._text_of(self.target).float().square().sum(1).clamp_(min=torch.finfo(torch.float32).tiny)

    def _text_of(self, states: Tensor) -> Tensor:
        return states.reshape(-1, states.shape[-1])[self.at]


def block_distiller(learning: Learning, split: HoldoutSplit, *, importance: Importance, seed: int) -> "BlockDistiller":
    """Returns the function with which `round_model` refines blocks; it may be given a part of the text of the split.

    The error of a language in one block is not its damage. If the whole model is learned afterwards, no language gets
    more weight than another until then.
    """
    text = split.text
    own = replace(learning, objective="mean") if learning.model_steps else learning
    language_of, held_out = torch.from_numpy(text.language_of), split.held_out_documents
    return BlockDistiller(own, text.languages, language_of, held_out, importance, seed)


@dataclass(frozen=True, eq=False)
class BlockDistiller:
    """Learns the codes of blocks, one by one; the documents `held_out` are for evaluation.

    `importance` gives that of the channels after each block.
    """

    learning: Learning
    languages: tuple[str, ...]
    language_of: Tensor
    held_out: frozenset[int]
    importance: Importance
    seed: int

    @property
    def ticks(self) -> int:
        """One for every step."""
        return self.learning.block_steps

    def __call__(self, context: BlockContext) -> dict[str, Codes]:
        """Returns the best codes on held-out text that give no language a larger error than those at the start."""
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
        """Returns a batch before a block, with its target."""
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
            while sum(len(each.target) for each in chosen) < self.learning.rows:
                left = left or rng.permutation(len(self.training)).tolist()
                chosen.append(self.training[left.pop()])
            yield chosen

    def backward(self, batch: list[BlockBatch], weights: Floats) -> None:
        """Adds the gradients of Σ_λ weight_λ · (error of λ), relative to the energy of all training text of λ."""
        for each in batch:
            each.add_gradients(weights / self._energy)

    def damage(self) -> Floats:
        """Returns the error of every language on held-out text."""
        return relative_error(self.held_out, self.count)

    def report(self, _state: LearningState) -> None:
        """Counts the step."""
        self.tick()

    @cached_property
    def _energy(self) -> Floats:
        return _energy(self.training, self.count)


@torch.no_grad()
def relative_error(batches: Sequence[BlockBatch], count: int) -> Floats:
    """Returns the error of each of `count` languages."""
    with parametrize.cached():  # of one block
        errors = _sum_by_language(batches, (each.squared_error() for each in batches), count)
    found: Floats = errors / _energy(batches, count)
    if not np.isfinite(found).all():
        raise InputError("a block gives NaN or infinity on the calibration text; check the model's weights")
    return found


def _energy(batches: Sequence[BlockBatch], count: int) -> Floats:
    """Returns the sum of energies of each language; above 0 for one without text here, whose error is 0."""
    sums = _sum_by_language(batches, (each.energy() for each in batches), count)
    return np.maximum(sums, np.finfo(np.float64).tiny)


def _sum_by_language(batches: Sequence[BlockBatch], values: Iterator[Tensor], count: int) -> Floats:
    """Returns the sum of the values of each language, given one value for every position of every batch."""
    sums = np.zeros(count)
    for batch, each in zip(batches, values, strict=True):
        sums += np.bincount(batch.language.cpu(), each.double().cpu(), minlength=count)
    return sums
