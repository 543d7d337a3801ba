"""CodeOptimizer: Adam for codes in six bytes per weight, so that models of billions of weights are learned whole.

Adam in float32 keeps 16 bytes for every weight: the offset from its code, its gradient and two moments of that. Here a
weight has its first code (1 byte), its offset and the first moment (2 bytes each, bfloat16) and the second moment (1
byte, its logarithm in quarters of an octave):

- Rounding is at random, up or down in proportion, so that changes far smaller than the spacing happen on average. The
  random numbers depend on seed, step and layer: a resumed run draws the same.
- A gradient is used as soon as it is complete, in the middle of the backward pass, and dropped (`update_in_backward`).

A second moment for every weight is needed: with one per row and column, as in Adafactor, models whose activations have
outlier channels get worse. Scales are few and have the usual Adam.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

from fairbits.forward.recorder import removed_hooks
from fairbits.quantization.learned import adam_cpu, adam_gpu
from fairbits.quantization.learned.adam_cpu import BETAS, EPSILON, AdamMoments, AdamStep
from fairbits.quantization.learned.learnable_codes import LearnableCodes

SCALE_RATE = 0.1  # learning rate of the logarithms of scales, as a share of the rate of offsets
SEEDS = 1_000_003  # more than there are steps or layers, so that each has different random numbers


class CodeOptimizer:
    """Learns the offsets and the scales of linear layers; `rate` is the peak learning rate of offsets."""

    def __init__(self, codes: Mapping[str, LearnableCodes], *, rate: float, seed: int = 0) -> None:
        self._codes, self._rate, self._seed = codes, rate, seed
        self.step, self._share = 0, 0.0
        self.moments = {name: AdamMoments.zeros(learned.offsets) for name, learned in codes.items()}
        log_scales = [learned.log_scales for learned in codes.values()]
        self.scales = torch.optim.Adam(log_scales, lr=rate, betas=BETAS, eps=EPSILON, fused=True)
        for parameter in log_scales:  # what it keeps before its first step
            zeros = {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.scales.state[parameter] = zeros | {"step": torch.zeros((), device=parameter.device)}
        self._finite: list[Tensor] = []

    def tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, learned in self._codes.items():
            moments, scales = vars(self.moments[name]), self.scales.state[learned.log_scales]
            tensors |= {f"{name}|offsets": learned.offsets, f"{name}|logs": learned.log_scales}
            tensors |= {f"{name}|offsets.{key}": tensor for key, tensor in moments.items()}
            tensors |= {f"{name}|logs.{key}": tensor for key, tensor in scales.items()}
        return tensors

    @torch.no_grad()
    def restore(self, saved: Mapping[str, Tensor], *, step: int) -> None:
        self.step = step
        for name, tensor in self.tensors().items():
            tensor.copy_(saved[name])

    def begin_step(self, share: float) -> None:
        """Begins a step at a share of the peak rate; gradients may be added from now on."""
        self.step += 1
        self._share, self._finite = share, []

    def end_step(self) -> bool:
        """Returns whether all gradients were finite, after updating all that still has one."""
        for index, (name, learned) in enumerate(self._codes.items()):
            if learned.offsets.grad is not None:
                self._update_offsets(name, index, learned.offsets)
            if learned.log_scales.grad is not None:
                learned.log_scales.grad.nan_to_num_(0.0, 0.0, 0.0)
        for group in self.scales.param_groups:
            group["lr"] = self._share * SCALE_RATE * self._rate
        self.scales.step()
        self.scales.zero_grad(set_to_none=True)
        return not self._finite or bool(torch.stack(self._finite).all())

    @contextmanager
    def update_in_backward(self) -> Iterator[None]:
        """Updates a layer as soon as its gradient is there, so that no two have one; for a single backward pass."""
        with removed_hooks() as handles:
            for index, (name, learned) in enumerate(self._codes.items()):
                update = partial(self._update_offsets, name, index)
                handles.append(learned.offsets.register_post_accumulate_grad_hook(update))  # type: ignore[no-untyped-call]
            yield

    @torch.no_grad()
    def _update_offsets(self, name: str, index: int, offsets: Tensor) -> None:
        gradient, offsets.grad = offsets.grad, None
        assert gradient is not None
        seed = ((self._seed * SEEDS + self.step) * SEEDS + index) % 2**31
        step = AdamStep(self.step, self._share * self._rate, seed)
        self._finite.append(move_offsets(offsets, gradient, self.moments[name], step))


def move_offsets(offsets: Tensor, gradient: Tensor, moments: AdamMoments, step: AdamStep) -> Tensor:
    """Takes a step on the device of the offsets; returns whether the gradient is finite, as a tensor there."""
    if step.number == 1:
        moments.set_range(gradient)
    gradient = gradient.to(torch.bfloat16).contiguous()
    if offsets.device.type == "cpu":
        return adam_cpu.move(offsets, gradient, moments, step)
    if adam_gpu.AVAILABLE:
        return adam_gpu.move(offsets, gradient, moments, step)
    changed = offsets, moments.first, moments.second
    moved = [tensor.detach().cpu() for tensor in changed]
    finite = adam_cpu.move(moved[0], gradient.cpu(), AdamMoments(moved[1], moved[2], moments.least.cpu()), step)
    for tensor, result in zip(changed, moved, strict=True):
        tensor.copy_(result)
    return finite.to(offsets.device)
