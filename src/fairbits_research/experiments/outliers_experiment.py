"""Outliers: the same function with increasingly extreme weights. Does disparity need them, and grow with them?"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.kurtosis.checklist import LOW_KAPPA
from fairbits.models.scales.scheme import Clip
from fairbits.stats.correlation import spearman
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import LanguageGap, documents_needed
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, knob_kappa
from fairbits_research.experiments.result import (
    Answer,
    Cell,
    Judgement,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    all_of,
    describe,
    estimate_text,
    is_above,
    number_text,
)
from fairbits_research.experiments.trait_correlation import has_sign

KAPPA = (20.0, 100.0, 500.0)
"""The κ that two blocks get, one value per variant."""
BITS = (4, 3)
ABSMAX, EXACT, GPTQ = "absmax", "exact clip", "GPTQ"
QUANTIZERS: Mapping[str, Callable[[ModelLab, int], LanguageFrame]] = {
    ABSMAX: lambda lab, bits: lab.rounding_damage(bits),
    EXACT: lambda lab, bits: lab.rounding_damage(bits, clip="exact"),
    GPTQ: lambda lab, bits: lab.policy_damage("gptq", bits),
}
CLIPS: Mapping[str, Clip] = {ABSMAX: "absmax", EXACT: "exact"}
DOUBT = 0.05
"""The error probability that several intervals share, where any one of them would decide."""


@dataclass(frozen=True)
class OutlierRun:
    """One model under one quantizer; `kappa` is the largest of its rounded blocks."""

    kappa: float
    quantizer: str
    bits: int
    worst: str
    gap: LanguageGap
    spread: Estimate

    @classmethod
    def of(cls, kappa: float, frame: LanguageFrame, *, quantizer: str, bits: int) -> "OutlierRun":
        """Returns the run with the damage of a frame."""
        return cls(kappa, quantizer, bits, frame.worst()[0], LanguageGap.of(frame), frame.spread())


def outliers(laboratory: Laboratory) -> Result:
    """Returns the result: does disparity need outlier weights, and does it grow with the largest κ?

    Where κ cannot be raised at the same function, blocks of different κ are compared instead.
    """
    levels = outlier_levels(laboratory.lab().kappa)
    if not levels:
        return _by_block(laboratory, f"The model has max κ {laboratory.lab().kappa.max():.3g}, as much as is tried.")
    variants = [laboratory.knob(level) for level in levels]
    why = next((note for model, note in variants if model is None), None)
    return (
        _by_block(laboratory, why)
        if why
        else _by_variant(laboratory, levels, [model for model, _ in variants if model])
    )


def _by_variant(laboratory: Laboratory, levels: Sequence[Mapping[int, float]], variants: Sequence[str]) -> Result:
    """Returns the result with outliers as a knob."""
    runs = list(_runs(laboratory, [*variants, laboratory.model]))  # which is last, because it is used again below
    gentle = list(_low_kappa_runs(laboratory.lab()))
    rises = {cell: row[-1].gap.minus(row[0].gap) for cell, row in _rows(runs).items()}
    judgements = (_causal(rises, runs), _ranking(_rows(runs)))
    least = no_gap_at_low_kappa(gentle)
    return describe(
        "outliers",
        design=(
            f"Two blocks get κ {', '.join(f'{max(level.values()):g}' for level in levels)} by exact rescaling, at the "
            f"same function. Each is rounded to {' and '.join(map(str, BITS))} bits with α at the largest weight, with "
            "the α of least squared error, and by GPTQ on an equal mix. In the unchanged model, also only the blocks "
            f"with κ below {LOW_KAPPA:g} are rounded. Disparity is the worst minus the best language, corrected for "
            f"noise, n = {runs[0].gap.estimate.n} documents; models are compared by resampling the same documents."
        ),
        subject=laboratory.subject(bits=list(BITS), kappa=[float(run.kappa) for run in _rows(runs)[ABSMAX, BITS[0]]]),
        answer=all_of([least, *(judgement.answer for judgement in judgements)]),
        verdict=f"{_gentle_text(gentle)}; {_rises_text(rises)}.",
        meaning=_meaning(least, judgements),
        tables=(_table(runs), *_low_kappa_tables(gentle), _ranks(_rows(runs), rises)),
        figure=_figure(_rows(runs)),
        judgements=judgements,
        power=documents_needed({f"{quantizer}, {bits} bits": rise for (quantizer, bits), rise in rises.items()}),
    )


def _by_block(laboratory: Laboratory, why: str) -> Result:
    """Returns the result without a knob: each block rounded alone, its gap against its κ."""
    lab, bits = laboratory.lab(), BITS[-1]
    frames: dict[str, list[LanguageFrame]] = {name: [] for name in CLIPS}
    for i, (name, block) in enumerate((name, block) for name in CLIPS for block in range(lab.n_blocks)):
        lab.report("rounding one block", i, len(CLIPS) * lab.n_blocks)
        frames[name].append(lab.rounding_damage({block: bits}, clip=CLIPS[name]))
    gaps = {name: [frame.gap() for frame in of_blocks] for name, of_blocks in frames.items()}
    gentle = list(_low_kappa_runs(lab))
    least, ranks = no_gap_at_low_kappa(gentle), {name: _rank_of(lab.kappa, gaps[name]) for name in CLIPS}
    answers = [Answer.UNDECIDED if rho is None else has_sign(rho, 1) for rho in ranks.values()]
    shown = ", ".join(f"{'unknown' if rho is None else estimate_text(rho)} ({name})" for name, rho in ranks.items())
    rows: list[tuple[Cell, ...]] = [
        (block, number_text(float(lab.kappa[block])), *(estimate_text(gaps[name][block]) for name in CLIPS))
        for block in range(lab.n_blocks)
    ]
    return describe(
        "outliers",
        design=(
            f"Each block alone is rounded to {bits} bits, with α at the largest weight and with the α of least squared "
            f"error, and its gap is compared with its κ over {lab.n_blocks} blocks; only blocks with κ below "
            f"{LOW_KAPPA:g} are rounded together. {lab.outlier_text()} Disparity is the worst minus the best language, "
            "corrected for noise. Blocks differ in more than κ, so that this shows no cause."
        ),
        subject=laboratory.subject(bits=[bits], kappa=lab.kappa.tolist(), **laboratory.outlier_settings()),
        answer=all_of([least, *answers]),
        verdict=f"{_gentle_text(gentle)}; the rank ρ of a block's κ and its gap is {shown} over {lab.n_blocks} blocks.",
        meaning=_least_text(least),
        tables=(
            ResultTable(f"One block at {bits} bits: gap in bits per byte", ("block", "κ", *CLIPS), tuple(rows)),
            *_low_kappa_tables(gentle),
        ),
        figure=ResultFigure(
            f"The gap when one block is rounded to {bits} bits, by its κ",
            "κ of the block",
            "gap, bits per byte",
            tuple(Series.of_estimates(name, lab.kappa.tolist(), gaps[name]) for name in CLIPS),
        ),
        notes=(f"{why} Blocks are compared instead of models.",),
    )


def _rank_of(kappa: Floats, gaps: Sequence[Estimate]) -> Estimate | None:
    """Returns Spearman's ρ over blocks; None where there are too few, or nothing varies."""
    gap = np.array([estimate.value for estimate in gaps])
    return spearman(kappa, gap).estimate if len(gap) >= 4 and min(np.ptp(gap), np.ptp(kappa)) > 0 else None


def outlier_levels(kappa: Floats) -> list[dict[int, float]]:
    """Returns the κ that two blocks get in each variant, for all levels above the largest κ of the model."""
    blocks, most = sorted(knob_kappa(len(kappa))), float(kappa.max())
    return [dict.fromkeys(blocks, level) for level in KAPPA if level > most]


def no_gap_at_low_kappa(gentle: Sequence[OutlierRun]) -> Answer:
    """Returns whether there is no gap where only blocks of low κ are rounded; undecided if there are none."""
    return all_of([shows_no_gap(run.gap.estimate) for run in gentle] or [Answer.UNDECIDED])


def shows_no_gap(gap: Estimate) -> Answer:
    """Returns whether there is no gap: not supported if its interval excludes 0, else undecided."""
    return Answer.NOT_SUPPORTED if gap.low > 0 else Answer.UNDECIDED


def is_cause(rises: Mapping[tuple[str, int], Estimate]) -> Answer:
    """Returns whether outlier weights widen the gap significantly under every quantizer and at every width.

    Not supported if they do so at no width, or only with α at the largest weight.
    """
    wide = {cell for cell, rise in rises.items() if is_above(rise, 0.0) is Answer.SUPPORTED}
    if wide == set(rises):
        return Answer.SUPPORTED
    return Answer.NOT_SUPPORTED if {name for name, _ in wide} <= {ABSMAX} else Answer.UNDECIDED


def widens_with_kappa(steps: Sequence[Estimate]) -> Answer:
    """Returns whether the gap widens with every step of κ; not supported if it narrows significantly at one."""
    return all_of([is_above(step, 0.0) for step in steps])


def _runs(laboratory: Laboratory, models: Sequence[str]) -> Iterator[OutlierRun]:
    cells = [(name, bits) for name in QUANTIZERS for bits in BITS]
    for i, model in enumerate(models):
        lab = laboratory.lab(model)
        for j, (name, bits) in enumerate(cells):
            laboratory.report("rounding variants", i * len(cells) + j, len(models) * len(cells))
            yield OutlierRun.of(float(lab.kappa.max()), QUANTIZERS[name](lab, bits), quantizer=name, bits=bits)


def _low_kappa_runs(lab: ModelLab) -> Iterator[OutlierRun]:
    """Yields the runs with only the blocks of low κ rounded; the four intervals share the error probability."""
    low = [block for block, kappa in enumerate(lab.kappa) if kappa < LOW_KAPPA]
    cells = [(name, bits) for name in CLIPS for bits in BITS] if low else []
    for i, (name, bits) in enumerate(cells):
        lab.report("rounding blocks of low κ", i, len(cells))
        frame = lab.rounding_damage(dict.fromkeys(low, bits), clip=CLIPS[name])
        strict = replace(frame, confidence=1 - DOUBT / len(cells))
        yield OutlierRun.of(float(lab.kappa[low].max()), strict, quantizer=name, bits=bits)


def _rows(runs: Sequence[OutlierRun]) -> dict[tuple[str, int], list[OutlierRun]]:
    """Returns the runs of each quantizer and width, in the order of max κ."""
    cells = dict.fromkeys((run.quantizer, run.bits) for run in runs)
    return {cell: sorted((r for r in runs if (r.quantizer, r.bits) == cell), key=lambda r: r.kappa) for cell in cells}


def _rises_text(rises: Mapping[tuple[str, int], Estimate]) -> str:
    parts = [f"{estimate_text(rise)} ({name}, {bits} bits)" for (name, bits), rise in rises.items()]
    return f"outlier weights with the same function change the gap by {', '.join(parts)}"


def _causal(rises: Mapping[tuple[str, int], Estimate], runs: Sequence[OutlierRun]) -> Judgement:
    low, high = min(run.kappa for run in runs), max(run.kappa for run in runs)
    because = f"from max κ {number_text(low)} to {number_text(high)} {_rises_text(rises)} bits per byte"
    numbers = {f"rise_{name.replace(' ', '_').lower()}_{bits}_bits": rise.value for (name, bits), rise in rises.items()}
    return Judgement("001-02", is_cause(rises), because, numbers)


def _ranking(rows: Mapping[tuple[str, int], Sequence[OutlierRun]]) -> Judgement:
    """Returns the judgement on 001-07; all steps of all quantizers and widths share the error probability."""
    count = sum(len(row) - 1 for row in rows.values())
    confidence = 1 - DOUBT / count
    steps = [b.gap.minus(a.gap, confidence=confidence) for row in rows.values() for a, b in pairwise(row)]
    up, down = (
        sum(is_above(step, 0.0) is answer for step in steps) for answer in (Answer.SUPPORTED, Answer.NOT_SUPPORTED)
    )
    because = (
        f"of {count} steps to a larger max κ with the same function {up} widen the gap significantly, {down} narrow it"
    )
    return Judgement("001-07", widens_with_kappa(steps), because, {"steps": count, "widen": up, "narrow": down})


def _gentle_text(gentle: Sequence[OutlierRun]) -> str:
    if not gentle:
        return f"No block has κ below {LOW_KAPPA:g}"
    seen = ", ".join(f"{estimate_text(run.gap.estimate)} ({run.quantizer}, {run.bits} bits)" for run in gentle)
    return f"With no rounded block above κ = {number_text(gentle[0].kappa)} the gap is {seen} bits per byte"


def _least_text(least: Answer) -> str:
    return {Answer.NOT_SUPPORTED: "A low κ does not guarantee equal treatment: measure every language."}.get(
        least, "Whether a low κ is safe is undecided: measure every language."
    )


def _meaning(least: Answer, judgements: Sequence[Judgement]) -> str:
    causal, _ = judgements
    return f"{_least_text(least)} " + {
        Answer.SUPPORTED: "Outlier weights make it worse under every quantizer: look for them before quantizing.",
        Answer.NOT_SUPPORTED: "Outlier weights widen it at most with α at the largest weight.",
    }.get(causal.answer, "Whether outlier weights widen it under every quantizer is undecided.")


def _table(runs: Sequence[OutlierRun]) -> ResultTable:
    rows = [
        (r.quantizer, r.bits, number_text(r.kappa), r.worst, estimate_text(r.gap.estimate), estimate_text(r.spread))
        for row in _rows(runs).values()
        for r in row
    ]
    columns = ("quantizer", "bits", "max κ", "worst language", "gap", "spread")
    return ResultTable("Gap and spread in bits per byte; all models compute the same function", columns, tuple(rows))


def _low_kappa_tables(gentle: Sequence[OutlierRun]) -> tuple[ResultTable, ...]:
    rows = [(r.quantizer, r.bits, number_text(r.kappa), estimate_text(r.gap.estimate)) for r in gentle]
    title = f"Only blocks with κ below {LOW_KAPPA:g} rounded ({1 - DOUBT / max(1, len(gentle)):.2%} intervals)"
    return (ResultTable(title, ("quantizer", "bits", "max κ", "gap"), tuple(rows)),) if rows else ()


def _ranks(
    rows: Mapping[tuple[str, int], Sequence[OutlierRun]], rises: Mapping[tuple[str, int], Estimate]
) -> ResultTable:
    cells = [(name, bits, _rho(row), estimate_text(rises[name, bits])) for (name, bits), row in rows.items()]
    title = f"Max κ against the gap over {len(next(iter(rows.values())))} models"
    return ResultTable(title, ("quantizer", "bits", "Spearman ρ", "gap at the largest κ minus unchanged"), tuple(cells))


def _rho(row: Sequence[OutlierRun]) -> str:
    """Returns Spearman's ρ without an interval, for which there are too few models."""
    kappa, gap = (np.array(values) for values in zip(*((r.kappa, r.gap.estimate.value) for r in row), strict=True))
    return f"{spearman(kappa, gap).estimate.value:.2f}" if len(row) >= 4 and np.ptp(gap) > 0 else "too few models"


def _figure(rows: Mapping[tuple[str, int], Sequence[OutlierRun]]) -> ResultFigure:
    series = []
    for (name, bits), row in rows.items():
        gaps = (run.gap.estimate for run in row)
        series.append(Series.of_estimates(f"{name}, {bits} bits", (run.kappa for run in row), gaps))
    return ResultFigure(
        "The gap between languages as outlier weights grow", "max κ", "gap, bits per byte", tuple(series), True, "x"
    )
