"""The moments of the gradient of a map's offsets in three bytes per weight, and one step of Adam with them in torch.

`update_kernel` takes the same step in one launch on a GPU, and `update_loop` in one loop on the CPU.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fairbits.quantization.learned.learnable_codes import MAX_OFFSET

BETAS = (0.9, 0.99)
EPSILON = 1e-15
"""What is added to the size of a gradient. That of one weight is close to Adam's usual 10⁻⁸, which would slow it."""
LARGEST_DIRECTION = (1 - BETAS[0]) / (1 - BETAS[1]) ** 0.5
"""The most that a weight moves in a step, in units of the rate: what Adam's moments allow after one large gradient."""
CODES_PER_OCTAVE = 4
"""Resolution of second moments: 256 codes reach over 64 octaves, so that gradients within a row may differ widely."""
HEADROOM = 8
"""Octaves by which second moments may grow beyond the largest of their row in the first step."""
LOW_BITS = 16
"""Bits of a float32 that bfloat16 does not have."""


@dataclass(frozen=True)
class Step:
    """A step: its number, counted from 1, its learning rate, and the seed of its random numbers for one map."""

    number: int
    rate: float
    seed: int

    @property
    def correction(self) -> float:
        """What √v is multiplied by, so that moments which began at 0 are compared without bias, as in Adam."""
        b1, b2 = BETAS
        return float((1 - b1**self.number) / (1 - b2**self.number) ** 0.5)


@dataclass(frozen=True, eq=False)
class Moments:
    """The moments of the gradient of a map (out, in).

    `first`   in bfloat16
    `second`  the number of quarters of an octave by which it exceeds the least that its row can hold, in uint8
    `least`   log₂ of that, of every row
    """

    first: Tensor
    second: Tensor
    least: Tensor

    @classmethod
    def zeros(cls, offsets: Tensor) -> "Moments":
        """Returns the moments before the first step."""
        like = offsets.detach().reshape(len(offsets), -1)
        first, second = (torch.zeros_like(like, dtype=dtype) for dtype in (torch.bfloat16, torch.uint8))
        return cls(first, second, like.new_zeros(len(like), 1, dtype=torch.float32))

    def set_range(self, gradient: Tensor) -> None:
        """Chooses the range of second moments of every row by the gradient of the first step."""
        octaves = 256 / CODES_PER_OCTAVE - HEADROOM
        largest = gradient.reshape(self.first.shape).abs().nan_to_num_(0.0, 0.0).amax(1, keepdim=True).float()
        self.least.copy_(largest.square_().mul_(1 - BETAS[1]).add_(EPSILON**2).log2_().sub_(octaves))


def move_in_torch(offsets: Tensor, gradient: Tensor, moments: Moments, step: Step) -> Tensor:
    """Moves offsets against their gradient, and the moments; returns whether the gradient is finite.

    The direction of a weight is m̂ / √v̂, as in Adam. Where the gradient is NaN or infinite it counts as 0.
    """
    (b1, b2), first, second = BETAS, moments.first, moments.second
    random = torch.Generator(offsets.device).manual_seed(step.seed)
    g = gradient.float().reshape(first.shape)
    finite = g.sum().isfinite()
    g.nan_to_num_(0.0, 0.0, 0.0)
    m = first.float().lerp_(g, 1 - b1)
    first.copy_(m)
    v = g.square_().mul_(1 - b2).add_(EPSILON**2)
    if step.number > 1:
        v.add_(second.float().mul_(1 / CODES_PER_OCTAVE).add_(moments.least).exp2_(), alpha=b2)
    noise = torch.rand(v.shape, generator=random, device=v.device)
    second.copy_(v.log2().sub_(moments.least).mul_(CODES_PER_OCTAVE).add_(noise).floor_().clamp_(0, 255))
    direction = m.div_(v.sqrt_().mul_(step.correction)).clamp_(-LARGEST_DIRECTION, LARGEST_DIRECTION)
    moved = direction.mul_(-step.rate).add_(offsets.reshape(v.shape)).clamp_(-MAX_OFFSET, MAX_OFFSET)
    offsets.copy_(round_at_random(moved, random).reshape(offsets.shape))
    return finite


def round_at_random(values: Tensor, random: torch.Generator) -> Tensor:
    """Returns float32 values as bfloat16, rounded up or down with probabilities that keep their mean; changes them.

    >>> found = round_at_random(torch.full((10_000,), 1.001), torch.Generator().manual_seed(0))
    >>> sorted(set(found.tolist())), round(found.float().mean().item(), 3)
    ([1.0, 1.0078125], 1.001)
    """
    bits = values.view(torch.int32)
    noise = torch.randint(0, 1 << LOW_BITS, bits.shape, generator=random, dtype=torch.int32, device=values.device)
    bits.add_(noise).bitwise_and_(-(1 << LOW_BITS))
    return values.to(torch.bfloat16)
