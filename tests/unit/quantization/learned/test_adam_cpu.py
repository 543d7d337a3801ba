"""Adam in six bytes per weight: directions, and the compiled loop against the same step in torch."""

import pytest
import torch
from torch import Tensor

from fairbits.quantization.learned.adam_cpu import (
    BETAS,
    CODES_PER_OCTAVE,
    EPSILON,
    LARGEST_DIRECTION,
    AdamMoments,
    AdamStep,
    move,
)
from fairbits.quantization.learned.learnable_codes import MAX_OFFSET
from fairbits.quantization.learned.optimizer import move_offsets


def move_in_torch(offsets: Tensor, gradient: Tensor, moments: AdamMoments, step: AdamStep) -> Tensor:
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
    """Returns float32 values as bfloat16, rounded up or down with probabilities that keep their mean; changes them."""
    bits = values.view(torch.int32)
    noise = torch.randint(0, 1 << 16, bits.shape, generator=random, dtype=torch.int32, device=values.device)
    bits.add_(noise).bitwise_and_(-(1 << 16))
    return values.to(torch.bfloat16)


def test_directions_are_those_of_adam():
    # gradients over seven orders of magnitude within a row, and noise of their own size
    rng = torch.Generator().manual_seed(0)
    shape = 32, 512
    sizes = 10 ** (7 * torch.rand(shape, generator=rng) - 10)
    mine = AdamMoments.zeros(torch.zeros(shape))
    first, second = torch.zeros(shape), torch.zeros(shape)
    b1, b2 = BETAS
    for step in range(1, 101):
        gradient = sizes * (0.3 + torch.randn(shape, generator=rng))
        first, second = b1 * first + (1 - b1) * gradient, b2 * second + (1 - b2) * gradient**2
        adam = first / (1 - b1**step) / (second / (1 - b2**step)).sqrt()
        offsets = torch.zeros(shape).bfloat16()
        move_offsets(offsets, gradient, mine, AdamStep(step, 1.0, step))
        directions = -offsets.float()
    assert torch.corrcoef(torch.stack((directions.flatten(), adam.flatten())))[0, 1] > 0.95
    assert (directions / adam).median() == pytest.approx(1, abs=0.05)
    assert directions.abs().max() <= 1.0001


def test_the_compiled_loop_moves_offsets_as_torch_does():
    shape, runs = (64, 300), []
    sizes = 10 ** (4 * torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 8)
    for step_form in (move, move_in_torch):
        rng = torch.Generator().manual_seed(1)
        moments, total = AdamMoments.zeros(torch.zeros(shape)), torch.zeros(shape)
        for step in range(1, 21):
            gradient = (sizes * (0.5 + torch.randn(shape, generator=rng))).bfloat16()
            if step == 5:
                gradient[3, 7] = torch.nan
            offsets = torch.zeros(shape).bfloat16()
            if step == 1:
                moments.set_range(gradient)
            assert bool(step_form(offsets, gradient, moments, AdamStep(step, 0.9, step))) == (step != 5)
            total += offsets.float()
        runs.append((total, moments))
    (one, mine), (other, torchs) = runs
    assert ((mine.first.float() - torchs.first.float()).abs() <= 0.02 * sizes).all()  # a few steps of bfloat16
    codes = (mine.second.float() - torchs.second.float()).abs()  # rounded at random
    assert codes.mean() < 2
    assert codes.max() < 24
    assert torch.corrcoef(torch.stack((one.flatten(), other.flatten())))[0, 1] > 0.99
    assert (one.mean() - other.mean()).abs() < 0.02 * one.std()


def test_steps_far_below_the_spacing_add_up():
    values, rng = torch.full((4000,), 0.3).bfloat16(), torch.Generator().manual_seed(0)
    for _ in range(100):
        values = round_at_random(values.float() + 1e-4, rng)  # bfloat16 has steps of .002 here
    assert values.float().mean().item() == pytest.approx(0.3003 + 0.01, abs=5e-4)
