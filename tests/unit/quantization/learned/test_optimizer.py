import pytest
import torch

from fairbits.models.scales.groups import round_to_nearest, scheme_grid
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.learned.adam_cpu import AdamMoments
from fairbits.quantization.learned.learnable_codes import MAX_OFFSET, LearnableCodes
from fairbits.quantization.learned.optimizer import CodeOptimizer


def learnable(seed=0, shape=(6, 8)):
    W = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    scheme = Scheme(4, 4, grid="twos")
    codes = round_to_nearest(W, torch.full((shape[0], 2), 0.25), grid=scheme_grid(scheme))
    return LearnableCodes(W, codes, scheme=scheme, transposed=False)


def test_a_weight_takes_six_bytes():
    codes = learnable(shape=(64, 64))
    moments = AdamMoments.zeros(codes.offsets)
    kept = (codes.first_codes, codes.offsets, moments.first, moments.second)
    assert sum(tensor.nbytes for tensor in kept) == 6 * 64 * 64
    assert moments.least.numel() == 64


@pytest.mark.parametrize("in_backward", [True, False])
def test_gradients_are_used_and_dropped(in_backward):
    codes = {"a": learnable(0), "b": learnable(1)}
    learner = CodeOptimizer(codes, rate=0.01)
    before = {name: learned.offsets.detach().clone() for name, learned in codes.items()}
    learner.begin_step(1.0)
    loss = sum((learned(torch.empty(0)) ** 2).sum() for learned in codes.values())
    if in_backward:
        with learner.update_in_backward():
            loss.backward()
        assert all(learned.offsets.grad is None for learned in codes.values())
    else:
        loss.backward()
    assert learner.end_step()
    for name, learned in codes.items():
        assert learned.offsets.grad is None
        assert learned.log_scales.grad is None
        moved = (learned.offsets - before[name]).abs()
        assert 0 < moved.max() <= 0.012  # the rate, and the rounding to bfloat16
        assert learned.offsets.abs().max() <= MAX_OFFSET


def test_a_layer_with_gradients_that_are_not_finite_stays():
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
    saved = {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}
    steps(learner, first, 4)
    resumed = CodeOptimizer(second, rate=0.05, seed=3)
    resumed.restore(saved, step=4)
    steps(resumed, second, 4)
    assert torch.equal(first["a"].offsets, second["a"].offsets)
    assert torch.equal(first["a"].log_scales, second["a"].log_scales)
