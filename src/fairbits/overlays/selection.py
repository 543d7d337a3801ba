"""Which overlay serves a text: that of the language given, or otherwise of the language detected."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fairbits.checks import instance
from fairbits.errors import InputError
from fairbits.language.catalog import Language
from fairbits.language.detect import LABELS, Detector, detectable_languages
from fairbits.language.documents import encodable
from fairbits.language.lookup import find_language, language_of
from fairbits.overlays.overlay import BASE, of_language

LOOKED_AT = 1000
"""Characters from the first letter on that are used to detect a language: more take time and change nothing."""


@dataclass(frozen=True)
class Choice:
    """Which overlay serves a text, and why.

    `language`    None: not known
    `confidence`  the probability of the language among those served; None where nothing was detected
    `overlay`     its name, or "base"
    `reason`      "asked", "detected", "unsure" (below the required confidence) or "undetectable"
    """

    language: Language | None
    confidence: float | None
    overlay: str
    reason: str

    def as_data(self) -> dict[str, Any]:
        """Returns all of it for JSON, the language by its code."""
        return {**vars(self), "language": self.language and self.language.code}


class OverlaySelector:
    """Selects the overlay for a text; safe to share between threads."""

    def __init__(self, served: Mapping[str, str], *, confidence: float) -> None:
        """Takes the overlay of every language that is served, by its code."""
        self.languages = tuple(language_of(code) for code in served)
        self._overlay = dict(zip((each.code for each in self.languages), served.values(), strict=True))
        self._confidence = confidence
        self._alike = _alike(self.languages)
        self._detector = Detector(self._alike) if len(self._alike) > 1 else None

    def choose(self, text: str, *, language: str | None = None) -> Choice:
        """Returns the overlay for a text, by the language given or otherwise by the language detected."""
        instance("text", text, str)
        if language is not None:
            named = self._served(language)
            return Choice(named, None, of_language(self._overlay, named.code), "asked")
        first = next((i for i, character in enumerate(text) if character.isalpha()), None)
        if first is None or self._detector is None:
            return Choice(None, None, BASE, "undetectable")
        looked_at = text[first : first + LOOKED_AT]
        if not encodable(looked_at):
            raise InputError(f"text is {text!r:.40}; it must be valid Unicode to have a language")
        found = self._detector.detect(looked_at)
        alike = self._alike[found.language.code]
        overlays = {self._overlay[each.code] for each in alike}
        if len(overlays) > 1:  # the detector cannot distinguish them
            return Choice(None, None, BASE, "undetectable")
        if found.confidence < self._confidence:
            return Choice(found.language, found.confidence, BASE, "unsure")
        return Choice(found.language, found.confidence, overlays.pop(), "detected")

    def _served(self, name: str) -> Language:
        language = find_language(name, own=self._overlay)
        if language.code not in self._overlay:
            served = ", ".join(self._overlay) or "none, as there are no overlays"
            raise InputError(f"language is {language}; it must be one that is served: {served}")
        return language


def _alike(languages: Sequence[Language]) -> dict[str, list[Language]]:
    """Returns the detectable languages, each with those that the detector cannot distinguish from it.

    py3langid has one label for both scripts of Chinese, of Serbian and of Uzbek: the first that is served stands for
    all of them.
    """
    known = set(detectable_languages()) if languages else set()
    by_label: dict[str, list[Language]] = {}
    for language in languages:
        if language in known:
            by_label.setdefault(LABELS.get(language.code, language.bcp47), []).append(language)
    return {alike[0].code: alike for alike in by_label.values()}
