"""Two experiments on calibration for one language: a copy of the weights for every language, clipped for it alone, and
the damage to every language when the weights are calibrated on the text of one of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from math import factorial

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.stats.frame import Contrast, LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.clipping_as_written import written_clipping
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
    number_text,
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
    first, written = copies[3], written_clipping(lab)
    better, worse = _sides(first.separate.contrast(first.shared))
    n = len(lab.languages)
    return describe(
        "own-thresholds",
        design=(
            f"{n} copies at {' and '.join(map(str, widths))} bits, each with the clip of least error, weighted by "
            "E[x²] of one language; a language is evaluated with its own copy. Baselines: one copy weighted by the "
            "mean of all languages, the exact clip without text, and the documents' formula of κ. Paired by document; "
            "supported if the interval of the difference lies below 0, not supported if it lies above 0 or excludes a "
            f"reduction by {RELEVANT:.0%}. LA-ACIQ as written: the symmetric grid, thresholds by Prop. 1 and theorem 2 "
            "from κ and activations of the calibration text, against one α = σ·f(κ) of all weights (ACIQ)."
        ),
        subject=laboratory.subject(bits=list(widths)),
        answer=first.answer,
        verdict=(
            f"At 3 bits own copies instead of one shared copy change the gap by {estimate_text(first.gap)} bits per "
            f"byte, from {estimate_text(first.shared.gap())}: {COPIES_ANSWER[first.answer]}."
        ),
        meaning=(
            f"{n} copies take {n} times the memory; own copies change the worst damage by "
            f"{estimate_text(first.separate.worst_minus(first.shared))} bits per byte, and {better} of {n} languages "
            f"gain significantly and {worse} lose: {_advice(first)}. {written.sentence}"
        ),
        tables=(_copies_table(copies), _differences(copies), *written.tables),
        figure=_copies_figure(first),
        judgements=(written.judgement,),
        power=documents_needed({"gap, 3 bits": first.gap}) if first.answer is Answer.UNDECIDED else "",
    )


COPIES_ANSWER = {
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


def _copies_table(copies: Mapping[int, Copies]) -> ResultTable:
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


def _copies_figure(copies: Copies) -> ResultFigure:
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


BITS = 3
ENGLISH = "eng_Latn"
EQUAL, PROPORTIONAL = "equal mix", "proportional mix"
CLIP, GPTQ = "weighted clip", "GPTQ"
DRAWS = 99_999
"""The most permutations that are tried."""


@dataclass(frozen=True, eq=False)
class Calibrated:
    """One method, calibrated on each language alone and on mixes: name of the calibration -> damage of all."""

    frames: Mapping[str, LanguageFrame]
    hub: str
    """The language that would usually be used for calibration."""

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages, each of which is also used for calibration alone."""
        return self.frames[EQUAL].languages

    @property
    def own_language(self) -> LanguageFrame:
        """The damage of every language with calibration on itself."""
        return each_from_own_copy({code: self.frames[code] for code in self.languages})

    @property
    def matrix(self) -> Floats:
        """Damage, (calibration language, language)."""
        return np.array([language_values(self.frames[code]) for code in self.languages])

    @property
    def hub_worse(self) -> Estimate:
        """The worst damage with calibration on the hub alone, minus that with the equal mix."""
        return self.frames[self.hub].worst_minus(self.frames[EQUAL])

    @property
    def answer(self) -> Answer:
        """Whether the worst language is damaged more; not supported if a rise by RELEVANT can be excluded."""
        rise = self.hub_worse
        mirrored = replace(rise, value=-rise.value, low=-rise.high, high=-rise.low)
        return is_reduced(mirrored, self.frames[EQUAL].worst()[1].value)


def calibration_language(laboratory: Laboratory) -> Result:
    """Returns the result: which languages does calibration on one of them help or harm?"""
    lab = laboratory.lab()
    shares, unknown = laboratory.shares_or_note()
    bits_now = lab.reference_bits()
    hub = ENGLISH if ENGLISH in bits_now else min(bits_now, key=bits_now.__getitem__)
    n, tokens = len(lab.languages), lab.setting.calibration * len(lab.languages)
    methods = {
        CLIP: Calibrated(_clip_damages(lab, shares), hub),
        GPTQ: Calibrated(_gptq_damages(lab, shares, tokens), hub),
    }
    main = methods[GPTQ]
    homes = {name: home_advantage(method.matrix, seed=lab.setting.seed) for name, method in methods.items()}
    gains = {
        name: int((language_values(method.own_language) < language_values(method.frames[EQUAL])).sum())
        for name, method in methods.items()
    }
    return describe(
        "calibration-language",
        design=(
            f"The exact clip weighted by E[x²], and GPTQ, at {BITS} bits, calibrated on each of {n} languages alone "
            f"(GPTQ with up to {tokens} tokens, as many as all languages together, if the text has them), on all "
            "equally, and in proportion to the training text. Paired by document; Holm over languages; the home "
            "advantage is tested by permuting the calibration languages. Supported: the worst language is damaged more "
            f"with {hub} alone, with an interval above 0. Not supported: the interval lies below 0 or excludes a rise "
            f"of {RELEVANT:.0%}."
        ),
        subject=laboratory.subject(bits=[BITS], hub=hub),
        answer=main.answer,
        verdict=(
            f"At {BITS} bits, calibration on {hub} alone instead of the equal mix changes the damage of the worst "
            f"language by {estimate_text(main.hub_worse)} bits per byte with GPTQ, and by "
            f"{estimate_text(methods[CLIP].hub_worse)} with the weighted clip: {CALIBRATION_ANSWER[main.answer]}."
        ),
        meaning=" ".join(
            f"{name}: calibration on a language itself instead of another changes its damage by "
            f"{number_text(method[0])} bits per byte on average (p = {method[1]:.3g}), and beats the equal mix for "
            f"{gains[name]} of {n} languages."
            for name, method in homes.items()
        )
        + (" Calibrate on all the languages you serve." if main.answer is not Answer.NOT_SUPPORTED else ""),
        tables=(*(_matrix(name, method) for name, method in methods.items()), _summary(methods), _contrasts(methods)),
        figure=_calibration_figure(main),
        power=documents_needed({f"worst language, {hub} against equal": main.hub_worse})
        if main.answer is Answer.UNDECIDED
        else "",
        notes=(f"no proportional mix: {unknown}",) if unknown else (),
    )


CALIBRATION_ANSWER = {
    Answer.SUPPORTED: "the language of calibration matters",
    Answer.NOT_SUPPORTED: "the language of calibration makes no relevant difference to the worst language",
    Answer.UNDECIDED: "whether the language of calibration matters to the worst language is undecided",
}


def home_advantage(matrix: Floats, *, seed: int = 0) -> tuple[float, float]:
    """Returns the mean of the diagonal minus the mean of the rest, and its two-sided p under permuted calibrations.

    `matrix` is (calibration, language). Effects of rows and columns are the same under every permutation. All
    permutations are tried if there are at most DRAWS, else DRAWS random ones.
    """
    n = len(matrix)
    total = float(matrix.sum())

    def advantage(orders: np.ndarray) -> Floats:
        home: Floats = matrix[orders, np.arange(n)].sum(axis=1)
        return home / n - (total - home) / (n * (n - 1))

    exact = factorial(n) <= DRAWS
    if exact:
        orders = np.array(list(permutations(range(n))))
    else:
        orders = np.random.default_rng(seed).permuted(np.tile(np.arange(n), (DRAWS, 1)), axis=1)
    observed, drawn = float(advantage(np.arange(n)[None])[0]), advantage(orders)
    # over all permutations the mean is 0, whatever the matrix; rounding must not decide between equal numbers
    hits = int((np.abs(drawn) >= abs(observed) - 1e-12 * np.abs(matrix).max()).sum())
    return observed, hits / len(orders) if exact else (1 + hits) / (1 + len(orders))


def _clip_damages(lab: ModelLab, shares: Mapping[str, float] | None) -> dict[str, LanguageFrame]:
    damages = {}
    for i, code in enumerate(lab.languages):
        lab.report("clipping for one language", i, len(lab.languages))
        damages[code] = lab.policy_damage("laaciq", BITS, language=code)
    damages[EQUAL] = lab.policy_damage("weighted", BITS)
    if shares is not None:
        equal = lab.plan("weighted", BITS)
        total = sum(shares.values())
        weights = {code: shares[code] / total for code in equal.languages}
        damages[PROPORTIONAL] = lab.plan_damage(replace(equal, languages=weights))
    return damages


def _gptq_damages(lab: ModelLab, shares: Mapping[str, float] | None, tokens: int) -> dict[str, LanguageFrame]:
    damages = {}
    for i, code in enumerate(lab.languages):
        lab.report("GPTQ on one language", i, len(lab.languages))
        damages[code] = lab.policy_damage("gptq", BITS, mix={code: 1.0}, tokens=tokens)
    damages[EQUAL] = lab.policy_damage("gptq", BITS)
    if shares is not None:
        damages[PROPORTIONAL] = lab.policy_damage("gptq", BITS, mix=dict(shares))
    return damages


def _matrix(name: str, method: Calibrated) -> ResultTable:
    rows = tuple(
        (what, *(round(damage, 4) for damage in language_values(frame).tolist()))
        for what, frame in method.frames.items()
    )
    return ResultTable(f"{name}: added bits per byte; rows: calibration", ("calibration", *method.languages), rows)


def _summary(methods: Mapping[str, Calibrated]) -> ResultTable:
    rows = []
    for name, method in methods.items():
        for what, frame in {"its own language": method.own_language, **method.frames}.items():
            rows.append((name, what, *damage_cells(frame)))
    columns = ("method", "calibration", "worst language", "worst", "mean", "gap")
    return ResultTable("Added bits per byte by calibration", columns, tuple(rows))


def _contrasts(methods: Mapping[str, Calibrated]) -> ResultTable:
    rows = []
    for name, method in methods.items():
        against = [method.own_language.contrast(method.frames[baseline]) for baseline in (method.hub, EQUAL)]
        for code in method.languages:
            cells = [
                (estimate_text(contrast.differences[code]), float(f"{contrast.p_holm[code]:.3g}"))
                for contrast in against
            ]
            rows.append((name, code, *cells[0], *cells[1]))
    hub = next(iter(methods.values())).hub
    columns = ("method", "language", f"own minus {hub}", "p (Holm)", "own minus equal", "p (Holm)")
    return ResultTable("Own calibration minus another: negative values are a gain", columns, tuple(rows))


def _calibration_figure(method: Calibrated) -> ResultFigure:
    shown = {"own language": method.own_language, method.hub: method.frames[method.hub], EQUAL: method.frames[EQUAL]}
    series = []
    for name, frame in shown.items():
        estimates = frame.by_language()
        series.append(Series.of_estimates(name, map(float, range(len(estimates))), estimates.values(), estimates))
    return ResultFigure(
        f"Damage by language and calibration, GPTQ, {BITS} bits", "language", "bits per byte", tuple(series)
    )
