"""Speech of the user as a Corpus: LANG/metadata.jsonl or LANG/metadata.csv, and the WAV files that it names.

As in audiofolder of Hugging Face, each row has `file_name`, and `text` or `transcription`: the text of the document.
"""

import csv
from collections.abc import Container, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from fairbits.core.errors import InputError
from fairbits.text.corpus import SPLITS, Corpus
from fairbits.text.documents import clean, encodable, fold_text, split_documents
from fairbits.text.language_codes import language_from_code, unlisted_notes
from fairbits.text.lines import json_objects, paths_by_language, text_lines, visible_entries
from fairbits.text.sound import Clip

METADATA = ("metadata.jsonl", "metadata.csv")
TRANSCRIPTS = ("text", "transcription")
EXAMPLE = '{"file_name": "1.wav", "text": "…"}'

Recordings = Mapping[str, Sequence[tuple[str, Clip]]]  # the transcripts and clips of each language, by its code


def speech_folders(path: Path) -> dict[str, list[Path]]:
    """Returns the directories of speech of languages by split, "" without one; none if `path` holds no speech."""
    folders = {split: _with_metadata(path / split) for split in ("", *SPLITS)}
    return {split: languages for split, languages in folders.items() if languages}


def read_speech(
    path: Path, folders: Mapping[str, list[Path]], wanted: Container[str] | None, *, share: float, seed: int
) -> Corpus:
    """Returns the speech of the wanted languages as a corpus, split by a hash of transcripts unless it is split."""
    if "" in folders and len(folders) > 1:
        raise InputError(
            f"{path} holds {folders[''][0].name}/ next to {list(folders)[1]}/; all speech must be in calibration/ and "
            "evaluation/, or none"
        )
    speech: dict[str, Recordings] = {}
    for split, languages in folders.items():
        named = paths_by_language({folder: folder.name for folder in languages}, "directory")
        speech[split] = {code: _read(folder) for code, folder in named.items() if wanted is None or code in wanted}
    codes = dict.fromkeys(code for recordings in speech.values() for code in recordings)
    notes = list(unlisted_notes(map(language_from_code, codes)))
    if "" in speech:
        notes.append(f"{path.name}: {share:.0%} of the clips kept for evaluation, by hash of transcripts, seed {seed}")
        speech = _split(speech[""], share, seed)
    texts, clips = (
        {
            split: {code: tuple(pair[part] for pair in pairs) for code, pairs in speech.get(split, {}).items()}
            for split in SPLITS
        }
        for part in (0, 1)
    )
    return Corpus(path.name, **texts, clips=clips, notes=tuple(notes)).deduplicate()  # type: ignore[arg-type]


def _split(recordings: Recordings, share: float, seed: int) -> dict[str, Recordings]:
    texts = {code: tuple(text for text, _ in pairs) for code, pairs in recordings.items()}
    speech: dict[str, Recordings] = {}
    for split, part in zip(SPLITS, split_documents(texts, share, parallel=False, seed=seed), strict=True):
        kept = {code: set(map(fold_text, documents)) for code, documents in part.items()}
        speech[split] = {
            code: [pair for pair in pairs if fold_text(pair[0]) in kept[code]] for code, pairs in recordings.items()
        }
    return speech


def _with_metadata(path: Path) -> list[Path]:
    if not path.is_dir():
        return []
    return [entry for entry in visible_entries(path) if any((entry / name).is_file() for name in METADATA)]


def _read(folder: Path) -> list[tuple[str, Clip]]:
    files = [folder / name for name in METADATA if (folder / name).is_file()]
    if len(files) > 1:
        raise InputError(f"{folder} has {' and '.join(METADATA)}; it must have one of them")
    clips: dict[Path, tuple[str, Clip]] = {}
    rows = _csv_rows(files[0]) if files[0].suffix == ".csv" else json_objects(files[0], EXAMPLE)
    for where, row in rows:
        text, path = _transcript(row, where), _path(row, where, folder)
        if path in clips:
            raise InputError(f"{where} names {path.name} a second time; each clip must be named once")
        clips[path] = (text, Clip.find(path, where))
    if not clips:
        raise InputError(f"{files[0]} names no clips; it must have rows like {EXAMPLE}")
    return list(clips.values())


def _csv_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    reader = csv.DictReader(line + "\n" for _, line in text_lines(path))
    try:
        for row in reader:
            values = {name: value for name, value in row.items() if name and value is not None}
            yield f"{path}:{reader.line_num}", values
    except csv.Error as error:
        raise InputError(f"{path}:{reader.line_num} is not CSV ({error}); export it again from a spreadsheet") from None


def _transcript(row: Mapping[str, Any], where: str) -> str:
    columns = [name for name in TRANSCRIPTS if name in row]
    if len(columns) != 1:
        raise InputError(
            f"{where} has the columns {', '.join(map(str, row)) or '(none)'}; it must have one of "
            f"{' and '.join(TRANSCRIPTS)}, as in {EXAMPLE}"
        )
    text = row[columns[0]]
    if not isinstance(text, str) or "\0" in text or not encodable(text):
        raise InputError(f"{where} has the transcript {text!r:.60}; it must be valid Unicode text")
    if not clean(text):
        raise InputError(f"{where} has an empty transcript; every clip must have one: leave the clip out")
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
