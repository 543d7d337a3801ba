"""Three experiments on traits of languages: does outlier activation, redundancy or training share predict the damage?

Each correlates traits with damage over the model's own languages, and the first two over many of the declaration.
"""

from collections.abc import Sequence

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.stats.correlation import spearman
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, combination, estimate_within
from fairbits_research.experiments.laboratory import Laboratory, language_values
from fairbits_research.experiments.language_traits import (
    DRAWS,
    DROPPED,
    LEAST_CORRELATED,
    MANY,
    OWN,
    LanguageTraits,
    combine_languages,
    measure_all,
    measure_traits,
)
from fairbits_research.experiments.result import (
    Answer,
    Judgement,
    Result,
    ResultFigure,
    Series,
    all_of,
    describe,
    estimate_numbers,
    estimate_text,
    is_above,
    is_below,
    sentence,
)
from fairbits_research.experiments.trait_correlation import (
    STRONG,
    TraitCorrelation,
    correlate,
    correlation_tables,
    has_sign,
    languages_needed,
)

DECIDING_DAMAGE = "nearest, 4 bits"
"""The damage that decides: the research notes consider quantization to 4 bits."""
PAPER_R = -0.83
"""The research notes' r of outlier activation and damage, over 14 languages."""
MORE_ACTIVE, LESS_ACTIVE = ("eng_Latn", "fra_Latn"), ("hin_Deva", "arb_Arab")
FIVEFOLD = 5.0


def require_languages(laboratory: Laboratory) -> None:
    """Raises if the text has too few languages for a correlation."""
    n = len(laboratory.corpus.evaluation)
    if n < LEAST_CORRELATED:
        raise InputError(f"a correlation over {n} languages has no interval; name at least {LEAST_CORRELATED}")


def correlations(laboratory: Laboratory) -> Result:
    """Returns the result: does outlier activation predict damage, in own languages and in many of the declaration?"""
    require_languages(laboratory)  # first, because all else takes time
    laboratory.require_outliers()
    trait_sets, notes = measure_all(laboratory)
    pairs = [pair for traits in trait_sets for pair in _activation_correlations(traits, seed=laboratory.setting.seed)]
    main = [pair for pair in pairs if pair.x == "ā_outlier" and pair.y == DECIDING_DAMAGE]
    answer = all_of(has_sign(pair.r, -1) for pair in main if pair.among != MANY)
    by_set = "; ".join(f"{estimate_text(pair.r)} over {pair.r.n} ({pair.among}) languages" for pair in main)
    return describe(
        "correlations",
        design=_activation_design(trait_sets, notes[0]),
        subject=laboratory.subject(
            **laboratory.outlier_settings(),
            languages_in_all=len({code for traits in trait_sets for code in traits.languages}),
        ),
        answer=answer,
        verdict=f"The founding r = {PAPER_R:g} {REPLICATES[answer]}: at 4 bits r of ā_outlier and damage is {by_set}.",
        meaning=ACTIVATION_ADVICE[answer],
        tables=(
            *(traits.main_table(DECIDING_DAMAGE) for traits in trait_sets),
            *correlation_tables("Outlier activation, κ_eff and damage", pairs),
            *correlation_tables("Other measures of activation", _other_measures(trait_sets)),
            *(table for traits in trait_sets for table in traits.tables()),
        ),
        figure=_activation_figure(trait_sets),
        judgements=_asked(
            _judge_listed(trait_sets[0].outlier_frame),
            _judge_fivefold(trait_sets[0].damage[DECIDING_DAMAGE]),
            _judge_mt5(_attention(trait_sets[-1]), laboratory.lab().stacks),
        ),
        power=languages_needed({f"r in {pair.among} languages": pair.r for pair in main}),
        notes=(*notes[1:], "Activation is measured on calibration text, damage on evaluation text."),
    )


REPLICATES = {
    Answer.SUPPORTED: "replicates in sign",
    Answer.NOT_SUPPORTED: "does not replicate",
    Answer.UNDECIDED: "is neither replicated nor contradicted",
}
ACTIVATION_ADVICE = {
    Answer.SUPPORTED: "Outlier activation gives a first guess of who is damaged; measured damage is still better.",
    Answer.NOT_SUPPORTED: "Do not rank languages by outlier activation or κ_eff: measure damage with fairbits compare.",
    Answer.UNDECIDED: "Outlier activation is not a reliable guide: measure the damage with fairbits compare.",
}


def _activation_correlations(traits: LanguageTraits, *, seed: int) -> list[TraitCorrelation]:
    covariates = {**traits.log_share, **traits.text_traits}
    return [
        correlate(x, (name, language_values(frame)), among=traits.among, covariates=covariates, seed=seed)
        for x in (("ā_outlier", traits.a), ("κ_eff", traits.kappa_eff))
        for name, frame in traits.damage.items()
    ]


def _other_measures(trait_sets: list[LanguageTraits]) -> list[TraitCorrelation]:
    """Returns the correlations of every other measure of activation with the damage that decides."""
    return [
        correlate(x, (DECIDING_DAMAGE, language_values(traits.damage[DECIDING_DAMAGE])), among=traits.among)
        for traits in trait_sets
        for x in traits.other_measures().items()
        if np.ptp(x[1]) > 0
    ]


def _attention(traits: LanguageTraits) -> Estimate | None:
    """Returns r of attention's activation in the (decoder's) outlier blocks and damage; None where it is not known."""
    a, damage = traits.attention, language_values(traits.damage[DECIDING_DAMAGE])
    return None if a is None or np.ptp(a) == 0 else correlate(("ā", a), ("D", damage), among=traits.among).r


def _asked(*judgements: Judgement | None) -> tuple[Judgement, ...]:
    """Returns the judgements on claims about which this model and text say anything."""
    return tuple(filter(None, judgements))


def _judge_listed(share: LanguageFrame) -> Judgement | None:
    """Returns the judgement on whether English and French activate the outlier layers more than Hindi and Arabic.

    None where the text does not have all four.
    """
    weights = dict.fromkeys(MORE_ACTIVE, 1 / len(MORE_ACTIVE)) | dict.fromkeys(LESS_ACTIVE, -1 / len(LESS_ACTIVE))
    more = combine_languages(share, weights)
    if more is None:
        return None
    because = (
        f"the outlier blocks' share of the activation is larger by {estimate_text(more)} for English and French than "
        "for Hindi and Arabic (block norm, means of two)"
    )
    return Judgement("000-14", is_above(more, 0.0), because, estimate_numbers("difference", more))


def _judge_fivefold(damage: LanguageFrame) -> Judgement | None:
    """Returns the judgement on whether Arabic is damaged five times as much as English; None without text of both."""
    pair = "arb_Arab", "eng_Latn"
    if not {*pair} <= {*damage.languages}:
        return None
    times = times_as_much(damage, *pair)
    if times is None:
        return Judgement("000-09", Answer.UNDECIDED, "the damage of Arabic or of English may be 0")
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


def _judge_mt5(r: Estimate | None, stacks: Sequence[str]) -> Judgement:
    """Returns the judgement on mT5: r < −0.5 between activation of attention in the decoder's outlier blocks and D."""
    both = set(stacks) == {"encoder", "decoder"}
    if r is None:
        because = (
            "no outlier block lies in the decoder, or its attention cannot be measured"
            if both
            else "the output of attention in the outlier blocks cannot be measured, or does not vary"
        )
        return Judgement("001-10", Answer.UNDECIDED, because)
    where = (
        "the decoder's outlier blocks, in an encoder–decoder model as mT5 is"
        if both
        else f"the outlier blocks of {'an encoder' if 'encoder' in stacks else 'a decoder'}, which is no model like mT5"
    )
    because = f"r of damage and the activation of attention is {estimate_text(r)} over {r.n} languages, in {where}"
    return Judgement("001-10", is_below(r, -STRONG), because, estimate_numbers("r", r))


def _activation_design(trait_sets: list[LanguageTraits], outliers: str) -> str:
    sizes = " and ".join(f"{len(traits.languages)} {traits.among} languages" for traits in trait_sets)
    return (
        f"{outliers} {sentence(sizes)}. Damage by round to nearest at 3 and 4 bits and by the exact clip at 4, bits "
        "per byte of evaluation text; activation is the mean norm of a block's output on calibration text, as in an "
        "audit, and κ_eff weighs κ by it. Pearson's r with Fisher's and bootstrap intervals over languages, rank "
        "correlation, permutation p adjusted by Holm, and r given training share (own languages), script, bytes "
        f"per token and base loss. Supported: r at 4 bits lies below 0 in own and in known languages. Not supported: "
        f"in one of the two its interval does not reach −{STRONG:g}. Known languages are those of the declaration in "
        "which the model needs fewer bits than a code for byte frequencies, at most 100, drawn evenly from scripts and "
        "families; many are these and the next best, if there are fewer than 60, and are shown only. Most own "
        "languages are among the known."
    )


def _activation_figure(trait_sets: list[LanguageTraits]) -> ResultFigure:
    first = trait_sets[0]
    on_first = language_values(first.damage[DECIDING_DAMAGE])
    series = [Series(first.among, _floats(first.a), _floats(on_first), labels=first.languages)]
    for traits in trait_sets[1:]:
        rows = np.array([code not in first.languages for code in traits.languages])
        damage = language_values(traits.damage[DECIDING_DAMAGE])
        series.append(Series("others", _floats(traits.a[rows]), _floats(damage[rows])))
    return ResultFigure(
        "Activation in the outlier layers and damage, 4 bits", "ā_outlier", "added bits per byte", tuple(series)
    )


def _floats(numbers: Floats) -> tuple[float, ...]:
    return tuple(numbers.tolist())


REDUNDANCY_DAMAGE = "nearest, 3 bits"
MEASURED = "1/R, dropout"


def redundancy(laboratory: Laboratory) -> Result:
    """Returns the result: does 1/R predict damage, and does the documents' R̂ = ā_outlier measure redundancy?"""
    require_languages(laboratory)
    measured, notes = measure_all(laboratory, dropout=True, treatments=[REDUNDANCY_DAMAGE])
    trait_sets = [
        traits.with_redundancy()
        for traits in measured
        if traits.among == OWN or len(traits.damaged) >= LEAST_CORRELATED
    ]
    seed = laboratory.setting.seed
    pairs = [pair for traits in trait_sets for pair in _redundancy_correlations(traits, seed=seed)]
    main = [pair for pair in pairs if pair.x == MEASURED]
    answer = all_of(has_sign(pair.adjusted, 1) for pair in main if pair.among != MANY)
    found_ranks = "; ".join(
        f"{estimate_text(pair.ranks)} in {pair.r.n} ({pair.among}) languages"
        + (f", r given {' and '.join(pair.covariates)} {estimate_text(pair.partial.estimate)}" if pair.partial else "")
        for pair in main
    )
    stands_in = [pair for traits in trait_sets for pair in _stand_in(traits)]
    return describe(
        "redundancy",
        design=(
            f"{notes[0]} In "
            + " and ".join(f"{len(traits.languages)} {traits.among} languages" for traits in trait_sets)
            + f". R is 1/damage of setting a random {DROPPED:.0%} of the input columns of every linear layer to 0, "
            f"mean of {DRAWS} draws (seeds 0 to {DRAWS - 1}); languages that lose nothing by it are left out. In "
            "addition, the proxies of the audit and, where there are outlier blocks, the documents' R̂ = ā_outlier. "
            "Damage is that of round to nearest at 3 bits. Rank correlations with intervals over languages, "
            "permutation p adjusted by Holm, and r given bytes per token and base loss. Supported: r of 1/R and damage "
            "given both lies above 0 in own and in known languages; not supported: in one of the two its interval does "
            f"not reach {STRONG:g}. Known are languages of the declaration in which the model needs fewer bits than a "
            "code for byte frequencies; many are at least 60, and are shown only."
        ),
        subject=laboratory.subject(range(DRAWS), dropped=DROPPED, **laboratory.outlier_settings()),
        answer=answer,
        verdict=f"1/R {PREDICTION[answer]} damage: rank ρ is {found_ranks}.",
        meaning=REDUNDANCY_ADVICE[answer],
        tables=(
            *correlation_tables("Redundancy and damage at 3 bits", pairs),
            *correlation_tables("The documents' R̂ and measured redundancy", stands_in),
            *(table for traits in measured for table in traits.tables()),
        ),
        figure=_redundancy_figure(trait_sets),
        judgements=_asked(judge_proxy(trait_sets[-1]), judge_survival(trait_sets[0])),
        power=languages_needed({f"r of 1/R and damage in {pair.among} languages": pair.adjusted for pair in main}),
        notes=(
            *notes[1:],
            "Dropping and rounding are measured on the same documents, so they share their sampling noise.",
        ),
    )


PREDICTION = {
    Answer.SUPPORTED: "predicts",
    Answer.NOT_SUPPORTED: "does not predict",
    Answer.UNDECIDED: "may or may not predict",
}
REDUNDANCY_ADVICE = {
    Answer.SUPPORTED: (
        "Languages that are damaged by dropped inputs are damaged by rounding as well: dropping columns finds them "
        "without a quantizer."
    ),
    Answer.NOT_SUPPORTED: "Tolerance of dropped inputs does not predict tolerance of rounding: measure rounding.",
    Answer.UNDECIDED: "Do not rely on a measure of redundancy to predict who is damaged: measure rounding.",
}


def _redundancy_correlations(traits: LanguageTraits, *, seed: int) -> list[TraitCorrelation]:
    damage = REDUNDANCY_DAMAGE, language_values(traits.damage[REDUNDANCY_DAMAGE])
    measured: dict[str, Floats] = {MEASURED: 1 / traits.robustness, **_proxy(traits), **traits.proxies}
    covariates = {name: values for name, values in traits.text_traits.items() if name != "Latin script"}
    return [correlate(x, damage, among=traits.among, covariates=covariates, seed=seed) for x in measured.items()]


def _proxy(traits: LanguageTraits) -> dict[str, Floats]:
    """Returns the documents' R̂ = ā_outlier by its name; nothing where the model has no outlier blocks."""
    return {} if traits.outlier_share is None else {"R̂ = ā_outlier": traits.a}


def _stand_in(traits: LanguageTraits) -> list[TraitCorrelation]:
    proxy, measured = _proxy(traits), {"R, dropout": traits.robustness}
    pairs = [correlate(x, y, among=traits.among) for x in proxy.items() for y in measured.items()]
    return pairs + [
        correlate(share, trait, among=traits.among, covariates={"Latin script": traits.latin})
        for share in traits.log_share.items()
        for trait in (proxy | measured).items()
    ]


def judge_proxy(traits: LanguageTraits) -> Judgement | None:
    """Returns the judgement on whether R̂ is a proxy of redundancy: it rises with R of dropout and falls with damage.

    None where there are no outlier blocks.
    """
    if traits.outlier_share is None:
        return None
    with_r = spearman(traits.a, traits.robustness).estimate
    with_d = spearman(traits.a, language_values(traits.damage[REDUNDANCY_DAMAGE])).estimate
    answer = all_of((has_sign(with_r, 1), has_sign(with_d, -1)))
    because = (
        f"rank ρ of ā_outlier is {estimate_text(with_r)} with the redundancy measured by dropping columns and "
        f"{estimate_text(with_d)} with damage at 3 bits over {with_r.n} languages"
    )
    return Judgement("000-20", answer, because, {"with_redundancy": with_r.value, "with_damage": with_d.value})


def judge_survival(traits: LanguageTraits) -> Judgement | None:
    """Returns the judgement on whether a larger training share protects by redundancy; None without shares or blocks.

    Both links must have the predicted sign given script; one with the wrong sign, or too weak to matter, refutes it.
    """
    if traits.outlier_share is None or traits.shares is None:
        return None
    (share,) = traits.log_share.items()
    script = {"Latin script": traits.latin}
    damage = REDUNDANCY_DAMAGE, language_values(traits.damage[REDUNDANCY_DAMAGE])
    first = correlate(share, ("R̂", traits.a), among=traits.among, covariates=script).adjusted
    second = correlate(("R̂", traits.a), damage, among=traits.among, covariates=script).adjusted
    answer = all_of((has_sign(first, 1), has_sign(second, -1)))
    because = (
        f"given script, r of log share and R̂ is {estimate_text(first)}, and r of R̂ and damage at 3 bits is "
        f"{estimate_text(second)} over {first.n} languages"
    )
    return Judgement("000-17", answer, because, {"share_with_R": first.value, "R_with_damage": second.value})


def _redundancy_figure(trait_sets: list[LanguageTraits]) -> ResultFigure:
    series = tuple(
        Series(
            f"{traits.among} languages",
            tuple((1 / traits.robustness).tolist()),
            tuple(language_values(traits.damage[REDUNDANCY_DAMAGE]).tolist()),
            labels=traits.languages if i == 0 else (),
        )
        for i, traits in enumerate(trait_sets)
    )
    title = "Damage by dropped columns and by rounding to 3 bits"
    return ResultFigure(title, "1/R: dropped columns, bits per byte", "rounding, bits per byte", series)


SHARE_TREATMENTS = ("nearest, 3 bits", "nearest, 4 bits")
POINTS = 0.03
"""Three percentage points, the smallest difference between languages in outlier activation that is claimed."""
SHARE = "log share"


def training_data(laboratory: Laboratory) -> Result:
    """Returns the result: do languages with more training text have more outlier activation and less damage?"""
    shares = laboratory.shares  # first, because all else takes time
    require_languages(laboratory)
    laboratory.require_outliers()
    lab = laboratory.lab()
    traits = measure_traits(lab, OWN, dropout=False, treatments=SHARE_TREATMENTS, shares=shares)
    pairs = _share_correlations(
        traits, shares=np.array([shares[code] for code in traits.languages]), seed=laboratory.setting.seed
    )
    activation, kappa, *damage = pairs[: 2 + len(SHARE_TREATMENTS)]
    answer = is_above(activation.r, STRONG)
    spread = traits.outlier_frame.gap()
    return describe(
        "training-data",
        design=(
            f"{lab.outlier_text()} The {len(traits.languages)} languages whose share of the training tokens is known. "
            "Logarithm of the share (and the share itself) against ā_outlier (mean norm of a block's output, "
            "calibration text), κ_eff, and damage by round to nearest at 3 and 4 bits (evaluation text). Fisher's "
            "intervals over languages, permutation p adjusted by Holm, and r given script. Supported: the interval of "
            f"r(log share, ā_outlier) lies above {STRONG:g}; not supported: below it."
        ),
        subject=laboratory.subject(treatments=list(SHARE_TREATMENTS), **laboratory.outlier_settings()),
        answer=answer,
        verdict=(
            f"r of log training share and outlier activation is {estimate_text(activation.r)} over {activation.r.n} "
            f"languages, {SHARE_ANSWER[answer]}; with damage at 3 bits it is {estimate_text(damage[0].r)}."
        ),
        meaning=_share_meaning(damage[0].r),
        tables=(
            traits.main_table(SHARE_TREATMENTS[0]),
            *correlation_tables("Training share", pairs),
            *traits.tables(),
        ),
        figure=_share_figure(traits, shares),
        judgements=(
            Judgement(
                "001-19",
                answer,
                f"r(log share, ā_outlier) = {estimate_text(activation.r)}",
                estimate_numbers("r", activation.r) | {"n": activation.r.n},
            ),
            Judgement(
                "002-15",
                all_of(has_sign(correlation.r, 1) for correlation in (activation, kappa)),
                f"r of log share is {estimate_text(activation.r)} with ā_outlier, {estimate_text(kappa.r)} with κ_eff",
                {"r_activation": activation.r.value, "r_kappa": kappa.r.value},
            ),
            judge_spread(spread, activation.adjusted),
        ),
        power=languages_needed(
            {"r(log share, ā_outlier)": activation.r, "r(log share, damage at 3 bits)": damage[0].r}
        ),
    )


SHARE_ANSWER = {
    Answer.SUPPORTED: f"above {STRONG:g} as predicted",
    Answer.NOT_SUPPORTED: f"below the predicted {STRONG:g}",
    Answer.UNDECIDED: f"which leaves undecided whether it is above {STRONG:g}",
}


def _share_correlations(traits: LanguageTraits, *, shares: Floats, seed: int) -> list[TraitCorrelation]:
    """Returns the correlations of the log share with everything, then those of the share itself."""
    with_what = {"ā_outlier": traits.a, "κ_eff": traits.kappa_eff}
    with_what |= {name: language_values(frame) for name, frame in traits.damage.items()}
    covariates = {"Latin script": traits.latin}
    return [
        correlate((name, x), (trait, y), among=traits.among, covariates=covariates, seed=seed)
        for name, x in ((SHARE, np.log(shares)), ("share", shares))
        for trait, y in with_what.items()
    ]


def judge_spread(spread: Estimate, r: Estimate) -> Judgement:
    """Returns the judgement on whether languages differ by over 3 points in outlier activation due to their share."""
    answer = all_of((is_above(spread, POINTS), has_sign(r, 1)))
    because = (
        f"languages differ by {estimate_text(spread)} in ā_outlier (largest minus smallest, corrected for noise), and "
        f"r(log share, ā_outlier) given script is {estimate_text(r)}"
    )
    return Judgement("001-04", answer, because, {"spread": spread.value, "r_given_script": r.value})


def _share_meaning(damage: Estimate) -> str:
    if not damage.excludes(0.0):
        return "The training share does not predict who is damaged: measure every language, including the large ones."
    who = "more" if damage.value > 0 else "less"
    return f"Languages with more training text are damaged {who}: check the {REPRESENTED[damage.value > 0]} ones first."


REPRESENTED = {True: "best represented", False: "least represented"}


def _share_figure(traits: LanguageTraits, shares: dict[str, float]) -> ResultFigure:
    x = tuple(shares[code] for code in traits.languages)
    activation = traits.outlier_frame.by_language()
    low, high = (tuple(getattr(activation[code], side) for code in traits.languages) for side in ("low", "high"))
    series = Series("languages", x, tuple(traits.a.tolist()), low, high, traits.languages)
    title = "Training share and activation in the outlier layers"
    return ResultFigure(title, "share of training tokens", "ā_outlier", (series,), log="x")
