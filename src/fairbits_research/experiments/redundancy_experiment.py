"""Redundancy: is a language that tolerates dropped columns also damaged less by quantization?"""

from fairbits.core.array_checks import Floats
from fairbits.stats.correlation import spearman
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.laboratory import Laboratory, language_values
from fairbits_research.experiments.result import Answer, Figure, Judgement, Result, Series, all_of, estimate_text
from fairbits_research.experiments.trait_correlation import (
    STRONG,
    TraitCorrelation,
    correlate,
    correlation_table,
    has_sign,
    languages_needed,
)
from fairbits_research.experiments.traits_experiment import DRAWS, DROPPED, MANY, LanguageTraits, measure_all

NAME = "redundancy"
PRIMARY = "nearest, 3 bits"
MEASURED = "1/R, dropout"


def redundancy(laboratory: Laboratory) -> Result:
    """Returns the result: does 1/R predict damage, and does the documents' R̂ = ā_outlier measure redundancy?"""
    measured, notes = measure_all(laboratory, dropout=True, treatments=[PRIMARY])
    found = [each.with_redundancy() for each in measured]
    seed = laboratory.setting.seed
    pairs = [each for traits in found for each in _correlations(traits, seed=seed)]
    main = [each for each in pairs if each.x == MEASURED]
    answer = all_of(has_sign(given_text(each), 1) for each in main if each.among != MANY)
    found_ranks = "; ".join(
        f"{estimate_text(each.ranks)} in {each.r.n} ({each.among}) languages"
        + (f", r given {' and '.join(each.given)} {estimate_text(each.partial.estimate)}" if each.partial else "")
        for each in main
    )
    stands_in = [each for traits in found for each in _stand_in(traits)]
    return Result(
        name=NAME,
        title="Redundancy",
        question="Does 1/R predict damage, where R is how well a language tolerates the loss of inputs?",
        predicted="Damage is proportional to 1/R (theorem 1), and activation in the outlier layers is a proxy of R.",
        design=(
            "The variant with outliers in two blocks (κ 125 and 148), in "
            + " and ".join(f"{len(each.languages)} {each.among} languages" for each in found)
            + f". R is 1/damage of setting a random {DROPPED:.0%} of the input columns of every layer to 0, mean "
            f"of {DRAWS} draws (seeds 0 to {DRAWS - 1}); languages that lose nothing by it are left out. In addition, "
            "the proxies of the audit and the documents' R̂ = ā_outlier. Damage is that of round to nearest at 3 bits. "
            "Rank correlations with intervals over languages, permutation p adjusted by Holm, and r given bytes per "
            "token and base loss. Supported: r of 1/R and damage given both lies above 0 in own and in known "
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
            *(each.table() for each in measured),
        ),
        figure=_figure(found),
        judgements=(judge_proxy(found[-1]), judge_survival(found[0])),
        power=languages_needed({f"r of 1/R and damage in {each.among} languages": given_text(each) for each in main}),
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


def given_text(each: TraitCorrelation) -> Estimate:
    """Returns r given the traits of the text; r itself where there are too few languages."""
    return each.r if each.partial is None else each.partial.estimate


def _correlations(traits: LanguageTraits, *, seed: int) -> list[TraitCorrelation]:
    damage = PRIMARY, language_values(traits.damage[PRIMARY])
    measured: dict[str, Floats] = {MEASURED: 1 / traits.robustness, "R̂ = ā_outlier": traits.a, **traits.proxies}
    given = {name: each for name, each in traits.text_traits.items() if name != "Latin script"}
    return [correlate(x, damage, among=traits.among, given=given, seed=seed) for x in measured.items()]


def _stand_in(traits: LanguageTraits) -> list[TraitCorrelation]:
    found = [correlate(("R̂ = ā_outlier", traits.a), ("R, dropout", traits.robustness), among=traits.among)]
    if traits.shares is not None:
        found += [
            correlate(share, (name, each), among=traits.among, given={"Latin script": traits.latin})
            for share in traits.log_share.items()
            for name, each in (("R̂ = ā_outlier", traits.a), ("R, dropout", traits.robustness))
        ]
    return found


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
    first = given_text(correlate(share, ("R̂", traits.a), among=traits.among, given=script))
    second = given_text(correlate(("R̂", traits.a), damage, among=traits.among, given=script))
    answer = all_of((has_sign(first, 1), has_sign(second, -1)))
    because = (
        f"given script, r of log share and R̂ is {estimate_text(first)}, and r of R̂ and damage at 3 bits is "
        f"{estimate_text(second)} over {first.n} languages"
    )
    return Judgement("000-17", answer, because, {"share_with_R": first.value, "R_with_damage": second.value})


def _figure(found: list[LanguageTraits]) -> Figure:
    series = tuple(
        Series(
            f"{each.among} languages",
            tuple((1 / each.robustness).tolist()),
            tuple(language_values(each.damage[PRIMARY]).tolist()),
            labels=each.languages if i == 0 else (),
        )
        for i, each in enumerate(found)
    )
    title = "Damage by dropped columns and by rounding to 3 bits"
    return Figure(title, "1/R: dropped columns, bits per byte", "rounding, bits per byte", series)
