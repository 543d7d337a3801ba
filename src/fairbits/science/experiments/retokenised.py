"""The same text in more tokens: some are cut into two pieces that the vocabulary has too."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fairbits.errors import InputError
from fairbits.language.documents import seeded_hash
from fairbits.measure.passes.prepare import longest_input, task_of
from fairbits.measure.passes.text import Ids, Text, cutter_for
from fairbits.model.checkpoint import Checkpoint
from fairbits.science.experiments.laboratory import ModelLab

MORE = 0.05
"""The share of tokens that are added; with a quarter more the loss of the embedded model doubles."""
Cuts = Callable[[int], list[tuple[int, int]]]
"""Returns every pair of tokens that a token can be cut into."""


def retokenised(lab: ModelLab) -> ModelLab:
    """Returns a lab whose text is that of another, document by document, in a quarter more tokens."""
    own = lab.setting
    if task_of(lab.checkpoint) != "causal":
        raise InputError(f"{lab.checkpoint.target} does not predict the next token; give a causal model")
    # a larger budget, as the same documents take more tokens
    setting = replace(own, tokens=round(own.tokens * (1 + MORE)), calibration=round(own.calibration * (1 + MORE)))
    other = ModelLab(lab.checkpoint.target, setting, lab.corpus, lab.tell)
    other.checkpoint = CutFiner(lab.checkpoint.target, own.seed)
    tokenizer = lab.checkpoint.tokenizer()
    length = min(own.sequence, longest_input(lab.checkpoint))
    windows = cutter_for(tokenizer, "causal", length=length, seed=own.seed, start=None).windows
    cuts = cuts_of(tokenizer)
    finer = (windows(document, cut(ids, cuts, seed=own.seed)) for document, ids in _documents(lab.text).items())
    other.text = replace(lab.text, windows=tuple(each for document in finer for each in document))
    return other


def cut(ids: Ids, cuts: Cuts, *, seed: int, more: float = MORE) -> Ids:
    """Returns the tokens with some of them cut, until there are `more` of them or none can be cut.

    Which ones follows from the seed and the tokens alone. The first stays whole: it may be what nothing predicts.

    >>> cut([9, 2, 2, 2], lambda token: [(1, 1)] if token == 2 else [], seed=0, more=0.25)
    [9, 2, 1, 1, 2]
    """
    rng = np.random.default_rng(list(seeded_hash(seed, *ids)))
    result, wanted = list(ids), round(more * len(ids))
    while wanted > 0:
        places = [at for at in range(1, len(result)) if cuts(result[at])]
        if not places:
            break
        chosen = rng.choice(places, size=min(wanted, len(places)), replace=False)
        for at in sorted(chosen.tolist(), reverse=True):
            ways = cuts(result[at])
            result[at : at + 1] = ways[rng.integers(len(ways))]
        wanted -= len(chosen)
    return result


def cuts_of(tokenizer: Any) -> Cuts:
    """Returns how tokens can be cut: into two pieces of the vocabulary that, side by side, spell them."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    special = set(tokenizer.all_special_ids)
    known = {piece: token for piece, token in vocabulary.items() if token not in special}
    spelled = {token: piece for piece, token in known.items()}

    @cache
    def cuts(token: int) -> list[tuple[int, int]]:
        piece = spelled.get(token, "")
        halves = ((piece[:at], piece[at:]) for at in range(1, len(piece)))
        return [(known[a], known[b]) for a, b in halves if a in known and b in known]

    return cuts


class CutFiner(Checkpoint):
    """A checkpoint whose tokenizer cuts finer."""

    def __init__(self, target: str, seed: int) -> None:
        """The seed decides what is cut."""
        super().__init__(target)
        self.seed = seed

    def tokenizer(self) -> Any:
        """Returns the tokenizer of the model, but for what it does when called."""
        return _Finer(super().tokenizer(), self.seed)


class _Finer:
    def __init__(self, tokenizer: Any, seed: int) -> None:
        self._tokenizer, self._seed, self._cuts = tokenizer, seed, cuts_of(tokenizer)

    def __call__(self, documents: list[str], **options: Any) -> dict[str, list[Ids]]:
        plain = self._tokenizer(documents, **options)["input_ids"]
        return {"input_ids": [cut(ids, self._cuts, seed=self._seed) for ids in plain]}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tokenizer, name)


def _documents(text: Text) -> dict[int, Ids]:
    """Returns the tokens of every document, without what stands before them."""
    found: dict[int, Ids] = {}
    for window in text.windows:
        part = window.main
        ids = [token for token, real in zip(part.ids, part.text, strict=True) if real]
        found.setdefault(window.document, []).extend(ids)
    return found
