"""PlanTrial: applies plans to one model in memory, one after the other, and scores each of them."""

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fairbits.core.errors import InputError
from fairbits.core.progress import Progress, within
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import Identity
from fairbits.forward.tokenize import open_corpus_for, tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.swapped_model import SwappedModel
from fairbits.quantization.execute import execute_plan
from fairbits.quantization.plan import LayerResult, LearningResult, Plan
from fairbits.text.corpus import Corpus


@dataclass(frozen=True, eq=False)
class PlanResult:
    """A plan with the results of its layers, its scores, and the seconds that rounding took."""

    plan: Plan
    scores: Scores
    seconds: float


@dataclass(frozen=True, eq=False)
class PlanTrial:
    """A loaded model, and its predictions on the evaluation text of a corpus before quantization.

    Use it in a `with` statement: the predictions are in a temporary file. They have a copy of the head, because the
    model's head is rounded when it is tied to a rounded embedding.
    """

    swapped: SwappedModel
    corpus: Corpus
    reference: ReferenceModel
    device: str = "cpu"

    @classmethod
    def of(cls, checkpoint: Checkpoint, corpus: Corpus, *, device: str = "cpu", **more: Any) -> "PlanTrial":
        """Returns the trial of a model, after one pass over the text; `more` are arguments of `on_corpus`."""
        reference = ReferenceModel.on_corpus(checkpoint, corpus, device=device, **more)
        return cls(SwappedModel.load(checkpoint, device=device, as_written=True), corpus, reference, device)

    def __enter__(self) -> "PlanTrial":
        return self

    def __exit__(self, *_: object) -> None:
        self.reference.close()

    @property
    def checkpoint(self) -> Checkpoint:
        return self.swapped.checkpoint

    def run(self, plan: Plan, *, name: str, progress: Progress | None = None) -> PlanResult:
        """Returns the cost of a plan for every language; afterwards the model is restored bit for bit."""
        progress = within(progress, name)
        results: list[LayerResult] = []
        learned: LearningResult | None = None
        start = time.perf_counter()
        text = None
        if plan.calibration is not None:
            corpus = self.corpus.restrict(plan.languages)
            text = tokenize_corpus(self.checkpoint, corpus, request=plan.calibration.request)
        with self.swapped:
            for block in execute_plan(self.checkpoint, plan, text=text, device=self.device, progress=progress):
                self.swapped.replace(block.layers, plan.schemes)
                results += block.results
                learned = block.learned or learned
            seconds = time.perf_counter() - start
            scores = self.reference.scores(
                self.swapped.model,
                Identity(f"{self.checkpoint.target}, {name}", plan.digest, plan.size_bytes),
                notes=self.checkpoint.notes,
                device=self.device,
                progress=progress,
            )
        return PlanResult(replace(plan, results=tuple(results), learned=learned), scores, seconds)


def corpus_for(checkpoint: Checkpoint, *, languages: Iterable[str] | None, text: str | Path | Corpus | None) -> Corpus:
    """Returns the text of the languages to compare, at least two.

    Without languages and text the embedded declaration is used, for the embedded model in its own languages.
    """
    corpus = open_corpus_for(checkpoint, text, languages)
    if len(corpus.evaluation) < 2:
        raise InputError(
            f"the text of {corpus.name} has only one language, {next(iter(corpus.evaluation), 'none')}; "
            "languages are compared with each other: name two or more"
        )
    return corpus
