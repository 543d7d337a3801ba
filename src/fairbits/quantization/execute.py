"""Execution of a plan: rounding block by block, then learning if the plan says so.

Rounding alone needs one block in memory. So does learning block by block, which happens while the blocks are rounded
(`BlockDistiller`). Learning the whole model comes after that and needs the whole model.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path

import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.files import write_files
from fairbits.core.memory import LEARNING_POSITIONS
from fairbits.core.progress import Progress
from fairbits.core.records import check_record, read_object
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.batches import batches
from fairbits.forward.recorder import is_observable
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.groups import Codes
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.gptq.block_rounding import Finished, RoundedBlock, layer_result, matrix
from fairbits.quantization.gptq.engine import ONE_PROCESS, check_plan, round_model
from fairbits.quantization.gptq.hessian import TextLanguages
from fairbits.quantization.gptq.output_errors import OutputErrors
from fairbits.quantization.gptq.ranks import ALONE, Ranks
from fairbits.quantization.learned.holdout import HoldoutSplit
from fairbits.quantization.learned.learn import LearningState, load_codes, save_codes
from fairbits.quantization.learned.learn_block import BlockDistiller
from fairbits.quantization.learned.learn_model import distill_model
from fairbits.quantization.learned.output_importance import output_importance
from fairbits.quantization.plan import LayerResult, Learning, Plan

ROUNDED_CODES, ROUNDED_NOTES, STATE = "start.safetensors", "start.json", "course.safetensors"
"""The files of an interrupted run: the rounded codes that learning starts with, their notes, and the learning state."""
IMPORTANCE_TOKENS = 512  # tokens of each language from which the importance of channels is estimated
Layers = dict[str, Codes]
Rounded = dict[str, tuple[tuple[str, ...], dict[str, float]]]  # by layer, its notes and its largest inputs


def execute_plan(
    checkpoint: Checkpoint,
    plan: Plan,
    *,
    text: TokenizedText | None = None,
    device: str = "cpu",
    finished: Finished | None = None,
    saved: Path | None = None,
    ranks: Ranks = ALONE,
    on_device: bool = False,
    progress: Progress | None = None,
) -> Iterator[RoundedBlock]:
    """Yields all blocks in the order of the forward pass, then the layers outside them.

    `finished` gives the blocks that an interrupted run already has, and `saved` is a directory in which learning saves
    its state: an interrupted run ends with the same codes. Several `ranks` share the work of rounding, but not of
    learning. Codes end on the CPU, unless they may stay `on_device`.
    """
    check_plan(plan, checkpoint.architecture, text)
    refine = None
    if plan.learning is not None and text is not None:
        if not ranks.alone:
            raise InputError(ONE_PROCESS)
        learner = _PlanLearner(checkpoint, plan, plan.learning, HoldoutSplit.of(text, seed=plan.seed), device, progress)
        if plan.learning.model_steps:
            return learner.learn_model(finished or (lambda _index: None), saved)
        refine, on_device = learner.block_distiller(), False
    return round_model(
        checkpoint,
        plan,
        text=text,
        device=device,
        finished=finished,
        refine=refine,
        ranks=ranks,
        on_device=on_device,
        progress=progress,
    )


@dataclass(frozen=True, eq=False)
class _PlanLearner:
    """A plan whose codes are learned block by block, for the whole model, or both."""

    checkpoint: Checkpoint
    plan: Plan
    learning: Learning
    split: HoldoutSplit
    device: str
    progress: Progress | None

    def block_distiller(self) -> BlockDistiller | None:
        """Returns what learns the codes of blocks one by one; None if the plan does not learn blocks."""
        if not self.learning.block_steps:
            return None

        @cache  # when the first block needs it
        def importance() -> Mapping[int, Tensor]:
            text = self.split.shorten(IMPORTANCE_TOKENS, held_out=False)
            return output_importance(
                self.checkpoint, text, device=self.device, seed=self.plan.seed, progress=self.progress
            )

        return BlockDistiller.of(self.learning, self.split, importance=importance, seed=self.plan.seed)

    def learn_model(self, finished: Finished, saved: Path | None) -> Iterator[RoundedBlock]:
        """Yields the blocks after learning the whole model; if all of them are finished, nothing is learned again."""
        indices = (*(block.index for block in self.checkpoint.architecture.blocks), None)
        done = [block for index in indices if (block := finished(index)) is not None]
        if len(done) == len(indices):
            yield from done
            return
        codes, rounded = self._round(saved)
        state = self._learn(codes, saved)
        layers = codes | state.best_codes
        swapped = SwappedModel.load(self.checkpoint, device=self.device)
        swapped.replace(layers)
        results = self._results(swapped, layers, rounded)
        weights = self.checkpoint.architecture.weights
        for index in indices:
            inside = {name: chosen for name, chosen in layers.items() if weights[name].block == index}
            learned = state.result(self.split.text.languages) if index is None else None
            yield RoundedBlock(index, inside, tuple(results[name] for name in inside), learned=learned)

    def _round(self, saved: Path | None) -> tuple[Layers, Rounded]:
        """Returns the codes that learning of the whole model starts with, and what is said of them; saves both."""
        if saved is not None and (saved / ROUNDED_NOTES).is_file():
            source, weights = saved / ROUNDED_NOTES, self.checkpoint.architecture.weights
            rounded = check_record(Rounded, read_object(source), source=str(source))
            shapes = {name: weights[name].shape for name in self.plan.schemes}
            dtype = self.checkpoint.scale_dtype
            return load_codes(saved / ROUNDED_CODES, self.plan.schemes, shapes, dtype=dtype), rounded
        layers, rounded = Layers(), Rounded()
        refine, text = self.block_distiller(), self._block_text
        for block in round_model(
            self.checkpoint, self.plan, text=text, device=self.device, refine=refine, progress=self.progress
        ):
            layers |= block.layers
            rounded |= {result.name: (result.notes, dict(result.largest_input)) for result in block.results}
        if saved is not None:
            save_codes(saved / ROUNDED_CODES, layers)
            # last, as it marks both as complete
            write_files({saved / ROUNDED_NOTES: json.dumps(rounded).encode()})
        return layers, rounded

    def _learn(self, rounded: Layers, saved: Path | None) -> LearningState:
        """Returns the state after learning the layers of all blocks; experts and other layers keep their codes."""
        weights = self.checkpoint.architecture.weights
        start = {
            name: (codes, self.plan.schemes[name])
            for name, codes in rounded.items()
            if weights[name].block is not None and weights[name].expert is None
        }
        rest = {name: codes for name, codes in rounded.items() if name not in start}
        with ReferenceModel.on_text(
            self.checkpoint, self.split.text, device=self.device, progress=self.progress
        ) as reference:
            return distill_model(
                self.checkpoint,
                start,
                rest,
                reference=reference,
                split=self.split,
                learning=self.learning,
                device=self.device,
                seed=self.plan.seed,
                saved=None if saved is None else saved / STATE,
                progress=self.progress,
            )

    @torch.no_grad()
    def _results(self, swapped: SwappedModel, layers: Layers, rounded: Rounded) -> dict[str, LayerResult]:
        model, weights = swapped.model, self.checkpoint.architecture.weights
        modules = dict(model.named_modules())
        results, changes = {}, {}
        for name, codes in layers.items():
            weight = weights[name]
            W = matrix(self.checkpoint, weight)
            notes, ranges = rounded.get(name, ((), {}))
            result, change = layer_result(weight, W, codes, self.plan.schemes[name], notes)
            results[name] = replace(result, largest_input=ranges)
            if weight.block is not None and is_observable(weight, modules):
                changes[name] = weight, change.to(self.device)
        text = self._block_text
        errors = OutputErrors(TextLanguages.of(text, self.plan.languages), changes)
        with errors.observe(model) as start:
            for batch in batches(text, positions=LEARNING_POSITIONS):
                placed = batch.on(self.device)
                start(placed)
                model.base_model(**placed.inputs_for(model), use_cache=False)
        return {name: replace(result, error=errors.error(name)) for name, result in results.items()}

    @cached_property
    def _block_text(self) -> TokenizedText:
        return self.split.shorten(self.learning.block_tokens)
