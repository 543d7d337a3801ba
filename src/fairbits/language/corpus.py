"""Corpus: documents per language, split into calibration and evaluation, that say what they are by hash."""

import hashlib
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from types import MappingProxyType

from fairbits.checks import in_range, instance, one_of, sequence, whole
from fairbits.errors import InputError
from fairbits.language.catalog import Language
from fairbits.language.lookup import find_languages, language_of, own_language

Documents = Mapping[str, tuple[str, ...]]
"""The documents of each language, by its code."""

SPLITS = ("calibration", "evaluation")
INVISIBLE = ("Cc", "Cf", "Zl", "Zp", "Zs")
"""Unicode categories of characters that leave no mark on paper."""


@dataclass(frozen=True)
class Corpus:
    """Documents of each language in two splits: one to calibrate on, one to evaluate on.

    Documents are NFC, without white space at either end, none of them empty. In a parallel corpus document i of a
    split has the same content in every language. `notes` say what was left out on the way here.

    >>> corpus = Corpus("greetings", {"fra": ["Bonjour."], "heb": ["שלום."]}, {"fra": ["Merci !"], "heb": ["תודה!"]})
    >>> [language.name for language in corpus.languages], corpus.size("heb_Hebr", "calibration")
    (['French', 'Hebrew'], 9)
    """

    name: str
    calibration: Documents
    evaluation: Documents
    _: KW_ONLY
    parallel: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks and freezes the documents; a language that only one split has is empty in the other."""
        instance("name", self.name, str)
        splits = {split: _checked(split, getattr(self, split)) for split in SPLITS}
        codes = list(dict.fromkeys(code for documents in splits.values() for code in documents))
        for split, documents in splits.items():
            whole_split = {code: documents.get(code, ()) for code in codes}
            if self.parallel:
                _check_aligned(split, whole_split)
            object.__setattr__(self, split, MappingProxyType(whole_split))
        object.__setattr__(
            self, "notes", tuple(instance("a note", note, str) for note in sequence("notes", self.notes))
        )

    @cached_property
    def languages(self) -> tuple[Language, ...]:
        """The languages, in the order they came."""
        return tuple(language_of(code) for code in self.calibration)

    @cached_property
    def hashes(self) -> Mapping[str, Mapping[str, str]]:
        """The SHA-256 of the documents of each split and language, each document preceded by its length."""
        return {split: {code: _sha256(texts) for code, texts in self.split(split).items()} for split in SPLITS}

    def split(self, name: str) -> Documents:
        """Returns the documents of the split "calibration" or "evaluation"."""
        return self.calibration if one_of("split", name, SPLITS) == "calibration" else self.evaluation

    def size(self, code: str, split: str) -> int:
        """Returns how many bytes of UTF-8 a language has in a split."""
        return sum(len(document.encode()) for document in self.split(split)[code])

    def restrict(self, languages: Iterable[str]) -> "Corpus":
        """Returns the same corpus with these languages only, in this order."""
        codes = [language.code for language in find_languages(languages, own=self.calibration)]
        missing = [code for code in codes if code not in self.calibration]
        if missing:
            raise InputError(
                f"{self.name} has no text in {', '.join(missing)}; it has {', '.join(self.calibration)}: "
                "choose among these or add the text"
            )
        kept = [{code: self.split(split)[code] for code in codes} for split in SPLITS]
        return replace(self, calibration=kept[0], evaluation=kept[1])

    def require(self, *, calibration_bytes: int = 0, evaluation_bytes: int = 0) -> "Corpus":
        """Returns the corpus itself if every language has that many bytes of UTF-8 in each split."""
        lacking = []
        for split, least in zip(SPLITS, (calibration_bytes, evaluation_bytes), strict=True):
            whole(f"{split}_bytes", least, least=0)
            for code in self.calibration:
                size = self.size(code, split)
                if size < least:
                    lacking.append(f"{code} {least - size:,} bytes of {split} text (it has {size:,})")
        if lacking:
            raise InputError(
                f"{self.name} misses {'; '.join(lacking)}: at least {calibration_bytes:,} bytes to calibrate on and "
                f"{evaluation_bytes:,} to evaluate on must be given per language; add text or leave these languages out"
            )
        return self

    def deduplicated(self) -> "Corpus":
        """Returns the corpus without calibration documents that are also evaluation documents of their language.

        Two documents are the same if they agree after folding case and white space. In a parallel corpus a
        document that goes in one language goes in all, so that alignment stays.
        """
        doubles = {code: _doubles(texts, self.evaluation[code]) for code, texts in self.calibration.items()}
        if self.parallel:
            everywhere = frozenset[int]().union(*doubles.values())
            doubles = dict.fromkeys(doubles, everywhere)
        kept = {
            code: tuple(text for i, text in enumerate(texts) if i not in doubles[code])
            for code, texts in self.calibration.items()
        }
        notes = [
            f"{code}: {len(gone):,} of {len(self.calibration[code]):,} calibration documents left out, as they are "
            "evaluation documents too" + (" (here or in another language)" if self.parallel else "")
            for code, gone in doubles.items()
            if gone
        ]
        return replace(self, calibration=kept, notes=(*self.notes, *notes))


def split_documents(
    documents: Documents, evaluation_share: float, *, parallel: bool, seed: int
) -> tuple[Documents, Documents]:
    """Returns the documents to calibrate on and those to evaluate on, each in their old order.

    A hash of seed and content (seed and position in a parallel corpus) decides, so that equal documents fall on
    the same side. Each side gets at least one document where there are two.
    """
    share = in_range("evaluation_share", evaluation_share, least=0.0, most=1.0)
    whole("seed", seed, least=0)
    parts: tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]] = ({}, {})
    for code, texts in documents.items():
        keys = [str(i) if parallel else folded(text) for i, text in enumerate(texts)]
        order = sorted(set(keys), key=lambda key: seeded(seed, key))
        wanted = round(share * len(order))
        if 0.0 < share < 1.0 and len(order) > 1:
            wanted = min(max(wanted, 1), len(order) - 1)
        chosen = set(order[:wanted])
        for part, side in zip(parts, (False, True), strict=True):
            part[code] = tuple(text for text, key in zip(texts, keys, strict=True) if (key in chosen) is side)
    return parts


def clean(text: str) -> str:
    """Returns the text in NFC without white space at either end; nothing if none of it can be seen."""
    text = unicodedata.normalize("NFC", text).strip()
    return text if any(unicodedata.category(character) not in INVISIBLE for character in text) else ""


def encodable(text: str) -> bool:
    """Returns whether a text can be written as UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def folded(text: str) -> str:
    """Returns what is left of a text once case and white space are folded; equal texts are the same document.

    >>> folded("Tous  les\\nÊtres") == folded("tous les êtres")
    True
    """
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())


def seeded(seed: int, *parts: object) -> bytes:
    """Returns 32 bytes that look random and follow from the seed and the parts alone, in any version of Python."""
    return hashlib.sha256("\x1f".join(map(str, (seed, *parts))).encode()).digest()


def _checked(split: str, documents: Documents) -> dict[str, tuple[str, ...]]:
    if not isinstance(documents, Mapping):
        raise InputError(f"{split} is a {type(documents).__name__}; it must map language codes to documents")
    result: dict[str, tuple[str, ...]] = {}
    for name, texts in documents.items():
        code = own_language(name).code
        if code in result:
            raise InputError(f"{split} names {code} twice, the second time as {name!r}; each language once")
        result[code] = tuple(_document(f"{split} {code}[{i}]", text) for i, text in enumerate(sequence(code, texts)))
    return result


def _document(where: str, text: str) -> str:
    cleaned = clean(instance(where, text, str))
    if not cleaned:
        raise InputError(f"{where} is empty; every document must hold some text")
    if not encodable(cleaned):
        raise InputError(f"{where} holds half of a surrogate pair; every document must be valid Unicode text")
    return cleaned


def _check_aligned(split: str, documents: Documents) -> None:
    if len({len(texts) for texts in documents.values()}) > 1:
        counts = ", ".join(f"{code} {len(texts):,}" for code, texts in documents.items())
        raise InputError(
            f"the parallel {split} documents are not aligned ({counts}); every language must have the same number"
        )


def _sha256(documents: Iterable[str]) -> str:
    # The length before each document makes ["ab"] and ["a", "b"] differ.
    digest = hashlib.sha256()
    for document in documents:
        data = document.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()


def _doubles(documents: Iterable[str], others: Iterable[str]) -> frozenset[int]:
    known = set(_fingerprints(others))
    return frozenset(i for i, fingerprint in enumerate(_fingerprints(documents)) if fingerprint in known)


def _fingerprints(documents: Iterable[str]) -> Iterator[bytes]:
    # 16 bytes a document instead of a second copy of the text
    return (hashlib.blake2b(folded(document).encode(), digest_size=16).digest() for document in documents)
