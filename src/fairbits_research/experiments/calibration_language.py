"""Calibration language: the damage to every language when the weights are calibrated on the text of one of them."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import permutations
from math import factorial

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.gaps import documents_needed
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, damage_cells, language_values
from fairbits_research.experiments.own_thresholds import RELEVANT, each_from_own_copy, is_reduced
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
            f"{estimate_text(methods[CLIP].hub_worse)} with the weighted clip: {SAYING[main.answer]}."
        ),
        meaning=" ".join(
            f"{name}: calibration on a language itself instead of another changes its damage by "
            f"{number_text(method[0])} bits per byte on average (p = {method[1]:.3g}), and beats the equal mix for "
            f"{gains[name]} of {n} languages."
            for name, method in homes.items()
        )
        + (" Calibrate on all the languages you serve." if main.answer is not Answer.NOT_SUPPORTED else ""),
        tables=(*(_matrix(name, method) for name, method in methods.items()), _summary(methods), _contrasts(methods)),
        figure=_figure(main),
        power=documents_needed({f"worst language, {hub} against equal": main.hub_worse})
        if main.answer is Answer.UNDECIDED
        else "",
        notes=(f"no proportional mix: {unknown}",) if unknown else (),
    )


SAYING = {
    Answer.SUPPORTED: "the language of calibration matters",
    Answer.NOT_SUPPORTED: "the language of calibration makes no relevant difference to the worst language",
    Answer.UNDECIDED: "whether the language of calibration matters to the worst language is undecided",
}


def home_advantage(matrix: Floats, *, seed: int = 0) -> tuple[float, float]:
    """Returns the mean of the diagonal minus the mean of the rest, and its two-sided p under permuted calibrations.

    `matrix` is (calibration, language). Effects of rows and columns are the same under every permutation. All
    permutations are tried if there are at most DRAWS, else DRAWS random ones.

    >>> home_advantage(np.array([[1.0, 3.0, 3.0], [3.0, 1.0, 3.0], [3.0, 3.0, 1.0]]))
    (-2.0, 0.16666666666666666)
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


def _figure(method: Calibrated) -> ResultFigure:
    shown = {"own language": method.own_language, method.hub: method.frames[method.hub], EQUAL: method.frames[EQUAL]}
    series = []
    for name, frame in shown.items():
        estimates = frame.by_language()
        series.append(Series.of_estimates(name, map(float, range(len(estimates))), estimates.values(), estimates))
    return ResultFigure(
        f"Damage by language and calibration, GPTQ, {BITS} bits", "language", "bits per byte", tuple(series)
    )
