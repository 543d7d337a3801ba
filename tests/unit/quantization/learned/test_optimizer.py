import pytest
import torch

from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import round_to_nearest
from fairbits.quantization.learned import adam_cpu as update_loop
from fairbits.quantization.learned.adam_torch import BETAS, Moments, Step, move_in_torch, round_at_random
from fairbits.quantization.learned.learnable_codes import MAX_OFFSET, LearnableCodes
from fairbits.quantization.learned.optimizer import CodeOptimizer, move_offsets


def learnable(seed=0, shape=(6, 8)):
    W = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    grid = Grid(4, "twos")
    codes = round_to_nearest(W, torch.full((shape[0], 2), 0.25), grid=grid)
    return LearnableCodes(W, codes, grid=grid, transposed=False)


def test_a_weight_takes_six_bytes():
    codes = learnable(shape=(64, 64))
    own = Moments.zeros(codes.offsets)
    kept = (codes.first_codes, codes.offsets, own.first, own.second)
    assert sum(each.nbytes for each in kept) == 6 * 64 * 64
    assert own.least.numel() == 64


def test_directions_are_those_of_adam():
    # gradients over seven orders of magnitude within a row, and noise of their own size
    rng = torch.Generator().manual_seed(0)
    shape = 32, 512
    sizes = 10 ** (7 * torch.rand(shape, generator=rng) - 10)
    mine = Moments.zeros(torch.zeros(shape))
    first, second = torch.zeros(shape), torch.zeros(shape)
    b1, b2 = BETAS
    for step in range(1, 101):
        gradient = sizes * (0.3 + torch.randn(shape, generator=rng))
        first, second = b1 * first + (1 - b1) * gradient, b2 * second + (1 - b2) * gradient**2
        adam = first / (1 - b1**step) / (second / (1 - b2**step)).sqrt()
        offsets = torch.zeros(shape).bfloat16()
        move_offsets(offsets, gradient, mine, Step(step, 1.0, step))
        found = -offsets.float()
    assert torch.corrcoef(torch.stack((found.flatten(), adam.flatten())))[0, 1] > 0.95
    assert (found / adam).median() == pytest.approx(1, abs=0.05)
    assert found.abs().max() <= 1.0001


def test_the_loop_moves_offsets_as_torch_does():
    shape, found = (64, 300), []
    sizes = 10 ** (4 * torch.rand(shape, generator=torch.Generator().manual_seed(0)) - 8)
    for move in (update_loop.move, move_in_torch):
        rng = torch.Generator().manual_seed(1)
        each, total = Moments.zeros(torch.zeros(shape)), torch.zeros(shape)
        for step in range(1, 21):
            gradient = (sizes * (0.5 + torch.randn(shape, generator=rng))).bfloat16()
            if step == 5:
                gradient[3, 7] = torch.nan
            offsets = torch.zeros(shape).bfloat16()
            if step == 1:
                each.set_range(gradient)
            assert bool(move(offsets, gradient, each, Step(step, 0.9, step))) == (step != 5)
            total += offsets.float()
        found.append((total, each))
    (one, mine), (other, torchs) = found
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


@pytest.mark.parametrize("in_backward", [True, False])
def test_gradients_are_used_and_dropped(in_backward):
    codes = {"a": learnable(0), "b": learnable(1)}
    learner = CodeOptimizer(codes, rate=0.01)
    before = {name: each.offsets.detach().clone() for name, each in codes.items()}
    learner.begin_step(1.0)
    loss = sum((each(torch.empty(0)) ** 2).sum() for each in codes.values())
    if in_backward:
        with learner.update_in_backward():
            loss.backward()
        assert all(each.offsets.grad is None for each in codes.values())
    else:
        loss.backward()
    assert learner.end_step()
    for name, each in codes.items():
        assert each.offsets.grad is None
        assert each.log_scales.grad is None
        moved = (each.offsets - before[name]).abs()
        assert 0 < moved.max() <= 0.012  # the rate, and the rounding to bfloat16
        assert each.offsets.abs().max() <= MAX_OFFSET


def test_a_map_with_gradients_that_are_not_finite_stays():
    codes = {"a": learnable(0), "b": learnable(1)}
    learner = CodeOptimizer(codes, rate=0.01)
    before = codes["a"].offsets.detach().clone()
    learner.begin_step(1.0)
    (codes["a"](torch.empty(0)).sum() * float("nan") + codes["b"](torch.empty(0)).square().sum()).backward()
    assert not learner.end_step()
    assert (codes["a"].offsets - before).abs().max() < 0.005  # rounding alone
    assert torch.isfinite(codes["a"].log_scales).all()
    assert not torch.equal(codes["b"].offsets, learnable(1).offsets)


def test_a_restored_optimizer_goes_on_as_before():
    def steps(learner, codes, count):
        for _ in range(count):
            learner.begin_step(1.0)
            (codes["a"](torch.empty(0)) - 0.1).square().sum().backward()
            learner.end_step()

    first, second = {"a": learnable()}, {"a": learnable()}
    learner = CodeOptimizer(first, rate=0.05, seed=3)
    steps(learner, first, 4)
    saved = {name: each.detach().clone() for name, each in learner.tensors().items()}
    steps(learner, first, 4)
    resumed = CodeOptimizer(second, rate=0.05, seed=3)
    resumed.restore(saved, step=4)
    steps(resumed, second, 4)
    assert torch.equal(first["a"].offsets, second["a"].offsets)
    assert torch.equal(first["a"].log_scales, second["a"].log_scales)
