"""Mediation: does tokenization T act on damage D through the chain T → A → R → D, and in no other way?"""

from dataclasses import dataclass

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.kurtosis.redundancy import FOREIGN
from fairbits.stats.intervals import holm
from fairbits_research.experiments.finer_tokenization import (
    MORE_TOKENS,
    TREATMENT,
    TokenizationEffect,
    effect_table,
    intervene,
)
from fairbits_research.experiments.laboratory import Laboratory, language_values, outlier_blocks
from fairbits_research.experiments.result import (
    Answer,
    Figure,
    Judgement,
    Result,
    Series,
    Table,
    common_answer,
    estimate_text,
    number_text,
)
from fairbits_research.experiments.trait_correlation import PERMUTATIONS, POWER
from fairbits_research.experiments.traits_experiment import DRAWS, DROPPED, LanguageTraits, measure_others
from fairbits_research.stats.correlation_tests import (
    PartialCorrelation,
    correlation_power,
    partial_correlation,
    sample_size_for_power,
)
from fairbits_research.stats.mediation_models import Mediation, mediate

NAME = "mediation"
LEAST = 12
"""The fewest languages to which the chain can be fitted."""
CHANGE = -0.01
"""Standard deviations of T: a worse tokenization, by so little that no language's R reaches 0."""
MODERATE = 0.3
"""The partial correlation that the data must be able to detect for an independence to count as not contradicted."""
LEVEL = 0.05


@dataclass(frozen=True, eq=False)
class Chain:
    """The fitted chain, the two independences it implies with their p by Holm, and the power to detect MODERATE.

    `resampled` says what its intervals resample.
    """

    fit: Mediation
    resampled: str
    implied: dict[str, PartialCorrelation]
    p: dict[str, float]
    power: float


def mediation(laboratory: Laboratory) -> Result:
    """Returns the result: does tokenization act through alignment and redundancy? By a fit and an intervention."""
    own, worse, moved = intervene(laboratory)
    model = laboratory.with_outliers(outlier_blocks(laboratory.lab().n_blocks))
    others, notes = measure_others(laboratory, model, dropout=True, treatments=[TREATMENT])
    sets = others or [own]
    chains = {each.among: fit_chain(each, seed=laboratory.setting.seed) for each in sets}
    answer = common_answer([judge_chain(each, moved) for each in chains.values()])
    traits = sets[0]
    chain, damage = chains[traits.among], moved.damage.mean()
    n = chain.fit.chain.n
    numbers = (
        f"through the chain a slightly worse T adds {estimate_text(chain.fit.chain)} bits per byte to D over {n} "
        "languages, "
        + ", ".join(f"{name} has r = {estimate_text(each.estimate)}" for name, each in chain.implied.items())
        + f", and {moved.tokens:.0%} more tokens for the same text add {estimate_text(damage)} to D, "
        f"{estimate_text(moved.dropout.mean())} to 1/R and {estimate_text(moved.activation)} to A"
        + ("" if moved.counts else f", but the base loss is {moved.base:.2f} times as large, so this decides nothing")
    )
    return Result(
        name=NAME,
        title="Mediation",
        question="Does tokenization act on damage through outlier activation and redundancy, and in no other way?",
        predicted="Better tokenization T raises outlier activation A, A redundancy R, and damage D falls as 1/R.",
        design=_design(traits, own),
        subject=laboratory.subject(range(DRAWS), more_tokens=MORE_TOKENS, chain_languages=n),
        answer=answer,
        verdict=f"That tokenization acts through the chain only is {answer.value}: {numbers}.",
        meaning=_meaning(moved),
        tables=(
            *(_chain_table(among, each) for among, each in chains.items()),
            effect_table(own, worse, moved),
            traits.table(),
        ),
        figure=_figure(own, worse),
        judgements=(Judgement("004-27", answer, numbers, {"chain": chain.fit.chain.value, "damage": damage.value}),),
        power=_power(chain, n),
        notes=notes,
    )


def judge_chain(chain: Chain, moved: TokenizationEffect) -> Answer:
    """Returns the answer on the chain.

    Not supported if an independence that it implies is contradicted (Holm), or the intervention contradicts it.
    Supported if its effect excludes 0, the independences could have been contradicted, and the intervention agrees.
    """
    if min(chain.p.values()) < LEVEL or moved.contradicts:
        return Answer.NOT_SUPPORTED
    proven = chain.fit.chain.excludes(0.0) and chain.power >= POWER and moved.agrees
    return Answer.SUPPORTED if proven else Answer.UNDECIDED


def fit_chain(traits: LanguageTraits, *, seed: int) -> Chain:
    """Returns the chain fitted over languages; script and base loss are held fixed, whole families are resampled.

    Languages that dropped columns do not damage have no R and are left out.
    """
    traits = traits.with_redundancy()
    n = len(traits.languages)
    if n < LEAST:
        raise InputError(f"{n} languages are too few to fit the chain; name at least {LEAST}")
    T = (traits.quality - traits.quality.mean()) / traits.quality.std()
    A, D = traits.a, language_values(traits.damage[TREATMENT])
    R = traits.robustness / traits.robustness.mean()
    held = [each for each in (traits.latin, traits.base_bits) if np.ptp(each) > 0]
    C = np.column_stack(held)
    families = [each.family or each.code for each in traits.catalogued]  # an unknown family is taken as its own
    fit, resampled = _fit(T, A, R, D=D, C=C, families=families, seed=seed)
    implied = {
        "T and R given A": partial_correlation(
            T, R, covariates=np.column_stack([A, C]), resamples=PERMUTATIONS, rng=seed
        ),
        "T and D given R": partial_correlation(
            T, D, covariates=np.column_stack([1 / R, C]), resamples=PERMUTATIONS, rng=seed
        ),
    }
    adjusted = holm([each.permutation_p for each in implied.values()]).tolist()
    power = correlation_power(MODERATE, n - 1 - C.shape[1])
    return Chain(fit, resampled, implied, dict(zip(implied, adjusted, strict=True)), power)


def _fit(*chain: Floats, D: Floats, C: Floats, families: list[str], seed: int) -> tuple[Mediation, str]:
    """Returns the fit, and what was resampled: families, or languages where too few families allow no unique fit."""
    T, A, R = chain
    try:
        return mediate(T, A, R=R, D=D, covariates=C, families=families, change=CHANGE, rng=seed), "families"
    except InputError:
        return mediate(T, A, R=R, D=D, covariates=C, change=CHANGE, rng=seed), "languages"


def _design(traits: LanguageTraits, own: LanguageTraits) -> str:
    return (
        f"The variant with outliers in two blocks (κ 125 and 148). T is the tokens of English over those of a language "
        "for the same text, A the share of activation in the outlier blocks (norm of the MLP output), R 1/damage of "
        f"dropping {DROPPED:.0%} of all columns ({DRAWS} draws), D the damage of round to nearest at 3 bits, on "
        f"{len(traits.languages)} {traits.among} languages; script and base loss held fixed, 10,000 resamples of whole "
        f"families (of languages where families are too few), T worse by {-CHANGE:g} standard deviations. "
        f"Intervention: in the text of {len(own.languages)} own languages random tokens are split into two tokens of "
        f"the vocabulary, until there are {MORE_TOKENS:.0%} more; same documents, same bytes. It counts unless the "
        f"base loss grows by a factor over {FOREIGN:g}. Not supported: an independence that the chain implies is "
        "contradicted (permutation test, Holm), or the intervention changes D while D, R or A changes the wrong way. "
        f"Supported: the chain's interval excludes 0, the power to detect a partial correlation of {MODERATE:g} is at "
        f"least {POWER:.0%}, and the intervention changes A, R and D as predicted. Where the chain is fitted to many "
        "languages and to the known ones among them, in which the model needs fewer bits than a code for byte "
        "frequencies, both must agree, else it is undecided."
    )


def _meaning(moved: TokenizationEffect) -> str:
    damage = moved.damage.mean()
    if not moved.counts:
        return (
            "Text split in ways the model never saw is foreign to it, and its damage says nothing about the tokenizer: "
            "to compare tokenizers, compare models that were trained with them."
        )
    if not damage.excludes(0.0):
        return (
            "Finer tokens for the same text do not change the damage of quantization: the tokenizer is not the cause."
        )
    how = "more" if damage.value > 0 else "less"
    return (
        f"The same text in more tokens is damaged {how} by quantization: the tokenizer affects who is damaged, in "
        "whatever way."
    )


def _chain_table(among: str, chain: Chain) -> Table:
    fit = chain.fit
    rows = [(name, estimate_text(getattr(fit, name)), "", "") for name in ("total", "direct", "indirect", "chain")]
    rows += [
        (name, estimate_text(each.estimate), number_text(each.p), number_text(each.robustness))
        for name, each in fit.links.items()
    ]
    rows += [
        (name, estimate_text(each.estimate), number_text(chain.p[name]), "") for name, each in chain.implied.items()
    ]
    rows += [("E-value of the indirect effect", number_text(fit.e_value), "", number_text(fit.e_value_limit))]
    columns = ("what", "value", "p (of independences by Holm)", "robustness value; E-value of the limit")
    return Table(f"The chain in {among} languages, intervals over {chain.resampled}", columns, tuple(rows))


def _figure(own: LanguageTraits, worse: LanguageTraits) -> Figure:
    x, y = (tuple(language_values(each.damage[TREATMENT]).tolist()) for each in (own, worse))
    series = Series("languages", x, y, labels=own.languages)
    title = "Damage at 3 bits of the same text in more tokens"
    return Figure(title, "unchanged, bits per byte", "finer tokens, bits per byte", (series,))


def _power(chain: Chain, n: int) -> str:
    enough = sample_size_for_power(MODERATE, POWER)
    return (
        f"{n} languages detect a partial correlation of {MODERATE:g} in {chain.power:.0%} of studies; "
        f"{POWER:.0%} needs {enough} languages."
    )
