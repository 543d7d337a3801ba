"""Bench: many plans of one model, each put into it in place and asked the same text."""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from fairbits.errors import InputError
from fairbits.language import Corpus
from fairbits.language.reading import open_corpus
from fairbits.language.text_request import TextRequest
from fairbits.measure.passes.prepare import text_for
from fairbits.measure.passes.text import Text
from fairbits.measure.scores.in_place import put, restore
from fairbits.measure.scores.reference import Reference
from fairbits.measure.scores.scores import Identity, Scores
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.embedded import embedded_languages
from fairbits.progress import Progress, within
from fairbits.quantize.learning import carry_out
from fairbits.quantize.plan import Learned, Outcome, Plan
from fairbits.trials.reference_answers import Yardstick

if TYPE_CHECKING:
    from transformers import PreTrainedModel

IN_PLACE = re.compile(r"(.+), (\d) bits")
"""How runs on a bench are named: a variant and its width."""


@dataclass(frozen=True, eq=False)
class Run:
    """A plan with what came of its layers, what it cost every language, and the seconds that rounding took."""

    plan: Plan
    scores: Scores
    seconds: float


@dataclass(frozen=True, eq=False)
class Bench:
    """A model in memory, and what it said to the evaluation text of a corpus before anything was quantized.

    Use it in a `with` statement: what it said lies in a temporary file.
    """

    checkpoint: Checkpoint
    corpus: Corpus
    model: "PreTrainedModel"
    yardstick: Yardstick
    device: str = "cpu"

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        corpus: Corpus,
        *,
        request: TextRequest,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> "Bench":
        """Returns the bench of a model, after one pass over the requested text."""
        said = Yardstick.of(checkpoint, corpus, request=request, device=device, progress=progress)
        # the reference keeps a head of its own: that of the model here is rounded with a tied embedding
        return cls(checkpoint, corpus, checkpoint.load(), said, device)

    def __enter__(self) -> "Bench":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reference.close()

    @property
    def reference(self) -> Reference:
        """What the model said."""
        return self.yardstick.reference

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of any result must know about model, text and reference."""
        return (*self.checkpoint.notes, *self.yardstick.notes)

    def run(self, plan: Plan, *, name: str, progress: Progress | None = None) -> Run:
        """Returns what a plan does to every language; afterwards the model is as it was, bit for bit."""
        progress = within(progress, name)
        outcomes: list[Outcome] = []
        learned: Learned | None = None
        changed: list[str] = []
        start = time.perf_counter()
        try:
            for block in carry_out(
                self.checkpoint,
                plan,
                text=self._calibration(plan),
                device=self.device,
                progress=progress,
            ):
                changed += block.layers
                put(self.model, self.checkpoint, block.layers)
                outcomes += block.outcomes
                learned = block.learned or learned
            seconds = time.perf_counter() - start
            scores = self.yardstick.scores(
                self.model,
                Identity(f"{self.checkpoint.target}, {name}", plan.digest, plan.size_bytes),
                notes=self.checkpoint.notes,
                device=self.device,
                progress=progress,
            )
        finally:
            restore(self.model, self.checkpoint, changed)
        return Run(replace(plan, outcomes=tuple(outcomes), learned=learned), scores, seconds)

    def _calibration(self, plan: Plan) -> Text | None:
        if plan.calibration is None:
            return None
        own = self.corpus.restrict(plan.languages)
        return text_for(self.checkpoint, own, request=plan.calibration.request)


def method_of(scores: Scores) -> tuple[str, int] | None:
    """Returns variant and width of what a bench has measured; None if these are the scores of a checkpoint."""
    start = f"{scores.reference.target}, "
    found = IN_PLACE.fullmatch(scores.quantized.target.removeprefix(start))
    own = scores.quantized.target.startswith(start)
    return (found[1], int(found[2])) if own and found is not None else None


def corpus_for(checkpoint: Checkpoint, *, languages: Iterable[str] | None, text: str | Path | Corpus | None) -> Corpus:
    """Returns the text of two languages or more to compare them on.

    Without languages and text the embedded declaration is used, for the embedded model in its own languages.
    """
    own = embedded_languages(checkpoint.target) if languages is None and text is None else languages
    corpus = open_corpus(text, own)
    if len(corpus.evaluation) < 2:
        raise InputError(
            f"the text of {corpus.name} has one language, {next(iter(corpus.evaluation), 'none')}; "
            "what is compared is languages: name two or more"
        )
    return corpus
