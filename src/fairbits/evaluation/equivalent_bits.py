"""Equivalent bits: at how many bits plain quantization would have cost a language as much."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.records import Amount, Code, Column, Count, Matching, Name, TriedBits, check_same_keys
from fairbits.evaluation.setting import EvaluationSetting
from fairbits.stats.crossing import CriticalBits, crossing
from fairbits.stats.frame import LanguageFrame
from fairbits.text.language_codes import short_name

LEAST = 1e-30  # of a divergence, so that it can be divided by
WidthText = Annotated[str, Matching("[2-9]|1[0-6]", "a width in bits, 2 to 16")]
Amounts = Annotated[Floats, Column(Amount)]


@dataclass(frozen=True, eq=False)
class SweptDamage:
    """The damage of every document at every width of a sweep; widths are text, as in JSON.

    The damage of a language is Σ values / Σ weights over its documents.
    """

    setting: EvaluationSetting = field(metadata={"alias": "question"})
    lang: Annotated[NDArray[np.str_], Column(Code)]
    document: Annotated[NDArray[np.int64], Column(Count)]
    weights: Amounts
    values: Mapping[WidthText, Amounts]

    def __post_init__(self) -> None:
        for name, column in {"document": self.document, "weights": self.weights, **self.values}.items():
            if len(column) != len(self.lang) or not len(column):
                raise InputError(f"{name} has {len(column)} entries and lang has {len(self.lang)}; they must agree")
        check_same_keys("lang", self.lang.tolist(), "question.hashes", self.setting.hashes)

    @classmethod
    def of(cls, setting: EvaluationSetting, frames: Mapping[int, LanguageFrame]) -> "SweptDamage":
        frame = next(iter(frames.values()))
        values = {str(bits): other.values for bits, other in frames.items()}
        document = np.asarray(frame.document, dtype=np.int64)
        return cls(setting, frame.lang, document, frame.weights, values)

    def as_data(self) -> dict[str, Any]:
        """Returns the content of the file."""
        return {
            "question": self.setting.as_data(),
            **{name: getattr(self, name).tolist() for name in ("lang", "document", "weights")},
            "values": {bits: column.tolist() for bits, column in self.values.items()},
        }

    def frames(self, unit: str) -> dict[int, LanguageFrame]:
        """Returns the damage of every language by width, rising."""
        return {
            int(bits): LanguageFrame(
                self.lang, self.document, values=self.values[bits], weights=self.weights, unit=unit, least=0.0
            )
            for bits in sorted(self.values, key=int)
        }

    def check(self, setting: EvaluationSetting) -> None:
        """Raises unless scores on this text can be compared with the sweep."""
        for name in ("task", "split", "hashes", "tokens", "sequence", "seed", "joined"):
            if getattr(self.setting, name) != getattr(setting, name):
                raise InputError(
                    f"the sweep was measured on other text ({name} differs); sweep with the same text and settings"
                )


@dataclass(frozen=True)
class EquivalentBits:
    """For every language, the width at which a policy has the same divergence on the same text; both ends are open."""

    policy: Name
    bits: tuple[TriedBits, ...]
    languages: Mapping[Code, CriticalBits]

    def __post_init__(self) -> None:
        if len(self.bits) < 2 or list(self.bits) != sorted(set(self.bits)):
            raise InputError(f"equivalent_bits.bits is {list(self.bits)}; it must be two widths or more, rising")

    @classmethod
    def of(cls, frame: LanguageFrame, policy: str, widths: Mapping[int, LanguageFrame]) -> "EquivalentBits":
        """Returns where the divergence of `frame` lies among those of a policy at several widths, rising.

        The intervals are from resamples of documents, the same ones for the model and for every width.
        """
        bits, frames = list(widths), list(widths.values())
        for other in frames:
            same = (getattr(frame, name) for name in ("lang", "document", "weights"))
            if not all(map(np.array_equal, same, (other.lang, other.document, other.weights))):
                raise InputError("the sweep was measured on other documents than these scores; sweep on the same text")
        mine = frame.by_language()
        curves = [other.by_language() for other in frames]
        at = {
            code: crossing(bits, [curve[code].value / max(mine[code].value, LEAST) for curve in curves], 1.0).item()
            for code in frame.languages
        }
        widths_of = {code: CriticalBits(value, bits[0], bits[-1]) for code, value in at.items()}
        if frame.replicates.languages:
            drawn = np.maximum(frame.replicates.value + frame.replicates.deviation, LEAST)
            curve = np.stack([f.replicates.value + f.replicates.deviation for f in frames], axis=-1)
            tail = 50 * (1 - frame.confidence)
            low, high = np.percentile(crossing(bits, curve / drawn[..., None], 1.0), [tail, 100 - tail], axis=0)
            for code, a, b in zip(frame.replicates.languages, low.tolist(), high.tolist(), strict=True):
                widths_of[code] = CriticalBits(at[code], min(at[code], a), max(at[code], b))
        return cls(policy, tuple(bits), widths_of)

    @property
    def worst(self) -> str:
        """The language with the fewest equivalent bits."""
        return min(self.languages, key=lambda code: self.languages[code].value)

    @property
    def sentence(self) -> str:
        """For example: Finnish loses as much as it would under gptq at 3.6 bits [3.4, 3.8]."""
        code = self.worst
        return (
            f"{short_name(code)} loses as much as it would under {self.policy} at "
            f"{self.languages[code].text(self.bits)} bits; no language more."
        )
