"""What is evaluated: the two models, the task, and the text they read."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from fairbits.core.records import Code, Count, Digest, Positive, Split
from fairbits.models.architecture.architecture import Task
from fairbits.text.corpus import Corpus, TextRequest

if TYPE_CHECKING:
    from fairbits.models.checkpoint import Checkpoint

TASK_NAMES: Mapping[Task, str] = {
    "causal": "every token, given those before it",
    "masked": "masked tokens, given all the others (pseudo-likelihood: not the probability of the text)",
    "completion": "the second half of every text, given the first, the true tokens before each one (teacher forcing)",
    "transcription": "the transcript of every clip, given its sound, the true tokens before each one (teacher forcing)",
}
"""What the model predicts in each task, for readers."""


@dataclass(frozen=True)
class Identity:
    """A model: its name as given, the SHA-256 of configuration and weights, its bytes on disk, and its KV cache.

    `kv_cache` is the type that keys and values were rounded to, if one was chosen for the evaluation. Of a model that a
    server computes, the hash is of what the server says of itself, and the bytes are 0: not known.
    """

    target: str
    fingerprint: Digest
    size_bytes: Count
    kv_cache: str | None = None

    @classmethod
    def of(cls, checkpoint: "Checkpoint") -> "Identity":
        return cls(checkpoint.target, checkpoint.fingerprint, checkpoint.size_bytes, checkpoint.kv_cache)

    @property
    def name(self) -> str:
        """The model as readers see it, with its KV cache."""
        return self.target if self.kv_cache is None else f"{self.target}, KV cache {self.kv_cache}"

    def as_data(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True)
class EvaluationSetting:
    """What both models were evaluated on: the task, the text by the hash of each language, and how much of it.

    Where documents were `joined`, what scores call a document is a window of them. `all_text`: files of text were read
    whole, and nothing was kept for calibration.
    """

    task: Task
    corpus: str
    split: Split
    parallel: bool
    hashes: Mapping[Code, Digest]
    tokens: Positive
    sequence: Positive
    seed: Count
    source: str | None = field(default=None, compare=False)
    joined: bool = False
    all_text: bool = False

    def as_data(self) -> dict[str, Any]:
        """Returns the entries of a file; what was not asked for is left out."""
        optional = ("source", "joined", "all_text")
        return {name: value for name, value in asdict(self).items() if name not in optional or value}

    @property
    def part(self) -> str:
        """Which part of the text was read."""
        return "all of it" if self.all_text else f"its {self.split} half"

    @property
    def unit(self) -> str:
        """What intervals are over."""
        return "window" if self.joined else "document"

    @classmethod
    def of(cls, checkpoint: "Checkpoint", corpus: Corpus, request: TextRequest) -> "EvaluationSetting":

        return cls(
            task=checkpoint.task,
            corpus=corpus.name,
            split=request.split,
            parallel=corpus.parallel and not request.joined,
            hashes=dict(corpus.hashes[request.split]),
            source=corpus.source,
            joined=request.joined,
            all_text=corpus.source is not None and not any(corpus.calibration.values()),
            **request.settings,
        )
