"""GeneratedText: how both models continue the same beginnings of documents, in every language.

An answer is wrong if it is in another language than its prompt, as far as the detector can tell (`text/detect.py`). It
is a loop if the model would go on repeating itself, and empty if no character of it is visible. Items are documents:
each is continued by both models, so that differences are paired, and have Tango's score interval (`stats/outcomes.py`);
the share of one model has Wilson's.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.records import Code, Column, Count, Positive
from fairbits.core.table import Cell, NumberFormat, Table, dim
from fairbits.stats.frame import worst_first
from fairbits.stats.intervals import Estimate
from fairbits.stats.outcomes import OutcomeFrame, share_estimate
from fairbits.text.language_codes import short_name

Flags = Annotated[NDArray[np.int64], Column(Annotated[int, Ge(0), Le(1)])]
Detected = Annotated[NDArray[np.str_], Column(Literal[""] | Code)]
Side = Literal["reference", "quantized"]
SIDES: tuple[Side, ...] = ("reference", "quantized")
KINDS = ("wrong", "loop", "empty")
NAMED = 2  # other languages that a table names
LEGEND = (
    "Of 100 answers, with the reference → with the quantized model. Wrong: in another language than the prompt, and in "
    "which; in parentheses, what quantization adds, with 95 % intervals over documents. Loop: it repeats itself up to "
    "the limit; * is more than chance explains. Detector: of 100 true continuations as long as the answers, those "
    "taken for another language."
)


@dataclass(frozen=True, eq=False)
class GeneratedText:
    """One entry per document and language; languages are "" where a text is too short to tell.

    `language_true` is detected in the document's own continuation, as long as the quantized model's answer.
    """

    new_tokens: Positive
    prompt_tokens: Positive
    lang: Annotated[NDArray[np.str_], Column(Code)]
    document: Annotated[NDArray[np.int64], Column(Count)]
    language_reference: Detected
    language_quantized: Detected
    language_true: Detected
    loop_reference: Flags
    loop_quantized: Flags
    empty_reference: Flags
    empty_quantized: Flags

    def __post_init__(self) -> None:
        for name, column in self.columns().items():
            if len(column) != len(self.lang) or not len(column):
                raise InputError(f"{name} has {len(column)} entries and lang has {len(self.lang)}; they must agree")
        if len({*zip(self.lang.tolist(), self.document.tolist(), strict=True)}) < len(self.lang):
            raise InputError("a document of a language occurs twice; each must occur once")

    def columns(self) -> dict[str, NDArray[Any]]:
        """Returns what has one entry per document and language."""
        return {field.name: getattr(self, field.name) for field in fields(self)[2:]}

    def as_record(self) -> dict[str, Any]:
        """Returns the content of the file."""
        lists = {name: column.tolist() for name, column in self.columns().items()}
        return {"new_tokens": self.new_tokens, "prompt_tokens": self.prompt_tokens, **lists}

    @property
    def languages(self) -> tuple[str, ...]:
        return self.added["wrong"].languages

    @cached_property
    def added(self) -> Mapping[str, OutcomeFrame]:
        """The share of answers of every kind that quantization adds: positive is worse."""
        return {
            kind: OutcomeFrame(
                self.lang,
                self.document,
                values=self.flags(kind, "quantized") - self.flags(kind, "reference"),
                weights=np.ones(len(self.lang)),
                unit="per_item",
            )
            for kind in KINDS
        }

    def grows(self, kind: str, code: str) -> bool:
        """Whether quantization certainly adds answers of a kind in one language."""
        return self.added[kind].by_language()[code].low > 0

    def share(self, kind: str, side: Side, code: str) -> Estimate:
        """Returns the share of answers of a kind in one language, with one of the models."""
        here = self.flags(kind, side)[self.lang == code]
        return share_estimate(int(here.sum()), len(here))

    def flags(self, kind: str, side: Side) -> Floats:
        """Returns 1 for every answer of a kind, else 0."""
        if kind != "wrong":
            return np.asarray(getattr(self, f"{kind}_{side}"), dtype=np.float64)
        return self._is_other(getattr(self, f"language_{side}")).astype(np.float64)

    def detector_errors(self, code: str) -> tuple[int, int]:
        """Returns how many true continuations are taken for another language, and how many are long enough to tell."""
        here = self.lang == code
        return int(self._is_other(self.language_true)[here].sum()), int((self.language_true[here] != "").sum())

    def instead(self, code: str, side: Side) -> dict[str, int]:
        """Returns the other languages of answers to prompts in one language, the most frequent first."""
        detected = getattr(self, f"language_{side}")
        return dict(Counter(detected[self._is_other(detected) & (self.lang == code)].tolist()).most_common())

    def as_data(self) -> dict[str, Any]:
        """Returns the results of every language, for JSON."""
        worst, most = self.added["wrong"].worst()
        return {
            "new_tokens": self.new_tokens,
            "prompt_tokens": self.prompt_tokens,
            "worst": {"language": worst, **most.to_dict()},
            "languages": {code: self._language(code) for code in self.languages},
        }

    def _language(self, code: str) -> dict[str, Any]:
        errors, checked = self.detector_errors(code)
        kinds = {
            kind: {side: self.share(kind, side, code).to_dict() for side in SIDES}
            | {"added": self.added[kind].by_language()[code].to_dict()}
            for kind in KINDS
        }
        return {
            "answers": int((self.lang == code).sum()),
            **kinds,
            "instead": {side: self.instead(code, side) for side in SIDES},
            "detector": {"errors": errors, "checked": checked},
        }

    def table(self) -> Table:
        """Returns the answers of every language, first where quantization adds most in another language."""
        added, number = self.added["wrong"].by_language(), NumberFormat(1.0, factor=100.0, decimals=1)
        rows = []
        for code in worst_first(added):
            cells: list[Cell] = [short_name(code), dim(code), f"{added[code].n}", self._both("wrong", code)]
            others = [short_name(other) for other in self.instead(code, "quantized")]
            errors, checked = self.detector_errors(code)
            cells += [number.estimate(added[code]), ", ".join(others[:NAMED]) or "–"]
            cells += [self._both(kind, code) + "*" * self.grows(kind, code) for kind in ("loop", "empty")]
            rows.append((*cells, f"{100 * errors / checked:.0f}" if checked else "–"))
        headers = ("language", "code", "n", "wrong", "added (95 % interval)", "in", "loop", "empty", "detector")
        title = f"Generated text: up to {self.new_tokens} tokens after beginnings of documents"
        return Table(title, headers, tuple(rows), (dim(LEGEND),), left=(1, 4, 5))

    def _both(self, kind: str, code: str) -> str:
        return " → ".join(f"{100 * self.share(kind, side, code).value:.0f}" for side in SIDES)

    def _is_other(self, detected: NDArray[np.str_]) -> NDArray[np.bool_]:
        other: NDArray[np.bool_] = (detected != "") & (detected != self.lang)
        return other
