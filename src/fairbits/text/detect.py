"""The language of a text among given ones, by py3langid, a naive Bayes classifier over byte n-grams.

Its accuracy: `docs/languages.md`, written by `benchmarks/detection.py`.
"""

import copy
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from fairbits.core.checks import instance
from fairbits.core.errors import InputError
from fairbits.text.catalog import Language, catalog
from fairbits.text.language_codes import find_languages

LABELS = {
    "crh_Latn": "crh",
    "grn_Latn": "gug",
    "kik_Latn": "kik",
    "nob_Latn": "no",
    "quy_Latn": "qu",
    "srp_Latn": "sr",
    "uzn_Cyrl": "uz",
    "zho_Hans": "zh",
    "zho_Hant": "zh",
}
"""The labels of py3langid that differ from the BCP-47 code of the language."""


@dataclass(frozen=True)
class Detection:
    """The likeliest language of a text, and its probability among the given languages."""

    language: Language
    confidence: float


class Detector:
    """Detects the language of a text among given ones; safe to share between threads."""

    def __init__(self, languages: Iterable[str]) -> None:
        self.languages = find_languages(languages)
        if len(self.languages) < 2:
            raise InputError(f"languages name {len(self.languages)} language(s); detection needs at least 2")
        self._by_label = _by_label(self.languages)
        # A copy shares the model, which is only read. Restricting the copy changes no other identifier.
        self._identifier = copy.copy(_identifier())
        self._identifier.set_languages(list(self._by_label))

    def detect(self, text: str) -> Detection:
        return self.rank(text)[0]

    def rank(self, text: str) -> tuple[Detection, ...]:
        """Returns every language with its probability, the likeliest first; probabilities sum to 1."""
        plain = unicodedata.normalize("NFC", instance("text", text, str)).strip()
        if not any(character.isalpha() for character in plain):
            raise InputError(f"text is {text[:40]!r}; it must have at least one letter to have a language")
        ranking = self._identifier.rank(plain)
        return tuple(Detection(self._by_label[label], float(probability)) for label, probability in ranking)


@cache
def detectable_languages() -> tuple[Language, ...]:
    """Returns the languages that py3langid knows."""
    labels = set(_identifier().labels)
    return tuple(language for language in catalog() if _label(language) in labels)


def alike_languages(languages: Iterable[Language]) -> dict[str, list[Language]]:
    """Returns the languages that can be detected, by the first of those that the detector does not tell apart."""
    by_label: dict[str, list[Language]] = {}
    for language in languages:
        if language in detectable_languages():
            by_label.setdefault(_label(language), []).append(language)
    return {alike[0].code: alike for alike in by_label.values()}


def undetectable_notes(languages: Iterable[Language]) -> tuple[str, ...]:
    """Returns a note that names the languages which are never detected; none if all can be."""
    unknown = ", ".join(str(language) for language in languages if language not in detectable_languages())
    if not unknown:
        return ()
    return (f"never detected, as py3langid does not know them: {unknown}; name the language of such text",)


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)


def _label(language: Language) -> str:
    return LABELS.get(language.code, language.bcp47)


def _by_label(languages: Iterable[Language]) -> dict[str, Language]:
    unknown = [language for language in languages if language not in detectable_languages()]
    if unknown:
        raise InputError(
            f"py3langid does not know {', '.join(map(str, unknown))}; it knows {len(detectable_languages())} languages "
            "(fairbits.text.detect.detectable_languages() lists them): leave these out, or detect them by other means"
        )
    by_label: dict[str, Language] = {}
    for language in languages:
        earlier = by_label.setdefault(_label(language), language)
        if earlier is not language:
            raise InputError(f"py3langid does not distinguish {earlier} from {language}; give one of the two")
    return by_label
