import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fairbits.core.errors import InputError
from fairbits.models.scales.groups import round_to_nearest, scheme_grid
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.learned.learn import HoldoutEvaluation, LearningState, distill, language_weights
from fairbits.quantization.learned.learnable_codes import LearnableCodes
from fairbits.quantization.plan import Learning

STEPS = 20


class TargetWeights:
    """A `Distillation` of one language whose damage is the distance to some weights; some steps have bad gradients."""

    single_backward, count = True, 1

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


def learned(saved=None, **bad):
    rng = torch.Generator().manual_seed(0)
    W = torch.randn(6, 8, generator=rng)
    scheme = Scheme(3, 4, grid="twos")
    start = round_to_nearest(W, torch.full((6, 2), 0.25), grid=scheme_grid(scheme))
    codes = LearnableCodes(W, start, scheme=scheme, transposed=False)
    distillation = TargetWeights(codes, W + 0.3 * torch.randn(6, 8, generator=rng), **bad)
    return distill({"map": codes}, distillation, learning=Learning(), steps=STEPS, rate=0.1, saved=saved)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_step_without_finite_gradients_is_left_out(bad):
    state = learned(bad_steps=[3, 11], bad=bad)
    assert state.step == STEPS
    assert state.best is not None
    assert state.best.damage[0] < 0.8 * state.start[0]


def test_learning_stops_if_many_steps_have_no_finite_gradients():
    with pytest.raises(InputError, match="3 of the first 8 steps have gradients that are NaN or infinite"):
        learned(bad_steps=[1, 4, 7, 9])


DAMAGED = {
    "is missing": lambda tensors: {name: tensor for name, tensor in tensors.items() if name != "course.shares"},
    r"map\|offsets is torch.float32": lambda tensors: tensors | {"map|offsets": tensors["map|offsets"].float()},
    r"map\|logs is .*\[1\]; it must be": lambda tensors: tensors | {"map|logs": torch.zeros(1)},
    "course.damage contains NaN or infinity": lambda tensors: (
        tensors | {"course.damage": tensors["course.damage"] * float("nan")}
    ),
    r"course.shares is .*\[2\]; it must be torch.float64 \[1\]": lambda tensors: (
        tensors | {"course.shares": torch.ones(2, dtype=torch.float64)}
    ),
    "they must rise from 0": lambda tensors: tensors | {"course.step": torch.tensor(1)},
    "course.taken is 1; it must be one of": lambda tensors: tensors | {"course.taken": torch.tensor(1)},
    "has codes beyond -4 … 3": lambda tensors: tensors | {"map|best.codes": tensors["map|best.codes"] + 4},
    "contains a negative language weight": lambda tensors: tensors | {"course.shares": -tensors["course.shares"]},
}


@pytest.mark.parametrize("message", DAMAGED)
def test_a_state_that_is_damaged_is_refused(tmp_path, message):
    file = tmp_path / "learning" / "state.safetensors"
    first = learned(file)
    again = learned(file)  # continues after the last step
    assert again.best_codes["map"].codes.equal(first.best_codes["map"].codes)
    save_file({name: tensor.contiguous() for name, tensor in DAMAGED[message](load_file(file)).items()}, file)
    with pytest.raises(InputError, match=f"state.safetensors is damaged: .*{message}.*; delete the directory"):
        learned(file)


def test_weights_of_languages_follow_the_objective():
    damage, start = np.array([1.0, 2.0, 1.5]), np.array([2.0, 2.0, 4.0])
    assert language_weights(damage, start, "mean").tolist() == [1 / 3] * 3
    worst = language_weights(damage, start, "worst")
    # the gradient of the power mean of order 5
    h = 1e-6
    norm = lambda d: np.sum(d**5) ** (1 / 5)  # noqa: E731
    slope = np.array([(norm(damage + h * np.eye(3)[i]) - norm(damage)) / h for i in range(3)])
    assert np.allclose(worst, slope / slope.sum(), atol=1e-4)
    regret = language_weights(damage, start, "regret")
    assert regret.argmax() == 1
    assert np.allclose([worst.sum(), regret.sum()], 1)
    assert np.isfinite(language_weights(np.zeros(3), np.zeros(3), "worst")).all()


def test_an_evaluation_in_which_a_language_is_worse_does_not_count():
    start = np.array([1.0, 2.0])
    state = LearningState.initial(start, "worst")
    state.evaluate(np.array([1.1, 0.5]), {}, "worst")
    assert state.best is None
    state.evaluate(np.array([0.9, 1.9]), {}, "worst")
    assert state.best is state.history[2]
    values = [HoldoutEvaluation(1, np.array([0.5, 1.8])).value(start, aim) for aim in ("mean", "worst", "regret")]
    assert values == pytest.approx([1.15, 1.8, 0.9])
