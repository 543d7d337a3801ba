"""Carries out a plan: rounding, and what is learned after it."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fairbits.measure.passes.text import Text
from fairbits.measure.scores.reference import Reference
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.codes import Codes
from fairbits.model.device import compute_dtype
from fairbits.model.files.safetensors_writing import write_whole
from fairbits.model.groups import grid_of
from fairbits.model.swapped_model import SwappedModel
from fairbits.progress import Progress
from fairbits.quantize.learning.blocks import Refiner, refiner
from fairbits.quantize.learning.course import Course, load_codes, save_codes
from fairbits.quantize.learning.latents import attached
from fairbits.quantize.learning.lessons import Lessons
from fairbits.quantize.learning.outcomes import learned_of, outcomes_of
from fairbits.quantize.learning.teacher import Class
from fairbits.quantize.learning.training import learn
from fairbits.quantize.plan import Learning, Plan
from fairbits.quantize.rounding.engine import Finished, RoundedBlock, check_plan, round_model
from fairbits.records import check_record, read_object

CODES, NOTES, COURSE = "start.safetensors", "start.json", "course.safetensors"
"""What learning keeps: the codes to begin with, what is said of them, and where it stands."""
Layers = dict[str, Codes]
Notes = dict[str, tuple[str, ...]]


def carry_out(
    checkpoint: Checkpoint,
    plan: Plan,
    *,
    text: Text | None = None,
    device: str = "cpu",
    finished: Finished | None = None,
    saved: Path | None = None,
    progress: Progress | None = None,
) -> Iterator[RoundedBlock]:
    """Yields all blocks in the order of the forward pass, then what lies outside them.

    `finished` gives the blocks that an interrupted run already has, and `saved` is a directory in which learning keeps
    where it stands: with both an interrupted run goes on to the same codes.
    """
    check_plan(checkpoint, plan, text)
    if plan.learning is None or text is None:
        return round_model(checkpoint, plan, text=text, device=device, finished=finished, progress=progress)
    lessons = Lessons.of(text, seed=_seed(plan))
    if plan.learning.model_steps:
        job = _Job(checkpoint, plan, plan.learning, lessons, device, saved, progress)
        return job.blocks(finished or (lambda _index: None))
    refine = _refine(plan, lessons)
    return round_model(checkpoint, plan, text=text, device=device, finished=finished, refine=refine, progress=progress)


@dataclass(frozen=True, eq=False)
class _Job:
    """A plan that is learned end to end, after block by block if it says so."""

    checkpoint: Checkpoint
    plan: Plan
    how: Learning
    lessons: Lessons
    device: str
    saved: Path | None
    progress: Progress | None

    @cached_property
    def walked(self) -> Text:
        """The text that blocks are rounded for, one by one."""
        return self.lessons.shortened(self.how.block_tokens)

    def blocks(self, finished: Finished) -> Iterator[RoundedBlock]:
        """Yields the blocks; where all of them are finished, nothing is learned again."""
        indices = (*(block.index for block in self.checkpoint.architecture.blocks), None)
        done = [finished(index) for index in indices]
        if all(block is not None for block in done):
            yield from (block for block in done if block is not None)
            return
        start, notes = self._start()
        course = self._course(start)
        layers = start | course.best
        swapped = SwappedModel.load(self.checkpoint, device=self.device)
        swapped.replace(layers)
        outcomes = outcomes_of(
            swapped.model, self.checkpoint, self.plan, layers, text=self.walked, notes=notes, device=self.device
        )
        del swapped
        learned = learned_of(course, self.lessons.text.languages)
        weights = self.checkpoint.architecture.weights
        for index in indices:
            own = {name: codes for name, codes in layers.items() if weights[name].block == index}
            last = learned if index is None else None
            yield RoundedBlock(index, own, tuple(outcomes[name] for name in own), learned=last)

    def _start(self) -> tuple[Layers, Notes]:
        """Returns the codes to begin with, and every fall-back in them."""
        if self.saved is not None and (self.saved / NOTES).is_file():
            widths = {name: scheme.bits for name, scheme in self.plan.schemes.items()}
            notes = check_record(Notes, read_object(self.saved / NOTES), source=str(self.saved / NOTES))
            return load_codes(self.saved / CODES, widths), notes
        layers, notes = Layers(), Notes()
        refine = _refine(self.plan, self.lessons)
        for block in round_model(
            self.checkpoint, self.plan, text=self.walked, device=self.device, refine=refine, progress=self.progress
        ):
            layers |= block.layers
            notes |= {each.name: each.notes for each in block.outcomes}
        if self.saved is not None:
            save_codes(self.saved / CODES, layers)
            write_whole(self.saved / NOTES, [json.dumps(notes).encode()])  # only now is the start there
        return layers, notes

    def _course(self, start: Layers) -> Course:
        """Returns what was learned of the linear maps of blocks; what lies outside them stays as it was rounded."""
        weights = self.checkpoint.architecture.weights
        inside = {
            name: (codes, grid_of(self.plan.schemes[name]))
            for name, codes in start.items()
            if weights[name].block is not None
        }
        with Reference.of(self.checkpoint, self.lessons.text, device=self.device, progress=self.progress) as reference:
            swapped = SwappedModel.load(self.checkpoint, device=self.device)
            swapped.replace({name: codes for name, codes in start.items() if name not in inside})
            with attached(swapped.model, weights, inside) as latents:
                room = Class(reference, swapped.model, device=self.device, compute=compute_dtype(self.device))
                saved = None if self.saved is None else self.saved / COURSE
                seed = _seed(self.plan)
                return learn(latents, room, self.lessons, how=self.how, seed=seed, saved=saved, progress=self.progress)


def _refine(plan: Plan, lessons: Lessons) -> Refiner | None:
    """Returns what learns the codes of blocks one by one, if the plan asks for it."""
    how = plan.learning
    return None if how is None or not how.block_steps else refiner(how, lessons, seed=_seed(plan))


def _seed(plan: Plan) -> int:
    return 0 if plan.calibration is None else plan.calibration.seed
