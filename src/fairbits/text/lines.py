"""Files of text: their languages, lines of UTF-8, and objects of JSONL; errors give file and line number."""

import codecs
import json
import os
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fairbits.core.errors import InputError
from fairbits.core.memory import LINE_BYTES
from fairbits.text.language_codes import code_from_name

OTHER_ENCODINGS = {codecs.BOM_UTF16_LE: "UTF-16LE", codecs.BOM_UTF16_BE: "UTF-16BE"}
EXAMPLE = '{"text": "…"}'


def visible_entries(path: Path) -> list[Path]:
    """Returns the entries of a directory in order, without hidden files."""
    try:
        return sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a readable file or directory") from None


def paths_by_language(names: Mapping[Path, str], kind: str) -> dict[str, Path]:
    """Returns paths by the code of the language that each is named after; `kind` is file or directory."""
    by_code: dict[str, Path] = {}
    for path, name in names.items():
        code = code_from_name(name, str(path))
        if code in by_code:
            raise InputError(
                f"{by_code[code]} and {path} are both {code}; each language must have one {kind}: name varieties of a "
                "language like en-x-one and en-x-two"
            )
        by_code[code] = path
    return by_code


def text_lines(path: Path) -> Iterator[tuple[str, str]]:
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


def json_objects(path: Path, example: str = EXAMPLE) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields "file:line" and the object of every line that is not blank; `example` shows such a line in errors."""
    for where, line in text_lines(path):
        if line.strip():
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InputError(f"{where} is not JSON ({error}); each line must be like {example}") from None
            if not isinstance(row, dict):
                raise InputError(f"{where} is a {type(row).__name__}; each line must be an object like {example}")
            yield where, row


def _check_regular(path: Path) -> None:
    # A pipe would block forever, and a loop of links fails only when it is followed.
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
        raise InputError(f"{where} has a NUL at byte {offset + raw.index(0):,}; {path.name} must be text, not binary")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        encoding = OTHER_ENCODINGS.get(raw[:2], "ENCODING") if offset == 0 else "ENCODING"
        raise InputError(
            f"{path} is not UTF-8: byte {raw[error.start]:#04x} at offset {offset + error.start:,} ({where}); "
            f"convert it first: iconv -f {encoding} -t UTF-8"
        ) from None
