"""READ FIRST. Learned rounding: how codes are improved so that the model answers as it did in full precision.

What is learned. Each layer has codes and scales, rounded by GPTQ. `LearnableCodes` adds to every weight an offset
from its code and to every scale a factor; the model always computes with the rounded result.

Against what. First one block after the other, against the outputs of the full-precision block (`learn_block`): this
needs one block in memory and corrects most of the error. Then, if the memory is enough for six bytes per weight
(`optimizer`), all blocks together, against the full-precision model's distribution of the next token (`learn_model`).
Both are a `Distillation`, and `distill` below is the training loop of both.

How languages are weighted. The loss is Σ_λ weight_λ · (damage of language λ). The weights follow from the damage of
each language on held-out text and from the objective: for "worst" the language with the most damage gets most of the
weight (`language_weights`). They are updated at every evaluation.

How the best codes are chosen. The codes are evaluated on held-out documents (`holdout`) eight times. Among the
evaluations in which no language has more damage than at the start, the one with the least objective wins
(`LearningState.evaluate`); if there is none, the codes of the start are kept. So learning never makes a language worse
on that text.

How it resumes. At every evaluation the state is saved; a resumed run continues from there and ends with the same codes
(`load_state`).
"""

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.models.io.safetensors_files import in_memory, map_tensor, read_header, write_tensors
from fairbits.models.scales.groups import Codes, computed_dtype, planned_constants
from fairbits.models.scales.scheme import Objective, Scheme
from fairbits.quantization.learned.learnable_codes import LearnableCodes
from fairbits.quantization.learned.optimizer import CodeOptimizer
from fairbits.quantization.plan import Learning, LearningResult

WARM_UP = 0.05  # share of the steps in which the rate rises
EVALUATIONS = 8  # how often the learned codes are evaluated on held-out text, and saved
SKIPPED = 0.1  # share of the steps that may have gradients that are NaN or infinite; they are left out
POWER = 4.0
"""The worst language is approximated by the power mean of this order plus 1, which has a gradient for all languages."""
MOMENT = re.compile(r"\|(offsets|logs)\.")  # In the name of a moment of a gradient, as the optimizer gives it
Batch = TypeVar("Batch")


def language_weights(damage: Floats, start: Floats, objective: Objective) -> Floats:
    """Returns the weight of each language in the loss, by its damage now and at the start; the weights sum to 1.

    "mean"    equal weights
    "worst"   ∝ dᵖ: the gradient of the power mean (Σ dᵖ⁺¹)^(1/(p+1)), which approximates the largest d
    "regret"  ∝ (d/d₀)ᵖ / d₀: the same for the share of the damage at the start that remains
    """
    floor = 1e-6 * max(float(damage.max()), 1e-12)
    d, first = np.maximum(damage, floor), np.maximum(start, floor)
    if objective == "mean":
        raw = np.ones_like(d)
    elif objective == "worst":
        raw = (d / d.max()) ** POWER
    else:
        remaining = d / first
        raw = (remaining / remaining.max()) ** POWER / first
    weights: Floats = raw / raw.sum()
    return weights


@dataclass(frozen=True)
class HoldoutEvaluation:
    """The damage of every language on held-out text after a number of steps."""

    step: int
    damage: Floats

    def value(self, start: Floats, objective: Objective) -> float:
        """Returns the objective: the mean, the worst, or the largest share of the start's damage that remains."""
        if objective == "mean":
            return float(self.damage.mean())
        return float(self.damage.max() if objective == "worst" else (self.damage / np.maximum(start, 1e-12)).max())


@dataclass
class LearningState:
    """The number of steps done, the present weights of languages, and the best codes so far."""

    history: list[HoldoutEvaluation]  # all evaluations on held-out text, beginning with the start
    weights: Floats
    step: int = 0
    best: HoldoutEvaluation | None = None  # the best evaluation that harms no language; None while there is none
    best_codes: dict[str, Codes] = field(default_factory=dict)  # of that evaluation

    @classmethod
    def initial(cls, damage: Floats, objective: Objective) -> "LearningState":
        return cls([HoldoutEvaluation(0, damage)], language_weights(damage, damage, objective))

    @property
    def start(self) -> Floats:
        return self.history[0].damage

    def evaluate(self, damage: Floats, codes: Mapping[str, LearnableCodes], objective: Objective) -> None:
        """Records the damage of the present codes, keeps them if they are the best, and updates the weights."""
        now = HoldoutEvaluation(self.step, damage)
        self.history.append(now)
        self.weights = language_weights(damage, self.start, objective)
        if not (damage <= self.start).all():
            return
        if self.best is None or now.value(self.start, objective) < self.best.value(self.start, objective):
            self.best = now
            self.best_codes = {name: learned.current() for name, learned in codes.items()}

    def result(self, languages: tuple[str, ...]) -> LearningResult:
        def by_language(damage: Floats) -> dict[str, float]:
            return {code: float(f"{value:.6g}") for code, value in zip(languages, damage, strict=True)}

        best = self.history[0] if self.best is None else self.best
        return LearningResult(
            step=best.step,
            start=by_language(self.start),
            damage=by_language(best.damage),
            history=tuple({"step": entry.step, "damage": by_language(entry.damage)} for entry in self.history),
        )


class Distillation(Protocol[Batch]):
    """Full-precision results to learn from, and how far the present codes are from them, for `count` languages."""

    @property
    def single_backward(self) -> bool: ...  # so that a gradient is complete as soon as it is there

    @property
    def count(self) -> int: ...

    def batches(self) -> Iterator[Batch]:
        """Yields the training text of every step, in the same order each time."""

    def backward(self, batch: Batch, weights: Floats) -> None:
        """Adds the gradients of Σ_λ weight_λ · (error of language λ on the batch)."""

    def damage(self) -> Floats:
        """Returns the error of every language on held-out text."""

    def report(self, state: LearningState, /) -> None:
        """Reports progress after a step."""


def distill(
    codes: Mapping[str, LearnableCodes],
    distillation: Distillation[Batch],
    *,
    learning: Learning,
    steps: int,
    rate: float,
    seed: int = 0,
    saved: Path | None = None,
) -> LearningState:
    """Returns the state after all steps; its best codes leave no language worse than at the start on held-out text.

    Continues from the file `saved` if it exists, and writes it at every evaluation. In half precision a batch may give
    gradients that are NaN or infinite; the layers that get them do not change in this step.
    """
    optimizer = CodeOptimizer(codes, rate=rate, seed=seed)
    state = None if saved is None else load_state(saved, codes, optimizer, languages=distillation.count)
    if state is None:
        state = LearningState.initial(distillation.damage(), learning.objective)
    evaluated, skipped = {round(steps * (i + 1) / EVALUATIONS) for i in range(EVALUATIONS)}, 0
    for batch in islice(distillation.batches(), state.step, None):
        optimizer.begin_step(schedule(state.step, steps))
        with optimizer.update_in_backward() if distillation.single_backward else nullcontext():
            distillation.backward(batch, state.weights)
        skipped += not optimizer.end_step()
        if skipped > SKIPPED * steps:
            raise InputError(
                f"learning stopped: {skipped} of the first {state.step + 1} steps have gradients that are NaN or "
                "infinite; use the policy gptq, or check the model's weights"
            )
        state.step += 1
        if state.step in evaluated:
            state.evaluate(distillation.damage(), codes, learning.objective)
            if saved is not None:
                save_state(saved, state, optimizer)
        distillation.report(state)
    return state


def schedule(step: int, steps: int) -> float:
    """Returns the share of the peak rate at a step: a short linear rise, then a cosine down to 0."""
    rise = WARM_UP * steps
    if step < rise:
        return (step + 1) / math.ceil(rise)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))


def save_state(path: Path, state: LearningState, optimizer: CodeOptimizer) -> None:
    """Writes the state, the parameters and the optimizer's moments into one file, whole or not at all."""
    tensors = {
        "course.step": torch.tensor(state.step),
        "course.taken": torch.tensor(-1 if state.best is None else state.best.step),
        "course.shares": torch.from_numpy(state.weights),
        "course.steps": torch.tensor([entry.step for entry in state.history]),
        "course.damage": torch.from_numpy(np.stack([entry.damage for entry in state.history])),
    }
    tensors |= {key: tensor.detach().cpu() for key, tensor in optimizer.tensors().items()}
    for name, best in state.best_codes.items():
        tensors |= {f"{name}|best.codes": best.codes, f"{name}|best.steps": best.scales}
    _write(path, tensors)


def load_state(
    path: Path, codes: Mapping[str, LearnableCodes], optimizer: CodeOptimizer, *, languages: int
) -> LearningState | None:
    """Returns the saved state, after restoring parameters and optimizer bit for bit; None if there is none."""
    if not path.is_file():
        return None
    tensors = {name: map_tensor(info) for name, info in read_header(path).items()}
    count = len(tensors["course.steps"]) if tensors.get("course.steps", torch.tensor(0)).ndim == 1 else 0
    whole, real = torch.int64, torch.float64
    expected = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in optimizer.tensors().items()}
    expected |= {"course.step": (whole, ()), "course.taken": (whole, ()), "course.shares": (real, (languages,))}
    expected |= {"course.steps": (whole, (count,)), "course.damage": (real, (count, languages))}
    _check_tensors(path, tensors, expected)
    steps, step, taken = tensors["course.steps"].tolist(), int(tensors["course.step"]), int(tensors["course.taken"])
    if steps[:1] != [0] or any(earlier >= later for earlier, later in pairwise(steps)) or step != steps[-1]:
        raise _damaged(path, f"course.steps are {steps!s:.60} and course.step is {step}; they must rise from 0 to it")
    if taken != -1 and taken not in steps:
        raise _damaged(path, f"course.taken is {taken}; it must be one of course.steps, or -1")
    if bool((tensors["course.shares"] < 0).any()):
        raise _damaged(path, "course.shares contains a negative language weight")
    damage = tensors["course.damage"].numpy()
    history = [HoldoutEvaluation(step, values) for step, values in zip(steps, damage, strict=True)]
    best = next((entry for entry in history if entry.step == taken), None)
    state = LearningState(history, tensors["course.shares"].numpy().copy(), step, best)
    if best is not None:
        state.best_codes = {name: _best(path, tensors, name, learned) for name, learned in codes.items()}
    optimizer.restore(tensors, step=step)
    return state


def _best(path: Path, tensors: Mapping[str, Tensor], name: str, learned: LearnableCodes) -> Codes:
    names = f"{name}|best.codes", f"{name}|best.steps"
    shapes = tuple(learned.shape), tuple(learned.first_scales.shape[:2])
    _check_tensors(path, tensors, dict(zip(names, zip((torch.int8, learned.stored), shapes, strict=True), strict=True)))
    codes, scales = (tensors[name].clone() for name in names)
    lowest, highest = learned.grid.lowest, learned.grid.highest
    if bool(((codes < lowest) | (codes > highest)).any()):
        raise _damaged(path, f"{names[0]} has codes beyond {lowest} … {highest}")
    return replace(learned.start, codes=codes, scales=scales)


def save_codes(path: Path, layers: Mapping[str, Codes]) -> None:
    """Writes the codes of layers into one file, whole or not at all."""
    tensors: dict[str, Tensor] = {}
    for name, codes in layers.items():
        tensors |= {f"{name}|codes": codes.codes, f"{name}|steps": codes.scales}
        tensors |= {f"{name}|{constant}": value for constant, value in codes.constants.items()}
    _write(path, tensors)


def load_codes(
    path: Path, schemes: Mapping[str, Scheme], shapes: Mapping[str, tuple[int, ...]], *, dtype: torch.dtype
) -> dict[str, Codes]:
    """Returns the saved codes of all layers with a scheme, of these shapes and with scales of `dtype`."""
    tensors = {name: map_tensor(info) for name, info in read_header(path).items()}
    layers = {}
    for name, scheme in schemes.items():
        out, columns = shapes[name]
        scales = computed_dtype(scheme, dtype), (out, scheme.groups(columns))
        expected = {f"{name}|codes": (torch.int8, shapes[name]), f"{name}|steps": scales}
        constants = {f"{name}|{constant}": constant for constant in sorted(planned_constants(scheme))}
        _check_tensors(path, tensors, expected | dict.fromkeys(constants, (torch.float32, (1,))))
        values = {constant: tensors[part].clone() for part, constant in constants.items()}
        codes, steps = (tensors[part].clone() for part in expected)
        layers[name] = Codes(codes, steps, scheme.bits, scheme.numbers, values)
    return layers


def _check_tensors(
    path: Path, tensors: Mapping[str, Tensor], expected: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> None:
    for name, (dtype, shape) in expected.items():
        if name not in tensors:
            raise _damaged(path, f"{name} is missing")
        arrived = tensors[name].dtype, tuple(tensors[name].shape)
        if arrived != (dtype, shape):
            raise _damaged(path, f"{name} is {arrived[0]} {list(arrived[1])}; it must be {dtype} {list(shape)}")
        if not MOMENT.search(name) and not bool(tensors[name].isfinite().all()):
            raise _damaged(path, f"{name} contains NaN or infinity")


def _damaged(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} is damaged: {what}; delete the directory {path.parent}, and --resume learns from the start"
    )


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, in_memory({name: tensor.contiguous() for name, tensor in tensors.items()}))
    except OSError as problem:
        raise InputError(
            f"{path} cannot be written ({problem.strerror}); free some space, or write the model elsewhere"
        ) from None
