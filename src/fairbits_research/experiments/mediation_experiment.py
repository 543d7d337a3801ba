"""Mediation: does tokenization T act on damage D through the chain T → A → R → D, and in no other way?

The chain is fitted over languages. An intervention on T gives the same text in more tokens: some tokens are split into
two other tokens of the vocabulary, so that text and bytes stay the same.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.kurtosis.redundancy import FOREIGN
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, holm
from fairbits_research.experiments.alignment import measure_alignment
from fairbits_research.experiments.document_states import document_states, parallel_text, states_note
from fairbits_research.experiments.finer_tokens import MORE_TOKENS, finer_text, tokens_read, with_finer_tokens
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, language_values
from fairbits_research.experiments.language_traits import (
    DRAWS,
    DROPPED,
    OWN,
    LanguageTraits,
    many_languages,
    measure_many,
    measure_traits,
)
from fairbits_research.experiments.result import (
    Answer,
    Cell,
    Judgement,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    common_answer,
    describe,
    estimate_text,
    number_text,
)
from fairbits_research.experiments.trait_correlation import NONE, PERMUTATIONS, POWER
from fairbits_research.stats.correlation_tests import (
    PartialCorrelation,
    correlation_power,
    partial_correlation,
    sample_size_for_power,
)
from fairbits_research.stats.mediation_models import Mediation, mediate
from fairbits_research.theory.mediation_theorem import SEED_MODEL, StructuralModel, fit_coefficients

TREATMENT = "nearest, 3 bits"
"""The quantization whose damage is compared."""


@dataclass(frozen=True, eq=False)
class TokenizationEffect:
    """The changes caused by a worse tokenization of the same text, mean over languages.

    `damage` and `dropout` are frames of paired differences in bits per byte; R is 1/dropout, so it falls where
    `dropout` rises. `alignment` is the change of A, the pivot's text unchanged; `tokens` the relative growth of the
    number of tokens, and `base` the factor by which the loss of the unchanged model grows. To a model that was never
    trained on such splits the text may be foreign; then more than T has changed. `scores` are the changes of A by
    language.
    """

    damage: LanguageFrame
    dropout: LanguageFrame
    alignment: Estimate
    tokens: float
    base: float
    scores: Mapping[str, float] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Whether the text is still of a kind that the model knows, so that the intervention counts."""
        return self.base <= FOREIGN

    @property
    def agrees(self) -> bool:
        """Whether all changed significantly as the chain predicts: A and R fell, D rose."""
        moved = self.damage.mean().low > 0 and self.dropout.mean().low > 0 and self.alignment.high < 0
        return self.counts and moved

    @property
    def contradicts(self) -> bool:
        """Whether D changed significantly, and D, R or A changed significantly in the wrong direction."""
        damage, lost = self.damage.mean(), self.dropout.mean()
        wrong = damage.high < 0 or lost.high < 0 or self.alignment.low > 0
        return self.counts and damage.excludes(0.0) and wrong


def intervene(laboratory: Laboratory) -> tuple[LanguageTraits, LanguageTraits, TokenizationEffect]:
    """Returns the traits of the own languages, the traits with finer tokens, and the changes."""
    lab = laboratory.lab()
    before_split = measure_traits(lab, OWN, dropout=True, treatments=[TREATMENT])
    finer = with_finer_tokens(lab)
    before, scores = tokens_read(lab.text.windows), alignment_change(lab)
    laboratory.release()
    del lab
    worse = measure_traits(finer, f"{OWN}, finer tokens,", dropout=True, treatments=[TREATMENT])
    assert before_split.dropout is not None
    assert worse.dropout is not None
    moved = TokenizationEffect(
        damage=worse.damage[TREATMENT].minus(before_split.damage[TREATMENT]),
        dropout=worse.dropout.minus(before_split.dropout),
        alignment=mean_over_languages(np.array([*scores.values()])),
        tokens=tokens_read(finer.text.windows) / before - 1,
        base=float(np.mean(worse.base_bits / before_split.base_bits)),
        scores=scores,
    )
    return before_split, worse, moved


def alignment_change(lab: ModelLab) -> dict[str, float]:
    """Returns how much A(λ) of every language but the pivot changes, where its text has finer tokens."""
    text = parallel_text(lab)
    usual = document_states(lab, text)
    before = measure_alignment(usual).scores()
    after = measure_alignment(document_states(lab, finer_text(lab, text)), usual).scores()
    return {code: after[code].value - before[code].value for code in before}


def mean_over_languages(change: Floats) -> Estimate:
    """Returns the mean of one number per language, with its bootstrap-t interval over languages."""
    n = len(change)
    frame = LanguageFrame(np.full(n, "all"), np.arange(n), values=change, weights=np.ones(n), unit="ratio")
    return frame.by_language()["all"]


def effect_table(unsplit: LanguageTraits, worse: LanguageTraits, moved: TokenizationEffect) -> ResultTable:
    """Returns the changes of every language."""
    paired = worse.damage[TREATMENT].contrast(unsplit.damage[TREATMENT])
    lost = moved.dropout.by_language()
    times = worse.base_bits / unsplit.base_bits
    rows = tuple(
        (
            code,
            estimate_text(paired.differences[code]),
            number_text(paired.p_holm[code]),
            estimate_text(lost[code]),
            number_text(moved.scores[code]) if code in moved.scores else NONE,
            number_text(factor),
        )
        for code, factor in zip(unsplit.languages, times.tolist(), strict=True)
    )
    columns = ("language", "change of D", "p, Holm", "change of 1/R", "change of A", "base loss, times")
    return ResultTable(f"The same text in {moved.tokens:.0%} more tokens, bits per byte", columns, rows)


ALIGNMENT, RETRIEVAL = "alignment", "alignment by retrieval accuracy"
OUTLIERS = "activation in the outlier blocks (not alignment)"
"""What may stand for A; the theorem means the first."""
RESAMPLES = 2000
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
    setting, n = laboratory.setting, len(laboratory.corpus.evaluation)
    if (setting.text is not None or setting.languages is not None) and n <= LEAST:  # before it takes time
        raise InputError(f"the text has {n} languages; a chain over languages and the pivot need at least {LEAST + 1}")
    unsplit, worse, moved = intervene(laboratory)
    many, notes = measure_many(laboratory, dropout=True, treatments=[TREATMENT])
    sets = many or [unsplit]
    by_language = _alignments(laboratory)
    chains = {
        (traits.among, name): fit_chain(traits, seed=laboratory.setting.seed, mediator=mediator)
        for traits in sets
        for name, mediator in _mediators(traits, by_language).items()
    }
    answer = common_answer([judge_chain(chain, moved) for (_, name), chain in chains.items() if name == ALIGNMENT])
    traits = sets[0]
    chain, damage = chains[traits.among, ALIGNMENT], moved.damage.mean()
    n = chain.fit.chain.n
    numbers = (
        f"with A the alignment of hidden states, a slightly worse T adds {estimate_text(chain.fit.chain)} bits per "
        f"byte to D through the chain over {n} languages, "
        + ", ".join(f"{name} has r = {estimate_text(implied.estimate)}" for name, implied in chain.implied.items())
        + f", and {moved.tokens:.0%} more tokens for the same text add {estimate_text(damage)} to D, "
        f"{estimate_text(moved.dropout.mean())} to 1/R and {estimate_text(moved.alignment)} to A"
        + ("" if moved.counts else f", but the base loss is {moved.base:.2f} times as large, so this decides nothing")
    )
    return describe(
        "mediation",
        design=_design(traits, unsplit),
        subject=laboratory.subject(range(DRAWS), more_tokens=MORE_TOKENS, chain_languages=n),
        answer=answer,
        verdict=f"That tokenization acts through the chain only is {answer.value}: {numbers}.",
        meaning=_meaning(moved),
        tables=(
            *(_chain_table(*names, fitted) for names, fitted in chains.items()),
            _coefficient_table(traits, by_language),
            effect_table(unsplit, worse, moved),
            *traits.tables(),
        ),
        figure=_figure(unsplit, worse),
        judgements=(Judgement("004-27", answer, numbers, {"chain": chain.fit.chain.value, "damage": damage.value}),),
        power=_power(chain, n),
        notes=(laboratory.lab().outlier_text(), *states_note(laboratory.lab()), *notes),
    )


def _alignments(laboratory: Laboratory) -> dict[str, dict[str, float]]:
    """Returns both measures of A of every language that the chain is fitted to, but the pivot."""
    many = many_languages(laboratory)
    lab = (laboratory if many is None else many[0]).lab()
    measured = measure_alignment(document_states(lab, parallel_text(lab)))
    both = {ALIGNMENT: measured.scores(), RETRIEVAL: measured.accuracy()}
    return {name: {code: score.value for code, score in scores.items()} for name, scores in both.items()}


def _mediators(traits: LanguageTraits, alignments: Mapping[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Returns the variables that may stand for A, by name; activation only where the model has outlier blocks."""
    if traits.outlier_share is None:
        return dict(alignments)
    return {**alignments, OUTLIERS: dict(zip(traits.languages, traits.a.tolist(), strict=True))}


def judge_chain(chain: Chain, moved: TokenizationEffect) -> Answer:
    """Returns the answer on the chain.

    Not supported if an independence that it implies is contradicted (Holm), or the intervention contradicts it.
    Supported if its effect excludes 0, the independences could have been contradicted, and the intervention agrees.
    """
    if min(chain.p.values()) < LEVEL or moved.contradicts:
        return Answer.NOT_SUPPORTED
    proven = chain.fit.chain.excludes(0.0) and chain.power >= POWER and moved.agrees
    return Answer.SUPPORTED if proven else Answer.UNDECIDED


def fit_chain(traits: LanguageTraits, *, seed: int, mediator: Mapping[str, float]) -> Chain:
    """Returns the chain fitted over languages; script and base loss are held fixed, whole families are resampled.

    `mediator` is A by language. Languages without it, as the pivot of an alignment, are left out, and those that
    dropped columns do not damage, which have no R.
    """
    traits = traits.with_redundancy().restrict([*mediator], traits.among)
    n = len(traits.languages)
    if n < LEAST:
        raise InputError(f"{n} languages are too few to fit the chain; name at least {LEAST}")
    T = (traits.quality - traits.quality.mean()) / traits.quality.std()
    A = np.array([mediator[code] for code in traits.languages])
    D = language_values(traits.damage[TREATMENT])
    R = traits.robustness / traits.robustness.mean()
    covariates = [language for language in (traits.latin, traits.base_bits) if np.ptp(language) > 0]
    C = np.column_stack(covariates)
    families = [
        language.family or language.code for language in traits.catalogued
    ]  # an unknown family is taken as its own
    fit, resampled = _fit(T, A, R, D=D, C=C, families=families, seed=seed)
    implied = {
        "T and R given A": partial_correlation(
            T, R, covariates=np.column_stack([A, C]), resamples=PERMUTATIONS, rng=seed
        ),
        "T and D given R": partial_correlation(
            T, D, covariates=np.column_stack([1 / R, C]), resamples=PERMUTATIONS, rng=seed
        ),
    }
    adjusted = holm([language.permutation_p for language in implied.values()]).tolist()
    power = correlation_power(MODERATE, n - 1 - C.shape[1])
    return Chain(fit, resampled, implied, dict(zip(implied, adjusted, strict=True)), power)


def _fit(*chain: Floats, D: Floats, C: Floats, families: list[str], seed: int) -> tuple[Mediation, str]:
    """Returns the fit, and what was resampled: families, or languages where too few families allow no unique fit."""
    T, A, R = chain
    try:
        return mediate(T, A, R=R, D=D, covariates=C, families=families, change=CHANGE, rng=seed), "families"
    except InputError:
        return mediate(T, A, R=R, D=D, covariates=C, change=CHANGE, rng=seed), "languages"


def _design(traits: LanguageTraits, unsplit: LanguageTraits) -> str:
    return (
        "T is the tokens of English over those of a language for the same text. A is alignment: how much nearer the "
        "hidden states of a section in a language are to those of the same section in English (the first language "
        "without it) than to those of others, by cosine, centred per language, mean over blocks; the language itself "
        "is left out. Next to it, as mediators of the same chain, retrieval accuracy and, where the model has outlier "
        "blocks, the share of activation in them, which is no alignment. R is 1/damage of "
        f"dropping {DROPPED:.0%} of all columns ({DRAWS} draws), D the damage of round to nearest at 3 bits, on "
        f"{len(traits.languages)} {traits.among} languages; script and base loss held fixed, 10,000 resamples of whole "
        f"families (of languages where families are too few), T worse by {-CHANGE:g} standard deviations. "
        f"Intervention: in the text of {len(unsplit.languages)} own languages random tokens that the model reads are "
        f"split into two tokens of the vocabulary, until there are {MORE_TOKENS:.0%} more; same documents, same bytes. "
        f"It counts unless the base loss grows by a factor over {FOREIGN:g}. Not supported: an independence that the "
        "chain with alignment implies is contradicted (permutation test, Holm), or the intervention changes D while D, "
        "R or A changes the wrong way. "
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


def _coefficient_table(traits: LanguageTraits, alignments: Mapping[str, dict[str, float]]) -> ResultTable:
    """Returns the coefficients of the equations as written (004-27), with percentiles of a bootstrap over languages."""
    rows: list[tuple[Cell, ...]] = [("in the research notes", *map(number_text, _numbers(SEED_MODEL)))]
    for name, scores in alignments.items():
        used = traits.with_redundancy().restrict([*scores], traits.among)
        A = np.array([scores[code] for code in used.languages])
        data = np.array([used.quality, A, used.robustness, language_values(used.damage[TREATMENT])])
        rng, n = np.random.default_rng(0), len(A)
        draws = [_fitted(data[:, rng.integers(n, size=n)]) for _ in range(RESAMPLES)]
        limits = np.quantile(draws, [0.025, 0.975], axis=0).T
        estimates = (Estimate(v, min(v, a), max(v, b), n) for v, (a, b) in zip(_fitted(data), limits, strict=True))
        rows.append((f"A {name}", *map(estimate_text, estimates)))
    columns = ("", "β₁: A = β₁T", "β₂: R = β₂A", "γ: D = γ/R", "β₁β₂")
    title = "The equations as written, without intercepts; R in bytes per bit, so that only the signs can be compared"
    return ResultTable(title, columns, tuple(rows))


def _fitted(data: Floats) -> tuple[float, ...]:
    T, A, R, D = data
    return _numbers(fit_coefficients(T, A, R=R, D=D))


def _numbers(model: StructuralModel) -> tuple[float, ...]:
    return model.beta_ta, model.beta_ar, model.gamma, model.slope


def _chain_table(among: str, mediator: str, chain: Chain) -> ResultTable:
    fit = chain.fit
    rows = [(name, estimate_text(getattr(fit, name)), "", "") for name in ("total", "direct", "indirect", "chain")]
    rows += [
        (name, estimate_text(correlation.estimate), number_text(correlation.p), number_text(correlation.robustness))
        for name, correlation in fit.links.items()
    ]
    rows += [
        (name, estimate_text(correlation.estimate), number_text(chain.p[name]), "")
        for name, correlation in chain.implied.items()
    ]
    rows += [("E-value of the indirect effect", number_text(fit.e_value), "", number_text(fit.e_value_limit))]
    columns = ("what", "value", "p (of independences by Holm)", "robustness value; E-value of the limit")
    title = f"The chain in {among} languages, A: {mediator}; intervals over {chain.resampled}"
    return ResultTable(title, columns, tuple(rows))


def _figure(unsplit: LanguageTraits, worse: LanguageTraits) -> ResultFigure:
    x, y = (tuple(language_values(traits.damage[TREATMENT]).tolist()) for traits in (unsplit, worse))
    series = Series("languages", x, y, labels=unsplit.languages)
    title = "Damage at 3 bits of the same text in more tokens"
    return ResultFigure(title, "unchanged, bits per byte", "finer tokens, bits per byte", (series,))


def _power(chain: Chain, n: int) -> str:
    enough = sample_size_for_power(MODERATE, POWER)
    return (
        f"{n} languages detect a partial correlation of {MODERATE:g} in {chain.power:.0%} of studies; "
        f"{POWER:.0%} needs {enough} languages."
    )
