"""Redundancy: is a language that tolerates dropped columns also damaged less by quantization?"""

from fairbits.core.array_checks import Floats
from fairbits.stats.correlation import spearman
from fairbits_research.experiments.laboratory import Laboratory, language_values
from fairbits_research.experiments.language_traits import DRAWS, DROPPED, MANY, LanguageTraits, measure_all
from fairbits_research.experiments.result import Answer, Judgement, Result, ResultFigure, Series, all_of, estimate_text
from fairbits_research.experiments.trait_correlation import (
    STRONG,
    TraitCorrelation,
    correlate,
    correlation_table,
    has_sign,
    languages_needed,
)

PRIMARY = "nearest, 3 bits"
MEASURED = "1/R, dropout"


def redundancy(laboratory: Laboratory) -> Result:
    """Returns the result: does 1/R predict damage, and does the documents' R̂ = ā_outlier measure redundancy?"""
    measured, notes = measure_all(laboratory, dropout=True, treatments=[PRIMARY])
    trait_sets = [traits.with_redundancy() for traits in measured]
    seed = laboratory.setting.seed
    pairs = [pair for traits in trait_sets for pair in _correlations(traits, seed=seed)]
    main = [pair for pair in pairs if pair.x == MEASURED]
    answer = all_of(has_sign(pair.adjusted, 1) for pair in main if pair.among != MANY)
    found_ranks = "; ".join(
        f"{estimate_text(pair.ranks)} in {pair.r.n} ({pair.among}) languages"
        + (f", r given {' and '.join(pair.covariates)} {estimate_text(pair.partial.estimate)}" if pair.partial else "")
        for pair in main
    )
    stands_in = [pair for traits in trait_sets for pair in _stand_in(traits)]
    return Result(
        name="redundancy",
        title="Redundancy",
        question="Does 1/R predict damage, where R is how well a language tolerates the loss of inputs?",
        predicted="Damage is proportional to 1/R (theorem 1), and activation in the outlier layers is a proxy of R.",
        design=(
            "The variant with outliers in two blocks (κ 125 and 148), in "
            + " and ".join(f"{len(traits.languages)} {traits.among} languages" for traits in trait_sets)
            + f". R is 1/damage of setting a random {DROPPED:.0%} of the input columns of every linear layer to 0, "
            f"mean of {DRAWS} draws (seeds 0 to {DRAWS - 1}); languages that lose nothing by it are left out. In "
            "addition, the proxies of the audit and the documents' R̂ = ā_outlier. Damage is that of round to nearest "
            "at 3 bits. Rank correlations with intervals over languages, permutation p adjusted by Holm, and r given "
            "bytes per token and base loss. Supported: r of 1/R and damage given both lies above 0 in own and in known "
            f"languages; not supported: in one of the two its interval does not reach {STRONG:g}. Known are languages "
            "of the declaration in which the model needs fewer bits than a code for byte frequencies; many are at "
            "least 60, and are shown only."
        ),
        subject=laboratory.subject(range(DRAWS), dropped=DROPPED),
        answer=answer,
        verdict=f"1/R {_SAID[answer]} damage: rank ρ is {found_ranks}.",
        meaning=_MEANING[answer],
        tables=(
            correlation_table("Redundancy and damage at 3 bits", pairs),
            correlation_table("The documents' R̂ and measured redundancy", stands_in),
            *(traits.table() for traits in measured),
        ),
        figure=_figure(trait_sets),
        judgements=(judge_proxy(trait_sets[-1]), judge_survival(trait_sets[0])),
        power=languages_needed({f"r of 1/R and damage in {pair.among} languages": pair.adjusted for pair in main}),
        notes=(*notes, "Dropping and rounding are measured on the same documents, so they share their sampling noise."),
    )


_SAID = {
    Answer.SUPPORTED: "predicts",
    Answer.NOT_SUPPORTED: "does not predict",
    Answer.UNDECIDED: "may or may not predict",
}
_MEANING = {
    Answer.SUPPORTED: (
        "Languages that are damaged by dropped inputs are damaged by rounding as well: dropping columns finds them "
        "without a quantizer."
    ),
    Answer.NOT_SUPPORTED: "Tolerance of dropped inputs does not predict tolerance of rounding: measure rounding.",
    Answer.UNDECIDED: "Do not rely on a measure of redundancy to predict who is damaged: measure rounding.",
}


def _correlations(traits: LanguageTraits, *, seed: int) -> list[TraitCorrelation]:
    damage = PRIMARY, language_values(traits.damage[PRIMARY])
    measured: dict[str, Floats] = {MEASURED: 1 / traits.robustness, "R̂ = ā_outlier": traits.a, **traits.proxies}
    covariates = {name: values for name, values in traits.text_traits.items() if name != "Latin script"}
    return [correlate(x, damage, among=traits.among, covariates=covariates, seed=seed) for x in measured.items()]


def _stand_in(traits: LanguageTraits) -> list[TraitCorrelation]:
    correlations = [correlate(("R̂ = ā_outlier", traits.a), ("R, dropout", traits.robustness), among=traits.among)]
    if traits.shares is not None:
        correlations += [
            correlate(share, (name, values), among=traits.among, covariates={"Latin script": traits.latin})
            for share in traits.log_share.items()
            for name, values in (("R̂ = ā_outlier", traits.a), ("R, dropout", traits.robustness))
        ]
    return correlations


def judge_proxy(traits: LanguageTraits) -> Judgement:
    """Returns the judgement on whether R̂ is a proxy of redundancy: it rises with R of dropout and falls with damage."""
    with_r = spearman(traits.a, traits.robustness).estimate
    with_d = spearman(traits.a, language_values(traits.damage[PRIMARY])).estimate
    answer = all_of((has_sign(with_r, 1), has_sign(with_d, -1)))
    because = (
        f"rank ρ of ā_outlier is {estimate_text(with_r)} with the redundancy measured by dropping columns and "
        f"{estimate_text(with_d)} with damage at 3 bits over {with_r.n} languages"
    )
    return Judgement("000-20", answer, because, {"with_redundancy": with_r.value, "with_damage": with_d.value})


def judge_survival(traits: LanguageTraits) -> Judgement:
    """Returns the judgement on whether a larger training share protects by redundancy in the outlier layers.

    Both links must have the predicted sign given script; one with the wrong sign, or too weak to matter, refutes it.
    """
    if traits.shares is None:
        return Judgement("000-17", Answer.UNDECIDED, "the training shares of these languages are not known")
    (share,) = traits.log_share.items()
    script = {"Latin script": traits.latin}
    damage = PRIMARY, language_values(traits.damage[PRIMARY])
    first = correlate(share, ("R̂", traits.a), among=traits.among, covariates=script).adjusted
    second = correlate(("R̂", traits.a), damage, among=traits.among, covariates=script).adjusted
    answer = all_of((has_sign(first, 1), has_sign(second, -1)))
    because = (
        f"given script, r of log share and R̂ is {estimate_text(first)}, and r of R̂ and damage at 3 bits is "
        f"{estimate_text(second)} over {first.n} languages"
    )
    return Judgement("000-17", answer, because, {"share_with_R": first.value, "R_with_damage": second.value})


def _figure(trait_sets: list[LanguageTraits]) -> ResultFigure:
    series = tuple(
        Series(
            f"{traits.among} languages",
            tuple((1 / traits.robustness).tolist()),
            tuple(language_values(traits.damage[PRIMARY]).tolist()),
            labels=traits.languages if i == 0 else (),
        )
        for i, traits in enumerate(trait_sets)
    )
    title = "Damage by dropped columns and by rounding to 3 bits"
    return ResultFigure(title, "1/R: dropped columns, bits per byte", "rounding, bits per byte", series)
