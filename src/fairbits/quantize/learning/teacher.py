"""The full-precision model as a teacher: how far the learner's answers are from its answers, position by position."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.measure.passes.batches import Batch, batches
from fairbits.measure.passes.head import Split
from fairbits.measure.passes.text import NO_LABEL
from fairbits.measure.scores.answers import positions_of_logits
from fairbits.measure.scores.forward_pass import places, split_for
from fairbits.measure.scores.reference import Reference
from fairbits.memory import LEARNING_POSITIONS
from fairbits.model.device import autocast

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class _Divergence(torch.autograd.Function):
    """KL(p ‖ q) of every row, given the logits of both; ∂/∂b = q − p."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        log_p, log_q = a.float().log_softmax(1), b.float().log_softmax(1)
        p = log_p.exp()
        kl = log_p.sub_(log_q).mul_(p).sum(1)
        ctx.save_for_backward(log_q.exp_().sub_(p).to(b.dtype))
        return kl

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[None, Tensor]:
        (away,) = ctx.saved_tensors
        return None, away * grad[:, None].to(away.dtype)


def divergence(a: Tensor, b: Tensor) -> Tensor:
    """Returns KL(p ‖ q) of every row in nats, p and q having the logits a and b; gradients reach b only.

    >>> round(float(divergence(torch.tensor([[0.0, 1.0]]), torch.tensor([[1.0, 0.0]]))), 4)
    0.4621
    """
    kl: Tensor = _Divergence.apply(a, b)  # type: ignore[no-untyped-call]
    return kl


@dataclass(frozen=True, eq=False)
class Lesson:
    """Some windows as a batch: which of its positions predict, their numbers for the teacher, and their languages."""

    batch: Batch
    rows: Tensor
    columns: Tensor
    numbers: Tensor
    language: Tensor

    @property
    def counts(self) -> Tensor:
        """How many positions each language has, by position."""
        return torch.bincount(self.language)[self.language]


class Class:
    """A teacher and a learner before the same text; the learner is a model that is on the device already."""

    def __init__(self, reference: Reference, learner: "PreTrainedModel", *, device: str, compute: torch.dtype) -> None:
        self.text, self._reference, self._device = reference.text, reference, device
        self._split: Split = split_for(learner, reference.text, device=device)
        self._compute = compute
        self._places = places(self.text)
        self._language = torch.from_numpy(self.text.language_of)
        self._at_once = positions_of_logits(learner)

    def lesson(self, windows: Sequence[int]) -> Lesson:
        """Returns windows of the text as one batch."""
        order = sorted(windows, key=lambda i: self.text.windows[i].length)
        chosen = replace(self.text, windows=tuple(self.text.windows[i] for i in order))
        (batch,) = batches(chosen, positions=10**12)
        rows, columns = (batch.labels != NO_LABEL).nonzero(as_tuple=True)
        numbers = torch.tensor([number for i in order for number in self._places[i]])
        return Lesson(batch.on(self._device), rows, columns, numbers, self._language[batch.document[rows]])

    def learn(self, lesson: Lesson, shares: Floats) -> Tensor:
        """Returns KL of every position, and adds the gradients of Σ_λ share_λ · (mean KL of λ) to the learner's.

        Logits exist for a few positions at a time.
        """
        weights = torch.from_numpy(shares).float()[lesson.language] / lesson.counts
        with self._precision():
            features = self._split.body(lesson.batch)[lesson.rows, lesson.columns]
        leaf = features.detach().requires_grad_()
        found = []
        for part in self._parts(len(lesson.numbers)):
            kl = self._divergence(leaf[part], lesson.numbers[part])
            (kl * weights[part].to(kl.device)).sum().backward()  # type: ignore[no-untyped-call]
            found.append(kl.detach())
        features.backward(leaf.grad)  # type: ignore[no-untyped-call]
        return torch.cat(found)

    @torch.no_grad()
    def damage(self, windows: Sequence[int]) -> Floats:
        """Returns KL per predicted token of every language on these windows, in float32."""
        count = len(self.text.languages)
        sums = np.zeros((2, count))
        for lesson in self._lessons(windows):
            features = self._split.body(lesson.batch)[lesson.rows, lesson.columns]
            for part in self._parts(len(lesson.numbers)):
                kl = self._divergence(features[part], lesson.numbers[part], whole=True)
                if not torch.isfinite(kl).all():
                    raise InputError(
                        f"{self._reference.target} gives logits that are NaN or infinite on the calibration text; "
                        "check the model's weights"
                    )
                here = lesson.language[part].numpy()
                sums += np.bincount(here, kl.double().cpu(), count), np.bincount(here, minlength=count)
        damage: Floats = sums[0] / sums[1]
        return damage

    def _lessons(self, windows: Sequence[int]) -> Iterator[Lesson]:
        chosen: list[int] = []
        for i in sorted(windows, key=lambda i: self.text.windows[i].length):
            if chosen and (len(chosen) + 1) * self.text.windows[i].length > LEARNING_POSITIONS:
                yield self.lesson(chosen)
                chosen = []
            chosen.append(i)
        yield self.lesson(chosen)

    def _divergence(self, features: Tensor, numbers: Tensor, *, whole: bool = False) -> Tensor:
        with nullcontext() if whole else self._precision():
            a = self._reference.logits(numbers, device=self._device)
            return divergence(a, self._split.head(features))

    def _parts(self, count: int) -> Iterator[slice]:
        yield from (slice(begin, begin + self._at_once) for begin in range(0, count, self._at_once))

    def _precision(self) -> AbstractContextManager[Any]:
        return autocast(self._device, self._compute)
