"""Mediation: does tokenization T act on damage D through the chain T → A → R → D, and in no other way?

The chain is fitted over languages. An intervention on T gives the same text in more tokens: some tokens are split into
two other tokens of the vocabulary, so that text and bytes stay the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.forward.windows import Ids, TokenizedText, cutter_for
from fairbits.kurtosis.redundancy import FOREIGN
from fairbits.models.checkpoint import Checkpoint
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate, holm
from fairbits.text.documents import seeded_hash
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, language_values
from fairbits_research.experiments.language_traits import (
    DRAWS,
    DROPPED,
    OWN,
    LanguageTraits,
    measure_many,
    measure_traits,
)
from fairbits_research.experiments.result import (
    Answer,
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
from fairbits_research.experiments.trait_correlation import PERMUTATIONS, POWER
from fairbits_research.stats.correlation_tests import (
    PartialCorrelation,
    correlation_power,
    partial_correlation,
    sample_size_for_power,
)
from fairbits_research.stats.mediation_models import Mediation, mediate

MORE_TOKENS = 0.05
"""The share of tokens that is added; with a quarter more the loss of the embedded model doubles."""
TREATMENT = "nearest, 3 bits"
"""The quantization whose damage is compared."""
Splits = Callable[[int], list[tuple[int, int]]]
"""Returns every pair of tokens that a token can be split into."""


def with_finer_tokens(lab: ModelLab) -> ModelLab:
    """Returns a lab with the text of another, document by document, in MORE_TOKENS more tokens."""
    usual = lab.setting
    if lab.checkpoint.task != "causal":
        raise InputError(f"{lab.checkpoint.target} does not predict the next token; give a causal model")
    # a larger budget, because the same documents take more tokens
    setting = replace(
        usual, tokens=round(usual.tokens * (1 + MORE_TOKENS)), calibration=round(usual.calibration * (1 + MORE_TOKENS))
    )
    finer_lab = ModelLab(lab.checkpoint.target, setting, lab.corpus, lab.report)
    finer_lab.checkpoint = FinerCheckpoint(lab.checkpoint.target, usual.seed)
    tokenizer = lab.checkpoint.tokenizer()
    length = min(usual.sequence, lab.checkpoint.longest_input)
    windows = cutter_for(tokenizer, "causal", length=length, seed=usual.seed, start=None).windows
    splits = splits_of(tokenizer)
    finer = (
        windows(document, split_tokens(ids, splits, seed=usual.seed)) for document, ids in _documents(lab.text).items()
    )
    finer_lab.text = replace(lab.text, windows=tuple(window for document in finer for window in document))
    return finer_lab


def split_tokens(ids: Ids, splits: Splits, *, seed: int, more: float = MORE_TOKENS) -> Ids:
    """Returns the tokens with some of them split, until there is this share more or none can be split.

    The choice depends only on the seed and the tokens. The first token stays whole: it may be the one that nothing
    predicts.
    """
    rng = np.random.default_rng(list(seeded_hash(seed, *ids)))
    result, wanted = list(ids), round(more * len(ids))
    while wanted > 0:
        places = [at for at in range(1, len(result)) if splits(result[at])]
        if not places:
            break
        chosen = rng.choice(places, size=min(wanted, len(places)), replace=False)
        for at in sorted(chosen.tolist(), reverse=True):
            pairs = splits(result[at])
            result[at : at + 1] = pairs[rng.integers(len(pairs))]
        wanted -= len(chosen)
    return result


def splits_of(tokenizer: Any) -> Splits:
    """Returns the function that lists how a token can be split into two tokens that spell the same."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    special = set(tokenizer.all_special_ids)
    ordinary = {piece: token for piece, token in vocabulary.items() if token not in special}
    spelled = {token: piece for piece, token in ordinary.items()}

    @cache
    def splits(token: int) -> list[tuple[int, int]]:
        piece = spelled.get(token, "")
        halves = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        return [(ordinary[a], ordinary[b]) for a, b in halves if a in ordinary and b in ordinary]

    return splits


class FinerCheckpoint(Checkpoint):
    """A checkpoint whose tokenizer splits tokens."""

    def __init__(self, target: str, seed: int) -> None:
        """The seed decides which tokens are split."""
        super().__init__(target)
        self.seed = seed

    def tokenizer(self) -> Any:
        """Returns the tokenizer of the model, which splits tokens when it is called."""
        return _FinerTokenizer(super().tokenizer(), self.seed)


class _FinerTokenizer:
    is_fast = False  # the spans of characters are those of the tokens before they are split

    def __init__(self, tokenizer: Any, seed: int) -> None:
        self._tokenizer, self._seed, self._splits = tokenizer, seed, splits_of(tokenizer)

    def __call__(self, documents: list[str], **options: Any) -> dict[str, list[Ids]]:
        plain = self._tokenizer(documents, **options)["input_ids"]
        return {"input_ids": [split_tokens(ids, self._splits, seed=self._seed) for ids in plain]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _documents(text: TokenizedText) -> dict[int, Ids]:
    """Returns the tokens of every document, without the context before them."""
    ids_by_document: dict[int, Ids] = {}
    for window in text.windows:
        part = window.main
        ids = [token for token, real in zip(part.ids, part.text, strict=True) if real]
        ids_by_document.setdefault(window.document, []).extend(ids)
    return ids_by_document


@dataclass(frozen=True, eq=False)
class TokenizationEffect:
    """The changes caused by a worse tokenization of the same text, mean over languages.

    `damage` and `dropout` are frames of paired differences in bits per byte; R is 1/dropout, so it falls where
    `dropout` rises. `activation` is the change of ā_outlier, `tokens` the relative growth of the number of tokens, and
    `base` the factor by which the loss of the unchanged model grows. To a model that was never trained on such splits
    the text may be foreign; then more than T has changed.
    """

    damage: LanguageFrame
    dropout: LanguageFrame
    activation: Estimate
    tokens: float
    base: float

    @property
    def counts(self) -> bool:
        """Whether the text is still of a kind that the model knows, so that the intervention counts."""
        return self.base <= FOREIGN

    @property
    def agrees(self) -> bool:
        """Whether all changed significantly as the chain predicts: A and R fell, D rose."""
        moved = self.damage.mean().low > 0 and self.dropout.mean().low > 0 and self.activation.high < 0
        return self.counts and moved

    @property
    def contradicts(self) -> bool:
        """Whether D changed significantly, and D, R or A changed significantly in the wrong direction."""
        damage, lost = self.damage.mean(), self.dropout.mean()
        wrong = damage.high < 0 or lost.high < 0 or self.activation.low > 0
        return self.counts and damage.excludes(0.0) and wrong


def intervene(laboratory: Laboratory) -> tuple[LanguageTraits, LanguageTraits, TokenizationEffect]:
    """Returns the traits of the own languages, the traits with finer tokens, and the changes."""
    model = laboratory.outlier_variant()
    lab = laboratory.lab(model)
    before_split = measure_traits(lab, OWN, dropout=True, treatments=[TREATMENT])
    finer = with_finer_tokens(lab)
    before = lab.trial.predicted.sum()
    laboratory.lab()  # frees the model before the next one is loaded
    del lab
    worse = measure_traits(finer, f"{OWN}, finer tokens,", dropout=True, treatments=[TREATMENT])
    assert before_split.dropout is not None
    assert worse.dropout is not None
    moved = TokenizationEffect(
        damage=worse.damage[TREATMENT].minus(before_split.damage[TREATMENT]),
        dropout=worse.dropout.minus(before_split.dropout),
        activation=mean_over_languages(worse.a - before_split.a),
        tokens=float(finer.trial.predicted.sum() / before - 1),
        base=float(np.mean(worse.base_bits / before_split.base_bits)),
    )
    return before_split, worse, moved


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
            *map(number_text, numbers),
        )
        for code, *numbers in zip(unsplit.languages, (worse.a - unsplit.a).tolist(), times.tolist(), strict=True)
    )
    columns = ("language", "change of D", "p, Holm", "change of 1/R", "change of A", "base loss, times")
    return ResultTable(f"The same text in {moved.tokens:.0%} more tokens, bits per byte", columns, rows)


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
    unsplit, worse, moved = intervene(laboratory)
    model = laboratory.outlier_variant()
    many, notes = measure_many(laboratory, model, dropout=True, treatments=[TREATMENT])
    sets = many or [unsplit]
    chains = {traits.among: fit_chain(traits, seed=laboratory.setting.seed) for traits in sets}
    answer = common_answer([judge_chain(chain, moved) for chain in chains.values()])
    traits = sets[0]
    chain, damage = chains[traits.among], moved.damage.mean()
    n = chain.fit.chain.n
    numbers = (
        f"through the chain a slightly worse T adds {estimate_text(chain.fit.chain)} bits per byte to D over {n} "
        "languages, "
        + ", ".join(f"{name} has r = {estimate_text(implied.estimate)}" for name, implied in chain.implied.items())
        + f", and {moved.tokens:.0%} more tokens for the same text add {estimate_text(damage)} to D, "
        f"{estimate_text(moved.dropout.mean())} to 1/R and {estimate_text(moved.activation)} to A"
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
            *(_chain_table(among, fitted) for among, fitted in chains.items()),
            effect_table(unsplit, worse, moved),
            traits.table(),
        ),
        figure=_figure(unsplit, worse),
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
        f"The variant with outliers in two blocks (κ 125 and 148). T is the tokens of English over those of a language "
        "for the same text, A the share of activation in the outlier blocks (norm of the MLP output), R 1/damage of "
        f"dropping {DROPPED:.0%} of all columns ({DRAWS} draws), D the damage of round to nearest at 3 bits, on "
        f"{len(traits.languages)} {traits.among} languages; script and base loss held fixed, 10,000 resamples of whole "
        f"families (of languages where families are too few), T worse by {-CHANGE:g} standard deviations. "
        f"Intervention: in the text of {len(unsplit.languages)} own languages random tokens are split into two tokens "
        f"of the vocabulary, until there are {MORE_TOKENS:.0%} more; same documents, same bytes. It counts unless the "
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


def _chain_table(among: str, chain: Chain) -> ResultTable:
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
    return ResultTable(f"The chain in {among} languages, intervals over {chain.resampled}", columns, tuple(rows))


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
