import pytest
import torch

from fairbits.errors import InputError
from fairbits.model.groups import round_to_nearest
from fairbits.quantization.learning.distillation import distill
from fairbits.quantization.learning.learnable_codes import LearnableCodes
from fairbits.quantization.plan import Learning
from fairbits.theory.grid import Grid

STEPS = 20


class TargetWeights:
    """A `Distillation` of one language whose damage is the distance to some weights; some steps have bad gradients."""

    single_backward = True

    def __init__(self, codes, target, *, bad_steps=(), bad=float("nan")):
        self.codes, self.target, self.bad_steps, self.bad = codes, target, set(bad_steps), bad

    def batches(self):
        yield from range(STEPS)

    def distance(self):
        return (self.codes(torch.empty(0)) - self.target).square().sum()

    def backward(self, batch, weights):
        factor = self.bad if batch in self.bad_steps else float(weights[0])
        (self.distance() * factor).backward()

    def damage(self):
        return self.distance().detach().double().numpy().reshape(1)

    def report(self, state):
        pass


def learned(**bad):
    rng = torch.Generator().manual_seed(0)
    W = torch.randn(6, 8, generator=rng)
    grid = Grid(3, "twos")
    codes = LearnableCodes(W, round_to_nearest(W, torch.full((6, 2), 0.25), grid=grid), grid=grid, transposed=False)
    distillation = TargetWeights(codes, W + 0.3 * torch.randn(6, 8, generator=rng), **bad)
    return distill({"map": codes}, distillation, learning=Learning(), steps=STEPS, rate=0.1)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_without_finite_gradients_is_left_out(bad):
    state = learned(bad_steps=[3, 11], bad=bad)
    assert state.step == STEPS
    assert state.best is not None
    assert state.best.damage[0] < 0.8 * state.start[0]


def test_learning_stops_if_many_steps_have_no_finite_gradients():
    with pytest.raises(InputError, match="3 of its first 8 steps have gradients that are NaN or infinite"):
        learned(bad_steps=[1, 4, 7, 9])
