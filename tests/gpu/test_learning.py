"""Learning on a GPU: the optimizer's kernel against the CPU loop."""

import pytest
import torch

from fairbits.quantization.learned import adam_gpu
from fairbits.quantization.learned.adam_cpu import AdamMoments, AdamStep
from fairbits.quantization.learned.optimizer import move_offsets

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def moved(move, monkeypatch):
    monkeypatch.setattr(adam_gpu, "AVAILABLE", move == "kernel")
    rng = torch.Generator("cuda").manual_seed(0)
    shape = 512, 3000
    sizes = 10 ** (4 * torch.rand(shape, generator=rng, device="cuda") - 8)
    moments, total = AdamMoments.zeros(torch.zeros(shape, device="cuda")), torch.zeros(shape, device="cuda")
    for step in range(1, 21):
        gradient = (sizes * (0.5 + torch.randn(shape, generator=rng, device="cuda"))).bfloat16()
        if step == 5:
            gradient[3, 7] = torch.nan
        offsets = torch.zeros(shape, device="cuda").bfloat16()
        finite = move_offsets(offsets, gradient, moments, AdamStep(step, 0.9, step))
        assert bool(finite) == (step != 5)
        total += offsets.float()
    return total, moments, sizes


def test_the_kernel_moves_offsets_as_the_cpu_does(monkeypatch):
    if not adam_gpu.AVAILABLE:
        pytest.skip("needs Triton")
    one, before, sizes = moved("cpu", monkeypatch)
    other, after, _ = moved("kernel", monkeypatch)
    assert ((before.first.float() - after.first.float()).abs() <= 0.05 * sizes).all()  # a few steps of bfloat16
    codes = (before.second.float() - after.second.float()).abs()  # rounded at random
    assert codes.mean() < 2
    assert codes.max() < 24
    assert torch.corrcoef(torch.stack((one.flatten(), other.flatten())))[0, 1] > 0.99
    assert (one.mean() - other.mean()).abs() < 0.01 * one.std()
