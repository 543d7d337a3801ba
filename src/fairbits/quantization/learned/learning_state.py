"""LearningState: the progress of learning, which codes are best so far, and the file to resume from.

How the best codes are chosen: learned codes are evaluated on held-out text a few times. Among the evaluations in
which no language has more damage than at the start, the one with the least objective wins; if there is none, the
codes of the start are kept. So learning never makes a language worse on that text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.models.io.safetensors_files import in_memory, map_tensor, read_header, write_tensors
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Objective, Scheme
from fairbits.quantization.learned.learnable_codes import LearnableCodes
from fairbits.quantization.learned.optimizer import CodeOptimizer
from fairbits.quantization.plan import LearningResult

MOMENT = re.compile(r"\|(offsets|logs)\.")
"""In the name of a moment of a gradient, as the optimizer gives it."""
POWER = 4.0
"""The worst language is approximated by the power mean of this order plus 1, which has a gradient for all languages."""


def language_weights(damage: Floats, start: Floats, objective: Objective) -> Floats:
    """Returns the weight of each language in the loss, given its present damage and that at the start; they sum to 1.

    "mean"    equal weights
    "worst"   ∝ dᵖ: the gradient of the power mean (Σ dᵖ⁺¹)^(1/(p+1)), which approximates the largest d
    "regret"  ∝ (d/d₀)ᵖ / d₀: the same for the share of the damage at the start that remains

    >>> language_weights(np.array([1.0, 2.0]), np.array([1.0, 1.0]), "worst").round(3).tolist()
    [0.059, 0.941]
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
class Evaluation:
    """The damage of every language on held-out text after a number of steps."""

    step: int
    damage: Floats

    def value(self, start: Floats, objective: Objective) -> float:
        """Returns the objective: the mean, the worst, or the largest share of the start's damage that remains."""
        if objective == "mean":
            return float(self.damage.mean())
        return float(self.damage.max() if objective == "worst" else (self.damage / np.maximum(start, 1e-12)).max())

    def harms_none(self, start: Floats) -> bool:
        """Returns whether no language has more damage than at the start."""
        return bool((self.damage <= start).all())


@dataclass
class LearningState:
    """The number of steps done, the present weights of languages, and the best codes so far.

    `history`     all evaluations on held-out text, that of the start first
    `best`        the best of them that harms no language; None while there is none
    `best_codes`  the codes of that evaluation; empty while there is none
    """

    history: list[Evaluation]
    weights: Floats
    step: int = 0
    best: Evaluation | None = None
    best_codes: dict[str, Codes] = field(default_factory=dict)

    @classmethod
    def initial(cls, damage: Floats, objective: Objective) -> "LearningState":
        """Returns the state before anything is learned."""
        return cls([Evaluation(0, damage)], language_weights(damage, damage, objective))

    @property
    def start(self) -> Floats:
        """The damage of every language before anything was learned."""
        return self.history[0].damage

    def evaluate(self, damage: Floats, codes: Mapping[str, LearnableCodes], objective: Objective) -> None:
        """Records the damage of the present codes, keeps them if they are the best, and updates the weights."""
        found = Evaluation(self.step, damage)
        self.history.append(found)
        self.weights = language_weights(damage, self.start, objective)
        value = found.value(self.start, objective)
        if found.harms_none(self.start) and (self.best is None or value < self.best.value(self.start, objective)):
            self.best = found
            self.best_codes = {name: each.current() for name, each in codes.items()}

    def result(self, languages: tuple[str, ...]) -> LearningResult:
        """Returns the record for the plan."""

        def by_language(damage: Floats) -> dict[str, float]:
            return {code: float(f"{value:.6g}") for code, value in zip(languages, damage, strict=True)}

        best = self.history[0] if self.best is None else self.best
        return LearningResult(
            step=best.step,
            start=by_language(self.start),
            damage=by_language(best.damage),
            history=tuple({"step": each.step, "damage": by_language(each.damage)} for each in self.history),
        )


def save_state(path: Path, state: LearningState, optimizer: CodeOptimizer) -> None:
    """Writes the state, the parameters and the optimizer's moments into one file, whole or not at all."""
    tensors = {
        "course.step": torch.tensor(state.step),
        "course.taken": torch.tensor(-1 if state.best is None else state.best.step),
        "course.shares": torch.from_numpy(state.weights),
        "course.steps": torch.tensor([each.step for each in state.history]),
        "course.damage": torch.from_numpy(np.stack([each.damage for each in state.history])),
    }
    tensors |= {key: each.detach().cpu() for key, each in optimizer.tensors().items()}
    for name, best in state.best_codes.items():
        tensors |= {f"{name}|best.codes": best.codes, f"{name}|best.steps": best.scales}
    _write(path, tensors)


def load_state(
    path: Path, codes: Mapping[str, LearnableCodes], optimizer: CodeOptimizer, *, languages: int
) -> LearningState | None:
    """Returns the saved state, after restoring parameters and optimizer; None if there is none.

    A file of 0.1.0, which had another optimizer, is not used: learning begins again. Steps after a restored state are
    the same as without interruption: the order of the text and random numbers depend on the seed alone, and all else
    that a step reads (parameters, moments, weights of languages) is in the file bit for bit.
    """
    if not path.is_file():
        return None
    found = {name: map_tensor(info) for name, info in read_header(path).items()}
    own = optimizer.tensors()
    if not own.keys() <= found.keys():
        return None
    count = len(found["course.steps"]) if found.get("course.steps", torch.tensor(0)).ndim == 1 else 0
    whole, real = torch.int64, torch.float64
    expected = {name: (each.dtype, tuple(each.shape)) for name, each in own.items()}
    expected |= {"course.step": (whole, ()), "course.taken": (whole, ()), "course.shares": (real, (languages,))}
    expected |= {"course.steps": (whole, (count,)), "course.damage": (real, (count, languages))}
    _check_tensors(path, found, expected)
    steps, taken = found["course.steps"].tolist(), int(found["course.taken"])
    _check_course(path, steps, step=int(found["course.step"]), taken=taken)
    if bool((found["course.shares"] < 0).any()):
        raise _damaged(path, "course.shares has a weight of a language that is negative")
    history = [Evaluation(step, damage) for step, damage in zip(steps, found["course.damage"].numpy(), strict=True)]
    best = next((each for each in history if each.step == taken), None)
    state = LearningState(history, found["course.shares"].numpy().copy(), steps[-1], best)
    if best is not None:
        state.best_codes = {name: _best(path, found, name, each) for name, each in codes.items()}
    optimizer.restore(found, step=state.step)
    return state


def _best(path: Path, found: Mapping[str, Tensor], name: str, learned: LearnableCodes) -> Codes:
    """Returns the best codes of a map; raises if they are none that it can have."""
    names = f"{name}|best.codes", f"{name}|best.steps"
    shapes = tuple(learned.shape), tuple(learned.first_scales.shape[:2])
    _check_tensors(path, found, dict(zip(names, zip((torch.int8, learned.stored), shapes, strict=True), strict=True)))
    codes, scales = (found[each].clone() for each in names)
    if bool(((codes < learned.lowest) | (codes > learned.highest)).any()):
        raise _damaged(path, f"{names[0]} has codes beyond {learned.lowest} … {learned.highest}")
    return Codes(codes, scales, learned.bits)


def _check_course(path: Path, steps: list[int], *, step: int, taken: int) -> None:
    """Raises unless evaluations begin with the start, come one after the other, and end with the present step."""
    if steps[:1] != [0] or any(one >= other for one, other in pairwise(steps)) or step != steps[-1]:
        raise _damaged(path, f"course.steps are {steps!s:.60} and course.step is {step}; they must rise from 0 to it")
    if taken != -1 and taken not in steps:
        raise _damaged(path, f"course.taken is {taken}; it must be one of course.steps, or -1")


def _check_tensors(
    path: Path, found: Mapping[str, Tensor], expected: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]
) -> None:
    """Raises unless the tensors of a file are there, in these types and shapes, and finite if they are no moments."""
    for name, (dtype, shape) in expected.items():
        if name not in found:
            raise _damaged(path, f"{name} is missing")
        there = found[name].dtype, tuple(found[name].shape)
        if there != (dtype, shape):
            raise _damaged(path, f"{name} is {there[0]} {list(there[1])}; it must be {dtype} {list(shape)}")
        if not MOMENT.search(name) and not bool(found[name].isfinite().all()):
            raise _damaged(path, f"{name} has numbers that are not finite")


def _damaged(path: Path, what: str) -> InputError:
    return InputError(
        f"{path} is damaged: {what}; delete the directory {path.parent}, and --resume learns from the start"
    )


def save_codes(path: Path, layers: Mapping[str, Codes]) -> None:
    """Writes the codes of layers into one file, whole or not at all."""
    tensors = {f"{name}|codes": each.codes for name, each in layers.items()}
    _write(path, tensors | {f"{name}|steps": each.scales for name, each in layers.items()})


def load_codes(
    path: Path, schemes: Mapping[str, Scheme], shapes: Mapping[str, tuple[int, ...]], *, dtype: torch.dtype
) -> dict[str, Codes]:
    """Returns the saved codes of all layers with a scheme, of these shapes and with scales of `dtype`."""
    found = {name: map_tensor(info) for name, info in read_header(path).items()}
    layers = {}
    for name, scheme in schemes.items():
        out, columns = shapes[name]
        scales = (out, scheme.groups(columns))
        _check_tensors(path, found, {f"{name}|codes": (torch.int8, shapes[name]), f"{name}|steps": (dtype, scales)})
        layers[name] = Codes(found[f"{name}|codes"].clone(), found[f"{name}|steps"].clone(), scheme.bits)
    return layers


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, in_memory({name: each.contiguous() for name, each in tensors.items()}))
    except OSError as problem:
        raise InputError(
            f"{path} cannot be written ({problem.strerror}); free some space, or write the model elsewhere"
        ) from None
