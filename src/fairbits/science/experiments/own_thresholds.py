"""Own thresholds: a private copy of the weights for every language, clipped for it alone, against one copy for all."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from fairbits.science.experiments.gaps import Gap, needed
from fairbits.science.experiments.laboratory import Laboratory, ModelLab
from fairbits.science.experiments.result import Answer, Figure, Result, Series, Table, written
from fairbits.stats import Contrast, Estimate, LanguageFrame

NAME = "own-thresholds"
FEW = 8
"""So many languages are also tried at 4 bits: every language costs a run per width."""
RELEVANT = 0.2
"""Share of the gap of the shared copy; if it cannot fall by as much, own copies are not worth their memory."""

BASELINES = ("shared copy", "clip without text", "formula of κ")


@dataclass(frozen=True, eq=False)
class Copies:
    """What a width does to every language: with a copy of its own, and with the baselines."""

    own: LanguageFrame
    baselines: Mapping[str, LanguageFrame]

    @property
    def shared(self) -> LanguageFrame:
        """One copy, clipped for the mean of all languages."""
        return self.baselines[BASELINES[0]]

    @property
    def gap(self) -> Estimate:
        """Gap with own copies less that of the shared one; below 0: own copies reduce it."""
        return Gap.of(self.own).minus(Gap.of(self.shared))

    @property
    def answer(self) -> Answer:
        """Whether own copies reduce the gap."""
        return reduced(self.gap, Gap.of(self.shared).estimate.value)


def own_thresholds(laboratory: Laboratory) -> Result:
    """Does a private copy for each language reduce disparity?"""
    lab = laboratory.lab()
    widths = (3, 4) if len(lab.languages) <= FEW else (3,)
    copies = {bits: _copies(lab, bits) for bits in widths}
    first = copies[3]
    better, worse = _sides(first.own.contrast(first.shared))
    n = len(lab.languages)
    return Result(
        name=NAME,
        title="Thresholds of its own for every language",
        question="Does disparity fall if every language gets a copy of the weights with clip thresholds of its own?",
        predicted="It does: each language has a threshold of its own that suits it best, and one for all favours some.",
        design=(
            f"{n} copies at {' and '.join(map(str, widths))} bits, each with the clip of least error, weighted by "
            "E[x²] of one language; a language is judged by its own copy. Baselines: one copy weighted by the mean of "
            "all languages, the exact clip without text, and the documents' formula of κ. Paired by document; the gap "
            "is reduced if the difference lies below 0, and is not if it lies above 0 or a reduction by "
            f"{RELEVANT:.0%} lies outside its interval."
        ),
        subject=laboratory.subject(bits=list(widths)),
        answer=first.answer,
        verdict=(
            f"At 3 bits the gap with own copies less that of one shared copy is {written(first.gap)} bits per byte, "
            f"where the shared copy has {written(first.shared.gap())}: {SAYING[first.answer]}."
        ),
        meaning=(
            f"{n} copies take {n} times the memory; with its own copy the worst language differs by "
            f"{written(first.own.worst_minus(first.shared))} bits per byte, and beyond doubt "
            f"{better} of {n} languages gain and {worse} lose: {_advice(first)}."
        ),
        tables=(_table(copies), _differences(copies)),
        figure=_figure(first),
        power=needed({"gap, 3 bits": first.gap}) if first.answer is Answer.UNDECIDED else "",
    )


SAYING = {
    Answer.SUPPORTED: "own copies reduce it",
    Answer.NOT_SUPPORTED: "own copies do not reduce it to speak of",
    Answer.UNDECIDED: "whether own copies reduce it is open",
}


def own_copies(frames: Mapping[str, LanguageFrame]) -> LanguageFrame:
    """Returns the damage of every language from the frame of its own copy (language -> frame of all languages)."""
    first = next(iter(frames.values()))
    values = first.values.copy()
    for code, frame in frames.items():
        rows = first.lang == code
        values[rows] = frame.values[rows]
    return replace(first, values=values)


def reduced(difference: Estimate, before: float) -> Answer:
    """Returns whether a gap is reduced, given the difference to what it was before.

    >>> reduced(Estimate(-0.01, -0.02, 0.005, 40), 0.2).value  # at most a tenth
    'not supported'
    """
    if difference.high < 0:
        return Answer.SUPPORTED
    return Answer.NOT_SUPPORTED if difference.low > min(0.0, -RELEVANT * before) else Answer.UNDECIDED


def _copies(lab: ModelLab, bits: int) -> Copies:
    found = {}
    for i, code in enumerate(lab.languages):
        lab.tell(f"copies of {bits} bits", i, len(lab.languages) + len(BASELINES))
        found[code] = lab.planned("laaciq", bits, language=code)
    lab.tell("baselines", len(lab.languages), len(lab.languages) + len(BASELINES))
    others = lab.planned("weighted", bits), lab.rounded(bits, clip="exact"), lab.planned("kappa", bits)
    return Copies(own_copies(found), dict(zip(BASELINES, others, strict=True)))


def _sides(contrast: Contrast) -> tuple[int, int]:
    """Returns how many languages have less and how many have more damage beyond doubt."""
    signs = np.sign([each.value for each in contrast.significant().values()])
    return int((signs < 0).sum()), int((signs > 0).sum())


def _advice(copies: Copies) -> str:
    if copies.answer is Answer.SUPPORTED:
        return "where memory is no matter, own copies even languages out"
    return "one copy weighted by all languages is the better use of memory"


def _table(copies: Mapping[int, Copies]) -> Table:
    rows = []
    for bits, found in copies.items():
        for what, frame in {"own copies": found.own, **found.baselines}.items():
            code, worst = frame.worst()
            rows.append((bits, what, code, written(worst), written(frame.mean()), written(frame.gap())))
    return Table("Added bits per byte", ("bits", "copies", "worst language", "worst", "mean", "gap"), tuple(rows))


def _differences(copies: Mapping[int, Copies]) -> Table:
    rows = []
    for bits, found in copies.items():
        for what, frame in found.baselines.items():
            better, worse = _sides(found.own.contrast(frame))
            gap = Gap.of(found.own).minus(Gap.of(frame))
            mean = found.own.minus(frame).mean()
            numbers = written(found.own.worst_minus(frame)), written(mean), written(gap)
            rows.append((bits, what, *numbers, better, worse))
    columns = ("bits", "against", "worst", "mean", "gap", "languages better", "languages worse")
    return Table("Own copies less a baseline; languages beyond doubt (Holm)", columns, tuple(rows))


def _figure(copies: Copies) -> Figure:
    own, shared = copies.own.by_language(), copies.shared.by_language()
    return Figure(
        "Damage with a copy of its own and with one for all, 3 bits",
        "shared copy, bits per byte",
        "own copy, bits per byte",
        (
            Series(
                "languages",
                tuple(each.value for each in shared.values()),
                tuple(each.value for each in own.values()),
                tuple(each.low for each in own.values()),
                tuple(each.high for each in own.values()),
                tuple(own),
            ),
            Series("own = shared", *(tuple(sorted(each.value for each in shared.values())),) * 2),
        ),
    )
