"""Corpus: documents of each language, split into calibration and evaluation, and identified by hashes."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

from fairbits.core.checks import instance, one_of, sequence, whole
from fairbits.core.errors import InputError
from fairbits.text.catalog import Language
from fairbits.text.documents import Documents, clean, encodable, fold_text
from fairbits.text.language_codes import find_languages, language_from_code, user_language
from fairbits.text.sound import Clip

SPLITS = ("calibration", "evaluation")
T = TypeVar("T")


@dataclass(frozen=True)
class Corpus:
    """Documents of each language in two splits: one to calibrate on, one to evaluate on.

    Documents are in NFC, without white space at either end, and not empty. In a parallel corpus, document i of a
    split has the same content in every language. `notes` report what was left out when it was made. `source` is the
    path that the text was read from, as it was given; None if it was not read from files. A corpus of speech has
    `clips` by split and language, one for each document, which is the transcript of the clip.
    """

    name: str
    calibration: Documents
    evaluation: Documents
    _: KW_ONLY
    parallel: bool = False
    notes: tuple[str, ...] = ()
    source: str | None = field(default=None, compare=False)
    clips: Mapping[str, Mapping[str, tuple[Clip, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        instance("name", self.name, str)
        splits = {split: _check_documents(split, getattr(self, split)) for split in SPLITS}
        codes = list(dict.fromkeys(code for documents in splits.values() for code in documents))
        for split, documents in splits.items():
            complete = {code: documents.get(code, ()) for code in codes}  # a language may be empty in one split
            if self.parallel and len({len(texts) for texts in complete.values()}) > 1:
                counts = ", ".join(f"{code} {len(texts):,}" for code, texts in complete.items())
                rule = "every language must have the same number"
                raise InputError(f"the parallel {split} documents are not aligned ({counts}); {rule}")
            object.__setattr__(self, split, MappingProxyType(complete))
            if self.clips:
                for code, texts in complete.items():
                    if (clips := len(self.clips[split].get(code, ()))) != len(texts):
                        counts = f"{len(texts):,} transcripts and {clips:,} clips"
                        raise InputError(f"{split} {code} has {counts}; each clip must have one")
        object.__setattr__(
            self, "notes", tuple(instance("a note", note, str) for note in sequence("notes", self.notes))
        )

    def __getstate__(self) -> dict[str, Any]:
        state = {field.name: getattr(self, field.name) for field in fields(self)}
        return state | {split: dict(self.split(split)) for split in SPLITS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            object.__setattr__(self, name, MappingProxyType(value) if name in SPLITS else value)

    @cached_property
    def languages(self) -> tuple[Language, ...]:
        return tuple(language_from_code(code) for code in self.calibration)

    @cached_property
    def hashes(self) -> Mapping[str, Mapping[str, str]]:
        """The SHA-256 of the documents (with lengths before, clips after each) of each split and language."""
        return {
            split: {code: _sha256(texts, self.language_clips(code, split)) for code, texts in self.split(split).items()}
            for split in SPLITS
        }

    def split(self, name: str) -> Documents:
        return self.calibration if one_of("split", name, SPLITS) == "calibration" else self.evaluation

    def language_clips(self, code: str, split: str) -> tuple[Clip, ...]:
        """Returns the clips of a language in a split, one for each document; none if the corpus is text."""
        return self.clips[split].get(code, ()) if self.clips else ()

    def size(self, code: str, split: str) -> int:
        return sum(len(document.encode()) for document in self.split(split)[code])

    def restrict(self, languages: Iterable[str]) -> "Corpus":
        codes = [language.code for language in find_languages(languages, user_codes=self.calibration)]
        missing = [code for code in codes if code not in self.calibration]
        if missing:
            raise InputError(
                f"{self.name} has no text in {', '.join(missing)}; it has {', '.join(self.calibration)}: "
                "choose among these or add the text"
            )
        kept = [{code: self.split(split)[code] for code in codes} for split in SPLITS]
        clips = {split: {code: self.language_clips(code, split) for code in codes} for split in self.clips}
        return replace(self, calibration=kept[0], evaluation=kept[1], clips=clips)

    def deduplicate(self) -> "Corpus":
        """Returns the corpus without calibration documents that are also evaluation documents of their language.

        Case and white space do not matter. What is left out in one language of a parallel corpus is left out in all.
        """
        shared: dict[str, frozenset[int]] = {}
        for code, texts in self.calibration.items():
            evaluated = set(map(_fingerprint, self.evaluation[code]))
            shared[code] = frozenset(i for i, document in enumerate(texts) if _fingerprint(document) in evaluated)
        if self.parallel:
            everywhere = frozenset[int]().union(*shared.values())
            shared = dict.fromkeys(shared, everywhere)
        kept = {code: _without(texts, shared[code]) for code, texts in self.calibration.items()}
        clips = dict(self.clips)
        if clips:
            clips["calibration"] = {
                code: _without(recordings, shared[code]) for code, recordings in clips["calibration"].items()
            }
        notes = [
            f"{code}: {len(left_out):,} of {len(self.calibration[code]):,} calibration documents left out, as they are "
            "evaluation documents too" + (" (here or in another language)" if self.parallel else "")
            for code, left_out in shared.items()
            if left_out
        ]
        return replace(self, calibration=kept, clips=clips, notes=(*self.notes, *notes))


def _check_documents(split: str, documents: Documents) -> dict[str, tuple[str, ...]]:
    if not isinstance(documents, Mapping):
        raise InputError(f"{split} is a {type(documents).__name__}; it must map language codes to documents")
    result: dict[str, tuple[str, ...]] = {}
    for name, texts in documents.items():
        code = user_language(name).code
        if code in result:
            raise InputError(f"{split} names {code} twice, the second time as {name!r}; name each language once")
        result[code] = tuple(
            _check_document(f"{split} {code}[{i}]", text) for i, text in enumerate(sequence(code, texts))
        )
    return result


def _check_document(where: str, text: str) -> str:
    cleaned = clean(instance(where, text, str))
    if not cleaned:
        raise InputError(f"{where} is empty; every document must have some text")
    if not encodable(cleaned):
        raise InputError(f"{where} contains an unpaired surrogate; every document must be valid Unicode text")
    return cleaned


def _without(values: tuple[T, ...], left_out: frozenset[int]) -> tuple[T, ...]:
    return tuple(value for i, value in enumerate(values) if i not in left_out)


def _sha256(documents: tuple[str, ...], clips: tuple[Clip, ...]) -> str:
    # The length before each document makes ["ab"] and ["a", "b"] differ.
    digest = hashlib.sha256()
    for document, clip in zip(documents, clips or (None,) * len(documents), strict=True):
        data = document.encode()
        digest.update(len(data).to_bytes(8, "big") + data + (b"" if clip is None else clip.sha256))
    return digest.hexdigest()


def _fingerprint(document: str) -> bytes:
    # 16 bytes per document instead of a second copy of the text
    return hashlib.blake2b(fold_text(document).encode(), digest_size=16).digest()


FEWEST_TOKENS = 16
SHORTEST_WINDOW = 4  # positions without which a window has no room for text


@dataclass(frozen=True)
class TextRequest:
    """The text that one pass over a corpus reads: about `tokens` of each language, in windows of `sequence`.

    The documents of a language may be `joined` into windows that are all full.
    """

    split: str = "calibration"
    tokens: int = 4096
    sequence: int = 512
    seed: int = 0
    joined: bool = False

    def __post_init__(self) -> None:
        one_of("split", self.split, SPLITS)
        for name, least in (("tokens", FEWEST_TOKENS), ("sequence", SHORTEST_WINDOW), ("seed", 0)):
            # integers of NumPy become Python's, which JSON takes
            object.__setattr__(self, name, whole(name, getattr(self, name), least=least))

    @property
    def settings(self) -> dict[str, Any]:
        return {"tokens": self.tokens, "sequence": self.sequence, "seed": self.seed}


DEFAULT_REQUEST = TextRequest()
