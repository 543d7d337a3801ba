"""Many languages: those of the declaration that a model knows at all, and as many of the next ones as are needed."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, zip_longest

import numpy as np

from fairbits.language import udhr
from fairbits.language.documents import seeded_hash
from fairbits.language.lookup import language_of
from fairbits.model.embedded import embedded_languages
from fairbits.science.experiments.laboratory import Laboratory, ModelLab, Setting

MOST = 100
"""Languages of the declaration that are looked at."""
LEAST = 60
"""Where the model knows fewer, those next to them are added until there are so many."""
TOKENS = 768
"""Per language, where there are many of them."""
SCREENED = 128
"""Tokens per language on which it is seen whether the model knows it; five documents at least."""


@dataclass(frozen=True)
class Screening:
    """The bits per byte of every language over the entropy of its bytes: below 1 the model knows more than how
    frequent they are. Tokenizer and script do not move this bar.
    """

    loss: Mapping[str, float]

    @property
    def known(self) -> tuple[str, ...]:
        """The languages in which the loss is meaningful."""
        return tuple(code for code, each in self.loss.items() if each < 1)

    def chosen(self, seed: int) -> list[str]:
        """Returns at most MOST of the known languages; where they are fewer than LEAST, the next ones as well."""
        drawn_ones = drawn(self.known, MOST, seed=seed)
        others = sorted(set(self.loss) - set(self.known), key=lambda code: (self.loss[code], code))
        return sorted(drawn_ones + others[: max(LEAST - len(drawn_ones), 0)])

    def said(self) -> str:
        """Returns how many languages the model knows, as a sentence."""
        count = len(self.known)
        added = f"; the {LEAST - count} next to them are added to make {LEAST}" if count < LEAST else ""
        return (
            f"In {count} of the {len(self.loss)} languages of the declaration the model needs fewer bits than "
            f"the frequencies of the bytes would{added}."
        )


def many(laboratory: Laboratory) -> tuple[Laboratory, Screening] | None:
    """Returns the laboratory of many languages of the declaration; None where text or languages were asked for.

    A model that is not embedded has no languages of its own until they are named, so that naming them asks for nothing.
    """
    own = laboratory.setting
    if own.text is not None or (own.languages is not None and embedded_languages(own.model) is not None):
        return None
    laboratory.tell("looking for languages the model knows", 0, 1)
    found = screening(own.model, own.sequence, own.seed, own.device)
    tokens, calibration = min(own.tokens, TOKENS), min(own.calibration, TOKENS)
    languages = tuple(found.chosen(own.seed))
    setting = replace(own, languages=languages, tokens=tokens, calibration=calibration, shares=None)
    return Laboratory(setting, laboratory.progress), found


@cache
def screening(model: str, sequence: int, seed: int, device: str) -> Screening:
    """Returns how well a model knows the languages of the declaration, after one pass over a little of each."""
    setting = Setting(model, tokens=SCREENED, sequence=sequence, seed=seed, device=device)
    corpus = udhr()
    lab = ModelLab(model, setting, corpus, lambda *_: None)
    return Screening(
        {code: bits / byte_entropy(corpus.evaluation[code]) for code, bits in lab.reference_bits().items()}
    )


def byte_entropy(documents: Iterable[str]) -> float:
    """Returns the entropy of the bytes of a text in bits, each taken by itself.

    >>> byte_entropy(["ab", "ba"])
    1.0
    """
    counts = np.bincount(np.frombuffer("".join(documents).encode(), dtype=np.uint8))
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log2(p)).sum())


def drawn(codes: Iterable[str], most: int, *, seed: int) -> list[str]:
    """Returns at most so many of the languages, the same number of every script and family as far as it has them.

    >>> "heb_Hebr" in drawn(["deu_Latn", "fra_Latn", "spa_Latn", "heb_Hebr"], 2, seed=0)
    True
    """
    strata: dict[tuple[str, str], list[str]] = {}
    for code in sorted(codes, key=lambda each: seeded_hash(seed, each)):
        each = language_of(code)
        strata.setdefault((each.script, each.family), []).append(code)
    in_turn = chain.from_iterable(zip_longest(*(strata[key] for key in sorted(strata))))
    return sorted([code for code in in_turn if code is not None][:most])
