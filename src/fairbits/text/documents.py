"""Documents of a language: cleaned, compared, collected up to a limit, and split by a hash."""

import hashlib
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field

from fairbits.core.checks import in_range, whole
from fairbits.core.errors import InputError

Documents = Mapping[str, tuple[str, ...]]  # the documents of each language, by its code

INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")  # unicode categories of characters that print nothing
NAMED = 5  # how many blank lines a note lists by number


def clean(text: str) -> str:
    """Returns the text in NFC without white space at either end; "" if no character of it is visible."""
    text = unicodedata.normalize("NFC", text).strip()
    return text if any(unicodedata.category(character) not in INVISIBLE for character in text) else ""


def encodable(text: str) -> bool:
    """Returns whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def fold_text(text: str) -> str:
    """Returns the text with case and white space folded; documents that agree then count as the same."""
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def seeded_hash(seed: int, *parts: object) -> bytes:
    """Returns 32 bytes that look random and depend on the seed and the parts alone, in any version of Python."""
    return hashlib.sha256("\x1f".join(map(str, (seed, *parts))).encode()).digest()


def split_documents(
    documents: Documents, evaluation_share: float, *, parallel: bool, seed: int
) -> tuple[Documents, Documents]:
    """Returns the calibration documents and the evaluation documents, each in their old order.

    A hash of seed and content decides, or of seed and position in a parallel corpus: equal documents stay together.
    """
    share = in_range("evaluation_share", evaluation_share, least=0.0, most=1.0)
    whole("seed", seed, least=0)
    parts: tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]] = ({}, {})
    for code, texts in documents.items():
        keys = [str(i) if parallel else fold_text(text) for i, text in enumerate(texts)]
        order = sorted(set(keys), key=lambda key: seeded_hash(seed, key))
        wanted = round(share * len(order))
        if 0.0 < share < 1.0 and len(order) > 1:
            wanted = min(max(wanted, 1), len(order) - 1)
        chosen = set(order[:wanted])
        for part, side in zip(parts, (False, True), strict=True):
            part[code] = tuple(text for text, key in zip(texts, keys, strict=True) if (key in chosen) is side)
    return parts


@dataclass
class Collector:
    """The documents of one language as they are read, up to `limit` bytes; `seen` counts those left out as well."""

    source: str
    limit: int
    documents: list[str] = field(default_factory=list)
    seen: int = 0
    size: int = 0

    @property
    def full(self) -> bool:
        return self.seen > len(self.documents)

    def add(self, text: str) -> None:
        self.seen += 1
        if self.size < self.limit:
            self.documents.append(clean(text))
            self.size += len(self.documents[-1].encode())


def without_blanks(collectors: Mapping[str, Collector]) -> Documents:
    """Returns the documents of each language that are not blank."""
    documents = {code: tuple(filter(None, collector.documents)) for code, collector in collectors.items()}
    empty = [collectors[code].source for code, texts in documents.items() if not texts]
    if empty:
        raise InputError(f"no text in {', '.join(empty)}; every language must have at least one document")
    return documents


def align(collectors: Mapping[str, Collector]) -> tuple[Documents, list[str]]:
    """Returns the parallel documents that have text in every language, and notes on those that do not."""
    languages = list(collectors.values())
    if len({language.seen for language in languages}) > 1:
        counts = ", ".join(f"{language.source} {language.seen:,}" for language in languages)
        raise InputError(
            f"the parallel texts differ in length (documents: {counts}); line i must say the same in every language"
        )
    shortest = min(len(language.documents) for language in languages)
    kept = [i for i in range(shortest) if all(language.documents[i] for language in languages)]
    if not kept:
        sources = ", ".join(language.source for language in languages)
        raise InputError(f"no line of {sources} has text in every language; a parallel set must have at least one")
    notes = []
    for language in languages:
        blank = [i + 1 for i in range(shortest) if not language.documents[i]]
        if blank:
            lines = ", ".join(map(str, blank[:NAMED])) + (", …" if len(blank) > NAMED else "")
            notes.append(f"{language.source}: blank documents ({len(blank):,}: {lines}) left out in every language")
    return {code: tuple(language.documents[i] for i in kept) for code, language in collectors.items()}, notes
