"""Own thresholds: a copy of the weights for every language, clipped for it alone, compared with one copy for all."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fairbits.stats.frame import Contrast, LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import LanguageGap, documents_needed
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, damage_cells, language_values
from fairbits_research.experiments.result import (
    Answer,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    describe,
    estimate_text,
)

FEW = 8
"""Up to this many languages are also tried at 4 bits: every language takes a run per width."""
RELEVANT = 0.2
"""Share of the gap of the shared copy; if it cannot fall by this much, own copies are not worth their memory."""

BASELINES = ("shared copy", "clip without text", "formula of κ")


@dataclass(frozen=True, eq=False)
class Copies:
    """The damage at one width to every language: with its own copy, and with the baselines."""

    separate: LanguageFrame
    baselines: Mapping[str, LanguageFrame]

    @property
    def shared(self) -> LanguageFrame:
        """The damage with one copy, clipped for the mean of all languages."""
        return self.baselines[BASELINES[0]]

    @property
    def gap(self) -> Estimate:
        """The gap with own copies minus that with the shared one; negative if own copies reduce it."""
        return LanguageGap.of(self.separate).minus(LanguageGap.of(self.shared))

    @property
    def answer(self) -> Answer:
        """Whether own copies reduce the gap."""
        return is_reduced(self.gap, LanguageGap.of(self.shared).estimate.value)


def own_thresholds(laboratory: Laboratory) -> Result:
    """Returns the result: does a copy of the weights for each language reduce disparity?"""
    lab = laboratory.lab()
    widths = (3, 4) if len(lab.languages) <= FEW else (3,)
    copies = {bits: _copies(lab, bits) for bits in widths}
    first = copies[3]
    better, worse = _sides(first.separate.contrast(first.shared))
    n = len(lab.languages)
    return describe(
        "own-thresholds",
        design=(
            f"{n} copies at {' and '.join(map(str, widths))} bits, each with the clip of least error, weighted by "
            "E[x²] of one language; a language is evaluated with its own copy. Baselines: one copy weighted by the "
            "mean of all languages, the exact clip without text, and the documents' formula of κ. Paired by document; "
            "supported if the interval of the difference lies below 0, not supported if it lies above 0 or excludes a "
            f"reduction by {RELEVANT:.0%}."
        ),
        subject=laboratory.subject(bits=list(widths)),
        answer=first.answer,
        verdict=(
            f"At 3 bits own copies instead of one shared copy change the gap by {estimate_text(first.gap)} bits per "
            f"byte, from {estimate_text(first.shared.gap())}: {SAYING[first.answer]}."
        ),
        meaning=(
            f"{n} copies take {n} times the memory; own copies change the worst damage by "
            f"{estimate_text(first.separate.worst_minus(first.shared))} bits per byte, and {better} of {n} languages "
            f"gain significantly and {worse} lose: {_advice(first)}."
        ),
        tables=(_table(copies), _differences(copies)),
        figure=_figure(first),
        power=documents_needed({"gap, 3 bits": first.gap}) if first.answer is Answer.UNDECIDED else "",
    )


SAYING = {
    Answer.SUPPORTED: "own copies reduce it",
    Answer.NOT_SUPPORTED: "own copies do not reduce it by a relevant amount",
    Answer.UNDECIDED: "whether own copies reduce it is undecided",
}


def each_from_own_copy(frames: Mapping[str, LanguageFrame]) -> LanguageFrame:
    """Returns the damage of every language with its own copy, given the frames of all copies by language."""
    first = next(iter(frames.values()))
    values = first.values.copy()
    for code, frame in frames.items():
        rows = first.lang == code
        values[rows] = frame.values[rows]
    return replace(first, values=values)


def is_reduced(difference: Estimate, before: float) -> Answer:
    """Returns whether a gap is reduced, given its change and its value before."""
    if difference.high < 0:
        return Answer.SUPPORTED
    return Answer.NOT_SUPPORTED if difference.low > min(0.0, -RELEVANT * before) else Answer.UNDECIDED


def _copies(lab: ModelLab, bits: int) -> Copies:
    copies = {}
    for i, code in enumerate(lab.languages):
        lab.report(f"copies at {bits} bits", i, len(lab.languages) + len(BASELINES))
        copies[code] = lab.policy_damage("laaciq", bits, language=code)
    lab.report("baselines", len(lab.languages), len(lab.languages) + len(BASELINES))
    baselines = (
        lab.policy_damage("weighted", bits),
        lab.rounding_damage(bits, clip="exact"),
        lab.policy_damage("kappa", bits),
    )
    return Copies(each_from_own_copy(copies), dict(zip(BASELINES, baselines, strict=True)))


def _sides(contrast: Contrast) -> tuple[int, int]:
    """Returns how many languages have significantly less damage, and how many significantly more."""
    signs = np.sign([change.value for change in contrast.significant().values()])
    return int((signs < 0).sum()), int((signs > 0).sum())


def _advice(copies: Copies) -> str:
    if copies.answer is Answer.SUPPORTED:
        return "where memory does not matter, own copies make languages more equal"
    return "one copy weighted by all languages is the better use of memory"


def _table(copies: Mapping[int, Copies]) -> ResultTable:
    rows = []
    for bits, damages in copies.items():
        for what, frame in {"own copies": damages.separate, **damages.baselines}.items():
            rows.append((bits, what, *damage_cells(frame)))
    return ResultTable("Added bits per byte", ("bits", "copies", "worst language", "worst", "mean", "gap"), tuple(rows))


def _differences(copies: Mapping[int, Copies]) -> ResultTable:
    rows = []
    for bits, damages in copies.items():
        for what, frame in damages.baselines.items():
            better, worse = _sides(damages.separate.contrast(frame))
            gap = LanguageGap.of(damages.separate).minus(LanguageGap.of(frame))
            mean = damages.separate.minus(frame).mean()
            numbers = estimate_text(damages.separate.worst_minus(frame)), estimate_text(mean), estimate_text(gap)
            rows.append((bits, what, *numbers, better, worse))
    columns = ("bits", "against", "worst", "mean", "gap", "languages better", "languages worse")
    return ResultTable("Own copies minus a baseline; number of significant languages (Holm)", columns, tuple(rows))


def _figure(copies: Copies) -> ResultFigure:
    separate = copies.separate.by_language()
    shared = tuple(language_values(copies.shared).tolist())
    return ResultFigure(
        "Damage with own copies and with one for all, 3 bits",
        "shared copy, bits per byte",
        "own copy, bits per byte",
        (
            Series.of_estimates("languages", shared, separate.values(), separate),
            Series("own = shared", *(tuple(sorted(shared)),) * 2),
        ),
    )
