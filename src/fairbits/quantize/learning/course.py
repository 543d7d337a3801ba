"""Course: where learning stands, and the file that it goes on from after an interruption."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.model.codes import Codes
from fairbits.model.files.safetensors_files import map_tensor
from fairbits.model.files.safetensors_header import read_header
from fairbits.model.files.safetensors_writing import in_memory, write_tensors
from fairbits.model.scheme import Objective
from fairbits.quantize.learning.latents import Latents
from fairbits.quantize.learning.objective import Candidate, weights_for

MOMENTS = ("exp_avg", "exp_avg_sq", "step")
"""What Adam keeps of every parameter."""


@dataclass
class Course:
    """How many steps are done, the weights of languages now, and the best codes so far.

    `history` holds what was measured on text kept apart, the start first; `taken` is the best of it that leaves no
    language worse off than the start, None where there is none.
    """

    history: list[Candidate]
    shares: Floats
    step: int = 0
    taken: Candidate | None = None
    best: dict[str, Codes] = field(default_factory=dict)

    @classmethod
    def begun(cls, damage: Floats, objective: Objective) -> "Course":
        """Returns the course before anything is learned."""
        return cls([Candidate(0, damage)], weights_for(damage, damage, objective))

    @property
    def start(self) -> Floats:
        """The damage of every language before anything was learned."""
        return self.history[0].damage

    def judge(self, damage: Floats, latents: Mapping[str, Latents], objective: Objective) -> None:
        """Keeps what was learned so far if it is the best, and weighs the languages anew."""
        found = Candidate(self.step, damage)
        self.history.append(found)
        self.shares = weights_for(damage, self.start, objective)
        value = found.value(self.start, objective)
        if found.hurts_none(self.start) and (self.taken is None or value < self.taken.value(self.start, objective)):
            self.taken = found
            self.best = {name: each.found() for name, each in latents.items()}


def save_course(path: Path, course: Course, latents: Mapping[str, Latents], optimizer: torch.optim.Adam) -> None:
    """Writes where learning stands, whole or not at all."""
    tensors = {
        "course.step": torch.tensor(course.step),
        "course.taken": torch.tensor(-1 if course.taken is None else course.taken.step),
        "course.shares": torch.from_numpy(course.shares),
        "course.steps": torch.tensor([each.step for each in course.history]),
        "course.damage": torch.from_numpy(np.stack([each.damage for each in course.history])),
    }
    for name, each in latents.items():
        for kind, parameter in each.named_parameters():
            tensors[f"{name}|{kind}"] = parameter.detach().cpu()
            moments = optimizer.state[parameter]
            tensors |= {f"{name}|{kind}.{moment}": moments[moment].cpu() for moment in MOMENTS}
    for name, codes in course.best.items():
        tensors |= {f"{name}|best.codes": codes.codes, f"{name}|best.steps": codes.scales}
    _written(path, tensors)


def load_course(path: Path, latents: Mapping[str, Latents], optimizer: torch.optim.Adam) -> Course | None:
    """Returns where learning stood, after putting it into latents and optimizer; None if nothing was saved."""
    if not path.is_file():
        return None
    found = {name: map_tensor(info) for name, info in read_header(path).items()}
    history = [
        Candidate(int(step), damage)
        for step, damage in zip(found["course.steps"].tolist(), found["course.damage"].numpy(), strict=True)
    ]
    taken = next((each for each in history if each.step == int(found["course.taken"])), None)
    course = Course(history, found["course.shares"].numpy().copy(), int(found["course.step"]), taken)
    for name, each in latents.items():
        for kind, parameter in each.named_parameters():
            with torch.no_grad():
                parameter.copy_(found[f"{name}|{kind}"])
            # the count of steps stays where Adam keeps it: with the parameters
            optimizer.state[parameter] = {
                moment: found[f"{name}|{kind}.{moment}"].clone().to(parameter.device) for moment in MOMENTS
            }
        if taken is not None:
            best = found[f"{name}|best.codes"].clone(), found[f"{name}|best.steps"].clone()
            course.best[name] = Codes(*best, each.bits)
    return course


def save_codes(path: Path, layers: Mapping[str, Codes]) -> None:
    """Writes codes, whole or not at all."""
    tensors = {f"{name}|codes": each.codes for name, each in layers.items()}
    _written(path, tensors | {f"{name}|steps": each.scales for name, each in layers.items()})


def load_codes(path: Path, widths: Mapping[str, int]) -> dict[str, Codes]:
    """Returns the codes that were saved, each of as many bits as `widths` says."""
    found = {name: map_tensor(info).clone() for name, info in read_header(path).items()}
    return {name: Codes(found[f"{name}|codes"], found[f"{name}|steps"], bits) for name, bits in widths.items()}


def _written(path: Path, tensors: Mapping[str, Tensor]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, in_memory({name: each.contiguous() for name, each in tensors.items()}))
    except OSError as problem:
        raise InputError(
            f"{path} cannot be written ({problem.strerror}); make room, or write the model elsewhere"
        ) from None
