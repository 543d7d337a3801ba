"""The calibration text split into training windows and held-out windows, and the order in which training reads it."""

from dataclasses import dataclass, replace

import numpy as np

from fairbits.core.errors import InputError
from fairbits.forward.windows import TokenizedText
from fairbits.text.documents import seeded_hash

HELD_OUT_SHARE = 0.15  # share of the documents of every language on which learned codes are evaluated
HELD_OUT_POSITIONS = 1024
"""Enough held-out positions for a language: once they are reached, no further document is held out."""


@dataclass(frozen=True, eq=False)
class HoldoutSplit:
    """A text whose windows are either trained on or held out; `training` and `held_out` are indices of windows."""

    text: TokenizedText
    training: tuple[int, ...]
    held_out: tuple[int, ...]

    @classmethod
    def of(cls, text: TokenizedText, *, seed: int) -> "HoldoutSplit":
        """Returns a split that holds out about every seventh document; translations are on the same side."""
        documents, lengths = zip(*((window.document, window.length) for window in text.windows), strict=True)
        length = np.bincount(documents, lengths, minlength=len(text.lang))
        held_out = set[int]()
        for code in text.languages:
            inside = np.flatnonzero(text.lang == code)
            if len(inside) < 2:
                raise InputError(
                    f"learned codes need at least 2 documents of every language, one of which is held out; {code} has "
                    f"{len(inside)}: give more or shorter documents, or choose another policy, such as gptq"
                )
            order = sorted(inside.tolist(), key=lambda i: seeded_hash(seed, int(text.document[i])))
            before = np.cumsum(length[order]) - length[order]
            most = min(max(1, round(HELD_OUT_SHARE * len(inside))), int((before < HELD_OUT_POSITIONS).sum()))
            held_out.update(order[:most])
        sides = (list[int](), list[int]())
        for index, window in enumerate(text.windows):
            sides[window.document in held_out].append(index)
        return cls(text, tuple(sides[0]), tuple(sides[1]))

    @property
    def held_out_documents(self) -> frozenset[int]:
        return frozenset(self.text.windows[i].document for i in self.held_out)

    def shorten(self, positions: int, *, held_out: bool = True) -> TokenizedText:
        """Returns training windows until each language has about `positions` positions, and held-out ones."""
        language, windows = self.text.language_of, self.text.windows
        total, kept = np.zeros(len(self.text.languages)), set(self.held_out if held_out else ())
        chosen = list[int]()
        for index in (*sorted(kept), *self.training):
            lang = language[windows[index].document]
            if index in kept or total[lang] < positions:
                chosen.append(index)
                total[lang] += windows[index].length
        return replace(self.text, windows=tuple(windows[i] for i in sorted(chosen)))

    def training_order(self, *, steps: int, rows: int, seed: int) -> list[list[int]]:
        """Returns the `rows` training windows of every step.

        Languages take turns, so that each is read equally often. A step takes its windows at the same rank of length,
        so that little of a batch is padding.
        """
        rng = np.random.default_rng(seed)
        language = self.text.language_of
        by_language: list[list[int]] = [[] for _ in self.text.languages]
        for index in sorted(self.training, key=lambda i: self.text.windows[i].length):
            by_language[language[self.text.windows[index].document]].append(index)
        ranks, turns = np.empty(0), np.empty(0, dtype=int)
        chosen: list[list[int]] = []
        for _ in range(steps):
            if not ranks.size:
                count = max(map(len, by_language))
                ranks = (rng.permutation(count) + rng.random()) / count
            rank, ranks = float(ranks[0]), ranks[1:]
            while turns.size < rows:
                turns = np.concatenate([turns, rng.permutation(len(by_language))])
            here, turns = turns[:rows], turns[rows:]
            chosen.append([by_language[i][int(rank * len(by_language[i]))] for i in here.tolist()])
        return chosen
