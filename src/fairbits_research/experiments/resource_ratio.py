"""Resource ratio: the corollary of theorem 1, ε_LR/ε_HR ≥ (R_HR + δ)/(R_LR + δ), with the R of the model itself.

The same weights serve every language, so the error of the weights, the ε of the theorem, has the ratio 1. The damage of
quantization stands for ε, as in the validation of the research notes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.units import bits as in_bits
from fairbits.evaluation.language_groups import GroupDamage, Groups, group_damage
from fairbits.forward.statistics import ActivationStatistics
from fairbits.kurtosis.redundancy import miller_madow
from fairbits.stats.correlation import spearman
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.laboratory import Laboratory, language_values
from fairbits_research.experiments.language_traits import combine_languages
from fairbits_research.experiments.result import (
    Answer,
    Judgement,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    all_of,
    describe,
    estimate_numbers,
    estimate_text,
    number_text,
)
from fairbits_research.theory.redundancy_theorem import disparity_ratio

WIDTHS = (4, 3)
DELTA = 0.1
"""The δ of the research notes' numbers; their proof sets it to the width."""
OBSERVED = 4.24
"""The ratio that the research notes observed."""
LEAST_LANGUAGES = 4


@dataclass(frozen=True)
class CorollaryTest:
    """The corollary at one width with one δ; `predicted` is None where R + δ of a group is not surely above 0."""

    bits: int
    delta: float
    redundancy: Mapping[str, Estimate]
    predicted: Estimate | None
    observed: Estimate | None
    pairs: tuple[int, int]

    @property
    def answer(self) -> Answer:
        """Whether the observed ratio is at least the predicted one; a negative R + δ bounds an error by less than 0."""
        if any(redundancy.high + self.delta < 0 for redundancy in self.redundancy.values()):
            return Answer.NOT_SUPPORTED
        if self.predicted is None or self.observed is None:
            return Answer.UNDECIDED
        if self.observed.low >= self.predicted.high:
            return Answer.SUPPORTED
        return Answer.NOT_SUPPORTED if self.observed.high < self.predicted.low else Answer.UNDECIDED

    @property
    def because(self) -> str:
        """Why, as a clause."""
        negative = [name for name, redundancy in self.redundancy.items() if redundancy.high + self.delta < 0]
        if negative:
            return f"R + δ of {' and '.join(negative)} is negative, so that the bound C/(R + δ) is below 0"
        if self.predicted is None:
            return "R + δ may be 0, so that the formula gives no ratio"
        if self.observed is None:
            return "the damage of a group may be 0, so that there is no observed ratio"
        return f"at least {estimate_text(self.predicted)} is predicted and {estimate_text(self.observed)} observed"


def resource_ratio(laboratory: Laboratory) -> Result:
    """Returns the result: are low-resource languages damaged (R_HR + δ)/(R_LR + δ) times as much?"""
    lab, groups = laboratory.lab(), laboratory.groups
    high, low = list(groups)[:2]
    redundancy = redundancy_frame(lab.measurements, seed=lab.setting.seed)
    damage = {}
    for i, width in enumerate(WIDTHS):
        lab.report("rounding", i, len(WIDTHS))
        damage[width] = lab.rounding_damage(width)
    observed = {width: group_damage(frame, groups) for width, frame in damage.items()}
    means = group_damage(redundancy, groups).means
    tests = [
        _test(redundancy, damage[width], observed[width], groups, bits=width, delta=delta)
        for width in WIDTHS
        for delta in (DELTA, float(width))
    ]
    answer = all_of(test.answer for test in tests)
    ratio, first = observed[WIDTHS[0]].ratios.get(low), tests[0]
    shown = f"is {estimate_text(ratio)}" if ratio else f"does not exist, as {observed[WIDTHS[0]].no_ratio}"
    return describe(
        "resource-ratio",
        design=(
            f"R = H(Y) − 2·loss in bits per token, of the calibration text, and the added loss of rounding to nearest "
            f"at {' and '.join(map(str, WIDTHS))} bits in bits per byte, of the evaluation text; means over the "
            f"languages of {high} and of {low}. δ is {DELTA:g}, as in the research notes' numbers, or the width, as in "
            "their proof. Supported: the interval of the observed ratio is above that of the predicted one; not "
            "supported: below it, or R + δ is negative, where the formula has no meaning."
        ),
        subject=laboratory.subject(bits=list(WIDTHS), groups={name: list(codes) for name, codes in groups.items()}),
        answer=answer,
        verdict=f"At {WIDTHS[0]} bits ε_{low}/ε_{high} {shown}; with δ = {DELTA:g}, {first.because}.",
        meaning=(
            "R depends on the tokenizer and on how the text is cut, and all languages read the same rounded weights: "
            "measure the damage of every language instead of deriving it from R."
        ),
        tables=(_redundancy_table(redundancy, means, groups), _test_table(tests, low, high)),
        figure=_figure(redundancy, damage[WIDTHS[0]], groups),
        judgements=(_corollary(tests), _validation(tests)),
        power=separating_text(tests, documents=len(lab.text.lang)) if answer is Answer.UNDECIDED else "",
        notes=_share_note(laboratory, redundancy),
    )


def redundancy_frame(measured: ActivationStatistics, *, seed: int = 0) -> LanguageFrame:
    """Returns the frame of R of every language, R = H(Y) − 2·loss in bits per token (004-01).

    H(Y) is the entropy of the tokens of the text and is held fixed, so intervals are those of the loss.
    """
    entropy = dict(zip(measured.languages, map(miller_madow, measured.unigrams), strict=True))
    offset = np.array([entropy[code] for code in measured.lang.tolist()])
    tokens: Floats = np.asarray(measured.predicted, dtype=np.float64)
    values = offset * tokens - 2 * in_bits(np.asarray(measured.nll, dtype=np.float64))
    return LanguageFrame(measured.lang, measured.document, values=values, weights=tokens, unit="ratio", seed=seed)


def _test(
    redundancy: LanguageFrame, damage: LanguageFrame, observed: GroupDamage, groups: Groups, *, bits: int, delta: float
) -> CorollaryTest:
    high, low = list(groups)[:2]
    shifted = replace(redundancy, values=redundancy.values + delta * redundancy.weights)
    turned = {low: groups[low], high: groups[high]}
    R = dict(zip(redundancy.languages, language_values(redundancy).tolist(), strict=True))
    D = dict(zip(damage.languages, language_values(damage).tolist(), strict=True))
    pairs = [(a, b) for a, b in product(groups[high], groups[low]) if R[a] > R[b] > -delta and min(D[a], D[b]) > 0]
    met = sum(D[b] / D[a] >= disparity_ratio(R[a], R[b], delta=delta) for a, b in pairs)
    return CorollaryTest(
        bits=bits,
        delta=delta,
        redundancy={name: group_damage(redundancy, groups).means[name] for name in (high, low)},
        predicted=group_damage(shifted, turned).ratios.get(high),
        observed=observed.ratios.get(low),
        pairs=(met, len(pairs)),
    )


def _corollary(tests: list[CorollaryTest]) -> Judgement:
    reasons = dict.fromkeys(f"with δ = {test.delta:g} at {test.bits} bits {test.because}" for test in tests)
    numbers = {
        f"{name}_{test.bits}_bits_delta_{test.delta:g}": estimate.value
        for test in tests
        for name, estimate in (("predicted", test.predicted), ("observed", test.observed))
        if estimate is not None
    }
    return Judgement("004-08", all_of(test.answer for test in tests), "; ".join(reasons), numbers)


def _validation(tests: list[CorollaryTest]) -> Judgement:
    numbers = {f"R_{name}": redundancy.value for name, redundancy in tests[0].redundancy.items()}
    test = next((test for test in tests if test.observed is not None), None)
    if test is None or test.observed is None:
        return Judgement("004-09", Answer.UNDECIDED, "the damage of a group may be 0, so there is no ratio", numbers)
    numbers |= estimate_numbers(f"observed_{test.bits}_bits", test.observed)
    because = f"the ratio at {test.bits} bits is {estimate_text(test.observed)}, and {OBSERVED:g} in the research notes"
    return Judgement(
        "004-09", Answer.NOT_SUPPORTED if test.observed.excludes(OBSERVED) else Answer.UNDECIDED, because, numbers
    )


def separating_text(tests: Sequence[CorollaryTest], *, documents: int) -> str:
    """Returns how many documents would part the predicted from the observed ratio where that is undecided.

    Intervals shrink as 1/√n; the values stay as they are.
    """
    parts = []
    for test in tests:
        if test.answer is not Answer.UNDECIDED:
            continue
        where = f"δ = {test.delta:g} at {test.bits} bits"
        if test.predicted is None or test.observed is None:
            parts.append(f"{where}: text in which R + δ and the damage of both groups are surely above 0")
            continue
        low, high = sorted((test.predicted, test.observed), key=lambda ratio: ratio.value)
        reach, distance = (low.high - low.value) + (high.value - high.low), high.value - low.value
        needed = float(f"{documents * (reach / distance) ** 2:.2g}") if distance > 0 else np.inf
        parts.append(f"{where}: about {needed:,.0f} documents")
    return f"Undecided with {documents} documents; needed are, with {'; '.join(parts)}" if parts else ""


def _redundancy_table(redundancy: LanguageFrame, means: Mapping[str, Estimate], groups: Groups) -> ResultTable:
    rows = [(name, len(groups[name]), estimate_text(mean)) for name, mean in means.items()]
    high, low = list(groups)[:2]
    difference = {code: 1 / len(groups[high]) for code in groups[high]}
    difference |= {code: -1 / len(groups[low]) for code in groups[low]}
    estimate = combine_languages(redundancy, difference)
    if estimate is not None:
        rows.append((f"{high} minus {low}", len(difference), estimate_text(estimate)))
    return ResultTable("Redundancy R, bits per token", ("group", "languages", "R"), tuple(rows))


def _test_table(tests: list[CorollaryTest], low: str, high: str) -> ResultTable:
    rows = tuple(
        (
            test.bits,
            number_text(test.delta),
            "–" if test.predicted is None else estimate_text(test.predicted),
            "–" if test.observed is None else estimate_text(test.observed),
            f"{test.pairs[0]} of {test.pairs[1]}" if test.pairs[1] else "–",
            test.answer.value,
        )
        for test in tests
    )
    columns = ("bits", "δ", "predicted ≥", "observed", "pairs", "answer")
    title = f"ε_{low}/ε_{high}; pairs that meet it: a language of {high} with more R than one of {low}, both R + δ > 0"
    return ResultTable(title, columns, rows)


def _figure(redundancy: LanguageFrame, damage: LanguageFrame, groups: Groups) -> ResultFigure:
    R, D = redundancy.by_language(), damage.by_language()
    series = tuple(
        Series(name, tuple(R[code].value for code in codes), tuple(D[code].value for code in codes), labels=codes)
        for name, codes in groups.items()
    )
    return ResultFigure(f"Redundancy and damage, {WIDTHS[0]} bits", "R, bits per token", "added bits per byte", series)


def _share_note(laboratory: Laboratory, redundancy: LanguageFrame) -> tuple[str, ...]:
    """Returns whether languages with more training text have more R, where their shares are known (004)."""
    shares, _ = laboratory.shares_or_note()
    R = dict(zip(redundancy.languages, language_values(redundancy).tolist(), strict=True))
    if shares is None or len(R) < LEAST_LANGUAGES:
        return ()
    rank = spearman([shares[code] for code in R], list(R.values())).estimate
    return (f"Rank correlation of training share and R over {len(R)} languages: {estimate_text(rank)}.",)
