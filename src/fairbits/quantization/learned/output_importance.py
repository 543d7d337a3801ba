"""Which channels of the hidden states after a block matter: the Fisher gradient there, channel by channel.

A change Δy of the hidden states at a position costs ½ E[(g · Δy)²] nats of KL, g the Fisher gradient (`fisher`). Hidden
states of language models have a few channels and positions that are hundreds of times larger than the others, and
whose gradients are that much smaller. A sum of squared errors would therefore mostly measure what does not matter. Here
errors are relative to the size of the states at their position, Δy/‖y‖. The importance of a channel is
the mean of ‖y‖² g² over positions, each language counting as much as any other; it has mean 1 in every block.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fairbits.core.progress import Progress
from fairbits.forward.batches import Batch
from fairbits.forward.recorder import PassSettings, Recorder, measuring_points, removed_hooks
from fairbits.forward.statistics import measuring_dtype, run_pass
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint

LEAST_IMPORTANCE = 0.01
"""What is added to the importance of every channel: an estimate of 0 must not free a channel altogether."""


def output_importance(
    checkpoint: Checkpoint, text: TokenizedText, *, device: str, seed: int, progress: Progress | None = None
) -> dict[int, Tensor]:
    """Returns the importance of every channel after each block, on the device, by the index of the block."""
    dtype = measuring_dtype(checkpoint, device)
    job = _GradientJob(
        checkpoint, text, schemes=(), second_moments=False, dtype=dtype, device=device, seed=seed, progress=progress
    )
    recorder, *_ = run_pass(job)
    assert isinstance(recorder, _OutputGradients)
    return {block: _importance(sums) for block, sums in recorder.sums.items()}


def _importance(sums: Tensor) -> Tensor:
    mean = sums.mean()
    return (sums / mean + LEAST_IMPORTANCE if mean > 0 else torch.ones_like(sums)).float()


@dataclass(frozen=True, eq=False)
class _GradientJob(PassSettings):
    """A pass that observes the outputs of blocks alone."""

    def recorder(self, model: PreTrainedModel) -> Recorder:
        return _OutputGradients(self, model)


class _OutputGradients(Recorder):
    """Σ ‖y‖² g² of every channel after each block, over the positions of text; each language has the weight 1."""

    def __init__(self, job: PassSettings, model: nn.Module) -> None:
        every = measuring_points(job.checkpoint.architecture, model)
        self.points = tuple(point for point in every if point.kind == "block")
        self.sums: dict[int, Tensor] = {}
        self._modules, self._place = dict(model.named_modules()), job.device
        lengths = torch.zeros(len(job.text.languages), dtype=torch.float64)
        self._language = torch.from_numpy(job.text.language_of)
        for window in job.text.windows:
            lengths[self._language[window.document]] += window.length
        self._weight = (1 / lengths.clamp(min=1)).float()

    def start(self, batch: Batch) -> None:
        self._batch = batch
        self._rows = self._weight[self._language[batch.document]].to(self._place)

    def finish(self) -> None:
        """Has nothing to do: sums are complete."""

    @contextmanager
    def attached(self, block: int | None = None) -> Iterator[None]:
        with removed_hooks() as handles:
            for point in self.points:
                if block is None or point.block == block:
                    hook = self._hook(int(point.block or 0), point.stack)
                    handles.append(self._modules[point.module].register_forward_hook(hook))
            yield

    def _hook(self, block: int, stack: str) -> Any:
        def hook(_module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
            states: Tensor = output[0] if isinstance(output, tuple) else output
            if states.requires_grad:
                kept = states.detach()
                states.register_hook(lambda g: self._observe(block, stack, kept, g))  # type: ignore[no-untyped-call]

        return hook

    @torch.no_grad()
    def _observe(self, block: int, stack: str, states: Tensor, gradient: Tensor) -> None:
        text = self._batch.positions(stack).text.to(states.device)
        weight = (text * self._rows[:, None]).flatten().float()
        y, g = (tensor.reshape(len(weight), -1).float() for tensor in (states, gradient))
        sums = (weight * squared_sizes(y)) @ g.square()
        self.sums[block] = self.sums[block].add_(sums) if block in self.sums else sums


def squared_sizes(states: Tensor) -> Tensor:
    """Returns ‖y‖² of every position, given states (positions, channels)."""
    return states.square().sum(1)
