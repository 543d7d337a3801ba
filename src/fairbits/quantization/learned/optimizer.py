"""CodeOptimizer: Adam for codes in six bytes per weight, so that models of billions of weights are learned whole.

Adam in float32 keeps 16 bytes for every weight: the offset from its code, its gradient and two moments of that. Here a
weight has its first code (1 byte), its offset and the first moment (2 bytes each, bfloat16) and the second moment (1
byte, its logarithm in quarters of an octave):

- Rounding is at random, up or down in proportion, so that changes far smaller than the spacing happen on average. The
  random numbers depend on seed, step and map: a resumed run draws the same.
- A gradient is used as soon as it is complete, in the middle of the backward pass, and dropped (`update_in_backward`).

A second moment for every weight is needed: with one per row and column, as in Adafactor, models whose activations have
outlier channels get worse. Scales are few and have the usual Adam.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from fairbits.quantization.learned import adam_cpu as update_loop
from fairbits.quantization.learned import adam_gpu as update_kernel
from fairbits.quantization.learned.adam_torch import BETAS, EPSILON, Moments, Step, move_in_torch
from fairbits.quantization.learned.learnable_codes import LearnableCodes

SCALE_RATE = 0.1
"""Learning rate of the logarithms of scales, as a share of that of the offsets."""
SEEDS = 1_000_003
"""More than there are steps or maps, so that each has random numbers of its own."""


class CodeOptimizer:
    """Learns the offsets and the scales of linear layers; `rate` is the peak learning rate of offsets."""

    def __init__(self, codes: Mapping[str, LearnableCodes], *, rate: float, seed: int = 0) -> None:
        self._codes, self._rate, self._seed = codes, rate, seed
        self.step, self._share = 0, 0.0
        self.moments = {name: Moments.zeros(each.offsets) for name, each in codes.items()}
        self.scales = torch.optim.Adam(
            [each.log_scales for each in codes.values()], lr=rate, betas=BETAS, eps=EPSILON, fused=True
        )
        for each in codes.values():
            self.scales.state[each.log_scales] = _zero_state(each.log_scales)
        self._finite: list[Tensor] = []

    def tensors(self) -> dict[str, Tensor]:
        """Returns all that a step reads and changes, by name, to be saved."""
        found: dict[str, Tensor] = {}
        for name, each in self._codes.items():
            moments, scales = vars(self.moments[name]), self.scales.state[each.log_scales]
            found |= {f"{name}|offsets": each.offsets, f"{name}|logs": each.log_scales}
            found |= {f"{name}|offsets.{key}": tensor for key, tensor in moments.items()}
            found |= {f"{name}|logs.{key}": tensor for key, tensor in scales.items()}
        return found

    @torch.no_grad()
    def restore(self, saved: Mapping[str, Tensor], *, step: int) -> None:
        """Takes up the values that were saved after a step."""
        self.step = step
        for name, each in self.tensors().items():
            each.copy_(saved[name])

    def begin_step(self, share: float) -> None:
        """Begins a step at a share of the peak rate; gradients may be added from now on."""
        self.step += 1
        self._share, self._finite = share, []

    def end_step(self) -> bool:
        """Updates all that still has a gradient; returns whether all gradients of the step were finite.

        Weights whose gradient is NaN or infinite do not move.
        """
        for index, (name, each) in enumerate(self._codes.items()):
            if each.offsets.grad is not None:
                self._update_offsets(name, index, each.offsets)
            if each.log_scales.grad is not None:
                each.log_scales.grad.nan_to_num_(0.0, 0.0, 0.0)
        for group in self.scales.param_groups:
            group["lr"] = self._share * SCALE_RATE * self._rate
        self.scales.step()
        self.scales.zero_grad(set_to_none=True)
        return not self._finite or bool(torch.stack(self._finite).all())

    @contextmanager
    def update_in_backward(self) -> Iterator[None]:
        """Updates the offsets of a map as soon as its gradient is there: no two maps have gradients at a time.

        For steps with a single backward pass.
        """
        handles = [
            each.offsets.register_post_accumulate_grad_hook(  # type: ignore[no-untyped-call]
                partial(self._update_offsets, name, index)
            )
            for index, (name, each) in enumerate(self._codes.items())
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    @torch.no_grad()
    def _update_offsets(self, name: str, index: int, offsets: Tensor) -> None:
        gradient, offsets.grad = offsets.grad, None
        assert gradient is not None
        seed = ((self._seed * SEEDS + self.step) * SEEDS + index) % 2**31
        step = Step(self.step, self._share * self._rate, seed)
        self._finite.append(move_offsets(offsets, gradient, self.moments[name], step))


def move_offsets(offsets: Tensor, gradient: Tensor, moments: Moments, step: Step) -> Tensor:
    """Takes a step on the device of the offsets; returns whether the gradient is finite, as a tensor there."""
    if step.number == 1:
        moments.set_range(gradient)
    return _mover(offsets.device)(offsets, gradient.to(torch.bfloat16).contiguous(), moments, step)


def _mover(device: torch.device) -> Callable[[Tensor, Tensor, Moments, Step], Tensor]:
    """Returns what moves offsets on a device: one loop, or one launch; on a GPU without Triton, torch."""
    if device.type == "cpu":
        return update_loop.move
    return update_kernel.move if update_kernel.AVAILABLE else move_in_torch


def _zero_state(parameter: Tensor) -> dict[str, Tensor]:
    """Returns what a fused Adam keeps for a parameter before its first step."""
    zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
    return zeros | {"step": torch.zeros((), device=parameter.device)}
