"""What came of codes that were learned."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from fairbits.measure.passes.batches import batches
from fairbits.measure.passes.points import is_observable
from fairbits.measure.passes.text import Text
from fairbits.memory import LEARNING_POSITIONS
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.codes import Codes
from fairbits.quantize.learning.course import Course
from fairbits.quantize.plan import Learned, Outcome, Plan
from fairbits.quantize.rounding.inputs import Effects, audience
from fairbits.quantize.rounding.layer import matrix, outcome_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def outcomes_of(
    model: "PreTrainedModel",
    checkpoint: Checkpoint,
    plan: Plan,
    layers: Mapping[str, Codes],
    *,
    text: Text,
    notes: Mapping[str, tuple[str, ...]],
    device: str,
) -> dict[str, Outcome]:
    """Returns what came of every linear map, with the error of every language in a model that has these codes."""
    weights, modules = checkpoint.architecture.weights, dict(model.named_modules())
    outcomes, changes = {}, {}
    for name, codes in layers.items():
        weight = weights[name]
        W = matrix(checkpoint, weight)
        outcomes[name], change = outcome_of(weight, W, codes, plan.schemes[name], notes.get(name, ()))
        if weight.block is not None and is_observable(weight, modules):
            changes[name] = weight, change.to(device)
    effects = Effects(audience(text, plan.languages), changes)
    with effects.watched(model) as start:
        for batch in batches(text, positions=LEARNING_POSITIONS):
            placed = batch.on(device)
            start(placed)
            model.base_model(**placed.inputs, use_cache=False)
    return {name: replace(each, error=effects.error(name)) for name, each in outcomes.items()}


def learned_of(course: Course, languages: tuple[str, ...]) -> Learned:
    """Returns what learning came to."""

    def named(values: object) -> dict[str, float]:
        return {code: float(f"{value:.6g}") for code, value in zip(languages, values, strict=True)}  # type: ignore[call-overload]

    taken = course.history[0] if course.taken is None else course.taken
    return Learned(
        step=taken.step,
        start=named(course.start),
        damage=named(taken.damage),
        history=tuple({"step": each.step, "damage": named(each.damage)} for each in course.history),
    )
