"""Yardstick: what a model said to a text before anything was quantized; all that is made of it is held to that."""

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from fairbits.language import Corpus
from fairbits.measure.passes.prepare import task_of, text_for
from fairbits.measure.scores.asking import shortness
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
        split: str = "evaluation",
        tokens: int,
        sequence: int,
        seed: int = 0,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> "Yardstick":
        """Returns what a model says, after one pass over about `tokens` tokens per language of a split."""
        asked = question_of(checkpoint, corpus, split=split, tokens=tokens, sequence=sequence, seed=seed)
        text = text_for(checkpoint, corpus, split=split, tokens=tokens, sequence=sequence, seed=seed)
        short = shortness(text, tokens=tokens, parallel=corpus.parallel, split=split)
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


def question_of(
    checkpoint: Checkpoint, corpus: Corpus, *, split: str = "evaluation", tokens: int, sequence: int, seed: int = 0
) -> Question:
    """Returns what a model is asked on about `tokens` tokens per language of a split."""
    return Question(
        task=task_of(checkpoint),
        corpus=corpus.name,
        split=split,
        parallel=corpus.parallel,
        hashes=dict(corpus.hashes[split]),
        tokens=tokens,
        sequence=sequence,
        seed=seed,
    )
