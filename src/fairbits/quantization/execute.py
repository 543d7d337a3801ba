"""Execution of a plan: rounding block by block, then learning if the plan says so.

Rounding alone needs one block in memory. So does learning block by block, which happens while the blocks are rounded
(`BlockDistiller`). Learning the whole model comes after that and needs the whole model.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.files import write_files
from fairbits.core.memory import LEARNING_POSITIONS
from fairbits.core.progress import Progress
from fairbits.core.records import check_record, read_object
from fairbits.evaluation.reference import Reference
from fairbits.forward.batches import batches
from fairbits.forward.recorder import is_observable
from fairbits.forward.windows import Text
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.stored_weights import scale_dtype
from fairbits.models.scales.groups import Codes, scheme_grid
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.gptq.block_rounding import Finished, RoundedBlock, layer_result, matrix
from fairbits.quantization.gptq.engine import ONE_PROCESS, check_plan, round_model
from fairbits.quantization.gptq.hessian import TextLanguages
from fairbits.quantization.gptq.output_errors import OutputErrors
from fairbits.quantization.gptq.ranks import ALONE, Ranks
from fairbits.quantization.learned.holdout import HoldoutSplit
from fairbits.quantization.learned.learn_block import BlockDistiller, block_distiller
from fairbits.quantization.learned.learn_model import distill_model
from fairbits.quantization.learned.learning_state import LearningState, load_codes, save_codes
from fairbits.quantization.learned.output_importance import output_importance
from fairbits.quantization.plan import LayerResult, Learning, Plan

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ROUNDED_CODES, ROUNDED_NOTES, STATE = "start.safetensors", "start.json", "course.safetensors"
"""The files of an interrupted run: the rounded codes that learning starts with, their notes, and the learning state."""
IMPORTANCE_TOKENS = 512
"""Tokens of each language from which the importance of channels is estimated."""
Layers = dict[str, Codes]
Notes = dict[str, tuple[str, ...]]


def execute_plan(
    checkpoint: Checkpoint,
    plan: Plan,
    *,
    text: Text | None = None,
    device: str = "cpu",
    finished: Finished | None = None,
    saved: Path | None = None,
    ranks: Ranks = ALONE,
    on_device: bool = False,
    progress: Progress | None = None,
) -> Iterator[RoundedBlock]:
    """Yields all blocks in the order of the forward pass, then what lies outside them.

    `finished` gives the blocks that an interrupted run already has, and `saved` is a directory in which learning saves
    its state. With both an interrupted run ends with the same codes. Several `ranks` share the work of rounding, and
    each of them yields all blocks; learning needs a single one. Codes are on the CPU in the end; with `on_device` those
    that were computed on the device may stay there.
    """
    check_plan(checkpoint, plan, text)
    if plan.learning is None or text is None:
        return round_model(
            checkpoint,
            plan,
            text=text,
            device=device,
            finished=finished,
            ranks=ranks,
            on_device=on_device,
            progress=progress,
        )
    if not ranks.alone:
        raise InputError(ONE_PROCESS)
    split = HoldoutSplit.of(text, seed=_seed(plan))
    if plan.learning.model_steps:
        learner = _ModelLearner(checkpoint, plan, plan.learning, split, device, saved, progress)
        return learner.blocks(finished or (lambda _index: None))
    refine = _distiller(checkpoint, plan, split, device=device, progress=progress)
    return round_model(checkpoint, plan, text=text, device=device, finished=finished, refine=refine, progress=progress)


@dataclass(frozen=True, eq=False)
class _ModelLearner:
    """A plan whose codes are learned for the whole model, after block by block if it says so."""

    checkpoint: Checkpoint
    plan: Plan
    learning: Learning
    split: HoldoutSplit
    device: str
    saved: Path | None
    progress: Progress | None

    def blocks(self, finished: Finished) -> Iterator[RoundedBlock]:
        """Yields the blocks; if all of them are finished, nothing is learned again."""
        indices = (*(block.index for block in self.checkpoint.architecture.blocks), None)
        done = [finished(index) for index in indices]
        if all(block is not None for block in done):
            yield from (block for block in done if block is not None)
            return
        rounded, notes = self._round()
        state = self._learn(rounded)
        layers = rounded | state.best_codes
        outcomes = self._results(layers, notes)
        learned = state.result(self.split.text.languages)
        weights = self.checkpoint.architecture.weights
        for index in indices:
            own = {name: codes for name, codes in layers.items() if weights[name].block == index}
            last = learned if index is None else None
            yield RoundedBlock(index, own, tuple(outcomes[name] for name in own), learned=last)

    def _round(self) -> tuple[Layers, Notes]:
        """Returns the codes that learning of the whole model starts with, and their notes; saves both."""
        if self.saved is not None and (self.saved / ROUNDED_NOTES).is_file():
            source, weights = self.saved / ROUNDED_NOTES, self.checkpoint.architecture.weights
            notes = check_record(Notes, read_object(source), source=str(source))
            shapes = {name: weights[name].shape for name in self.plan.schemes}
            saved, dtype = self.saved / ROUNDED_CODES, scale_dtype(self.checkpoint)
            return load_codes(saved, self.plan.schemes, shapes, dtype=dtype), notes
        layers, notes = Layers(), Notes()
        refine = _distiller(self.checkpoint, self.plan, self.split, device=self.device, progress=self.progress)
        for block in round_model(
            self.checkpoint, self.plan, text=self._block_text, device=self.device, refine=refine, progress=self.progress
        ):
            layers |= block.layers
            notes |= {each.name: each.notes for each in block.outcomes}
        if self.saved is not None:
            save_codes(self.saved / ROUNDED_CODES, layers)
            # last, as it marks both as complete
            write_files({self.saved / ROUNDED_NOTES: json.dumps(notes).encode()})
        return layers, notes

    def _learn(self, rounded: Layers) -> LearningState:
        """Returns the state after learning the layers of all blocks; experts and other layers keep their codes."""
        weights = self.checkpoint.architecture.weights
        inside = {
            name: (codes, scheme_grid(self.plan.schemes[name]))
            for name, codes in rounded.items()
            if weights[name].block is not None and weights[name].expert is None
        }
        others = {name: codes for name, codes in rounded.items() if name not in inside}
        with Reference.of(self.checkpoint, self.split.text, device=self.device, progress=self.progress) as reference:
            return distill_model(
                self.checkpoint,
                inside,
                others,
                reference=reference,
                split=self.split,
                learning=self.learning,
                device=self.device,
                seed=_seed(self.plan),
                saved=None if self.saved is None else self.saved / STATE,
                progress=self.progress,
            )

    def _results(self, layers: Layers, notes: Notes) -> dict[str, LayerResult]:
        """Returns the result of every layer in a model that has all these codes."""
        swapped = SwappedModel.load(self.checkpoint, device=self.device)
        swapped.replace(layers)
        return learned_results(
            swapped.model, self.checkpoint, self.plan, layers, text=self._block_text, notes=notes, device=self.device
        )

    @cached_property
    def _block_text(self) -> Text:
        """The text with which blocks are rounded and learned one by one."""
        return self.split.shorten(self.learning.block_tokens)


@torch.no_grad()
def learned_results(
    model: "PreTrainedModel",
    checkpoint: Checkpoint,
    plan: Plan,
    layers: Mapping[str, Codes],
    *,
    text: Text,
    notes: Mapping[str, tuple[str, ...]],
    device: str,
) -> dict[str, LayerResult]:
    """Returns the result of every layer, with the error of each language in a model that has these codes."""
    weights, modules = checkpoint.architecture.weights, dict(model.named_modules())
    outcomes, changes = {}, {}
    for name, codes in layers.items():
        weight = weights[name]
        W = matrix(checkpoint, weight)
        outcomes[name], change = layer_result(weight, W, codes, plan.schemes[name], notes.get(name, ()))
        if weight.block is not None and is_observable(weight, modules):
            changes[name] = weight, change.to(device)
    errors = OutputErrors(TextLanguages.of(text, plan.languages), changes)
    with errors.observe(model) as start:
        for batch in batches(text, positions=LEARNING_POSITIONS):
            placed = batch.on(device)
            start(placed)
            model.base_model(**placed.inputs_for(model), use_cache=False)
    return {name: replace(each, error=errors.error(name)) for name, each in outcomes.items()}


def _distiller(
    checkpoint: Checkpoint, plan: Plan, split: HoldoutSplit, *, device: str, progress: Progress | None
) -> BlockDistiller | None:
    """Returns what learns the codes of blocks one by one; None if the plan does not learn blocks."""
    learning, seed = plan.learning, _seed(plan)
    if learning is None or not learning.block_steps:
        return None

    @cache  # when the first block needs it
    def importance() -> Mapping[int, Tensor]:
        text = split.shorten(IMPORTANCE_TOKENS, held_out=False)
        return output_importance(checkpoint, text, device=device, seed=seed, progress=progress)

    return block_distiller(learning, split, importance=importance, seed=seed)


def _seed(plan: Plan) -> int:
    return 0 if plan.calibration is None else plan.calibration.seed
