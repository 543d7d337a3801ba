"""Distillation of the whole model: its next-token distribution is to equal the full-precision model's.

The damage of a language is the mean KL(p ‖ q) over its predicted positions, p the full-precision model's distribution
and q the quantized model's. The full-precision model (the teacher) is never in memory: its final hidden states were
written to disk by one pass over the text (`ReferenceModel`), and its logits are computed from them again.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.memory import LEARNING_POSITIONS, LEARNING_SHARE
from fairbits.core.progress import Progress
from fairbits.evaluation.divergence import differentiable_kl
from fairbits.evaluation.hidden_states import positions_by_window, positions_of_logits, split_for
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.batches import Batch, batches
from fairbits.forward.body_and_head import SAVED_PER_BLOCK, Split, recompute_in_backward
from fairbits.forward.windows import NO_LABEL
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import autocast, fits_whole
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.learned.holdout import HoldoutSplit
from fairbits.quantization.learned.learn import LearningState, distill
from fairbits.quantization.learned.learnable_codes import learnable_codes
from fairbits.quantization.plan import Learning

MODEL_RATE = 10.0
"""Learning rate for the whole model, as a share of a block's, times √steps: noise moves weights by that root."""


@dataclass(frozen=True, eq=False)
class TeacherBatch:
    """Windows as one batch, and where its positions that predict a token are in it."""

    batch: Batch
    rows: Tensor
    columns: Tensor
    numbers: Tensor  # their numbers in the reference, which give the teacher's logits
    language: Tensor  # their languages

    @property
    def counts(self) -> Tensor:
        """For each position, how many positions its language has in the batch."""
        return torch.bincount(self.language)[self.language]


class Teacher:
    """The reference model's distributions on a text, next to a student's: a model on `device` with other weights."""

    def __init__(
        self,
        reference: ReferenceModel,
        student: PreTrainedModel,
        *,
        recomputed: Sequence[nn.Module] = (),
        device: str = "cpu",
    ) -> None:
        self.text, self._reference, self._device = reference.text, reference, device
        self._student: Split = split_for(student, self.text, device=device)  # as body and head
        self._numbers = positions_by_window(self.text)  # by window, where its predictions are in the reference
        self._language = torch.from_numpy(self.text.language_of)
        self._recomputed = recomputed
        self._positions_at_once = positions_of_logits(student.config.get_text_config().vocab_size, device)

    def batch(self, windows: Sequence[int]) -> TeacherBatch:
        order = sorted(windows, key=lambda i: self.text.windows[i].length)
        chosen = replace(self.text, windows=tuple(self.text.windows[i] for i in order))
        (batch,) = batches(chosen, positions=10**12)
        rows, columns = (batch.labels != NO_LABEL).nonzero(as_tuple=True)
        numbers = torch.tensor([number for i in order for number in self._numbers[i]])
        return TeacherBatch(batch.on(self._device), rows, columns, numbers, self._language[batch.document[rows]])

    def add_gradients(self, batch: TeacherBatch, weights: Floats) -> Tensor:
        """Returns the KL of every position, and adds the gradients of Σ_λ weight_λ · (mean KL of λ).

        Logits of all positions at once would take more memory than the model: the loss is computed for a few positions
        at a time down to the final hidden states, whose gradients are collected, and then passed on at once.
        """
        shares = torch.from_numpy(weights).float()[batch.language] / batch.counts
        with autocast(self._device), recompute_in_backward(self._recomputed):
            features = self._student.body(batch.batch)[batch.rows, batch.columns]
        leaf = features.detach().requires_grad_()
        parts = []
        for part in self._slices(len(batch.numbers)):
            kl = self._kl(leaf[part], batch.numbers[part])
            (kl * shares[part].to(kl.device)).sum().backward()  # type: ignore[no-untyped-call]
            parts.append(kl.detach())
        features.backward(leaf.grad)  # type: ignore[no-untyped-call]
        return torch.cat(parts)

    @torch.no_grad()
    def damage(self, windows: Sequence[int]) -> Floats:
        """Returns the mean KL of every language on these windows, in nats per token, computed in float32."""
        count = len(self.text.languages)
        sums = np.zeros((2, count))
        for batch in self._evaluation_batches(windows):
            features = self._student.body(batch.batch)[batch.rows, batch.columns]
            for part in self._slices(len(batch.numbers)):
                kl = self._kl(features[part], batch.numbers[part], full_precision=True)
                if not torch.isfinite(kl).all():
                    raise InputError(
                        f"the logits of {self._reference.target} contain NaN or infinity on the calibration text; "
                        "check the model's weights"
                    )
                language = batch.language[part].numpy()
                sums += np.bincount(language, kl.double().cpu(), count), np.bincount(language, minlength=count)
        damage: Floats = sums[0] / sums[1]
        return damage

    def _evaluation_batches(self, windows: Sequence[int]) -> Iterator[TeacherBatch]:
        chosen: list[int] = []
        for i in sorted(windows, key=lambda i: self.text.windows[i].length):
            if chosen and (len(chosen) + 1) * self.text.windows[i].length > LEARNING_POSITIONS:
                yield self.batch(chosen)
                chosen = []
            chosen.append(i)
        yield self.batch(chosen)

    def _kl(self, features: Tensor, numbers: Tensor, *, full_precision: bool = False) -> Tensor:
        with nullcontext() if full_precision else autocast(self._device):
            a = self._reference.logits(numbers, device=self._device)
            return differentiable_kl(a, self._student.head(features))

    def _slices(self, count: int) -> Iterator[slice]:
        size = self._positions_at_once
        yield from (slice(begin, begin + size) for begin in range(0, count, size))


@dataclass(frozen=True, eq=False)
class ModelDistillation:
    """The `Distillation` of the reference model into a student with learnable codes; `split` divides their text."""

    teacher: Teacher
    split: HoldoutSplit
    learning: Learning
    seed: int = 0
    progress: Progress | None = None
    single_backward = True

    @property
    def count(self) -> int:
        return len(self.split.text.languages)

    def batches(self) -> Iterator[list[int]]:
        learning = self.learning
        yield from self.split.training_order(steps=learning.model_steps, rows=learning.rows, seed=self.seed)

    def backward(self, batch: list[int], weights: Floats) -> None:
        """Adds the gradients of Σ_λ weight_λ · (mean KL of λ), as if every batch held one window of each."""
        self.teacher.add_gradients(self.teacher.batch(batch), weights * len(weights) / len(batch))

    def damage(self) -> Floats:
        return self.teacher.damage(self.split.held_out)

    def report(self, state: LearningState) -> None:
        if self.progress is not None:
            damage = state.history[-1].damage
            worst = int(np.argmax(damage))
            stage = f"learning, {self.split.text.languages[worst]} is worst at {damage[worst]:.4f} nats"
            self.progress(stage, state.step, self.learning.model_steps)


def distill_model(
    checkpoint: Checkpoint,
    start: Mapping[str, tuple[Codes, Scheme]],
    rest: Mapping[str, Codes],
    *,
    reference: ReferenceModel,
    split: HoldoutSplit,
    learning: Learning,
    device: str,
    seed: int,
    saved: Path | None = None,
    progress: Progress | None = None,
) -> LearningState:
    """Returns the state after learning all linear layers in `start` together; the `rest` keep their codes."""
    swapped = SwappedModel.load(checkpoint, device=device)
    swapped.replace(rest)
    with learnable_codes(swapped.model, checkpoint.architecture.weights, start) as codes:
        recomputed = _recomputed(checkpoint, swapped.model, split, rows=learning.rows, device=device)
        teacher = Teacher(reference, swapped.model, recomputed=recomputed, device=device)
        return distill(
            codes,
            ModelDistillation(teacher, split, learning, seed, progress),
            learning=learning,
            steps=learning.model_steps,
            rate=min(MODEL_RATE / math.sqrt(max(learning.model_steps, 1)), 1.0) * learning.rate,
            seed=seed,
            saved=saved,
        )


def _recomputed(
    checkpoint: Checkpoint, model: PreTrainedModel, split: HoldoutSplit, *, rows: int, device: str
) -> list[nn.Module]:
    """Returns the blocks to compute again in the backward pass: all, if what they compute does not fit into memory."""
    blocks, positions = checkpoint.architecture.blocks, rows * max(window.length for window in split.text.windows)
    needed = torch.float32.itemsize * SAVED_PER_BLOCK * checkpoint.hidden_size * len(blocks) * positions
    fits = fits_whole(needed, device, share=LEARNING_SHARE)
    return [] if fits else [model.get_submodule(block.module) for block in blocks]
