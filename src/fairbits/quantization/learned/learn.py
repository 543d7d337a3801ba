"""READ FIRST. Learned rounding: how codes are improved so that the model answers as it did in full precision.

What is learned. Each layer has codes and scales, rounded by GPTQ. `LearnableCodes` adds to every weight an offset
from its code and to every scale a factor; the model always computes with the rounded result.

Against what. First one block after the other, against the outputs of the full-precision block
(`block_distillation`): this needs one block in memory and corrects most of the error. Then, if the memory is enough for
six bytes per weight (`optimizer`), all blocks together, against the full-precision model's distribution of the next
token (`model_distillation`). Both are a `Distillation`, and `distill` below is the training loop of both.

How languages are weighted. The loss is Σ_λ weight_λ · (damage of language λ). The weights follow from the damage of
each language on held-out text and from the objective: for "worst" the language with the most damage gets most of the
weight (`state.language_weights`). They are updated at every evaluation.

How the best codes are chosen. The codes are evaluated on held-out documents (`holdout`) eight times. The best
evaluation in which no language is worse than at the start wins (`LearningState.evaluate`); otherwise the start is kept.

How it resumes. At every evaluation the state is saved; a resumed run continues from there and ends with the same codes
(`state.load_state`).
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeVar

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.quantization.learned.learnable_codes import LearnableCodes
from fairbits.quantization.learned.learning_state import LearningState, load_state, save_state
from fairbits.quantization.learned.optimizer import CodeOptimizer
from fairbits.quantization.plan import Learning

WARM_UP = 0.05
"""Share of the steps in which the rate rises."""
EVALUATIONS = 8
"""How often the learned codes are evaluated on held-out text, and saved."""
SKIPPED = 0.1
"""Share of the steps that may have gradients that are NaN or infinite; they are left out."""
Batch = TypeVar("Batch")


class Distillation(Protocol[Batch]):
    """Full-precision results to learn from, and how far the present codes are from them.

    `single_backward`  whether a step has one backward pass, so that a gradient is complete as soon as it is there
    `count`            how many languages there are
    """

    @property
    def single_backward(self) -> bool: ...

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
    gradients that are NaN or infinite; the maps that get them do not change in this step.
    """
    optimizer = CodeOptimizer(codes, rate=rate, seed=seed)
    state = None if saved is None else load_state(saved, codes, optimizer, languages=distillation.count)
    if state is None:
        state = LearningState.initial(distillation.damage(), learning.objective)
    evaluated, skipped = evaluation_steps(steps), 0
    for batch in islice(distillation.batches(), state.step, None):
        optimizer.begin_step(schedule(state.step, steps))
        with optimizer.update_in_backward() if distillation.single_backward else nullcontext():
            distillation.backward(batch, state.weights)
        skipped += not optimizer.end_step()
        if skipped > SKIPPED * steps:
            raise InputError(
                f"learning stopped: {skipped} of its first {state.step + 1} steps have gradients that are NaN or "
                "infinite; use the policy gptq, or check the model's weights"
            )
        state.step += 1
        if state.step in evaluated:
            state.evaluate(distillation.damage(), codes, learning.objective)
            if saved is not None:
                save_state(saved, state, optimizer)
        distillation.report(state)
    return state


def evaluation_steps(steps: int) -> frozenset[int]:
    """Returns the steps after which the codes are evaluated.

    >>> sorted(evaluation_steps(20))
    [2, 5, 8, 10, 12, 15, 18, 20]
    """
    return frozenset(round(steps * (i + 1) / EVALUATIONS) for i in range(EVALUATIONS))


def schedule(step: int, steps: int) -> float:
    """Returns the share of the peak rate at a step: a short linear rise, then a cosine down to 0.

    >>> schedule(0, 100), round(schedule(52, 100), 2), round(schedule(99, 100), 4)
    (0.2, 0.51, 0.0003)
    """
    rise = WARM_UP * steps
    if step < rise:
        return (step + 1) / math.ceil(rise)
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))
