"""Speech of the user as a Corpus: LANG/metadata.jsonl or LANG/metadata.csv, and the WAV files that it names.

This is the convention of audiofolder, of Hugging Face's datasets: each row has `file_name`, and `text` or
`transcription`. A clip is a document, whose text is its transcript.
"""

import csv
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from fairbits.core.errors import InputError
from fairbits.text.corpus import SPLITS, Corpus
from fairbits.text.documents import clean, encodable, fold_text, split_documents
from fairbits.text.language_codes import code_of_name, language_of, unlisted_notes
from fairbits.text.lines import entries_of, json_objects, text_lines
from fairbits.text.sound import Clip

METADATA = ("metadata.jsonl", "metadata.csv")
TRANSCRIPTS = ("text", "transcription")
EXAMPLE = '{"file_name": "1.wav", "text": "…"}'


@dataclass
class Spoken:
    """The clips of one language and their transcripts, as they are read."""

    texts: list[str] = field(default_factory=list)
    clips: list[Clip] = field(default_factory=list)


Speech = dict[str, dict[str, Spoken]]
"""By split ("" where the speech is not split yet) and language code."""


def speech_folders(path: Path) -> dict[str, list[Path]]:
    """Returns the directories of speech of languages by split, "" without one; none if `path` holds no speech."""
    found = {split: _with_metadata(path / split) for split in ("", *SPLITS)}
    return {split: folders for split, folders in found.items() if folders}


def read_speech(
    path: Path, folders: Mapping[str, list[Path]], wanted: Container[str] | None, *, share: float, seed: int
) -> Corpus:
    """Returns the speech of the wanted languages as a corpus, split by a hash of transcripts unless it is split."""
    if "" in folders and len(folders) > 1:
        raise InputError(
            f"{path} holds {folders[''][0].name}/ next to {list(folders)[1]}/; all speech must be in calibration/ and "
            "evaluation/, or none"
        )
    speech = {split: _languages(own, wanted) for split, own in folders.items()}
    notes = list(unlisted_notes(map(language_of, dict.fromkeys(code for own in speech.values() for code in own))))
    if "" in speech:
        notes.append(f"{path.name}: {share:.0%} of the clips kept for evaluation, by hash of transcripts, seed {seed}")
        speech = _split(speech[""], share, seed)
    return Corpus(
        path.name,
        *({code: tuple(each.texts) for code, each in speech.get(split, {}).items()} for split in SPLITS),
        clips={split: {code: tuple(each.clips) for code, each in speech.get(split, {}).items()} for split in SPLITS},
        notes=tuple(notes),
    ).deduplicate()


def _split(speech: Mapping[str, Spoken], share: float, seed: int) -> Speech:
    """Returns the splits; clips with the same transcript are in the same one."""
    parts = split_documents(
        {code: tuple(each.texts) for code, each in speech.items()}, share, parallel=False, seed=seed
    )
    found: Speech = {split: {} for split in SPLITS}
    for split, part in zip(SPLITS, parts, strict=True):
        for code, texts in part.items():
            kept = set(map(fold_text, texts))
            own = [
                pair for pair in zip(speech[code].texts, speech[code].clips, strict=True) if fold_text(pair[0]) in kept
            ]
            found[split][code] = Spoken([text for text, _ in own], [clip for _, clip in own])
    return found


def _with_metadata(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return [each for each in entries_of(path) if any((each / name).is_file() for name in METADATA)]


def _languages(folders: list[Path], wanted: Container[str] | None) -> dict[str, Spoken]:
    named: dict[str, Path] = {}
    for folder in folders:
        code = code_of_name(folder.name, str(folder))
        if code in named:
            raise InputError(
                f"{named[code]} and {folder} are both {code}; each language must have one directory: name varieties of "
                "a language like en-x-one and en-x-two"
            )
        named[code] = folder
    return {code: _read(folder) for code, folder in named.items() if wanted is None or code in wanted}


def _read(folder: Path) -> Spoken:
    files = [folder / name for name in METADATA if (folder / name).is_file()]
    if len(files) > 1:
        raise InputError(f"{folder} has {' and '.join(METADATA)}; it must have one of them")
    found, known = Spoken(), set[Path]()
    rows = _csv_rows(files[0]) if files[0].suffix == ".csv" else json_objects(files[0], EXAMPLE)
    for where, row in rows:
        text, path = _transcript(row, where), _path(row, where, folder)
        if path in known:
            raise InputError(f"{where} names {path.name} a second time; each clip must be named once")
        known.add(path)
        found.texts.append(text)
        found.clips.append(Clip.find(path, where))
    if not found.clips:
        raise InputError(f"{files[0]} names no clips; it must have rows like {EXAMPLE}")
    return found


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields "file:line" and the values of every row by column."""
    reader = csv.DictReader(line + "\n" for _, line in text_lines(path))
    try:
        for row in reader:
            yield (
                f"{path}:{reader.line_num}",
                {name: value for name, value in row.items() if name and value is not None},
            )
    except csv.Error as error:
        raise InputError(
            f"{path}:{reader.line_num} is no CSV ({error}); write it again, as a spreadsheet does"
        ) from None


def _transcript(row: Mapping[str, Any], where: str) -> str:
    named = [name for name in TRANSCRIPTS if name in row]
    if len(named) != 1:
        raise InputError(
            f"{where} has the columns {', '.join(map(str, row)) or '(none)'}; it must have one of "
            f"{' and '.join(TRANSCRIPTS)}, as in {EXAMPLE}"
        )
    text = row[named[0]]
    if not isinstance(text, str) or "\0" in text or not encodable(text):
        raise InputError(f"{where} has the transcript {text!r:.60}; it must be valid Unicode text")
    if not clean(text):
        raise InputError(f"{where} has an empty transcript; every clip must have what is said in it: leave it out")
    return text


def _path(row: Mapping[str, Any], where: str, folder: Path) -> Path:
    name = row.get("file_name")
    if not isinstance(name, str) or not name or "\0" in name:
        raise InputError(f"{where} has the file_name {name!r:.60}; it must name a WAV file, as in {EXAMPLE}")
    if PurePosixPath(name).is_absolute() or PureWindowsPath(name).anchor or ".." in PureWindowsPath(name).parts:
        raise InputError(
            f"{where} names {name!r:.120}, outside of {folder}; a clip must be in the directory that names it"
        )
    return folder / name
