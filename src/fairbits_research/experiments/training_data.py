"""Training data: does a language's share of the training text predict its outlier activation, κ_eff and damage?"""

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.laboratory import Laboratory, language_values
from fairbits_research.experiments.language_traits import OWN, LanguageTraits, measure_traits
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
)
from fairbits_research.experiments.trait_correlation import (
    STRONG,
    TraitCorrelation,
    correlate,
    correlation_table,
    has_sign,
    languages_needed,
)

TREATMENTS = ("nearest, 3 bits", "nearest, 4 bits")
POINTS = 0.03
"""Three percentage points, the smallest difference between languages in outlier activation that is claimed."""
SHARE = "log share"


def training_data(laboratory: Laboratory) -> Result:
    """Returns the result: do languages with more training text have more outlier activation and less damage?"""
    shares = laboratory.shares  # first, because all else takes time
    lab = laboratory.lab(laboratory.outlier_variant())
    traits = measure_traits(lab, OWN, dropout=False, treatments=TREATMENTS, shares=shares)
    pairs = _correlations(
        traits, shares=np.array([shares[code] for code in traits.languages]), seed=laboratory.setting.seed
    )
    activation, kappa, *damage = pairs[: 2 + len(TREATMENTS)]
    answer = is_above(activation.r, STRONG)
    spread = traits.outlier_share.gap()
    return Result(
        name="training-data",
        title="Training data",
        question="Do languages with more training text activate the outlier layers more, and are they damaged less?",
        predicted=f"r of training share and outlier activation is above {STRONG:g}; κ_eff rises with it, damage falls.",
        design=(
            f"The {len(traits.languages)} languages whose share of the training tokens is known, on the variant with "
            "outliers in two blocks (κ 125 and 148). Logarithm of the share (and the share itself) against ā_outlier "
            "(mean norm of the MLP output, calibration text), κ_eff, and damage by round to nearest at 3 and 4 bits "
            "(evaluation text). Fisher's intervals over languages, permutation p adjusted by Holm, and r given script. "
            f"Supported: the interval of r(log share, ā_outlier) lies above {STRONG:g}; not supported: below it."
        ),
        subject=laboratory.subject(treatments=list(TREATMENTS)),
        answer=answer,
        verdict=(
            f"r of log training share and outlier activation is {estimate_text(activation.r)} over {activation.r.n} "
            f"languages, {_SAID[answer]}; with damage at 3 bits it is {estimate_text(damage[0].r)}."
        ),
        meaning=_meaning(damage[0].r),
        tables=(correlation_table("Training share", pairs), traits.table()),
        figure=_figure(traits, shares),
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


_SAID = {
    Answer.SUPPORTED: f"above {STRONG:g} as predicted",
    Answer.NOT_SUPPORTED: f"below the predicted {STRONG:g}",
    Answer.UNDECIDED: f"which leaves undecided whether it is above {STRONG:g}",
}


def _correlations(traits: LanguageTraits, *, shares: Floats, seed: int) -> list[TraitCorrelation]:
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


def _meaning(damage: Estimate) -> str:
    if not damage.excludes(0.0):
        return "The training share does not predict who is damaged: measure every language, including the large ones."
    who = "more" if damage.value > 0 else "less"
    return f"Languages with more training text are damaged {who}: check the {_SIDE[damage.value > 0]} ones first."


_SIDE = {True: "best represented", False: "least represented"}


def _figure(traits: LanguageTraits, shares: dict[str, float]) -> ResultFigure:
    x = tuple(shares[code] for code in traits.languages)
    activation = traits.outlier_share.by_language()
    low, high = (tuple(getattr(activation[code], side) for code in traits.languages) for side in ("low", "high"))
    series = Series("languages", x, tuple(traits.a.tolist()), low, high, traits.languages)
    title = "Training share and activation in the outlier layers"
    return ResultFigure(title, "share of training tokens", "ā_outlier", (series,), log="x")
