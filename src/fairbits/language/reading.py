"""Text of the user as a Corpus: a directory of LANG.txt and LANG.jsonl, or one JSONL file with `lang` and `text`.

Files are read line by line. A line that cannot be used is named by file and number.
"""

import codecs
import json
import os
import stat
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairbits.checks import whole
from fairbits.errors import InputError
from fairbits.language.corpus import SPLITS, Corpus
from fairbits.language.declaration import udhr, udhr_languages
from fairbits.language.documents import Collector, Documents, align, encodable, split_documents, without_blanks
from fairbits.language.libreoffice_help import help_languages, help_text
from fairbits.language.lookup import language_of, own_language, suggestion, unlisted_notes, wanted_languages
from fairbits.memory import LINE_BYTES
from fairbits.model.embedded import embedded_languages

LIMIT = 64_000_000
"""Bytes of UTF-8 that are kept per language and split by default."""
SUFFIXES = (".txt", ".jsonl")
DECLARATION, HELP = "declaration", "help"
EMBEDDED = {DECLARATION: (udhr, udhr_languages), HELP: (help_text, help_languages)}
"""The texts that come with fairbits, and their languages."""
OTHER_ENCODINGS = {codecs.BOM_UTF16_LE: "UTF-16LE", codecs.BOM_UTF16_BE: "UTF-16BE"}
FOUND = 20
"""Files that an error lists."""

Collectors = dict[str, dict[str, Collector]]
"""By split ("" where the text is not split yet) and language code."""


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

    A directory holds `LANG.txt` (one document per line) or `LANG.jsonl` (objects with `text`), where LANG names any
    language; or it holds these in the sub-directories `calibration` and `evaluation`. A file is JSONL with `lang`,
    `text` and, in all lines or none, `split`. With `parallel`, document i has the same content in every language.
    At most `limit` bytes per language and split are kept; a note says where text was left out.
    """
    source, path = os.fspath(path), Path(path)
    codes = None if languages is None else [language.code for language in wanted_languages(languages)]
    whole("limit", limit, least=1)
    notes: tuple[str, ...] = ()
    if path.is_dir():
        collectors, notes = _read_directory(path, codes, limit=limit, count_all=parallel)
    else:
        collectors = _read_jsonl(path, codes, limit)
    there = {code for by_language in collectors.values() for code in by_language}
    missing = [code for code in codes or () if code not in there]
    if missing or not there:
        meant = next(filter(None, (suggestion(code) for code in missing if not language_of(code).listed)), "")
        raise InputError(
            f"{path} holds no text in {', '.join(missing) or 'any language'} (found: {_found(path)}); it must be a "
            "directory with LANG.txt or LANG.jsonl, such as fra.txt, or these in calibration/ and evaluation/, or a "
            f'JSONL file with lines like {{"lang": "fra", "text": "…"}}{meant and f"; {meant}"}'
        )
    corpus = make_corpus(
        path.name, collectors, parallel=parallel, evaluation_share=evaluation_share, seed=seed, notes=notes
    )
    # a bare name would mean the text that comes with fairbits
    corpus = replace(corpus, source=os.path.join(os.curdir, source) if source in EMBEDDED else source)
    return corpus if codes is None else corpus.restrict(codes)


def open_corpus(
    text: str | Path | Corpus | None, languages: Iterable[str] | None, *, model: str | None = None
) -> Corpus:
    """Returns the text of the named languages, or of all that the text has.

    `text` is a corpus, a path, or the name of a text that comes with fairbits: "declaration", which None means too, or
    "help". If `model` is an embedded model and no language is named, such a text is read in the model's languages.
    """
    if isinstance(text, Corpus):
        return text if languages is None else text.restrict(languages)
    name = DECLARATION if text is None else text
    if isinstance(name, Path) or name not in EMBEDDED:
        return read_corpus(name, languages=languages)
    if text is not None and os.path.lexists(name):
        raise InputError(
            f"{name} is a text that comes with fairbits, and there is a file or directory of that name here; write "
            f"./{name} for the latter, or rename it"
        )
    embedded, available = EMBEDDED[name]
    own = None if model is None else embedded_languages(model)
    if languages is None and own is not None:
        there = {language.code for language in available()}
        languages = [code for code in own if code in there]
    if languages is None and name == DECLARATION:
        raise InputError("languages must be named for the embedded declaration, which has hundreds")
    return embedded(languages)


def make_corpus(
    name: str, collected: Collectors, *, parallel: bool, evaluation_share: float, seed: int, notes: tuple[str, ...] = ()
) -> Corpus:
    """Returns collected documents as a corpus: aligned if parallel, without blanks, split, deduplicated."""
    languages = dict.fromkeys(code for by_language in collected.values() for code in by_language)
    all_notes = [*notes, *unlisted_notes(map(language_of, languages))]
    documents: dict[str, Documents] = {}
    for split, by_language in collected.items():
        if not by_language:
            continue
        all_notes += [
            f"{each.source}: only the first {len(each.documents):,} documents are kept (limit {each.limit:,} bytes)"
            for each in by_language.values()
            if each.full
        ]
        if parallel:
            documents[split], blanks = align(by_language)
            all_notes += blanks
        else:
            documents[split] = without_blanks(by_language)
    if "" in documents:
        calibration, evaluation = split_documents(documents[""], evaluation_share, parallel=parallel, seed=seed)
        if any(evaluation.values()):
            share = f"{evaluation_share:.0%} of the documents"
            all_notes.append(f"{name}: {share} kept for evaluation, by hash, seed {seed}")
    else:
        calibration, evaluation = (documents.get(split, {}) for split in SPLITS)
    return Corpus(name, calibration, evaluation, parallel=parallel, notes=tuple(all_notes)).deduplicate()


def _read_directory(
    path: Path, wanted: Container[str] | None, *, limit: int, count_all: bool
) -> tuple[Collectors, tuple[str, ...]]:
    entries = _entries(path)
    given = [split for split in SPLITS if (path / split).is_dir()]
    loose = [entry.name for entry in entries if entry.suffix in SUFFIXES]
    if given and loose:
        raise InputError(
            f"{path} holds {loose[0]} next to {given[0]}/; all text must be in calibration/ and evaluation/, or none"
        )
    other = [entry.name for entry in entries if entry.name not in (*loose, *given)]
    for split in given:
        other += [f"{split}/{entry.name}" for entry in _entries(path / split) if entry.suffix not in SUFFIXES]
    notes = [f"{path.name}: not read: {', '.join(other[:5])}{', …' if len(other) > 5 else ''}"] if other else []
    collectors = {split: _read_files(path / split, wanted, limit=limit, count_all=count_all) for split in given or [""]}
    return collectors, tuple(notes)


def _read_files(path: Path, wanted: Container[str] | None, *, limit: int, count_all: bool) -> dict[str, Collector]:
    files: dict[str, Path] = {}
    for entry in _entries(path):
        if entry.suffix in SUFFIXES:
            code = _code(entry.stem, str(entry))
            if code in files:
                raise InputError(
                    f"{files[code]} and {entry} are both {code}; each language must have one file: name varieties of a "
                    "language like en-x-one and en-x-two"
                )
            files[code] = entry
    collectors = {code: Collector(str(file), limit) for code, file in files.items() if wanted is None or code in wanted}
    for code, collector in collectors.items():
        for text in _texts(files[code]):
            collector.add(text)
            if collector.full and not count_all:  # only parallel texts need a count of all lines
                break
    return collectors


def _texts(path: Path) -> Iterator[str]:
    if path.suffix == ".txt":
        return (line for _, line in _text_lines(path))
    return (row["text"] for _, row in _json_lines(path))


def _read_jsonl(path: Path, wanted: Container[str] | None, limit: int) -> Collectors:
    if path.suffix == ".txt":
        raise InputError(f"{path} is one text file; give the directory that holds it, or JSONL with `lang` and `text`")
    collectors: Collectors = {}
    codes: dict[str, str] = {}
    for where, row in _json_lines(path):
        name, split = row.get("lang"), row.get("split", "")
        if not isinstance(name, str):
            raise InputError(f'{where} names no language; each line must be like {{"lang": "fra", "text": "…"}}')
        if "split" in row and split not in SPLITS:
            raise InputError(f"{where} has split {split!r}; it must be calibration or evaluation")
        if collectors and ("" in collectors) != (split == ""):
            raise InputError(f"{where} differs from lines before it in naming a split; all lines must name one or none")
        if name not in codes:
            codes[name] = _code(name, where)
        by_language = collectors.setdefault(split, {})
        code = codes[name]
        if wanted is None or code in wanted:
            by_language.setdefault(code, Collector(f"{path} ({code})", limit)).add(row["text"])
    return collectors


def _entries(path: Path) -> list[Path]:
    try:
        return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a readable file or directory") from None


def _found(path: Path) -> str:
    """Returns what a directory holds, for an error."""
    names = [entry.name for entry in _entries(path)] if path.is_dir() else ["no such line"]
    return ", ".join(names[:FOUND]) + (", …" if len(names) > FOUND else "") or "nothing"


def _code(name: str, where: str) -> str:
    """Returns the code of the language that a file or a line names."""
    try:
        return own_language(name).code
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _text_lines(path: Path) -> Iterator[tuple[str, str]]:
    """Yields "file:line" and the text of every line of a UTF-8 file, without its end and the file without its BOM."""
    _check_regular(path)
    offset = 0
    with path.open("rb") as file:
        for number in range(1, 2**63):
            raw = file.readline(LINE_BYTES + 1)
            if not raw:
                return
            where = f"{path}:{number}"
            if len(raw) > LINE_BYTES:
                raise InputError(
                    f"{where} is longer than {LINE_BYTES:,} bytes; each line must be one document: break it up"
                )
            start = len(codecs.BOM_UTF8) if number == 1 and raw.startswith(codecs.BOM_UTF8) else 0
            yield where, _decode(raw[start:].rstrip(b"\r\n"), path, where=where, offset=offset + start)
            offset += len(raw)


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields "file:line" and the object of every line that is not blank; each has a string as `text`."""
    for where, line in _text_lines(path):
        if line.strip():
            yield where, _parse_object(line, where)


def _check_regular(path: Path) -> None:
    # A pipe would block for ever, and a loop of links fails only when it is followed.
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a readable file or directory") from None
    if not stat.S_ISREG(mode):
        raise InputError(f"{path} is not a regular file; text must come from files: rename or move it")
    if not os.access(path, os.R_OK):
        raise InputError(f"{path} cannot be read (Permission denied); give a readable file or directory")


def _decode(raw: bytes, path: Path, *, where: str, offset: int) -> str:
    if b"\0" in raw and not raw.startswith(tuple(OTHER_ENCODINGS)):
        raise InputError(f"{where} holds a NUL at byte {offset + raw.index(0):,}; {path.name} must be text, not binary")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        encoding = OTHER_ENCODINGS.get(raw[:2], "ENCODING") if offset == 0 else "ENCODING"
        raise InputError(
            f"{path} is not UTF-8: byte {raw[error.start]:#04x} at offset {offset + error.start:,} ({where}); "
            f"convert it first: iconv -f {encoding} -t UTF-8"
        ) from None


def _parse_object(line: str, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f'{where} is not JSON ({error}); each line must be like {{"text": "…"}}') from None
    if not isinstance(row, dict):
        raise InputError(f'{where} is a {type(row).__name__}; each line must be an object like {{"text": "…"}}')
    text = row.get("text")
    if not isinstance(text, str):
        kind = f"text of type {type(text).__name__}" if "text" in row else f"the keys {', '.join(row) or '(none)'}"
        raise InputError(f"{where} has {kind}; it must have `text`, a string")
    if "\0" in text or not encodable(text):
        raise InputError(f"{where} holds a NUL or half of a surrogate pair; its text must be valid Unicode text")
    return row
