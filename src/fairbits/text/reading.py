"""Text of the user as a Corpus: a directory of LANG.txt and LANG.jsonl, or one JSONL file with `lang` and `text`."""

import difflib
import os
from collections.abc import Collection, Container, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fairbits.core.checks import whole
from fairbits.core.errors import InputError
from fairbits.core.files import did_you_mean
from fairbits.text.corpus import SPLITS, Corpus
from fairbits.text.documents import Collector, Documents, align, encodable, split_documents, without_blanks
from fairbits.text.included_texts import help_languages, help_text, udhr, udhr_languages
from fairbits.text.language_codes import (
    code_from_name,
    language_from_code,
    requested_languages,
    suggest_languages,
    unlisted_notes,
)
from fairbits.text.lines import json_objects, paths_by_language, text_lines, visible_entries
from fairbits.text.speech import read_speech, speech_folders

LIMIT = 64_000_000  # bytes of UTF-8 that are kept per language and split by default
SUFFIXES = (".txt", ".jsonl")
DECLARATION, HELP = "declaration", "help"
EMBEDDED = {DECLARATION: (udhr, udhr_languages), HELP: (help_text, help_languages)}
"""The texts that come with fairbits, and their languages."""
LISTED = 20  # how many files an error lists

Collectors = dict[str, dict[str, Collector]]  # by split ("" where the text is not split yet) and language code


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

    A directory holds `LANG.txt` (one document per line) or `LANG.jsonl` (objects with `text`), or these in the
    sub-directories `calibration` and `evaluation`, or speech (see `speech`). A file is JSONL with `lang`, `text` and,
    in all lines or none, `split`. At most `limit` bytes per language and split are kept; a note says where.
    """
    source, path = os.fspath(path), Path(path)
    codes = None if languages is None else [language.code for language in requested_languages(languages)]
    whole("limit", limit, least=1)
    if path.is_dir() and (folders := speech_folders(path)):
        _check_speech(path, parallel=parallel)
        corpus = read_speech(path, folders, codes, share=evaluation_share, seed=seed)
        _check_languages(path, codes, set(corpus.calibration))
    else:
        collectors, notes = (
            _read_directory(path, codes, limit=limit, count_all=parallel)
            if path.is_dir()
            else (_read_jsonl(path, codes, limit), ())
        )
        _check_languages(path, codes, {code for by_language in collectors.values() for code in by_language})
        corpus = make_corpus(
            path.name, collectors, parallel=parallel, evaluation_share=evaluation_share, seed=seed, notes=notes
        )
    # a bare name would mean the text that comes with fairbits
    corpus = replace(corpus, source=os.path.join(os.curdir, source) if source in EMBEDDED else source)
    return corpus if codes is None else corpus.restrict(codes)


def _check_speech(path: Path, *, parallel: bool) -> None:
    text = next((entry.name for entry in visible_entries(path) if entry.suffix in SUFFIXES), None)
    if text is not None:
        raise InputError(f"{path} holds text ({text}) next to directories of speech; move it: a corpus is one of both")
    if parallel:
        raise InputError(f"{path} holds speech, whose clips are not aligned between languages; leave parallel out")


def _check_languages(path: Path, codes: Iterable[str] | None, there: Collection[str]) -> None:
    missing = [code for code in codes or () if code not in there]
    if missing or not there:
        names = [entry.name for entry in visible_entries(path)] if path.is_dir() else ["no such line"]
        content = ", ".join(names[:LISTED]) + (", …" if len(names) > LISTED else "") or "nothing"
        unlisted = [code for code in missing if not language_from_code(code).listed]
        near = (difflib.get_close_matches(code, [c.partition("_")[0] for c in there], n=1) for code in unlisted)
        hint = next((f"did you mean {names[0]}?" for names in near if names), "")
        if hint:
            raise InputError(f"{path} holds no text in {', '.join(missing)} (found: {content}); {hint}")
        hint = next(filter(None, map(suggest_languages, unlisted)), "")
        raise InputError(
            f"{path} holds no text in {', '.join(missing) or 'any language'} (found: {content}); it must be a "
            "directory with LANG.txt or LANG.jsonl, such as fra.txt, or these in calibration/ and evaluation/, or a "
            f'JSONL file with lines like {{"lang": "fra", "text": "…"}}; speech is in LANG/metadata.jsonl'
            f"{hint and f'; {hint}'}"
        )


def check_text(text: str | None, languages: Iterable[str] | None, *, trained: Iterable[str] | None = None) -> None:
    """Raises if `open_corpus` would refuse the text by its name, its files or its first line; the rest is not read."""
    if text is None or text in EMBEDDED:
        open_corpus(text, languages, trained=trained)
        return
    path = Path(text)
    codes = None if languages is None else [language.code for language in requested_languages(languages)]
    if not path.is_dir():
        if not path.exists():
            raise InputError(
                f"there is no file or directory {path}{did_you_mean(path)}; the text must be a directory, a JSONL file "
                f"or one that comes with fairbits: {' or '.join(EMBEDDED)}"
            )
        next(_json_lines(_check_jsonl(path)), None)
    elif not speech_folders(path):
        folders = [path / split for split in SPLITS if (path / split).is_dir()] or [path]
        there = [_language_files(folder) for folder in folders]
        _check_languages(path, codes, {code for files in there for code in files})


def open_corpus(
    text: str | Path | Corpus | None, languages: Iterable[str] | None, *, trained: Iterable[str] | None = None
) -> Corpus:
    """Returns the text of the named languages, or of all that the text has, or of those that a model is `trained` on.

    `text` is a corpus, a path, or "declaration", which None means too, or "help".
    """
    if isinstance(text, Corpus):
        return text if languages is None else text.restrict(languages)
    name = DECLARATION if text is None else text
    if isinstance(name, Path) or name not in EMBEDDED:
        return read_corpus(name, languages=languages)
    if text is not None and os.path.lexists(name):
        raise InputError(
            f"{name} is a text that comes with fairbits, and a file or directory of that name is here; write "
            f"./{name} for the latter, or rename it"
        )
    embedded, available = EMBEDDED[name]
    if languages is None and trained is not None:
        there = {language.code for language in available()}
        languages = [code for code in trained if code in there]
    if languages is None and name == DECLARATION:
        raise InputError(
            "there is no text to read: give a directory of text or of speech (--text DIR), or name the languages "
            "(--languages eng,fra,heb) to read the declaration of human rights, which comes with fairbits"
        )
    return embedded(languages)


def make_corpus(
    name: str, collected: Collectors, *, parallel: bool, evaluation_share: float, seed: int, notes: tuple[str, ...] = ()
) -> Corpus:
    """Returns collected documents as a corpus: aligned if parallel, without blanks, split, deduplicated."""
    languages = dict.fromkeys(code for by_language in collected.values() for code in by_language)
    all_notes = [*notes, *unlisted_notes(map(language_from_code, languages))]
    documents: dict[str, Documents] = {}
    for split, by_language in collected.items():
        if not by_language:
            continue
        all_notes += [
            f"{text.source}: only the first {len(text.documents):,} documents are kept (limit {text.limit:,} bytes)"
            for text in by_language.values()
            if text.full
        ]
        if parallel:
            documents[split], blanks = align(by_language)
            all_notes += blanks
        else:
            documents[split] = without_blanks(by_language)
    if "" in documents:
        calibration, evaluation = split_documents(documents[""], evaluation_share, parallel=parallel, seed=seed)
        if any(evaluation.values()):
            count, kept = (sum(map(len, part.values())) for part in (documents[""], evaluation))
            others = f", chosen by hash with seed {seed}, the others for calibration" if kept < count else ""
            all_notes.append(f"{name}: {kept:,} of {count:,} documents are for evaluation{others}")
    else:
        calibration, evaluation = (documents.get(split, {}) for split in SPLITS)
    return Corpus(name, calibration, evaluation, parallel=parallel, notes=tuple(all_notes)).deduplicate()


def _read_directory(
    path: Path, wanted: Container[str] | None, *, limit: int, count_all: bool
) -> tuple[Collectors, tuple[str, ...]]:
    entries = visible_entries(path)
    splits = [split for split in SPLITS if (path / split).is_dir()]
    loose = [entry.name for entry in entries if entry.suffix in SUFFIXES]
    if splits and loose:
        raise InputError(
            f"{path} holds {loose[0]} next to {splits[0]}/; all text must be in calibration/ and evaluation/, or none"
        )
    ignored = [entry.name for entry in entries if entry.name not in (*loose, *splits)]
    for split in splits:
        ignored += [f"{split}/{entry.name}" for entry in visible_entries(path / split) if entry.suffix not in SUFFIXES]
    notes = [f"{path.name}: not read: {', '.join(ignored[:5])}{', …' if len(ignored) > 5 else ''}"] if ignored else []
    return {
        split: _read_files(path / split, wanted, limit=limit, count_all=count_all) for split in splits or [""]
    }, tuple(notes)


def _read_files(path: Path, wanted: Container[str] | None, *, limit: int, count_all: bool) -> dict[str, Collector]:
    files = _language_files(path)
    collectors = {code: Collector(str(file), limit) for code, file in files.items() if wanted is None or code in wanted}
    for code, collector in collectors.items():
        is_plain = files[code].suffix == ".txt"
        for _, line in text_lines(files[code]) if is_plain else _json_lines(files[code]):
            collector.add(line if isinstance(line, str) else line["text"])
            if collector.full and not count_all:  # only parallel texts need a count of all lines
                break
    return collectors


def _language_files(path: Path) -> dict[str, Path]:
    """Returns the files of text in a directory by the code of their language."""
    texts = {entry: entry.stem for entry in visible_entries(path) if entry.suffix in SUFFIXES}
    return paths_by_language(texts, "file")


def _check_jsonl(path: Path) -> Path:
    if path.suffix == ".txt":
        raise InputError(f"{path} is one text file; give the directory that holds it, or JSONL with `lang` and `text`")
    return path


def _read_jsonl(path: Path, wanted: Container[str] | None, limit: int) -> Collectors:
    collectors: Collectors = {}
    codes: dict[str, str] = {}
    for where, row in _json_lines(_check_jsonl(path)):
        name, split = row.get("lang"), row.get("split", "")
        if not isinstance(name, str):
            raise InputError(f'{where} has no language; each line must be like {{"lang": "fra", "text": "…"}}')
        if "split" in row and split not in SPLITS:
            raise InputError(f"{where} has split {split!r}; it must be calibration or evaluation")
        if collectors and ("" in collectors) != (split == ""):
            raise InputError(f"only some lines up to {where} have a split; all lines must have one, or none")
        if name not in codes:
            codes[name] = code_from_name(name, where)
        by_language = collectors.setdefault(split, {})
        code = codes[name]
        if wanted is None or code in wanted:
            by_language.setdefault(code, Collector(f"{path} ({code})", limit)).add(row["text"])
    return collectors


def _json_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for where, row in json_objects(path):
        text = row.get("text")
        if not isinstance(text, str):
            kind = f"text of type {type(text).__name__}" if "text" in row else f"the keys {', '.join(row) or '(none)'}"
            raise InputError(f"{where} has {kind}; it must have `text`, a string")
        if "\0" in text or not encodable(text):
            raise InputError(f"{where} contains a NUL or an unpaired surrogate; its text must be valid Unicode text")
        yield where, row
