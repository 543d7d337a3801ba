"""Yardstick: what a model said to a text before anything was quantized; all that is made of it is held to that."""

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from fairbits.language import Corpus
from fairbits.language.text_request import TextRequest
from fairbits.measure.passes.prepare import text_for
from fairbits.measure.scores.asking import short_text_notes
from fairbits.measure.scores.measure import measure
from fairbits.measure.scores.reference import Reference
from fairbits.measure.scores.scores import Identity, Question, Scores
from fairbits.model.checkpoint import Checkpoint
from fairbits.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class Yardstick:
    """The answers of a model to the text of a question; the model itself is not kept in memory.

    Use it in a `with` statement: the answers lie in a temporary file. `notes` say what a reader of any result must know
    of the text and the answers.
    """

    question: Question
    identity: Identity
    reference: Reference
    notes: tuple[str, ...]

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        corpus: Corpus,
        *,
        request: TextRequest,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> "Yardstick":
        """Returns what a model says, after one pass over the requested text."""
        asked = Question.of(checkpoint, corpus, request)
        text = text_for(checkpoint, corpus, request=request)
        short = short_text_notes(text, request, parallel=corpus.parallel)
        identity = Identity.of(checkpoint)
        reference = Reference.of(checkpoint, text, device=device, progress=progress)
        return cls(asked, identity, reference, (*corpus.notes, *short, *reference.notes))

    def scores(
        self,
        model: "PreTrainedModel",
        quantized: Identity,
        *,
        notes: tuple[str, ...] = (),
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> Scores:
        """Returns what a model in memory lost; `notes` are those of the models and come first."""
        return Scores.of(
            measure(model, self.reference, device=device, progress=progress),
            self.reference.text,
            quantized=quantized,
            reference=self.identity,
            question=self.question,
            notes=(*notes, *self.notes),
        )

    def __enter__(self) -> "Yardstick":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reference.close()
