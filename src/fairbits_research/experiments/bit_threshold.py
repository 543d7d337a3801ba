"""Bit threshold: does the largest κ set the width at which languages diverge? A sweep with and without outliers."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from fairbits.api.sweep import Sweep
from fairbits.auditing.record import HEADLINE
from fairbits.kurtosis.checklist import OUTLIER_KAPPA_THRESHOLD, critical_bits
from fairbits.models.scales.scheme import Clip
from fairbits.stats.correlation import Correlation, spearman
from fairbits.stats.crossing import FLOOR, CriticalBits, crossing
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import LanguageGap, interval_of_draws
from fairbits_research.experiments.laboratory import Laboratory, knob_kappa
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
    """Returns the result: does the largest κ set the width at which languages diverge, and κ_eff that of each one?

    A model with outliers of its own, or into which none can be inserted, is measured as it is.
    """
    models, note = models_to_sweep(laboratory)
    swept = _sweeps(laboratory, models)
    kappa = {name: swept[name, "absmax"].sweep.max_kappa for name in models}
    alone = VARIANT not in models
    moves = {} if alone else {clip: swept[VARIANT, clip].bits_above(swept[PLAIN, clip]) for clip in CLIPS}
    answer, expected = _judge(swept, moves, kappa)
    because = _because(swept, kappa)
    lab = laboratory.lab()
    return describe(
        "bit-threshold",
        design=(
            f"Rounding to nearest at {BITS[0]} to {BITS[-1]} bits, with α at the largest weight and with the α of "
            f"least squared error, of the model{'' if alone else AND_VARIANT}. B* is "
            f"the width at which damage, or the gap, crosses {THRESHOLD:g} bits per byte. κ_eff weighs the κ of blocks "
            "by the norm of their outputs on calibration text. Intervals by resampling documents, the same in all "
            f"runs, n = {swept[PLAIN, 'absmax'].gaps[0].estimate.n}; Spearman over languages. {lab.outlier_text()}"
        ),
        subject=laboratory.subject(
            bits=list(BITS), threshold=THRESHOLD, max_kappa=kappa, **laboratory.outlier_settings()
        ),
        answer=answer,
        verdict=f"{sentence(because)}; the documents expect {_expected_text(kappa)}.",
        meaning=_meaning(swept, next(iter(models))),
        tables=(_gap_table(swept), _width_table(swept, moves), _language_table(swept)),
        figure=_figure(swept),
        judgements=(Judgement("001-17", answer, because, _numbers(swept, moves) | expected),),
        power=_power(swept),
        notes=(note,) if note else (),
    )


AND_VARIANT = ", and of a variant with the same function and two blocks of high κ"
ONE_MODEL = "One model can contradict the expected width, but not show that κ is its cause."


def models_to_sweep(laboratory: Laboratory) -> tuple[dict[str, str], str]:
    """Returns the models by name and a note: the variant with outliers first, if there is one, then the model."""
    setting, lab = laboratory.setting, laboratory.lab()
    most = float(lab.kappa.max())
    if setting.insert_outliers is not None:
        return {VARIANT: laboratory.model, PLAIN: setting.model}, ""
    if most > OUTLIER_KAPPA_THRESHOLD:
        return {
            PLAIN: setting.model
        }, f"The model has max κ {most:.3g} of its own and is measured as it is. {ONE_MODEL}"
    variant, note = laboratory.knob(knob_kappa(lab.n_blocks))
    if variant is None:
        return {PLAIN: setting.model}, f"{note} The model is measured as it is. {ONE_MODEL}"
    return {VARIANT: variant, PLAIN: setting.model}, ""


def _judge(swept: Sweeps, moves: Mapping[str, Estimate], kappa: Mapping[str, float]) -> tuple[Answer, dict[str, float]]:
    """Returns the answer, and the number that the documents expect: how far the width moves, or where it lies."""
    if not moves:
        widths = [swept[PLAIN, clip].width for clip in CLIPS]
        answers = [is_expected_width(width, expected_range(kappa[PLAIN])) for width in widths]
        return all_of(answers), {"expected_width": critical_bits(kappa[PLAIN])}
    expected = critical_bits(kappa[VARIANT]) - critical_bits(kappa[PLAIN])
    answers = [is_set_by_kappa(swept[VARIANT, clip].width, moves[clip], expected=expected) for clip in CLIPS]
    return all_of(answers), {"expected_move": expected}


def _expected_text(kappa: Mapping[str, float]) -> str:
    if VARIANT in kappa:
        return f"{critical_bits(kappa[VARIANT]) - critical_bits(kappa[PLAIN]):.1f} bits more"
    return "{:.1f} to {:.1f} bits for this κ".format(*expected_range(kappa[PLAIN]))


def expected_range(kappa: float) -> tuple[float, float]:
    """Returns between which widths the documents expect languages to diverge: one bit, up to `critical_bits`.

    >>> expected_range(164)
    (5.0, 6.0)
    """
    return critical_bits(kappa) - 1, critical_bits(kappa)


def is_expected_width(width: CriticalBits, expected: tuple[float, float]) -> Answer:
    """Returns whether a width is as expected: undecided if its interval is WIDE, not supported if it lies outside."""
    low, high = expected
    if width.low > high or width.high < low:
        return Answer.NOT_SUPPORTED
    return Answer.UNDECIDED if width.high - width.low > WIDE else Answer.SUPPORTED


def is_set_by_kappa(width: CriticalBits, move: Estimate, *, expected: float) -> Answer:
    """Returns whether κ sets the width: the variant's is as expected, and it moved at least half as far as expected.

    Not supported if its interval excludes the expected range, or if it certainly moved by less than half.
    """
    return all_of([is_expected_width(width, EXPECTED), is_above(move, expected / 2)])


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
    pattern = laboratory.lab(models[PLAIN]).pattern(*HEADLINE)
    return {
        (name, clip): WidthSweep(
            Sweep(models[name], "", clip, {}, "loss", by_bits, {}, THRESHOLD, float(kappa[name].max())),
            tuple(map(LanguageGap.of, by_bits.values())),
            {code: kappa_eff.value for code, kappa_eff in pattern.kappa_weighted(kappa[name]).items()},
        )
        for (name, clip), by_bits in frames.items()
    }


def _because(swept: Sweeps, kappa: Mapping[str, float]) -> str:
    low = number_text(kappa[PLAIN])
    plain = {clip: f"{swept[PLAIN, clip].width.text(BITS)}" for clip in CLIPS}
    if VARIANT not in kappa:
        return f"with max κ {low} languages diverge at " + ", ".join(
            f"{at} bits ({clip})" for clip, at in plain.items()
        )
    parts = [f"{swept[VARIANT, clip].width.text(BITS)} bits instead of {plain[clip]} ({clip})" for clip in CLIPS]
    return f"with max κ {number_text(kappa[VARIANT])} instead of {low} languages diverge at {', '.join(parts)}"


def _numbers(swept: Sweeps, moves: Mapping[str, Estimate]) -> dict[str, float]:
    name = VARIANT if moves else PLAIN
    widths = {f"width_{clip.replace(' ', '_')}": swept[name, clip].width.value for clip in CLIPS}
    return widths | {f"move_{clip.replace(' ', '_')}": move.value for clip, move in moves.items()}


def _meaning(swept: Sweeps, name: str) -> str:
    first, second = sorted(CLIPS, key=lambda clip: swept[name, clip].width.value)
    saved = swept[name, second].width.value - swept[name, first].width.value
    where = (
        f"{saved:.1f} bits lower with {first} than with {second}"
        if saved >= SAME
        else "at the same width with both clips"
    )
    who = "With outlier weights languages" if name == VARIANT else "Languages"
    return (
        f"{who} diverge {where}. Find the width with fairbits sweep on your own text: it depends on the threshold and "
        "the text, not on κ alone."
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
    names = [name for name in (PLAIN, VARIANT) if (name, "absmax") in swept]
    rows = [
        (
            code,
            *(number_text(swept[name, "absmax"].kappa_eff[code]) for name in names),
            *(sweep.sweep.widths[code].text(BITS) for sweep in swept.values()),
        )
        for code in languages
    ]
    columns = ("language", *(f"κ_eff {name}" for name in names), *(f"B* {name}, {clip}" for name, clip in swept))
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
