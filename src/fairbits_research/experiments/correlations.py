"""Correlations: does activation in outlier layers, or the effective kurtosis, predict the damage of a language?"""

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, combination, estimate_within
from fairbits_research.experiments.laboratory import Laboratory, language_values
from fairbits_research.experiments.language_traits import MANY, LanguageTraits, combine_languages, measure_all
from fairbits_research.experiments.result import (
    Answer,
    Judgement,
    Result,
    ResultFigure,
    Series,
    all_of,
    estimate_numbers,
    estimate_text,
    is_above,
    is_below,
)
from fairbits_research.experiments.trait_correlation import (
    STRONG,
    TraitCorrelation,
    correlate,
    correlation_table,
    has_sign,
    languages_needed,
)

PRIMARY = "nearest, 4 bits"
"""The damage that decides: the research notes consider quantization to 4 bits."""
FOUND = -0.83
"""The research notes' r of outlier activation and damage, over 14 languages."""
MORE, LESS = ("eng_Latn", "fra_Latn"), ("hin_Deva", "arb_Arab")
FIVEFOLD = 5.0


def correlations(laboratory: Laboratory) -> Result:
    """Returns the result: does outlier activation predict damage, in own languages and in many of the declaration?"""
    trait_sets, notes = measure_all(laboratory)
    pairs = [pair for traits in trait_sets for pair in _correlations(traits, seed=laboratory.setting.seed)]
    main = [pair for pair in pairs if pair.x == "ā_outlier" and pair.y == PRIMARY]
    answer = all_of(has_sign(pair.r, -1) for pair in main if pair.among != MANY)
    attention = _attention(trait_sets[-1])
    stated_r = "; ".join(f"{estimate_text(pair.r)} over {pair.r.n} ({pair.among}) languages" for pair in main)
    return Result(
        name="correlations",
        title="Correlations",
        question="Are languages with more activation in the outlier layers damaged less by quantization?",
        predicted=f"Yes: over 14 languages outlier activation and damage have r = {FOUND:g}, and κ_eff much the same.",
        design=_design(trait_sets),
        subject=laboratory.subject(
            outliers="n//4: κ 125, 7n//12: κ 148",
            languages_in_all=len({code for traits in trait_sets for code in traits.languages}),
        ),
        answer=answer,
        verdict=f"The founding r = {FOUND:g} {_SAID[answer]}: at 4 bits r of ā_outlier and damage is {stated_r}.",
        meaning=_MEANING[answer],
        tables=(
            correlation_table("Outlier activation, κ_eff and damage", pairs),
            correlation_table("Other measures of activation", _others(trait_sets)),
            *(traits.table() for traits in trait_sets),
        ),
        figure=_figure(trait_sets),
        judgements=(
            _judge_listed(trait_sets[0].outlier_share),
            _judge_fivefold(trait_sets[0].damage[PRIMARY]),
            _judge_mt5(attention),
        ),
        power=languages_needed({f"r in {pair.among} languages": pair.r for pair in main}),
        notes=(*notes, "Activation is measured on calibration text, damage on evaluation text."),
    )


_SAID = {
    Answer.SUPPORTED: "replicates in sign",
    Answer.NOT_SUPPORTED: "does not replicate",
    Answer.UNDECIDED: "is neither replicated nor contradicted",
}
_MEANING = {
    Answer.SUPPORTED: "Outlier activation gives a first guess of who is damaged; measured damage is still better.",
    Answer.NOT_SUPPORTED: "Do not rank languages by outlier activation or κ_eff: measure damage with fairbits compare.",
    Answer.UNDECIDED: "Outlier activation is not a reliable guide: measure the damage with fairbits compare.",
}


def _correlations(traits: LanguageTraits, *, seed: int) -> list[TraitCorrelation]:
    covariates = {**traits.log_share, **traits.text_traits}
    return [
        correlate(x, (name, language_values(frame)), among=traits.among, covariates=covariates, seed=seed)
        for x in (("ā_outlier", traits.a), ("κ_eff", traits.kappa_eff))
        for name, frame in traits.damage.items()
    ]


def _others(trait_sets: list[LanguageTraits]) -> list[TraitCorrelation]:
    """Returns the correlations of every measure of activation with the damage that decides."""
    return [
        correlate(
            (f"ā_outlier, {kind} {way}", a), (PRIMARY, language_values(traits.damage[PRIMARY])), among=traits.among
        )
        for traits in trait_sets
        for (kind, way), a in traits.activation.items()
    ]


def _attention(traits: LanguageTraits) -> Estimate | None:
    """Returns r of attention's activation in the outlier layers and damage; None where it was not measured."""
    a = traits.activation.get(("attention", "norm"))
    damage = language_values(traits.damage[PRIMARY])
    return None if a is None else correlate(("ā", a), ("D", damage), among=traits.among).r


def _judge_listed(share: LanguageFrame) -> Judgement:
    """Returns the judgement on whether English and French activate the outlier layers more than Hindi and Arabic."""
    weights = dict.fromkeys(MORE, 1 / len(MORE)) | dict.fromkeys(LESS, -1 / len(LESS))
    more = combine_languages(share, weights)
    if more is None:
        because = f"the text does not have all of {', '.join(weights)}"
        return Judgement("000-14", Answer.UNDECIDED, because)
    because = (
        f"the outlier blocks' share of the activation is larger by {estimate_text(more)} for English and French than "
        "for Hindi and Arabic (MLP norm, means of two)"
    )
    return Judgement("000-14", is_above(more, 0.0), because, estimate_numbers("difference", more))


def _judge_fivefold(damage: LanguageFrame) -> Judgement:
    """Returns the judgement on whether Arabic is damaged five times as much as English."""
    times = times_as_much(damage, "arb_Arab", "eng_Latn")
    if times is None:
        return Judgement("000-09", Answer.UNDECIDED, "Arabic or English has no text, or a damage that may be 0")
    answer = is_fivefold(times)
    because = f"at 4 bits Arabic is damaged {estimate_text(times)} times as much as English in bits per byte"
    return Judgement("000-09", answer, because, estimate_numbers("ratio", times))


def is_fivefold(times: Estimate) -> Answer:
    """Returns whether a factor is five: its interval contains 5 and not 1; not supported if it excludes 5."""
    if times.excludes(FIVEFOLD):
        return Answer.NOT_SUPPORTED
    return Answer.SUPPORTED if times.excludes(1.0) else Answer.UNDECIDED


def times_as_much(damage: LanguageFrame, language: str, reference: str) -> Estimate | None:
    """Returns the damage of one language over that of another, with the interval of the log ratio.

    None where either is missing or its interval reaches 0, because the ratio is then unbounded.
    """
    if (
        not {language, reference} <= set(damage.languages)
        or min(damage.language(code).low for code in (language, reference)) <= 0
    ):
        return None
    drawn = damage.bounded
    sign = np.array([(code == language) - float(code == reference) for code in drawn.languages])
    try:
        value, low, high = np.exp(combination(drawn.logarithm(), sign, damage.confidence))
    except InputError:  # another language gains by rounding, so it has no logarithm
        return None
    return estimate_within(value, low, high, n=drawn.clusters, confidence=damage.confidence)


def _judge_mt5(r: Estimate | None) -> Judgement:
    if r is None:
        return Judgement("001-10", Answer.UNDECIDED, "the output of attention cannot be measured in this model")
    because = (
        f"attention's activation in the outlier layers and damage correlate with r = {estimate_text(r)} over {r.n} "
        "languages, in a decoder and not in mT5, which was not available"
    )
    return Judgement("001-10", is_below(r, -STRONG), because, estimate_numbers("r", r))


def _design(trait_sets: list[LanguageTraits]) -> str:
    sizes = " and ".join(f"{len(traits.languages)} {traits.among} languages" for traits in trait_sets)
    return (
        f"A variant with the same function and outliers in two blocks (κ 125 and 148); {sizes}. Damage by round to "
        "nearest at 3 and 4 bits and by the exact clip at 4, bits per byte of evaluation text; activation is the mean "
        "norm of the MLP output on calibration text. Pearson's r with Fisher's and bootstrap intervals over languages, "
        "rank correlation, permutation p adjusted by Holm, and r given training share (own languages), script, bytes "
        f"per token and base loss. Supported: r at 4 bits lies below 0 in own and in known languages. Not supported: "
        f"in one of the two its interval does not reach −{STRONG:g}. Known languages are those of the declaration in "
        "which the model needs fewer bits than a code for byte frequencies, at most 100, drawn evenly from scripts and "
        "families; many are these and the next best, if there are fewer than 60, and are shown only. Most own "
        "languages are among the known."
    )


def _figure(trait_sets: list[LanguageTraits]) -> ResultFigure:
    first = trait_sets[0]
    series = [Series("own", _floats(first.a), _floats(language_values(first.damage[PRIMARY])), labels=first.languages)]
    for traits in trait_sets[1:]:
        rows = np.array([code not in first.languages for code in traits.languages])
        damage = language_values(traits.damage[PRIMARY])
        series.append(Series("others", _floats(traits.a[rows]), _floats(damage[rows])))
    return ResultFigure(
        "Activation in the outlier layers and damage, 4 bits", "ā_outlier", "added bits per byte", tuple(series)
    )


def _floats(numbers: Floats) -> tuple[float, ...]:
    return tuple(numbers.tolist())
