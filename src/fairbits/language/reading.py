"""Text of the user as a Corpus: a directory of LANG.txt and LANG.jsonl, or one JSONL file with `lang` and `text`."""

from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fairbits.checks import whole
from fairbits.errors import InputError
from fairbits.language.corpus import SPLITS, Corpus, Documents, clean, split_documents
from fairbits.language.declaration import udhr
from fairbits.language.lines import json_lines, text_lines
from fairbits.language.lookup import language_of, own_language, suggestion, unlisted_notes, wanted_languages

LIMIT = 64_000_000
"""Bytes of UTF-8 kept per language and split, unless told otherwise."""
SUFFIXES = (".txt", ".jsonl")


@dataclass
class Pile:
    """The documents of one language as they come, blank ones included, kept until they hold `limit` bytes."""

    source: str
    limit: int
    documents: list[str] = field(default_factory=list)
    seen: int = 0
    size: int = 0

    @property
    def cut(self) -> bool:
        """Whether documents came that are not kept."""
        return self.seen > len(self.documents)

    def add(self, text: str) -> None:
        """Counts a document, and keeps it while there is room."""
        self.seen += 1
        if self.size < self.limit:
            self.documents.append(clean(text))
            self.size += len(self.documents[-1].encode())


Piles = dict[str, dict[str, Pile]]
"""By split ("" where the text is yet to be split) and language code."""


def read_corpus(
    path: str | Path,
    *,
    languages: Iterable[str] | None = None,
    parallel: bool = False,
    evaluation_share: float = 0.5,
    seed: int = 0,
    limit: int = LIMIT,
) -> Corpus:
    """Returns the text under `path`, split by hash where it is not split already, deduplicated between the splits.

    A directory holds `LANG.txt` (one document per line) or `LANG.jsonl` (objects with `text`), LANG being any name
    of a language; or it holds these in the sub-directories `calibration` and `evaluation`. A file is JSONL with
    `lang`, `text` and, in all lines or none, `split`. With `parallel`, document i has the same content everywhere.
    Files are read line by line; no more than `limit` bytes per language and split are kept, and a note says so.
    """
    path = Path(path)
    codes = None if languages is None else [language.code for language in wanted_languages(languages)]
    whole("limit", limit, least=1)
    notes: tuple[str, ...] = ()
    if path.is_dir():
        piles, notes = _read_directory(path, codes, limit=limit, to_the_end=parallel)
    else:
        piles = _read_tagged(path, codes, limit)
    there = {code for by_language in piles.values() for code in by_language}
    missing = [code for code in codes or () if code not in there]
    if missing or not there:
        meant = next(filter(None, (suggestion(code) for code in missing if not language_of(code).listed)), "")
        raise InputError(
            f"{path} holds no text in {', '.join(missing) or 'any language'} (found: {_found(path)}); it must be a "
            "directory with LANG.txt or LANG.jsonl, such as fra.txt, or these in calibration/ and evaluation/, or a "
            f'JSONL file with lines like {{"lang": "fra", "text": "…"}}{meant and f"; {meant}"}'
        )
    corpus = corpus_of(path.name, piles, parallel=parallel, evaluation_share=evaluation_share, seed=seed, notes=notes)
    return corpus if codes is None else corpus.restrict(codes)


def corpus_of(
    name: str, piles: Piles, *, parallel: bool, evaluation_share: float, seed: int, notes: tuple[str, ...] = ()
) -> Corpus:
    """Returns piles of documents as a corpus: aligned, without blank documents, split, deduplicated."""
    found = dict.fromkeys(code for by_language in piles.values() for code in by_language)
    said = [*notes, *unlisted_notes(map(language_of, found))]
    settled: dict[str, Documents] = {}
    for split, by_language in piles.items():
        if not by_language:
            continue
        said += [
            f"{pile.source}: only the first {len(pile.documents):,} documents are kept (limit {pile.limit:,} bytes)"
            for pile in by_language.values()
            if pile.cut
        ]
        settled[split] = _aligned(by_language, said) if parallel else _without_blanks(by_language)
    if "" in settled:
        calibration, evaluation = split_documents(settled[""], evaluation_share, parallel=parallel, seed=seed)
        if any(evaluation.values()):
            said.append(f"{name}: {evaluation_share:.0%} of the documents kept for evaluation, by hash, seed {seed}")
    else:
        calibration, evaluation = (settled.get(split, {}) for split in SPLITS)
    return Corpus(name, calibration, evaluation, parallel=parallel, notes=tuple(said)).deduplicated()


def _without_blanks(piles: dict[str, Pile]) -> Documents:
    documents = {code: tuple(filter(None, pile.documents)) for code, pile in piles.items()}
    empty = [piles[code].source for code, texts in documents.items() if not texts]
    if empty:
        raise InputError(f"no text in {', '.join(empty)}; every language must have at least one document")
    return documents


def _aligned(piles: dict[str, Pile], notes: list[str]) -> Documents:
    if len({pile.seen for pile in piles.values()}) > 1:
        counts = ", ".join(f"{pile.source} {pile.seen:,}" for pile in piles.values())
        raise InputError(
            f"the parallel texts differ in length (documents: {counts}); line i must say the same in every language"
        )
    shortest = min(len(pile.documents) for pile in piles.values())
    kept = [i for i in range(shortest) if all(pile.documents[i] for pile in piles.values())]
    for pile in piles.values():
        blank = [i + 1 for i in range(shortest) if not pile.documents[i]]
        if blank:
            lines = ", ".join(map(str, blank[:5])) + (", …" if len(blank) > 5 else "")
            notes.append(f"{pile.source}: blank documents ({len(blank):,}: {lines}) left out in every language")
    if not kept:
        sources = ", ".join(pile.source for pile in piles.values())
        raise InputError(f"no line of {sources} has text in every language; a parallel set must have at least one")
    return {code: tuple(pile.documents[i] for i in kept) for code, pile in piles.items()}


def _read_directory(
    path: Path, wanted: Container[str] | None, *, limit: int, to_the_end: bool
) -> tuple[Piles, tuple[str, ...]]:
    entries = _entries(path)
    given = [split for split in SPLITS if (path / split).is_dir()]
    loose = [entry.name for entry in entries if entry.suffix in SUFFIXES]
    if given and loose:
        raise InputError(
            f"{path} holds {loose[0]} beside {given[0]}/; all text must be in calibration/ and evaluation/, or none"
        )
    other = [entry.name for entry in entries if entry.name not in (*loose, *given)]
    for split in given:
        other += [f"{split}/{entry.name}" for entry in _entries(path / split) if entry.suffix not in SUFFIXES]
    notes = [f"{path.name}: not read: {', '.join(other[:5])}{', …' if len(other) > 5 else ''}"] if other else []
    piles = {split: _read_files(path / split, wanted, limit=limit, to_the_end=to_the_end) for split in given or [""]}
    return piles, tuple(notes)


def _read_files(path: Path, wanted: Container[str] | None, *, limit: int, to_the_end: bool) -> dict[str, Pile]:
    files: dict[str, Path] = {}
    for entry in _entries(path):
        if entry.suffix in SUFFIXES:
            code = _code(entry.stem, str(entry))
            if code in files:
                raise InputError(f"{files[code]} and {entry} are both {code}; each language must have one file")
            files[code] = entry
    piles = {code: Pile(str(file), limit) for code, file in files.items() if wanted is None or code in wanted}
    for code, pile in piles.items():
        for text in _texts(files[code]):
            pile.add(text)
            if pile.cut and not to_the_end:  # only parallel texts need a count of all lines
                break
    return piles


def _texts(path: Path) -> Iterator[str]:
    if path.suffix == ".txt":
        return (line for _, line in text_lines(path))
    return (row["text"] for _, row in json_lines(path))


def _read_tagged(path: Path, wanted: Container[str] | None, limit: int) -> Piles:
    if path.suffix == ".txt":
        raise InputError(f"{path} is one text file; give the directory that holds it, or JSONL with `lang` and `text`")
    piles: Piles = {}
    codes: dict[str, str] = {}
    for where, row in json_lines(path):
        name, split = row.get("lang"), row.get("split", "")
        if not isinstance(name, str):
            raise InputError(f'{where} names no language; each line must be like {{"lang": "fra", "text": "…"}}')
        if "split" in row and split not in SPLITS:
            raise InputError(f"{where} has split {split!r}; it must be calibration or evaluation")
        if piles and ("" in piles) != (split == ""):
            raise InputError(f"{where} differs from lines before it in naming a split; all lines must name one or none")
        if name not in codes:
            codes[name] = _code(name, where)
        by_language = piles.setdefault(split, {})
        code = codes[name]
        if wanted is None or code in wanted:
            by_language.setdefault(code, Pile(f"{path} ({code})", limit)).add(row["text"])
    return piles


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a readable file or directory") from None


def _found(path: Path) -> str:
    names = [entry.name for entry in _entries(path)] if path.is_dir() else ["no such line"]
    return ", ".join(names[:20]) + (", …" if len(names) > 20 else "") or "nothing"


def _code(name: str, where: str) -> str:
    try:
        return own_language(name).code
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def open_corpus(text: str | Path | Corpus | None, languages: Iterable[str] | None) -> Corpus:
    """Returns the text of the named languages, or of all that the text has."""
    if text is None:
        if languages is None:
            raise InputError("languages must be named: without text of yours there are hundreds of them")
        return udhr(languages)
    if isinstance(text, Corpus):
        return text if languages is None else text.restrict(languages)
    return read_corpus(text, languages=languages)
