"""A sentence and the same sentence with two neighbours exchanged: a model that knows the language prefers the first.

Both have the same characters and bytes, so that neither is shorter. Words are exchanged where the sentence has enough
of them, characters where it is written without spaces. Which ones is decided by a hash: the same in every run.
"""

import re
import unicodedata

from fairbits.text.documents import seeded_hash

SENTENCE_END = re.compile(r"(?<=[.!?…।॥።؟։။។])\s+|(?<=[。！？])\s*|\n+")
SHORTEST, LONGEST = 20, 400  # characters of a sentence that is used; one of Han, kana or hangul may have half as many
FEWEST_WORDS, FEWEST_CHARACTERS = 4, 6
DENSE = re.compile("[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7a3]")


def sentence_spans(document: str) -> list[tuple[int, int]]:
    """Returns where every sentence of a document begins and ends, without the white space around it."""
    spans: list[tuple[int, int]] = []
    start = 0
    for end, following in (*(match.span() for match in SENTENCE_END.finditer(document)), (len(document), 0)):
        part = document[start:end]
        if stripped := part.strip():
            first = start + part.index(stripped)
            spans.append((first, first + len(stripped)))
        start = following
    return spans


def usable(sentence: str) -> bool:
    """Returns whether a sentence is neither short nor long."""
    return SHORTEST / (2 if DENSE.search(sentence) else 1) <= len(sentence) <= LONGEST


def sentences(document: str) -> list[str]:
    """Returns the sentences of a document that are neither short nor long."""
    return [part for start, end in sentence_spans(document) if usable(part := document[start:end])]


def corrupt(sentence: str, *, seed: int = 0) -> str | None:
    """Returns the sentence with two neighbouring words exchanged, or two characters; None if none can be.

    The first and the last word keep their places, because of capitals and punctuation.
    """
    words = sentence.split(" ")
    if len(words) >= FEWEST_WORDS:
        return _exchanged(words, " ", sentence, seed)
    return _exchanged(_characters(sentence), "", sentence, seed)


def _exchanged(parts: list[str], joint: str, sentence: str, seed: int) -> str | None:
    able = [i for i in range(1, len(parts) - 2) if _fold(parts[i]) != _fold(parts[i + 1])]
    if not able or (not joint and len(parts) < FEWEST_CHARACTERS):
        return None
    i = min(able, key=lambda i: seeded_hash(seed, sentence, i))
    return joint.join([*parts[:i], parts[i + 1], parts[i], *parts[i + 2 :]])


def _characters(sentence: str) -> list[str]:
    characters: list[str] = []
    for character in sentence:
        is_mark = unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf")
        if characters and (is_mark or characters[-1][-1] == "\u200d"):
            characters[-1] += character
        else:
            characters.append(character)
    return characters


def _fold(part: str) -> str:
    return unicodedata.normalize("NFC", part).casefold()
