"""Overlays on disk: one safetensors file each, and a manifest, `overlays.json`, that describes them."""

import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fairbits.errors import InputError
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.files.packed import WORD_BITS, read_packed
from fairbits.model.files.safetensors_files import map_tensor, read_header
from fairbits.model.files.safetensors_writing import in_memory, sha256_of, write_tensors, write_whole
from fairbits.overlays.activation_table import ActivationTable
from fairbits.overlays.manifest import MANIFEST, OVERLAYS, Manifest, OverlayEntry, PatchEntry, TableEntry
from fairbits.overlays.overlay import BASE, Overlay, Patch
from fairbits.records import to_json

SUFFIX = ".safetensors"
THRESHOLDS = "activations"
PLAIN = re.compile(r"\w[\w-]*")
"""Allowed names of overlays; the name is part of the file name."""


@dataclass(frozen=True, eq=False)
class Overlays:
    """All overlays of a base.

    `base`         fingerprint of the base they were made for
    `languages`    the overlay of every language served; BASE where no overlay is worthwhile
    `record`       how they were made and what they achieve, for readers and reports
    `activations`  clipping thresholds of the inputs of linear maps; None: inputs are not quantized
    """

    base: str
    overlays: tuple[Overlay, ...]
    languages: Mapping[str, str]
    record: Mapping[str, Any] = field(default_factory=dict)
    activations: ActivationTable | None = None

    def __post_init__(self) -> None:
        """Checks that overlays have unique names that are valid in file names, and that every overlay in use exists."""
        names = [each.name for each in self.overlays]
        for name in names:
            if not PLAIN.fullmatch(name) or name == BASE:
                raise InputError(f"an overlay has the name {name!r:.80}; give letters, digits, '-', '_', not {BASE!r}")
        twice = [name for name, times in Counter(map(str.casefold, names)).items() if times > 1]
        if twice:
            raise InputError(f"two overlays have the name {twice[0]!r}; give each a name of its own")
        lost = sorted(set(self.languages.values()) - {BASE, *names})
        if lost:
            raise InputError(f"the overlay {lost[0]!r:.80} serves a language but is missing; give it as well")

    @property
    def size_bytes(self) -> int:
        """The bytes of all tensors; overlays with the same patches are stored once."""
        rows = {id(each.patches): each.size_bytes for each in self.overlays}
        table = {} if self.activations is None else self.activations.tensors()
        return sum(rows.values()) + sum(each.nbytes for each in table.values())

    def save(self, directory: str | Path) -> None:
        """Writes all files, the manifest last; until then older overlays in the directory stay valid."""
        place = Path(directory)
        written: list[Path] = []
        try:
            place.mkdir(parents=True, exist_ok=True)
            older = _files_of(place / MANIFEST)
            entries: dict[int, OverlayEntry] = {}  # by their patches, which overlays may share
            for each in self.overlays:
                if id(each.patches) not in entries:
                    written.append(_free(place, each.name))
                    entries[id(each.patches)] = _write_overlay(written[-1], each)
            table = None
            if self.activations is not None:
                written.append(_free(place, THRESHOLDS))
                table = _write_table(written[-1], self.activations)
            overlays = tuple(
                replace(entries[id(each.patches)], name=each.name, languages=each.languages) for each in self.overlays
            )
            manifest = Manifest(self.base, dict(self.languages), overlays, dict(self.record), table)
            write_whole(place / MANIFEST, [to_json(OVERLAYS.stamp(asdict(manifest)))])
            written = [each for each in older if each not in written]  # no longer named by a manifest
        except OSError as error:
            raise InputError(
                f"{place} cannot be written ({error.strerror}); give another path, or free some space"
            ) from None
        finally:
            _remove(written)

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
    """Returns the directory if overlays can be written to it: it is new, empty, or holds older overlays."""
    try:
        if directory.exists() and not directory.is_dir():
            raise InputError(f"{directory} is not a directory; give one to write overlays to")
        held = sorted(each.name for each in directory.iterdir()) if directory.is_dir() else []
        there = next(each for each in (directory, *directory.parents) if each.exists())
    except OSError as error:  # the name is too long, or the directory is not accessible
        raise InputError(f"{directory} cannot be used ({error.strerror}); give another path") from None
    if held and MANIFEST not in held:
        raise InputError(f"{directory} holds other files ({held[0]} …); give a directory of its own for overlays")
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise InputError(f"{there} is not writable; give a path in a directory where you may write")
    return directory


def _files_of(manifest: Path) -> list[Path]:
    """Returns the files that an older manifest names; none if it cannot be read."""
    try:
        files = [manifest.parent / name for name in OVERLAYS.read(manifest).files]
    except InputError:
        return []
    return [file for file in files if file.parent == manifest.parent and file.suffix == SUFFIX]


def _free(place: Path, name: str) -> Path:
    """Returns an unused path for a file of that name."""
    tries = (place / f"{name}{'' if i == 1 else f'.{i}'}{SUFFIX}" for i in count(1))
    return next(each for each in tries if not os.path.lexists(each))


def _remove(files: Iterable[Path]) -> None:
    """Removes files that are no longer named; one that cannot be removed does no harm."""
    for file in files:
        with suppress(OSError):
            file.unlink()


def _write_overlay(file: Path, overlay: Overlay) -> OverlayEntry:
    """Returns the entry of an overlay after writing its tensors."""
    digest = write_tensors(file, in_memory(overlay.tensors()))
    patches = tuple(
        PatchEntry(each.tensor, each.module, each.form, each.bits, each.count, each.transposed)
        for each in overlay.patches
    )
    return OverlayEntry(overlay.name, overlay.languages, file.name, digest, overlay.size_bytes, patches)


def _write_table(file: Path, table: ActivationTable) -> TableEntry:
    """Returns the entry of the activation thresholds after writing their tensors."""
    digest = write_tensors(file, in_memory(table.tensors()))
    return TableEntry(file.name, digest, **vars(table.saved()))


def _read_tensors(place: Path, entry: OverlayEntry | TableEntry) -> dict[str, Tensor]:
    """Returns the tensors of a file in the manifest; raises if it is missing or damaged."""
    file = place / entry.file
    if file.parent != place or not file.is_file():
        raise InputError(f"{place} lacks {entry.file!r:.80}; copy all files again, or make them again")
    try:
        digest = sha256_of(file)
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
