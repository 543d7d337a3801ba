"""The same text in more tokens: some tokens are split into two other tokens of the vocabulary that spell the same.

An intervention on tokenization: text and bytes stay the same.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from fairbits.core.errors import InputError
from fairbits.forward.windows import NO_LABEL, Ids, TokenizedText, Window, WindowPart, cutter_for
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.documents import seeded_hash
from fairbits_research.experiments.laboratory import ModelLab

MORE_TOKENS = 0.05
"""The share of tokens that is added; with a quarter more the loss of the embedded model doubles."""
Splits = Callable[[int], list[tuple[int, int]]]
"""Returns every pair of tokens that a token can be split into."""


def with_finer_tokens(lab: ModelLab) -> ModelLab:
    """Returns a lab with the text of another, document by document, in MORE_TOKENS more tokens."""
    usual = lab.setting
    # a larger budget, because the same documents take more tokens
    setting = replace(
        usual, tokens=round(usual.tokens * (1 + MORE_TOKENS)), calibration=round(usual.calibration * (1 + MORE_TOKENS))
    )
    finer_lab = ModelLab(lab.checkpoint.target, setting, lab.corpus, lab.report)
    finer_lab.checkpoint = FinerCheckpoint(lab.checkpoint.target, usual.seed)
    finer_lab.text = finer_text(lab, lab.text)
    return finer_lab


def finer_text(lab: ModelLab, text: TokenizedText) -> TokenizedText:
    """Returns a text with tokens split, the same documents and bytes.

    A causal model reads what it predicts, so any token may be split. Masked and encoder-decoder models read other
    tokens than they predict: only those they read are split, so that they predict the same.
    """
    checkpoint, setting = lab.checkpoint, lab.setting
    tokenizer, seed = checkpoint.tokenizer(), setting.seed
    splits = splits_of(tokenizer)
    if checkpoint.task == "causal":
        length = min(setting.sequence, checkpoint.longest_input)
        cut = cutter_for(tokenizer, "causal", length=length, seed=seed, start=None).windows
        finer = (cut(document, split_tokens(ids, splits, seed=seed)) for document, ids in _documents(text).items())
        windows = tuple(window for document in finer for window in document)
    else:
        room = checkpoint.longest_input
        windows = tuple(_finer_window(window, splits, seed=seed, room=room) for window in text.windows)
    if tokens_read(windows) == tokens_read(text.windows):
        raise InputError(
            f"no token that {checkpoint.target} reads can be split into two others of its vocabulary; give a model "
            "with a vocabulary of subwords"
        )
    return replace(text, windows=windows)


def tokens_read(windows: Iterable[Window]) -> int:
    """Returns the number of tokens of text that a model reads."""
    return sum(sum(part.text) for window in windows for part in (window.main, window.encoder) if part is not None)


def _finer_window(window: Window, splits: Splits, *, seed: int, room: int) -> Window:
    if window.encoder is None:
        return replace(window, main=_finer_part(window.main, splits, seed=seed, room=room))
    return replace(window, encoder=_finer_part(window.encoder, splits, seed=seed, room=room))


def _finer_part(part: WindowPart, splits: Splits, *, seed: int, room: int) -> WindowPart:
    """Returns a part with some of the tokens split that are text and need not be predicted, at most `room` in all."""
    ids, text, labels = list(part.ids), list(part.text), list(part.labels)
    places = [at for at, token in enumerate(ids) if text[at] and labels[at] == NO_LABEL and splits(token)]
    rng = np.random.default_rng(list(seeded_hash(seed, *ids)))
    wanted = max(min(round(MORE_TOKENS * sum(text)), room - len(ids), len(places)), 0)
    for at in sorted(rng.choice(places, size=wanted, replace=False).tolist() if wanted else (), reverse=True):
        pairs = splits(ids[at])
        ids[at : at + 1] = pairs[rng.integers(len(pairs))]
        text[at : at + 1], labels[at : at + 1] = [True, True], [NO_LABEL, NO_LABEL]
    return WindowPart(ids, text, labels)


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
    """Returns the function that lists how a token can be split into two tokens that spell the same.

    In a vocabulary of WordPiece, the second of two pieces of a word begins with ##.
    """
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    special = set(tokenizer.all_special_ids)
    ordinary = {piece: token for piece, token in vocabulary.items() if token not in special}
    spelled = {token: piece for piece, token in ordinary.items()}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    joined = getattr(getattr(backend, "model", None), "continuing_subword_prefix", None) or ""

    @cache
    def splits(token: int) -> list[tuple[int, int]]:
        piece = spelled.get(token, "")
        start = len(joined) if joined and piece.startswith(joined) else 0
        halves = ((piece[:at], joined + piece[at:]) for at in range(start + 1, len(piece)))
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
