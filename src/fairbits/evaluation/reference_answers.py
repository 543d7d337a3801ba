"""ReferenceAnswers: a model's answers on a text before quantization, and scores of quantized models against them."""

from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING

from fairbits.core.progress import Progress
from fairbits.evaluation.divergence import compare_models
from fairbits.evaluation.reference import Reference
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import EvaluationSetting, Identity
from fairbits.forward.tokenize import estimated_size_notes, short_text_notes, tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import Corpus
from fairbits.text.text_request import TextRequest

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class ReferenceAnswers:
    """The answers of the reference model on a text; the model itself is not kept in memory.

    Use it in a `with` statement: the answers are in a temporary file.

    `setting`    what every model is evaluated on
    `identity`   the reference model
    `reference`  its answers
    `notes`      what a reader of any result must know about text and answers
    """

    setting: EvaluationSetting
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
    ) -> "ReferenceAnswers":
        """Returns the answers of a model, after one pass over the requested text."""
        setting = EvaluationSetting.of(checkpoint, corpus, request)
        text = tokenize_corpus(checkpoint, corpus, request=request, least=1)
        short = short_text_notes(text, request, parallel=corpus.parallel)
        on_text = (*short, *estimated_size_notes(text.estimated, len(text.lang)))
        identity = Identity.of(checkpoint)
        reference = Reference.of(checkpoint, text, device=device, progress=progress)
        return cls(setting, identity, reference, (*corpus.notes, *on_text, *reference.notes))

    def scores(
        self,
        model: "PreTrainedModel | Checkpoint",
        quantized: Identity,
        *,
        notes: tuple[str, ...] = (),
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> Scores:
        """Returns the scores of a quantized model, loaded or not; `notes` are those of the models and come first."""
        answers = compare_models(model, self.reference, device=device, progress=progress)
        return Scores.of(
            answers,
            self.reference.text,
            quantized=quantized,
            reference=self.identity,
            setting=self.setting,
            notes=(*notes, *answers.notes, *self.notes),
        )

    def __enter__(self) -> "ReferenceAnswers":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.reference.close()
