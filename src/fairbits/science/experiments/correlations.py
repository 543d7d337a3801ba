"""Correlations: does activation in outlier layers, or the effective kurtosis, tell how much a language loses?"""

import numpy as np

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.science.experiments.laboratory import Laboratory, values
from fairbits.science.experiments.measured_traits import of_all
from fairbits.science.experiments.result import Answer, Figure, Judgement, Result, Series, below, every, written
from fairbits.science.experiments.ties import STRONG, Tie, needed, of_sign, tie, ties_table
from fairbits.science.experiments.traits_of_languages import MANY, Traits, contrast
from fairbits.stats import Estimate, LanguageFrame
from fairbits.stats.intervals import combination

NAME = "correlations"
PRIMARY = "nearest, 4 bits"
"""The damage that decides: what the founding documents look at is quantization to 4 bits."""
FOUND = -0.83
"""The founding documents' r of outlier activation and damage, over 14 languages."""
MORE, LESS = ("eng_Latn", "fra_Latn"), ("hin_Deva", "arb_Arab")
FIVEFOLD = 5.0


def correlations(laboratory: Laboratory) -> Result:
    """Does outlier activation tell damage? In the model's own languages, and in many of the declaration."""
    found, notes = of_all(laboratory)
    ties = [each for traits in found for each in _ties(traits, seed=laboratory.setting.seed)]
    main = [each for each in ties if each.x == "ā_outlier" and each.y == PRIMARY]
    answer = every(of_sign(each.r, -1) for each in main if each.among != MANY)
    attention = _attention(found[-1])
    told = "; ".join(f"{written(each.r)} in {each.r.n} ({each.among}) languages" for each in main)
    return Result(
        name=NAME,
        title="Correlations",
        question="Do languages with more activation in the outlier layers lose less by quantization?",
        predicted=f"Yes: over 14 languages outlier activation and damage have r = {FOUND:g}, and κ_eff much the same.",
        design=_design(found),
        subject=laboratory.subject(outliers="n//4: κ 125, 7n//12: κ 148", languages_in_all=len(_codes(found))),
        answer=answer,
        verdict=f"The founding r = {FOUND:g} {_SAID[answer]}: at 4 bits r of ā_outlier and damage is {told}.",
        meaning=_MEANING[answer],
        tables=(
            ties_table("Outlier activation, κ_eff and damage", ties),
            ties_table("Other measures of activation", _others(found)),
            *(each.table() for each in found),
        ),
        figure=_figure(found),
        judgements=(
            _listed(found[0].outlier_share),
            _fivefold(found[0].damage[PRIMARY]),
            _mt5(attention),
        ),
        power=needed({f"r in {each.among} languages": each.r for each in main}),
        notes=(*notes, "Activation is measured on calibration text, damage on evaluation text."),
    )


_SAID = {
    Answer.SUPPORTED: "replicates in sign",
    Answer.NOT_SUPPORTED: "does not replicate",
    Answer.UNDECIDED: "neither replicates nor is it contradicted",
}
_MEANING = {
    Answer.SUPPORTED: "Outlier activation gives a first guess of who will be hurt; measured damage is still better.",
    Answer.NOT_SUPPORTED: "Do not rank languages by outlier activation or κ_eff: measure damage with fairbits compare.",
    Answer.UNDECIDED: "Outlier activation is no reliable guide yet: measure the damage with fairbits compare.",
}


def _ties(traits: Traits, *, seed: int) -> list[Tie]:
    given = {**traits.log_share, **traits.text_traits}
    return [
        tie(x, (name, values(frame)), among=traits.among, given=given, seed=seed)
        for x in (("ā_outlier", traits.a), ("κ_eff", traits.kappa_eff))
        for name, frame in traits.damage.items()
    ]


def _others(found: list[Traits]) -> list[Tie]:
    """Returns the ties of every measure of activation with the damage that decides."""
    return [
        tie((f"ā_outlier, {kind} {way}", a), (PRIMARY, values(traits.damage[PRIMARY])), among=traits.among)
        for traits in found
        for (kind, way), a in traits.activation.items()
    ]


def _attention(traits: Traits) -> Estimate | None:
    """Returns r of attention's activation in the outlier layers and damage; None where it cannot be seen."""
    a = traits.activation.get(("attention", "norm"))
    damage = values(traits.damage[PRIMARY])
    return None if a is None else tie(("ā", a), ("D", damage), among=traits.among).r


def _listed(share: LanguageFrame) -> Judgement:
    """English and French have more activation in the outlier layers than Hindi and Arabic."""
    weights = dict.fromkeys(MORE, 1 / len(MORE)) | dict.fromkeys(LESS, -1 / len(LESS))
    more = contrast(share, weights)
    if more is None:
        because = f"the text has not all of {', '.join(weights)}"
        return Judgement("000-14", Answer.UNDECIDED, because)
    because = (
        f"the outlier blocks have {written(more)} more of the activation of English and French than of that of Hindi "
        "and Arabic (MLP norm, means of two)"
    )
    answer = Answer.UNDECIDED
    if more.excludes(0.0):
        answer = Answer.SUPPORTED if more.value > 0 else Answer.NOT_SUPPORTED
    return Judgement("000-14", answer, because, {"difference": more.value, "low": more.low, "high": more.high})


def _fivefold(damage: LanguageFrame) -> Judgement:
    """Arabic loses five times as much as English."""
    times = times_as_much(damage, "arb_Arab", "eng_Latn")
    if times is None:
        return Judgement("000-09", Answer.UNDECIDED, "Arabic or English has no text here, or a damage that may be 0")
    answer = fivefold(times)
    because = f"at 4 bits Arabic loses {written(times)} times as much as English in bits per byte"
    return Judgement("000-09", answer, because, {"ratio": times.value, "low": times.low, "high": times.high})


def fivefold(times: Estimate) -> Answer:
    """Returns whether it is five times as much: the interval holds 5 and not 1; not supported if it does not hold 5."""
    if times.excludes(FIVEFOLD):
        return Answer.NOT_SUPPORTED
    return Answer.SUPPORTED if times.excludes(1.0) else Answer.UNDECIDED


def times_as_much(damage: LanguageFrame, one: str, other: str) -> Estimate | None:
    """Returns the damage of one language over that of another, with the interval of the log ratio.

    None where either is missing or its interval reaches 0, as the ratio is then without bounds.
    """
    if not {one, other} <= set(damage.languages) or min(damage.language(code).low for code in (one, other)) <= 0:
        return None
    sign = np.array([(code == one) - float(code == other) for code in damage.languages])
    try:
        value, low, high = np.exp(combination(damage.replicates.logarithm(), sign, damage.confidence))
    except InputError:  # some third language gains by rounding, and has no logarithm
        return None
    return Estimate(float(value), float(low), float(high), damage.replicates.clusters, damage.confidence)


def _mt5(r: Estimate | None) -> Judgement:
    if r is None:
        return Judgement("001-10", Answer.UNDECIDED, "what attention gives cannot be seen in this model")
    because = (
        f"attention's activation in the outlier layers and damage correlate with r = {written(r)} in {r.n} languages, "
        "in a decoder and not in mT5, which could not be had"
    )
    return Judgement("001-10", below(r, -STRONG), because, {"r": r.value, "low": r.low, "high": r.high})


def _design(found: list[Traits]) -> str:
    sizes = " and ".join(f"{len(each.languages)} {each.among} languages" for each in found)
    return (
        f"A variant with the same function and outliers in two blocks (κ 125 and 148); {sizes}. Damage by round to "
        "nearest at 3 and 4 bits and by the exact clip at 4, bits per byte of evaluation text; activation is the mean "
        "norm of the MLP output on calibration text. Pearson's r with Fisher's and bootstrap intervals over languages, "
        "rank correlation, permutation p adjusted by Holm, and r given training share (own languages), script, bytes "
        f"per token and base loss. Supported: r at 4 bits lies below 0 in own and in known languages. Not supported: "
        f"in one of the two its interval does not reach −{STRONG:g}. Known languages are those of the declaration in "
        "which the model needs fewer bits than the frequencies of the bytes would, at most 100, drawn evenly from "
        "scripts and families; many are these and the next ones, if there are fewer than 60, and are shown only. Most "
        "own languages are among the known."
    )


def _codes(found: list[Traits]) -> set[str]:
    return {code for each in found for code in each.languages}


def _figure(found: list[Traits]) -> Figure:
    own = found[0]
    series = [Series("own", _floats(own.a), _floats(values(own.damage[PRIMARY])), labels=own.languages)]
    for traits in found[1:]:
        rows = np.array([code not in own.languages for code in traits.languages])
        damage = values(traits.damage[PRIMARY])
        series.append(Series("others", _floats(traits.a[rows]), _floats(damage[rows])))
    return Figure(
        "Activation in the outlier layers and damage, 4 bits", "ā_outlier", "added bits per byte", tuple(series)
    )


def _floats(numbers: Floats) -> tuple[float, ...]:
    return tuple(numbers.tolist())
