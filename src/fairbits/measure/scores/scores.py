"""Scores: the cost of quantization for every document of every language, and the results computed from it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fairbits.artifacts import check_writable, write_files
from fairbits.checks import Floats, instance, one_of
from fairbits.errors import InputError
from fairbits.language import Corpus
from fairbits.language.text_request import TextRequest
from fairbits.measure.passes.prepare import task_of
from fairbits.measure.passes.text import Task, Text
from fairbits.measure.scores.answers import Answers
from fairbits.measure.scores.disparity import Disparity, disparity
from fairbits.measure.scores.scores_file import by_line
from fairbits.model.checkpoint import Checkpoint
from fairbits.records import Column, Count, Kind, NonNegative
from fairbits.stats import Contrast, Estimate, LanguageFrame
from fairbits.units import UNITS, bits_per_byte
from fairbits.version import __version__

Sums = Annotated[Floats, Column(NonNegative)]
TASK_NAMES: Mapping[Task, str] = {
    "causal": "every token, given those before it",
    "masked": "masked tokens, given all the others (pseudo-likelihood: not the probability of the text)",
    "completion": "the second half of every text, given the first, the true tokens before each one (teacher forcing)",
}
"""What the model predicts in each task, for readers."""
SIGNIFICANT = 0.05
SUMMARY = "fairbits.summary/1"
"""The schema of `Scores.summary`: results without the documents, which cannot be loaded as a file of scores."""


@dataclass(frozen=True)
class Identity:
    """A model: its name as given, the SHA-256 of configuration and weights, and the bytes of its tensors on disk."""

    target: str
    fingerprint: str
    size_bytes: int

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> "Identity":
        """Returns the identity of a checkpoint; reads all of its bytes."""
        size = sum(info.nbytes for info in checkpoint.tensors.values())
        return cls(checkpoint.target, checkpoint.fingerprint, size)


@dataclass(frozen=True)
class EvaluationSetting:
    """What both models were evaluated on: the task, the text by the hash of each language, and how much of it."""

    task: Task
    corpus: str
    split: str
    parallel: bool
    hashes: Mapping[str, str]
    tokens: int
    sequence: int
    seed: int

    @classmethod
    def of(cls, checkpoint: Checkpoint, corpus: Corpus, request: TextRequest) -> "EvaluationSetting":
        """Returns the setting in which a model is evaluated on the requested text of a corpus."""
        return cls(
            task=task_of(checkpoint),
            corpus=corpus.name,
            split=request.split,
            parallel=corpus.parallel,
            hashes=dict(corpus.hashes[request.split]),
            **request.settings,
        )


@dataclass(frozen=True, eq=False)
class DocumentScores:
    """One entry per document and language; sums over its predicted tokens, losses and divergence in nats."""

    lang: Annotated[NDArray[np.str_], Column(str)]
    document: Annotated[NDArray[np.int64], Column(Count)]
    tokens: Sums
    bytes: Sums
    nll_reference: Sums
    nll_quantized: Sums
    kl: Sums
    flips: Sums

    def __post_init__(self) -> None:
        """Checks that every column has an entry for every document."""
        for name, column in self.columns().items():
            if len(column) != len(self.lang) or not len(column):
                raise InputError(f"{name} has {len(column)} entries and lang has {len(self.lang)}; they must agree")

    def columns(self) -> dict[str, NDArray[Any]]:
        """Returns the columns by their names."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True, eq=False)
class Scores:
    """A quantized model compared with its reference model, on the same text.

    `kl_p99` is the 99th percentile of the divergence of single tokens, by language.
    """

    quantized: Identity
    reference: Identity
    question: EvaluationSetting
    languages: tuple[str, ...]
    documents: DocumentScores
    kl_p99: Mapping[str, float]
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks that all parts have the same languages."""
        for name, found in (("the documents", set(self.documents.lang.tolist())), ("kl_p99", set(self.kl_p99))):
            odd = sorted(found ^ set(self.languages))
            if odd:
                raise InputError(f"{name} and languages differ in {odd[0]!r:.60}; both must name the same languages")

    @classmethod
    def of(
        cls,
        answers: Answers,
        text: Text,
        *,
        quantized: Identity,
        reference: Identity,
        question: EvaluationSetting,
        notes: tuple[str, ...] = (),
    ) -> "Scores":
        """Returns the scores from the answers of both models on a text."""
        language = text.language_of[answers.token_document]
        p99 = {code: float(np.quantile(answers.token_kl[language == i], 0.99)) for i, code in enumerate(text.languages)}
        documents = DocumentScores(
            lang=text.lang,
            document=text.document.astype(np.int64),
            tokens=answers.predicted,
            bytes=text.size_bytes,
            nll_reference=answers.nll_reference,
            nll_quantized=answers.nll_quantized,
            kl=answers.kl,
            flips=answers.flips,
        )
        return cls(quantized, reference, question, text.languages, documents, p99, notes)

    def frame(self, unit: str = "bits_per_byte") -> LanguageFrame:
        """Returns the added loss of every language, with intervals over documents.

        "nats_per_section" is the cost of the same content in each language, so the text must be parallel.
        """
        check_unit(unit, corpus=self.question.corpus, parallel=self.question.parallel)
        if unit not in self._frames:
            own = self.documents
            self._frames[unit] = LanguageFrame.from_nll(
                own.lang,
                own.document,
                reference=own.nll_reference,
                quantized=own.nll_quantized,
                tokens=own.tokens,
                size_bytes=own.bytes,
                unit=unit,
            )
        return self._frames[unit]

    @cached_property
    def relative_perplexity(self) -> dict[str, Estimate]:
        """The founding documents' D: perplexity per token of the quantized model over that of the reference, less 1.

        D = exp(ΔNLL per token) − 1. Comparable only within a language: a token holds different amounts of text in
        different languages.
        """
        return {
            code: Estimate(float(np.expm1(each.value)), float(np.expm1(each.low)), float(np.expm1(each.high)), each.n)
            for code, each in self.frame("nats_per_token").by_language().items()
        }

    @cached_property
    def kl(self) -> dict[str, Estimate]:
        """The mean divergence KL(p_reference ‖ p_quantized) per token, in nats."""
        return self._per_token(self.documents.kl, "nats_per_token")

    @cached_property
    def flips(self) -> dict[str, Estimate]:
        """The share of tokens at which the quantized model prefers another token to the reference's first choice."""
        return self._per_token(self.documents.flips, "ratio")

    def disparity(self, unit: str = "bits_per_byte") -> Disparity:
        """Returns how unequal the added loss is."""
        return disparity(self.frame(unit))

    def contrast(self, baseline: "Scores", *, unit: str = "bits_per_byte") -> Contrast:
        """Returns this added loss minus the baseline's of every language, paired by document, with Holm p values."""
        self.check_same_text(baseline)
        return self.frame(unit).contrast(baseline.frame(unit))

    def worse_than(
        self, baseline: "Scores", *, unit: str = "bits_per_byte", level: float = SIGNIFICANT
    ) -> dict[str, Estimate]:
        """Returns how much more languages lose than under the baseline, where the difference is significant.

        Significant: the paired contrast is above 0 and its Holm-corrected two-sided p value is below `level`.
        """
        sure = self.contrast(baseline, unit=unit).significant(level)
        return {code: each for code, each in sure.items() if each.value > 0}

    def check_same_text(self, other: "Scores") -> None:
        """Raises unless both were measured on the same text, cut the same way."""
        mine, theirs = self.question, instance("the baseline", other, Scores).question
        for name in ("task", "split", "parallel", "hashes", "tokens", "sequence", "seed"):
            if getattr(mine, name) != getattr(theirs, name):
                raise InputError(
                    f"{self.quantized.target} and {other.quantized.target} were measured on different text ({name} "
                    "differs); a paired comparison needs the same text: evaluate both with the same settings"
                )
        if not np.array_equal(self.documents.tokens, other.documents.tokens):
            raise InputError(
                f"{self.quantized.target} and {other.quantized.target} cut the same text into different tokens; "
                "a paired comparison needs the same tokenizer"
            )

    def summary(self) -> dict[str, Any]:
        """Returns all results with their intervals, for JSON."""
        units = UNITS if self.question.parallel else UNITS[:2]
        return {
            "schema": SUMMARY,
            "fairbits": __version__,
            "quantized": asdict(self.quantized),
            "reference": asdict(self.reference),
            "question": asdict(self.question) | {"asked": TASK_NAMES[self.question.task]},
            "languages": {code: self._language(code, units) for code in self.languages},
            "disparity": {unit: self.disparity(unit).as_data() for unit in units},
            "notes": list(self.notes),
        }

    def as_bytes(self) -> bytes:
        """Returns the content of its file."""
        content = {
            **{name: asdict(getattr(self, name)) for name in ("quantized", "reference", "question")},
            "languages": list(self.languages),
            "kl_p99": dict(self.kl_p99),
            "notes": list(self.notes),
            "documents": {name: column.tolist() for name, column in self.documents.columns().items()},
        }
        return by_line(SCORES.stamp(content))

    def save(self, path: str | Path) -> None:
        """Writes the scores as JSON; the same scores give the same bytes."""
        write_files({check_writable(path, example="scores.json"): self.as_bytes()})

    @classmethod
    def load(cls, path: str | Path) -> "Scores":
        """Returns the scores in a file; unknown keys are errors."""
        return SCORES.read(path)

    @cached_property
    def _frames(self) -> dict[str, LanguageFrame]:
        return {}

    def _per_token(self, values: Floats, unit: str) -> dict[str, Estimate]:
        own = self.documents
        return LanguageFrame(own.lang, own.document, values=values, weights=own.tokens, unit=unit).by_language()

    def _language(self, code: str, units: tuple[str, ...]) -> dict[str, Any]:
        rows = self.documents.lang == code
        added = {unit: self.frame(unit).by_language()[code].to_dict() for unit in units}
        before = float(bits_per_byte(self.documents.nll_reference[rows].sum(), self.documents.bytes[rows].sum()))
        return {
            "documents": int(rows.sum()),
            "tokens": int(self.documents.tokens[rows].sum()),
            "reference_bits_per_byte": before,
            "added": added,
            "relative_perplexity": self.relative_perplexity[code].to_dict(),
            "kl": self.kl[code].to_dict(),
            "kl_p99": self.kl_p99[code],
            "flips": self.flips[code].to_dict(),
        }


SCORES = Kind("fairbits.scores/1", "a file of scores", "fairbits evaluate --out", Scores)


def check_unit(unit: str, *, corpus: str, parallel: bool) -> str:
    """Returns the unit if it applies to the text: sections need the same content in all languages."""
    if one_of("unit", unit, UNITS) == "nats_per_section" and not parallel:
        raise InputError(
            f"the text of {corpus} is not parallel, so there is no section that all languages have; "
            "the unit must be bits_per_byte or nats_per_token"
        )
    return unit
