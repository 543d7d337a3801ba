"""Lessons: calibration text cut into what is learned from and what is kept apart, and the order of it."""

from dataclasses import dataclass, replace

import numpy as np

from fairbits.language.documents import seeded_hash
from fairbits.measure.passes.text import Text

KEPT_APART = 0.15
"""Share of the documents of every language on which it is judged what was learned."""
APART_AT_MOST = 1024
"""Positions of a language that are kept apart: once they are reached no document is added."""


@dataclass(frozen=True, eq=False)
class Lessons:
    """`learned` and `apart` are indices of windows of the text."""

    text: Text
    learned: tuple[int, ...]
    apart: tuple[int, ...]

    @classmethod
    def of(cls, text: Text, *, seed: int) -> "Lessons":
        """Returns every seventh document or so kept apart; documents that are parallel go together."""
        documents, lengths = zip(*((window.document, window.length) for window in text.windows), strict=True)
        length = np.bincount(documents, lengths, minlength=len(text.lang))
        kept = set[int]()
        for code in text.languages:
            own = np.flatnonzero(text.lang == code)
            order = sorted(own.tolist(), key=lambda i: seeded_hash(seed, int(text.document[i])))
            before = np.cumsum(length[order]) - length[order]
            most = min(max(1, round(KEPT_APART * len(own))), int((before < APART_AT_MOST).sum()))
            kept.update(order[:most])
        sides = (list[int](), list[int]())
        for index, window in enumerate(text.windows):
            sides[window.document in kept].append(index)
        return cls(text, tuple(sides[0]), tuple(sides[1]))

    def shortened(self, positions: int) -> Text:
        """Returns all that is kept apart, and so much of the rest that a language has about so many positions."""
        language, windows = self.text.language_of, self.text.windows
        found, apart = np.zeros(len(self.text.languages)), set(self.apart)
        chosen = list[int]()
        for index in (*self.apart, *self.learned):
            own = language[windows[index].document]
            if index in apart or found[own] < positions:
                chosen.append(index)
                found[own] += windows[index].length
        return replace(self.text, windows=tuple(windows[i] for i in sorted(chosen)))

    def order(self, *, steps: int, rows: int, seed: int) -> list[list[int]]:
        """Returns the windows of every step: languages take turns, and those of one step are about equally long."""
        rng = np.random.default_rng(seed)
        language = self.text.language_of
        own: list[list[int]] = [[] for _ in self.text.languages]
        for index in sorted(self.learned, key=lambda i: self.text.windows[i].length):
            own[language[self.text.windows[index].document]].append(index)
        ranks, turns = np.empty(0), np.empty(0, dtype=int)
        chosen: list[list[int]] = []
        for _ in range(steps):
            if not ranks.size:
                count = max(map(len, own))
                ranks = (rng.permutation(count) + rng.random()) / count
            rank, ranks = float(ranks[0]), ranks[1:]
            while turns.size < rows:
                turns = np.concatenate([turns, rng.permutation(len(own))])
            here, turns = turns[:rows], turns[rows:]
            chosen.append([own[i][int(rank * len(own[i]))] for i in here.tolist()])
        return chosen
