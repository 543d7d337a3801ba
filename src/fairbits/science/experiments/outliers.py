"""Outliers: the same function with more and more extreme weights. Does disparity need them, and grow with them?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.measure.audit.founding_documents import LOW_KAPPA
from fairbits.model.scheme import Clip
from fairbits.science.experiments.gaps import Gap, needed
from fairbits.science.experiments.laboratory import Laboratory, ModelLab
from fairbits.science.experiments.result import (
    Answer,
    Figure,
    Judgement,
    Result,
    Series,
    Table,
    above,
    brief,
    every,
    written,
)
from fairbits.stats import Estimate, LanguageFrame, spearman

NAME = "outliers"
KAPPA = (20.0, 100.0, 500.0)
"""The κ that two blocks are given."""
BITS = (4, 3)
ABSMAX, EXACT, GPTQ = "absmax", "exact clip", "GPTQ"
QUANTIZERS: Mapping[str, Callable[[ModelLab, int], LanguageFrame]] = {
    ABSMAX: lambda lab, bits: lab.rounded(bits),
    EXACT: lambda lab, bits: lab.rounded(bits, clip="exact"),
    GPTQ: lambda lab, bits: lab.planned("gptq", bits),
}
CLIPS: Mapping[str, Clip] = {ABSMAX: "absmax", EXACT: "exact"}
DOUBT = 0.05
"""That several intervals share, where one of them would do."""


@dataclass(frozen=True)
class Run:
    """One model under one quantizer; `kappa` is the largest among its blocks that are rounded."""

    kappa: float
    quantizer: str
    bits: int
    worst: str
    gap: Gap
    spread: Estimate

    @classmethod
    def of(cls, kappa: float, frame: LanguageFrame, *, quantizer: str, bits: int) -> "Run":
        """Returns the run that a frame shows."""
        return cls(kappa, quantizer, bits, frame.worst()[0], Gap.of(frame), frame.spread())


def outliers(laboratory: Laboratory) -> Result:
    """Does disparity need outlier weights, and does it grow with the largest κ?"""
    own = laboratory.lab().kappa
    levels = knob(own)
    models = [*map(laboratory.with_outliers, levels), laboratory.setting.model]  # what follows asks the last again
    runs = list(_runs(laboratory, models))
    gentle = list(_gentle(laboratory.lab()))
    rises = {cell: row[-1].gap.minus(row[0].gap) for cell, row in _rows(runs).items()}
    judgements = (_causal(rises, runs), _ranking(_rows(runs)))
    least = every([no_gap(run.gap.estimate) for run in gentle])
    answer = every([least, *(each.answer for each in judgements)])
    seen = ", ".join(f"{written(run.gap.estimate)} ({run.quantizer}, {run.bits} bits)" for run in gentle)
    return Result(
        name=NAME,
        title="Disparity and outlier weights",
        question="Does disparity need outlier weights, and does it grow with the largest κ of a model?",
        predicted=f"No disparity where max κ is below {LOW_KAPPA:g}; the larger max κ, the more of it.",
        design=(
            f"Two blocks get κ {', '.join(f'{max(level.values()):g}' for level in levels)} by exact rescaling, at the "
            f"same function. Each is rounded to {' and '.join(map(str, BITS))} bits with α at the largest weight, with "
            "the α of least squared error, and by GPTQ on an equal mix. In the model as it is, also only the blocks "
            f"with κ below {LOW_KAPPA:g} are rounded. Disparity is worst less best language, less its noise bias, "
            f"n = {runs[0].gap.estimate.n} documents; differences between models by drawing the same documents."
        ),
        subject=laboratory.subject(bits=list(BITS), kappa=[float(each.kappa) for each in _rows(runs)[ABSMAX, BITS[0]]]),
        answer=answer,
        verdict=(
            f"With no rounded block above κ = {brief(gentle[0].kappa)} the gap is {seen} bits per byte; {_told(rises)}."
        ),
        meaning=_meaning(least, judgements),
        tables=(_table(runs), _gentle_table(gentle), _ranks(_rows(runs), rises)),
        figure=_figure(_rows(runs)),
        judgements=judgements,
        power=needed({f"{quantizer}, {bits} bits": rise for (quantizer, bits), rise in rises.items()}),
    )


def knob(kappa: Floats) -> list[dict[int, float]]:
    """Returns the κ that two blocks get in each variant: those above the largest that the model has."""
    blocks, most = {len(kappa) // 4, 7 * len(kappa) // 12}, float(kappa.max())
    levels = [each for each in KAPPA if each > most]
    if not levels:
        raise InputError(f"max κ is {most:.3g} already, and this experiment goes to {KAPPA[-1]:g}; give a model below")
    return [dict.fromkeys(sorted(blocks), each) for each in levels]


def no_gap(gap: Estimate) -> Answer:
    """Returns whether languages lose alike: not supported if the gap is beyond doubt; it is never shown to be 0."""
    return Answer.NOT_SUPPORTED if gap.low > 0 else Answer.UNDECIDED


def caused(rises: Mapping[tuple[str, int], Estimate]) -> Answer:
    """Returns whether outlier weights widen the gap whatever the quantizer: beyond doubt at every width of each.

    Not supported if they do at no width, or with α at the largest weight only.
    """
    wide = {cell for cell, rise in rises.items() if above(rise, 0.0) is Answer.SUPPORTED}
    if wide == set(rises):
        return Answer.SUPPORTED
    return Answer.NOT_SUPPORTED if {name for name, _ in wide} <= {ABSMAX} else Answer.UNDECIDED


def ranked(steps: Sequence[Estimate]) -> Answer:
    """Returns whether the gap widens with every step of κ; not supported if it narrows beyond doubt at one."""
    return every([above(step, 0.0) for step in steps])


def _runs(laboratory: Laboratory, models: Sequence[str]) -> Iterator[Run]:
    cells = [(name, bits) for name in QUANTIZERS for bits in BITS]
    for i, model in enumerate(models):
        lab = laboratory.lab(model)
        for j, (name, bits) in enumerate(cells):
            laboratory.tell("turning κ", i * len(cells) + j, len(models) * len(cells))
            yield Run.of(float(lab.kappa.max()), QUANTIZERS[name](lab, bits), quantizer=name, bits=bits)


def _gentle(lab: ModelLab) -> Iterator[Run]:
    """Yields the model with only its blocks of low κ rounded; of four looks, each has its share of the doubt."""
    low = [block for block, kappa in enumerate(lab.kappa) if kappa < LOW_KAPPA]
    if not low:
        raise InputError(f"no block has κ below {LOW_KAPPA:g}; this experiment needs a model with such blocks")
    cells = [(name, bits) for name in CLIPS for bits in BITS]
    for i, (name, bits) in enumerate(cells):
        lab.tell("rounding blocks of low κ", i, len(cells))
        frame = lab.rounded(dict.fromkeys(low, bits), clip=CLIPS[name])
        strict = replace(frame, confidence=1 - DOUBT / len(cells))
        yield Run.of(float(lab.kappa[low].max()), strict, quantizer=name, bits=bits)


def _rows(runs: Sequence[Run]) -> dict[tuple[str, int], list[Run]]:
    """The runs of each quantizer and width, in the order of max κ."""
    cells = dict.fromkeys((run.quantizer, run.bits) for run in runs)
    return {cell: sorted((r for r in runs if (r.quantizer, r.bits) == cell), key=lambda r: r.kappa) for cell in cells}


def _told(rises: Mapping[tuple[str, int], Estimate]) -> str:
    parts = [f"{written(rise)} ({name}, {bits} bits)" for (name, bits), rise in rises.items()]
    return f"outlier weights at an equal function change the gap by {', '.join(parts)}"


def _causal(rises: Mapping[tuple[str, int], Estimate], runs: Sequence[Run]) -> Judgement:
    low, high = min(run.kappa for run in runs), max(run.kappa for run in runs)
    because = f"from max κ {brief(low)} to {brief(high)} {_told(rises)} bits per byte"
    numbers = {f"rise_{name.replace(' ', '_').lower()}_{bits}_bits": rise.value for (name, bits), rise in rises.items()}
    return Judgement("001-02", caused(rises), because, numbers)


def _ranking(rows: Mapping[tuple[str, int], Sequence[Run]]) -> Judgement:
    """All steps of all quantizers and widths are looked at, so each has its share of the doubt."""
    count = sum(len(row) - 1 for row in rows.values())
    confidence = 1 - DOUBT / count
    steps = [b.gap.minus(a.gap, confidence=confidence) for row in rows.values() for a, b in pairwise(row)]
    up, down = (
        sum(above(each, 0.0) is answer for each in steps) for answer in (Answer.SUPPORTED, Answer.NOT_SUPPORTED)
    )
    because = (
        f"of {count} steps to a larger max κ at an equal function {up} widen the gap beyond doubt and {down} narrow it"
    )
    return Judgement("001-07", ranked(steps), because, {"steps": count, "widen": up, "narrow": down})


def _meaning(least: Answer, judgements: Sequence[Judgement]) -> str:
    causal, _ = judgements
    first = {
        Answer.NOT_SUPPORTED: "A low κ is no promise of equal treatment: measure every language.",
    }.get(least, "Whether a low κ is safe stays open: measure every language.")
    return f"{first} " + {
        Answer.SUPPORTED: "Outlier weights make it worse whatever the quantizer: look for them before quantizing.",
        Answer.NOT_SUPPORTED: "Outlier weights are seen to widen it with α at the largest weight at most.",
    }.get(causal.answer, "Whether outlier weights widen it under every quantizer stays open.")


def _table(runs: Sequence[Run]) -> Table:
    rows = [
        (r.quantizer, r.bits, brief(r.kappa), r.worst, written(r.gap.estimate), written(r.spread))
        for row in _rows(runs).values()
        for r in row
    ]
    columns = ("quantizer", "bits", "max κ", "worst language", "gap", "spread")
    return Table("Gap and spread in bits per byte, every model the same function", columns, tuple(rows))


def _gentle_table(gentle: Sequence[Run]) -> Table:
    rows = [(r.quantizer, r.bits, brief(r.kappa), written(r.gap.estimate)) for r in gentle]
    return Table(
        f"Only blocks with κ below {LOW_KAPPA:g} rounded ({1 - DOUBT / len(gentle):.2%} intervals)",
        ("quantizer", "bits", "max κ", "gap"),
        tuple(rows),
    )


def _ranks(rows: Mapping[tuple[str, int], Sequence[Run]], rises: Mapping[tuple[str, int], Estimate]) -> Table:
    found = [(name, bits, _rho(row), written(rises[name, bits])) for (name, bits), row in rows.items()]
    title = f"Max κ against the gap over {len(next(iter(rows.values())))} models"
    return Table(title, ("quantizer", "bits", "Spearman ρ", "gap at the largest κ less as it is"), tuple(found))


def _rho(row: Sequence[Run]) -> str:
    """Spearman's ρ without an interval, which so few models cannot give."""
    kappa, gap = (np.array(each) for each in zip(*((r.kappa, r.gap.estimate.value) for r in row), strict=True))
    return f"{spearman(kappa, gap).estimate.value:.2f}" if len(row) >= 4 and np.ptp(gap) > 0 else "too few models"


def _figure(rows: Mapping[tuple[str, int], Sequence[Run]]) -> Figure:
    series = []
    for (name, bits), row in rows.items():
        kappa, *limits = zip(
            *((r.kappa, r.gap.estimate.value, r.gap.estimate.low, r.gap.estimate.high) for r in row), strict=True
        )
        series.append(Series(f"{name}, {bits} bits", kappa, *limits))
    return Figure(
        "The gap between languages as outlier weights grow", "max κ", "gap, bits per byte", tuple(series), True, "x"
    )
