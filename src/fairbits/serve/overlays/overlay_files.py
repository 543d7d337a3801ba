"""Overlays on disk: one safetensors file each, and a manifest, `overlays.json`, that describes them.

The manifest of overlays: every key of overlays.json and its type.
"""

import hashlib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.files import TEMPORARY, clear_temporary, file_sha256, uninterrupted, write_whole
from fairbits.core.locks import LOCK, lock_directory
from fairbits.core.records import (
    Code,
    Count,
    Digest,
    FileName,
    Kind,
    Name,
    Positive,
    StoredBits,
    TriedBits,
    check_once,
    check_within,
    to_json,
)
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.compressed_tensors import WORD_BITS, read_packed
from fairbits.models.io.safetensors_files import Piece, in_memory, map_tensor, read_header, tensor_chunks
from fairbits.serve.overlays.activation_table import ActivationTable, Clip, SavedTable
from fairbits.serve.overlays.overlay_rows import PLAIN, Form, Overlay, Patch, check_overlay_names

MANIFEST = "overlays.json"


@dataclass(frozen=True)
class PatchEntry:
    """A patch, without its tensors; `rows` is how many rows it changes."""

    tensor: Name
    module: Name
    form: Form
    bits: StoredBits
    rows: Positive
    transposed: bool


@dataclass(frozen=True)
class OverlayEntry:
    """An overlay, and the file that holds the tensors of its patches; overlays with the same patches share a file."""

    name: str
    languages: tuple[Code, ...]
    file: FileName
    sha256: Digest
    size_bytes: Count
    patches: tuple[PatchEntry, ...]

    def __post_init__(self) -> None:
        """Checks that nothing is named twice."""
        check_once("languages", self.languages)
        check_once("patches", [each.tensor for each in self.patches])


@dataclass(frozen=True)
class TableEntry:
    """The table of activation thresholds, and the file that holds its tensors."""

    file: FileName
    sha256: Digest
    bits: TriedBits
    clip: Clip
    points: Mapping[str, tuple[str, ...]]
    languages: tuple[Code, ...]

    def __post_init__(self) -> None:
        """Checks that no language is named twice."""
        check_once("languages", self.languages)

    @property
    def table(self) -> SavedTable:
        """The table without its file."""
        return SavedTable(self.bits, self.clip, self.points, self.languages)


@dataclass(frozen=True)
class Manifest:
    """The content of overlays.json; the fields are those of Overlays."""

    base: Digest
    languages: Mapping[Code, str]
    overlays: tuple[OverlayEntry, ...]
    record: Mapping[str, Any]
    activations: TableEntry | None

    def __post_init__(self) -> None:
        """Checks that overlays have names of their own, and that they and the languages belong together."""
        check_overlay_names([each.name for each in self.overlays], self.languages)
        for each in self.overlays:
            check_within(f"the overlay {each.name}", each.languages, "languages", self.languages)

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files with tensors."""
        entries = (*self.overlays, *(() if self.activations is None else (self.activations,)))
        return tuple(dict.fromkeys(each.file for each in entries))


OVERLAYS = Kind("fairbits.overlays/1", "a manifest of overlays", "fairbits overlay", Manifest, stamped=False)


SUFFIX = ".safetensors"
THRESHOLDS = "activations"
WRITTEN = re.compile(rf"{PLAIN.pattern}\.[0-9a-f]{{16}}{re.escape(SUFFIX)}")
"""Names of files with tensors: they end with the beginning of their SHA-256, so that the same name is the same content,
and new overlays never touch the files of those that they replace."""


@dataclass(frozen=True, eq=False)
class Overlays:
    """All overlays of a base.

    `base`         fingerprint of the base they were made for
    `languages`    the overlay of every language served; BASE where no overlay is worthwhile
    `record`       how they were made and what they achieve, for readers and reports
    `activations`  clipping thresholds of the inputs of linear layers; None: inputs are not quantized
    """

    base: str
    overlays: tuple[Overlay, ...]
    languages: Mapping[str, str]
    record: Mapping[str, Any] = field(default_factory=dict)
    activations: ActivationTable | None = None

    def __post_init__(self) -> None:
        """Checks that overlays have unique names that are valid in file names, and that every overlay in use exists."""
        check_overlay_names([each.name for each in self.overlays], self.languages)

    @property
    def size_bytes(self) -> int:
        """The bytes of all tensors; overlays with the same patches are stored once."""
        rows = {id(each.patches): each.size_bytes for each in self.overlays}
        table = {} if self.activations is None else self.activations.tensors()
        return sum(rows.values()) + sum(each.nbytes for each in table.values())

    def save(self, directory: str | Path) -> None:
        """Writes all files, the manifest last; until then older overlays in the directory stay valid."""
        with open_for_writing(Path(directory)) as place:
            self.write(place)

    def write(self, place: Path) -> None:
        """Writes all files to a directory that `open_for_writing` has given."""
        files: dict[Path, list[Piece]] = {}
        entries: dict[int, OverlayEntry] = {}  # by their patches, which overlays may share
        for each in self.overlays:
            if id(each.patches) not in entries:
                file, entry = _overlay_entry(place, each)
                files[file], entries[id(each.patches)] = in_memory(each.tensors()), entry
        table = None
        if self.activations is not None:
            pieces = in_memory(self.activations.tensors())
            file, digest = _place_for(place, THRESHOLDS, pieces)
            files[file], table = pieces, TableEntry(file.name, digest, **vars(self.activations.saved()))
        overlays = tuple(
            replace(entries[id(each.patches)], name=each.name, languages=each.languages) for each in self.overlays
        )
        manifest = Manifest(self.base, dict(self.languages), overlays, dict(self.record), table)
        content = to_json(OVERLAYS.stamp(asdict(manifest)))
        older = _named_files(place) or ()
        try:
            write_whole({file: tensor_chunks(pieces) for file, pieces in files.items()} | {place / MANIFEST: [content]})
        except OSError as error:
            raise InputError(
                f"{place} cannot be written ({error.strerror}); give another path, or free some space"
            ) from None
        finally:
            _clear(place, older)

    @classmethod
    def load(cls, directory: str | Path, base: Checkpoint) -> "Overlays":
        """Returns the overlays in a directory; raises unless they are complete and were made for this base."""
        place = Path(directory)
        if not (place / MANIFEST).is_file():
            raise InputError(f"{place} has no {MANIFEST}; give a directory that fairbits overlay has written")
        manifest = OVERLAYS.read(place / MANIFEST)
        if manifest.base != base.fingerprint:
            raise InputError(
                f"{place} was made for a base other than {base.target}; give that base, or make the overlays again"
            )
        try:
            patches = {each.file: _read_patches(place, each, base) for each in manifest.overlays}
            overlays = tuple(Overlay(each.name, each.languages, patches[each.file]) for each in manifest.overlays)
            saved = manifest.activations
            table = None if saved is None else ActivationTable.of(_read_tensors(place, saved), saved.table)
            return cls(manifest.base, overlays, manifest.languages, manifest.record, table)
        except InputError as problem:
            raise InputError(f"{place / MANIFEST}: {problem}") from None


def check_directory(directory: Path) -> Path:
    """Returns the directory if overlays can be written to it: it is new, empty, or holds nothing but overlays."""
    try:
        if directory.exists() and not directory.is_dir():
            raise InputError(f"{directory} is not a directory; give one to write overlays to")
        held = sorted(each.name for each in directory.iterdir()) if directory.is_dir() else []
        there = next(each for each in (directory, *directory.parents) if each.exists())
    except OSError as error:  # the name is too long, or the directory is not accessible
        raise InputError(f"{directory} cannot be used ({error.strerror}); give another path") from None
    others = [name for name in held if name != LOCK and not WRITTEN.fullmatch(name) and not TEMPORARY.fullmatch(name)]
    if others and MANIFEST not in held:
        raise InputError(f"{directory} holds other files ({others[0]} …); give a directory of its own for overlays")
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(f"{there} is not writable; give a path in a directory where you may write")
    return directory


@contextmanager
def open_for_writing(directory: Path) -> Iterator[Path]:
    """Yields a directory that no other process writes overlays to meanwhile, without what a killed one has left."""
    with ExitStack() as held:
        try:
            if not directory.exists():
                directory.mkdir(parents=True, exist_ok=True)
                held.callback(_remove_empty, directory)
            held.enter_context(lock_directory(directory))
            clear_temporary(directory)
            _clear(directory)
        except OSError as error:
            raise InputError(f"{directory} cannot be written ({error.strerror}); give another path") from None
        yield directory


def _named_files(place: Path) -> set[Path] | None:
    """Returns the files that the manifest in a directory names; None if it cannot be read."""
    if not os.path.lexists(place / MANIFEST):
        return set()
    try:
        files = [place / name for name in OVERLAYS.read(place / MANIFEST).files]
    except InputError:
        return None
    return {file for file in files if file.parent == place and file.suffix == SUFFIX}


def _clear(place: Path, older: Iterable[Path] = ()) -> None:
    """Removes files with tensors that the manifest in a directory does not name, and such that an older one named."""
    with uninterrupted():
        named = _named_files(place)
        if named is None:  # nothing is removed that it may name
            return
        for file in {*older, *(each for each in place.iterdir() if WRITTEN.fullmatch(each.name))} - named:
            with suppress(OSError):  # it does no harm, and the next process removes it
                file.unlink()


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


def _overlay_entry(place: Path, overlay: Overlay) -> tuple[Path, OverlayEntry]:
    """Returns where the tensors of an overlay are written, and its entry in the manifest."""
    file, digest = _place_for(place, overlay.name, in_memory(overlay.tensors()))
    patches = tuple(
        PatchEntry(each.tensor, each.module, each.form, each.bits, each.count, each.transposed)
        for each in overlay.patches
    )
    return file, OverlayEntry(overlay.name, overlay.languages, file.name, digest, overlay.size_bytes, patches)


def _place_for(place: Path, name: str, pieces: list[Piece]) -> tuple[Path, str]:
    """Returns the path for tensors, and the SHA-256 of their file."""
    sha256 = hashlib.sha256()
    for chunk in tensor_chunks(pieces):
        sha256.update(chunk)
    digest = sha256.hexdigest()
    return place / f"{name}.{digest[:16]}{SUFFIX}", digest


def _read_tensors(place: Path, entry: OverlayEntry | TableEntry) -> dict[str, Tensor]:
    """Returns the tensors of a file in the manifest; raises if it is missing or damaged."""
    file = place / entry.file
    if file.parent != place or not file.is_file():
        raise InputError(f"{place} lacks {entry.file!r:.80}; copy all files again, or make them again")
    try:
        digest = file_sha256(file)
    except OSError as error:
        raise InputError(f"{file} cannot be read ({error.strerror}); make it readable, or make it again") from None
    if digest != entry.sha256:
        raise InputError(f"{file} is damaged: its checksum differs; copy it again, or make it again")
    return {info.name: map_tensor(info) for info in read_header(file).values()}


def _read_patches(place: Path, entry: OverlayEntry, base: Checkpoint) -> tuple[Patch, ...]:
    tensors = _read_tensors(place, entry)
    try:
        return tuple(_patch(tensors, each, base) for each in entry.patches)
    except KeyError as missing:
        raise InputError(f"{place / entry.file} is damaged: it lacks {missing}; make it again") from None


def _patch(tensors: Mapping[str, Tensor], entry: PatchEntry, base: Checkpoint) -> Patch:
    name, bits, form = entry.tensor, entry.bits, entry.form
    shape, below = base.read(f"{name}_shape"), base.read(f"{name}_scale")
    rows = _rows(tensors, name, int(shape[0]))
    scales, count = tensors[f"{name}_scale"].clone(), int(shape[0]) if rows is None else len(rows)
    groups = scales.shape[1] if scales.ndim == 2 else 0
    fits: bool = scales.dtype.is_floating_point and len(scales) == count == entry.rows
    fits = fits and bool(groups) and int(shape[1]) % groups == 0
    codes = base_scales = None
    if form == "steps":
        base_scales = below.clone() if rows is None else below.index_select(0, rows)
        fits = fits and scales.shape == base_scales.shape
    else:
        packed = tensors[f"{name}_packed"]
        words = math.ceil(int(shape[1]) * bits / WORD_BITS)
        fits = fits and packed.dtype == torch.int32 and packed.shape == (count, words)
    if not fits:
        raise InputError(f"what is stored of {name} does not fit the base, {shape.tolist()}; make it again")
    if form != "steps":
        stored = {f"{name}_packed": packed, f"{name}_scale": scales, f"{name}_shape": shape}
        codes = read_packed(stored, name, bits=bits).codes
    return Patch(form, name, entry.module, bits, rows, scales, codes, base_scales, entry.transposed)


def _rows(tensors: Mapping[str, Tensor], name: str, most: int) -> Tensor | None:
    """Returns which rows of a map are stored; None: all of them."""
    found = tensors.get(f"{name}_rows")
    if found is None:
        return None
    rows = found.to(torch.int64).flatten()
    if not len(rows) or len(set(rows.tolist())) < len(rows) or int(rows.min()) < 0 or int(rows.max()) >= most:
        raise InputError(f"what is stored of {name} is of rows that it does not have, or of one twice; make it again")
    return rows
