"""Redundancy: does a language whose loss survives missing columns survive quantization too?"""

from fairbits.checks import Floats
from fairbits.science.experiments.dropout import DRAWS, DROPPED
from fairbits.science.experiments.laboratory import Laboratory, values
from fairbits.science.experiments.measured_traits import of_all
from fairbits.science.experiments.result import Answer, Figure, Judgement, Result, Series, every, written
from fairbits.science.experiments.ties import STRONG, Tie, needed, of_sign, tie, ties_table
from fairbits.science.experiments.traits_of_languages import MANY, Traits
from fairbits.stats import Estimate, spearman

NAME = "redundancy"
PRIMARY = "nearest, 3 bits"
MEASURED = "1/R, dropout"


def redundancy(laboratory: Laboratory) -> Result:
    """Does 1/R predict damage, and is the documents' R̂ = ā_outlier a redundancy?"""
    measured, notes = of_all(laboratory, dropout=True, treatments=[PRIMARY])
    found = [each.with_redundancy() for each in measured]
    seed = laboratory.setting.seed
    ties = [each for traits in found for each in _ties(traits, seed=seed)]
    main = [each for each in ties if each.x == MEASURED]
    answer = every(of_sign(given_text(each), 1) for each in main if each.among != MANY)
    told = "; ".join(
        f"{written(each.ranks)} in {each.r.n} ({each.among}) languages"
        + (f", r given {' and '.join(each.given)} {written(each.partial.estimate)}" if each.partial else "")
        for each in main
    )
    stands_in = [each for traits in found for each in _stand_in(traits)]
    return Result(
        name=NAME,
        title="Redundancy",
        question="Does 1/R predict damage, where R is how well a language bears the loss of inputs?",
        predicted="Damage goes as 1/R (theorem 1), and activation in the outlier layers stands in for R.",
        design=(
            "The variant with outliers in two blocks (κ 125 and 148), in "
            + " and ".join(f"{len(each.languages)} {each.among} languages" for each in found)
            + f". R is 1/damage of setting a random {DROPPED:.0%} of the input columns of every linear map to 0, mean "
            f"of {DRAWS} draws (seeds 0 to {DRAWS - 1}); languages that lose nothing by it are left out. Beside it the "
            "proxies of the audit and the documents' R̂ = ā_outlier. Damage is that of round to nearest at 3 bits. Rank "
            "correlations with intervals over languages, permutation p adjusted by Holm, and r given bytes per token "
            "and base loss. Supported: r of 1/R and damage given both lies above 0 in own and in known languages; not "
            f"supported: in one of the two its interval does not reach {STRONG:g}. Known are languages of the "
            "declaration in which the model needs fewer bits than byte frequencies would; many are at least 60, and "
            "are shown only."
        ),
        subject=laboratory.subject(range(DRAWS), dropped=DROPPED),
        answer=answer,
        verdict=f"1/R {_SAID[answer]} damage: rank ρ is {told}.",
        meaning=_MEANING[answer],
        tables=(
            ties_table("Redundancy and damage at 3 bits", ties),
            ties_table("The documents' R̂ and measured redundancy", stands_in),
            *(each.table() for each in measured),
        ),
        figure=_figure(found),
        judgements=(proxy(found[-1]), survival(found[0])),
        power=needed({f"r of 1/R and damage in {each.among} languages": given_text(each) for each in main}),
        notes=(*notes, "Dropping and rounding are measured on the same documents, whose luck they share."),
    )


_SAID = {
    Answer.SUPPORTED: "predicts",
    Answer.NOT_SUPPORTED: "does not predict",
    Answer.UNDECIDED: "may or may not predict",
}
_MEANING = {
    Answer.SUPPORTED: (
        "Languages that break when a few inputs are missing break by rounding as well: dropping columns finds them "
        "without a quantizer."
    ),
    Answer.NOT_SUPPORTED: "How a language bears missing inputs does not tell how it bears rounding: measure rounding.",
    Answer.UNDECIDED: "Do not rely on a measure of redundancy to tell who will be hurt: measure rounding.",
}


def given_text(each: Tie) -> Estimate:
    """Returns r given the traits of the text; r itself where there are too few languages for that."""
    return each.r if each.partial is None else each.partial.estimate


def _ties(traits: Traits, *, seed: int) -> list[Tie]:
    damage = PRIMARY, values(traits.damage[PRIMARY])
    measured: dict[str, Floats] = {MEASURED: 1 / traits.robustness, "R̂ = ā_outlier": traits.a, **traits.proxies}
    given = {name: each for name, each in traits.text_traits.items() if name != "Latin script"}
    return [tie(x, damage, among=traits.among, given=given, seed=seed) for x in measured.items()]


def _stand_in(traits: Traits) -> list[Tie]:
    found = [tie(("R̂ = ā_outlier", traits.a), ("R, dropout", traits.robustness), among=traits.among)]
    if traits.shares is not None:
        found += [
            tie(share, (name, each), among=traits.among, given={"Latin script": traits.latin})
            for share in traits.log_share.items()
            for name, each in (("R̂ = ā_outlier", traits.a), ("R, dropout", traits.robustness))
        ]
    return found


def proxy(traits: Traits) -> Judgement:
    """R̂ stands in for redundancy: it goes with R of dropout, and against damage."""
    with_r = spearman(traits.a, traits.robustness).estimate
    with_d = spearman(traits.a, values(traits.damage[PRIMARY])).estimate
    answer = every((of_sign(with_r, 1), of_sign(with_d, -1)))
    because = (
        f"rank ρ of ā_outlier is {written(with_r)} with the redundancy that dropping columns shows and "
        f"{written(with_d)} with damage at 3 bits in {with_r.n} languages"
    )
    return Judgement("000-20", answer, because, {"with_redundancy": with_r.value, "with_damage": with_d.value})


def survival(traits: Traits) -> Judgement:
    """Languages with a larger training share survive, because of redundancy in the outlier layers.

    Both links must have their sign given script; one that has not, or is too weak to matter, is enough against it.
    """
    if traits.shares is None:
        return Judgement("000-17", Answer.UNDECIDED, "the training shares of these languages are not known")
    (share,) = traits.log_share.items()
    script = {"Latin script": traits.latin}
    damage = PRIMARY, values(traits.damage[PRIMARY])
    first = given_text(tie(share, ("R̂", traits.a), among=traits.among, given=script))
    second = given_text(tie(("R̂", traits.a), damage, among=traits.among, given=script))
    answer = every((of_sign(first, 1), of_sign(second, -1)))
    because = (
        f"given script, r of log share and R̂ is {written(first)}, and r of R̂ and damage at 3 bits {written(second)} in "
        f"{first.n} languages"
    )
    return Judgement("000-17", answer, because, {"share_with_R": first.value, "R_with_damage": second.value})


def _figure(found: list[Traits]) -> Figure:
    series = tuple(
        Series(
            f"{each.among} languages",
            tuple((1 / each.robustness).tolist()),
            tuple(values(each.damage[PRIMARY]).tolist()),
            labels=each.languages if i == 0 else (),
        )
        for i, each in enumerate(found)
    )
    title = "Damage by dropped columns and by rounding to 3 bits"
    return Figure(title, "1/R: dropped columns, bits per byte", "rounding, bits per byte", series)
