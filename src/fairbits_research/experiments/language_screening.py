"""Which languages of the declaration a model knows, and a laboratory with many of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain, zip_longest

import numpy as np

from fairbits.models.checkpoint import Checkpoint
from fairbits.models.embedded import embedded_languages
from fairbits.text.documents import seeded_hash
from fairbits.text.included_texts import udhr
from fairbits.text.language_codes import language_from_code
from fairbits_research.experiments.laboratory import Laboratory, ModelLab, Setting

MOST = 100
"""The most languages of the declaration that an experiment uses."""
LEAST = 60
"""Where the model knows fewer, the next best ones are added up to this number."""
TOKENS = 768
"""Tokens per language where there are many languages."""
SCREENED = 128
"""Tokens per language that decide whether the model knows it; at least five documents."""


@dataclass(frozen=True)
class LanguageScreening:
    """The bits per byte of every language divided by the entropy of its bytes.

    Below 1 the model knows more than the frequencies of the bytes. Tokenizer and script do not move this threshold.
    """

    loss: Mapping[str, float]

    @property
    def known(self) -> tuple[str, ...]:
        """The languages that the model knows, so that their loss is meaningful."""
        return tuple(code for code, each in self.loss.items() if each < 1)

    def choose(self, seed: int) -> list[str]:
        """Returns at most MOST of the known languages; if they are fewer than LEAST, the next best ones as well."""
        known = draw_languages(self.known, MOST, seed=seed)
        others = sorted(set(self.loss) - set(self.known), key=lambda code: (self.loss[code], code))
        return sorted(known + others[: max(LEAST - len(known), 0)])

    def note(self) -> str:
        """Returns a sentence on how many languages the model knows."""
        count = len(self.known)
        added = f"; the {LEAST - count} next best are added to make {LEAST}" if count < LEAST else ""
        return (
            f"In {count} of the {len(self.loss)} languages of the declaration the model needs fewer bits than a code "
            f"for the frequencies of the bytes{added}."
        )


def many_languages(laboratory: Laboratory) -> tuple[Laboratory, LanguageScreening] | None:
    """Returns a laboratory with many languages of the declaration; None where text or languages were requested.

    A model that is not embedded has no languages of its own until they are named, so naming them is not a request.
    """
    own = laboratory.setting
    if own.text is not None or (own.languages is not None and embedded_languages(own.model) is not None):
        return None
    laboratory.report("finding languages the model knows", 0, 1)
    found = screen_languages(own.model, own.sequence, own.seed, own.device)
    tokens, calibration = min(own.tokens, TOKENS), min(own.calibration, TOKENS)
    languages = tuple(found.choose(own.seed))
    setting = replace(own, languages=languages, tokens=tokens, calibration=calibration, shares=None)
    return Laboratory(setting, laboratory.progress), found


def screen_languages(model: str, sequence: int, seed: int, device: str) -> LanguageScreening:
    """Returns how well a model knows the languages of the declaration, from one pass over a little text of each."""
    checkpoint = Checkpoint(model)
    return _screen(model, (checkpoint.fingerprint, checkpoint.tokenizer_hash), sequence, seed, device)


@cache
def _screen(
    model: str,
    content: tuple[str, ...],  # noqa: ARG001  # another model at the same path is screened again
    sequence: int,
    seed: int,
    device: str,
) -> LanguageScreening:
    setting = Setting(model, tokens=SCREENED, sequence=sequence, seed=seed, device=device)
    corpus = udhr()
    lab = ModelLab(model, setting, corpus, lambda *_: None)
    return LanguageScreening(
        {code: bits / byte_entropy(corpus.evaluation[code]) for code, bits in lab.reference_bits().items()}
    )


def byte_entropy(documents: Iterable[str]) -> float:
    """Returns the entropy of the bytes of a text in bits, each byte on its own.

    >>> byte_entropy(["ab", "ba"])
    1.0
    """
    counts = np.bincount(np.frombuffer("".join(documents).encode(), dtype=np.uint8))
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log2(p)).sum())


def draw_languages(codes: Iterable[str], most: int, *, seed: int) -> list[str]:
    """Returns at most this many of the languages, spread evenly over scripts and families.

    >>> "heb_Hebr" in draw_languages(["deu_Latn", "fra_Latn", "spa_Latn", "heb_Hebr"], 2, seed=0)
    True
    """
    strata: dict[tuple[str, str], list[str]] = {}
    for code in sorted(codes, key=lambda each: seeded_hash(seed, each)):
        each = language_from_code(code)
        strata.setdefault((each.script, each.family), []).append(code)
    in_turn = chain.from_iterable(zip_longest(*(strata[key] for key in sorted(strata))))
    return sorted([code for code in in_turn if code is not None][:most])
