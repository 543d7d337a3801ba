"""An intervention on tokenization: the same text in more tokens, and how that changes the traits of languages.

Some tokens are split into two other tokens of the vocabulary, so that text and bytes stay the same.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.forward.tokenize import longest_input, prediction_task
from fairbits.forward.windows import Ids, TokenizedText, cutter_for
from fairbits.kurtosis.redundancy import FOREIGN
from fairbits.models.checkpoint import Checkpoint
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.intervals import Estimate
from fairbits.text.documents import seeded_hash
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, outlier_blocks
from fairbits_research.experiments.result import Table, estimate_text, number_text
from fairbits_research.experiments.traits_experiment import OWN, LanguageTraits, measure_traits

MORE_TOKENS = 0.05
"""The share of tokens that is added; with a quarter more the loss of the embedded model doubles."""
TREATMENT = "nearest, 3 bits"
"""The quantization whose damage is compared."""
Splits = Callable[[int], list[tuple[int, int]]]
"""Returns every pair of tokens that a token can be split into."""


def with_finer_tokens(lab: ModelLab) -> ModelLab:
    """Returns a lab with the text of another, document by document, in MORE_TOKENS more tokens."""
    own = lab.setting
    if prediction_task(lab.checkpoint) != "causal":
        raise InputError(f"{lab.checkpoint.target} does not predict the next token; give a causal model")
    # a larger budget, because the same documents take more tokens
    setting = replace(
        own, tokens=round(own.tokens * (1 + MORE_TOKENS)), calibration=round(own.calibration * (1 + MORE_TOKENS))
    )
    other = ModelLab(lab.checkpoint.target, setting, lab.corpus, lab.report)
    other.checkpoint = FinerCheckpoint(lab.checkpoint.target, own.seed)
    tokenizer = lab.checkpoint.tokenizer()
    length = min(own.sequence, longest_input(lab.checkpoint))
    windows = cutter_for(tokenizer, "causal", length=length, seed=own.seed, start=None).windows
    splits = splits_of(tokenizer)
    finer = (
        windows(document, split_tokens(ids, splits, seed=own.seed)) for document, ids in _documents(lab.text).items()
    )
    other.text = replace(lab.text, windows=tuple(each for document in finer for each in document))
    return other


def split_tokens(ids: Ids, splits: Splits, *, seed: int, more: float = MORE_TOKENS) -> Ids:
    """Returns the tokens with some of them split, until there is this share more or none can be split.

    The choice depends only on the seed and the tokens. The first token stays whole: it may be the one that nothing
    predicts.

    >>> split_tokens([9, 2, 2, 2], lambda token: [(1, 1)] if token == 2 else [], seed=0, more=0.25)
    [9, 2, 1, 1, 2]
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
    known = {piece: token for piece, token in vocabulary.items() if token not in special}
    spelled = {token: piece for piece, token in known.items()}

    @cache
    def splits(token: int) -> list[tuple[int, int]]:
        piece = spelled.get(token, "")
        halves = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        return [(known[a], known[b]) for a, b in halves if a in known and b in known]

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
    found: dict[int, Ids] = {}
    for window in text.windows:
        part = window.main
        ids = [token for token, real in zip(part.ids, part.text, strict=True) if real]
        found.setdefault(window.document, []).extend(ids)
    return found


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
    model = laboratory.with_outliers(outlier_blocks(laboratory.lab().n_blocks))
    lab = laboratory.lab(model)
    own = measure_traits(lab, OWN, dropout=True, treatments=[TREATMENT])
    finer = with_finer_tokens(lab)
    before = lab.trial.predicted.sum()
    laboratory.lab()  # frees the model before the next one is loaded
    del lab
    worse = measure_traits(finer, f"{OWN}, finer tokens,", dropout=True, treatments=[TREATMENT])
    assert own.dropout is not None
    assert worse.dropout is not None
    moved = TokenizationEffect(
        damage=worse.damage[TREATMENT].minus(own.damage[TREATMENT]),
        dropout=worse.dropout.minus(own.dropout),
        activation=mean_over_languages(worse.a - own.a),
        tokens=float(finer.trial.predicted.sum() / before - 1),
        base=float(np.mean(worse.base_bits / own.base_bits)),
    )
    return own, worse, moved


def mean_over_languages(change: Floats) -> Estimate:
    """Returns the mean of one number per language, with its bootstrap-t interval over languages."""
    n = len(change)
    frame = LanguageFrame(np.full(n, "all"), np.arange(n), values=change, weights=np.ones(n), unit="ratio")
    return frame.by_language()["all"]


def effect_table(own: LanguageTraits, worse: LanguageTraits, moved: TokenizationEffect) -> Table:
    """Returns the changes of every language."""
    paired = worse.damage[TREATMENT].contrast(own.damage[TREATMENT])
    lost = moved.dropout.by_language()
    times = worse.base_bits / own.base_bits
    rows = tuple(
        (
            code,
            estimate_text(paired.differences[code]),
            number_text(paired.p_holm[code]),
            estimate_text(lost[code]),
            *map(number_text, other),
        )
        for code, *other in zip(own.languages, (worse.a - own.a).tolist(), times.tolist(), strict=True)
    )
    columns = ("language", "change of D", "p, Holm", "change of 1/R", "change of A", "base loss, times")
    return Table(f"The same text in {moved.tokens:.0%} more tokens, bits per byte", columns, rows)
