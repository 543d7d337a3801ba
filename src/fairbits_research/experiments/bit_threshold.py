"""Bit threshold: does the largest κ set the width at which languages diverge? A sweep with and without outliers."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairbits.api.sweep import Sweep
from fairbits.auditing.record import HEADLINE
from fairbits.comparison.critical_bits import FLOOR, CriticalBits, crossing
from fairbits.core.errors import InputError
from fairbits.kurtosis.checklist import OUTLIER_KAPPA_THRESHOLD, critical_bits
from fairbits.models.scales.scheme import Clip
from fairbits.stats.correlation import Correlation, spearman
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import LanguageGap, interval_of_draws
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, outlier_blocks
from fairbits_research.experiments.result import (
    Answer,
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
    sentence,
)
from fairbits_research.stats.correlation_tests import sample_size_for_power

SAME = 0.1
"""Bits; widths that differ by less are reported as one."""
BITS = tuple(range(2, 9))
CLIPS: Mapping[str, Clip] = {"absmax": "absmax", "exact clip": "exact"}
THRESHOLD = 0.01
"""Bits per byte of damage, or of a gap, that count as too much: about 1 % of a good model's loss."""
EXPECTED = (5.0, 6.0)
"""Bits below which the documents expect languages to diverge where max κ is about 150."""
WIDE = 2.0
"""Bits; a longer interval does not show where languages diverge."""
PLAIN, VARIANT = "unchanged", "with outliers"
POWER = 0.8
SMALL = 0.1
"""For a correlation below this it is not computed how many languages would show it."""


@dataclass(frozen=True, eq=False)
class WidthSweep:
    """One model under one clip at every width, its gaps with their draws, and κ_eff of every language."""

    sweep: Sweep
    gaps: tuple[LanguageGap, ...]
    kappa_eff: Mapping[str, float]

    @property
    def width(self) -> CriticalBits:
        """The width at which the gap crosses the threshold."""
        limits = [[getattr(gap.estimate, name) for gap in self.gaps] for name in ("value", "low", "high")]
        return CriticalBits(*(float(at) for at in crossing(BITS, limits, THRESHOLD)))

    def bits_above(self, plain: "WidthSweep") -> Estimate:
        """Returns how many bits more it needs than the plain model until its gap falls below the threshold."""
        mine, theirs = (crossing(BITS, np.stack([g.draws for g in s.gaps], axis=-1), THRESHOLD) for s in (self, plain))
        return interval_of_draws(self.width.value - plain.width.value, mine - theirs, n=self.gaps[0].estimate.n)

    def rho(self) -> Correlation | None:
        """Returns Spearman's ρ of B*(λ) and κ_eff(λ), and so of its logarithm; None where one is the same for all."""
        width = np.array([critical.value for critical in self.sweep.widths.values()])
        kappa = np.array([self.kappa_eff[code] for code in self.sweep.widths])
        return spearman(width, kappa) if min(np.ptp(width), np.ptp(kappa)) > 0 and len(width) >= 4 else None


Sweeps = Mapping[tuple[str, str], WidthSweep]
"""(model, clip) -> sweep."""


def bit_threshold(laboratory: Laboratory) -> Result:
    """Returns the result: does the largest κ set the width at which languages diverge, and κ_eff that of each one?"""
    added = outliers_to_add(laboratory.lab())
    swept = _sweeps(laboratory, {VARIANT: laboratory.with_outliers(added), PLAIN: laboratory.setting.model})
    kappa = {name: swept[name, "absmax"].sweep.max_kappa for name in (PLAIN, VARIANT)}
    expected = critical_bits(kappa[VARIANT]) - critical_bits(kappa[PLAIN])
    moves = {clip: swept[VARIANT, clip].bits_above(swept[PLAIN, clip]) for clip in CLIPS}
    answer = all_of([is_set_by_kappa(swept[VARIANT, clip].width, moves[clip], expected=expected) for clip in CLIPS])
    because = _because(swept, kappa)
    return describe(
        "bit-threshold",
        design=(
            f"Rounding to nearest at {BITS[0]} to {BITS[-1]} bits, with α at the largest weight and with the α of "
            "least squared error, of the model and of a variant with the same function and two blocks of high κ. B* is "
            f"the width at which damage, or the gap, crosses {THRESHOLD:g} bits per byte. κ_eff weighs the κ of blocks "
            "by the norm of their outputs on calibration text. Intervals by resampling documents, the same in all "
            f"runs, n = {moves['absmax'].n}; Spearman over languages."
        ),
        subject=laboratory.subject(
            bits=list(BITS), threshold=THRESHOLD, outliers={str(k): v for k, v in added.items()}
        ),
        answer=answer,
        verdict=f"{sentence(because)}; the documents expect {expected:.1f} bits more.",
        meaning=_meaning(swept),
        tables=(_gap_table(swept), _width_table(swept, moves), _language_table(swept)),
        figure=_figure(swept),
        judgements=(Judgement("001-17", answer, because, _numbers(swept, moves) | {"expected_move": expected}),),
        power=_power(swept),
    )


def outliers_to_add(lab: ModelLab) -> dict[int, float]:
    """Returns the blocks that get outliers and their κ; raises if the model has outliers already."""
    most = float(lab.kappa.max())
    if most > OUTLIER_KAPPA_THRESHOLD:
        raise InputError(
            f"max κ is {most:.3g}; this experiment adds outlier weights to a model without them: "
            f"give one with max κ below {OUTLIER_KAPPA_THRESHOLD:g}"
        )
    return outlier_blocks(lab.n_blocks)


def is_set_by_kappa(width: CriticalBits, move: Estimate, *, expected: float) -> Answer:
    """Returns whether κ sets the width: the variant's is as expected, and it moved at least half as far as expected.

    Not supported if its interval excludes the expected range, or if it certainly moved by less than half.
    """
    low, high = EXPECTED
    place = Answer.SUPPORTED if width.low <= high and width.high >= low else Answer.NOT_SUPPORTED
    if place is Answer.SUPPORTED and width.high - width.low > WIDE:
        place = Answer.UNDECIDED
    return all_of([place, is_above(move, expected / 2)])


def _sweeps(laboratory: Laboratory, models: Mapping[str, str]) -> Sweeps:
    """Returns all sweeps; κ_eff is measured on the model itself only, because the variant's blocks output the same."""
    cells = [(name, clip) for name in models for clip in CLIPS]
    frames: dict[tuple[str, str], dict[int, LanguageFrame]] = {}
    kappa = {}
    for i, (name, clip) in enumerate(cells):
        lab = laboratory.lab(models[name])
        kappa[name] = lab.kappa
        by_bits = frames[name, clip] = {}
        for j, bits in enumerate(BITS):
            laboratory.report("sweeping widths", i * len(BITS) + j, len(cells) * len(BITS))
            by_bits[bits] = lab.rounding_damage(bits, clip=CLIPS[clip])
    pattern = laboratory.lab().pattern(*HEADLINE)
    return {
        (name, clip): WidthSweep(
            Sweep(models[name], "", clip, {}, "loss", by_bits, {}, THRESHOLD, float(kappa[name].max())),
            tuple(map(LanguageGap.of, by_bits.values())),
            {code: kappa_eff.value for code, kappa_eff in pattern.kappa_weighted(kappa[name]).items()},
        )
        for (name, clip), by_bits in frames.items()
    }


def _because(swept: Sweeps, kappa: Mapping[str, float]) -> str:
    parts = [
        f"{swept[VARIANT, clip].width.text(BITS)} bits instead of {swept[PLAIN, clip].width.text(BITS)} ({clip})"
        for clip in CLIPS
    ]
    high, low = number_text(kappa[VARIANT]), number_text(kappa[PLAIN])
    return f"with max κ {high} instead of {low} languages diverge at {', '.join(parts)}"


def _numbers(swept: Sweeps, moves: Mapping[str, Estimate]) -> dict[str, float]:
    widths = {f"width_{clip.replace(' ', '_')}": swept[VARIANT, clip].width.value for clip in CLIPS}
    return widths | {f"move_{clip.replace(' ', '_')}": move.value for clip, move in moves.items()}


def _meaning(swept: Sweeps) -> str:
    first, second = sorted(CLIPS, key=lambda clip: swept[VARIANT, clip].width.value)
    saved = swept[VARIANT, second].width.value - swept[VARIANT, first].width.value
    where = (
        f"{saved:.1f} bits lower with {first} than with {second}"
        if saved >= SAME
        else "at the same width with both clips"
    )
    return (
        f"With outlier weights languages diverge {where}. Find the width with fairbits sweep on your own text: it "
        "depends on the threshold and the text, not on κ alone."
    )


def _gap_table(swept: Sweeps) -> ResultTable:
    rows = [
        (f"{name}, {clip}", *(estimate_text(g.estimate) for g in sweep.gaps)) for (name, clip), sweep in swept.items()
    ]
    return ResultTable("Gap in bits per byte", ("model and clip", *(f"{bits} bits" for bits in BITS)), tuple(rows))


def _width_table(swept: Sweeps, moves: Mapping[str, Estimate]) -> ResultTable:
    rows = []
    for (name, clip), sweep in swept.items():
        rho, kappa = sweep.rho(), sweep.sweep.max_kappa
        move = estimate_text(moves[clip]) if name == VARIANT else "0"
        rank = "B* does not vary" if rho is None else estimate_text(rho.estimate)
        rows.append((name, clip, number_text(kappa), f"{critical_bits(kappa):.1f}", sweep.width.text(BITS), move, rank))
    columns = ("model", "clip", "max κ", "expected", "measured", "move", "ρ(B*, log κ_eff) over languages")
    return ResultTable("Bits below which languages diverge", columns, tuple(rows))


def _language_table(swept: Sweeps) -> ResultTable:
    languages = swept[PLAIN, "absmax"].sweep.widths
    rows = [
        (
            code,
            *(number_text(swept[name, "absmax"].kappa_eff[code]) for name in (PLAIN, VARIANT)),
            *(sweep.sweep.widths[code].text(BITS) for sweep in swept.values()),
        )
        for code in languages
    ]
    columns = ("language", f"κ_eff {PLAIN}", f"κ_eff {VARIANT}", *(f"B* {name}, {clip}" for name, clip in swept))
    return ResultTable("The width that each language needs", columns, tuple(rows))


def _figure(swept: Sweeps) -> ResultFigure:
    floor = THRESHOLD / FLOOR
    series = []
    for (name, clip), sweep in swept.items():
        shown = [[max(getattr(g.estimate, part), floor) for g in sweep.gaps] for part in ("value", "low", "high")]
        value, low, high = map(tuple, shown)
        series.append(Series(f"{name}, {clip}", tuple(map(float, BITS)), value, low, high))
    title = f"The gap between languages by width (at least {floor:g})"
    return ResultFigure(title, "bits", "gap, bits per byte", tuple(series), lines=True, log="y")


def _power(swept: Sweeps) -> str:
    """Returns how many languages would decide the correlations that are undecided."""
    correlations = {", ".join(cell): sweep.rho() for cell, sweep in swept.items()}
    doubtful = {name: r.estimate for name, r in correlations.items() if r is not None and not r.estimate.excludes(0.0)}
    parts = [
        f"{sample_size_for_power(rho.value, POWER)} ({name}, ρ = {rho.value:.2f})"
        for name, rho in doubtful.items()
        if SMALL <= abs(rho.value) < 1
    ]
    return (
        f"To detect the undecided ρ(B*, log κ_eff) with power {POWER:g}, the number of languages is {', '.join(parts)}."
        if parts
        else ""
    )
