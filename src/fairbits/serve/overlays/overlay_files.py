"""Overlays: rows of linear layers, fitted to one or a few languages, that replace rows of the base; and their files."""

import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.files import LOCK, TEMPORARY, clear_temporary, file_sha256, uninterrupted, write_whole
from fairbits.core.files import check_directory as check_writable_directory
from fairbits.core.locks import lock_directory
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
from fairbits.models.io.layer_files import WORD_BITS, packed_tensors, read_packed
from fairbits.models.io.safetensors_files import Piece, in_memory, map_tensor, read_header, tensor_chunks
from fairbits.models.scales.groups import Codes
from fairbits.serve.overlays.activations import ActivationTable, Clip

MANIFEST = "overlays.json"
SUFFIX = ".safetensors"
THRESHOLDS = "activations"
BASE = "base"  # the name of the shared base itself
PLAIN = re.compile(r"\w[\w-]*")  # allowed names of overlays; the name is part of the file name
WRITTEN = re.compile(rf"{PLAIN.pattern}\.[0-9a-f]{{16}}{re.escape(SUFFIX)}")
"""Names of files with tensors: they end with the beginning of their SHA-256, so that the same name is the same content,
and new overlays never touch the files of those that they replace."""
Form = Literal["residual", "codes", "steps"]
"""What is stored for a row: the difference to the original, new codes, or new scales ("steps") for the base's codes."""


@dataclass(frozen=True, eq=False)
class Patch:
    """Rows of one linear layer (out, in), in one of the forms.

    `tensor` names the layer in the files of the base, `module` in the loaded model. `rows` are int64 (n,), `codes` int8
    (n, in) and `scales` (n, groups). Without codes the base's stay, and `scales` replace `base_scales`.
    """

    form: Form
    tensor: str
    module: str
    bits: int
    rows: Tensor | None
    scales: Tensor
    codes: Tensor | None = None
    base_scales: Tensor | None = None
    transposed: bool = False

    @property
    def count(self) -> int:
        return len(self.scales)

    def on(self, device: torch.device) -> "Patch":
        moved: dict[str, Any] = {
            name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)
        }
        return replace(self, **moved)

    def tensors(self) -> dict[str, Tensor]:
        """Returns the tensors to store; the scales that it replaces are in the base."""
        if self.codes is None:
            stored = {f"{self.tensor}_scale": self.scales.contiguous()}
        else:
            stored = packed_tensors(self.tensor, Codes(self.codes, self.scales, self.bits))
            del stored[f"{self.tensor}_shape"]  # it is stored in the base
        if self.rows is not None:
            stored[f"{self.tensor}_rows"] = self.rows.to(torch.int32)
        return stored


@dataclass(frozen=True, eq=False)
class Overlay:
    """The patches of one or a few languages."""

    name: str
    languages: tuple[str, ...]
    patches: tuple[Patch, ...]

    def __post_init__(self) -> None:
        # a second patch of a layer would see rows that the first has changed
        for name, times in Counter(patch.tensor for patch in self.patches).items():
            if times > 1:
                raise InputError(f"the overlay {self.name!r:.80} changes {name} twice; each layer must be there once")

    @cached_property
    def size_bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())

    def tensors(self) -> dict[str, Tensor]:
        return {name: tensor for patch in self.patches for name, tensor in patch.tensors().items()}


def check_overlay_names(names: Sequence[str], languages: Mapping[str, str]) -> None:
    """Raises unless overlays have unique names, safe in file names, and every overlay in use exists."""
    for name in names:
        if not PLAIN.fullmatch(name) or name == BASE:
            raise InputError(f"an overlay has the name {name!r:.80}; give letters, digits, '-', '_', not {BASE!r}")
    for name, times in Counter(map(str.casefold, names)).items():
        if times > 1:
            raise InputError(f"two overlays have the name {name!r}; each must have a different name")
    lost = sorted(set(languages.values()) - {BASE, *names})
    if lost:
        raise InputError(f"the overlay {lost[0]!r:.80} serves a language but is missing; give it as well")


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
        check_once("languages", self.languages)
        check_once("patches", [patch.tensor for patch in self.patches])


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
        check_once("languages", self.languages)


@dataclass(frozen=True)
class Manifest:
    """The content of overlays.json, with the fields of Overlays."""

    base: Digest
    languages: Mapping[Code, str]
    overlays: tuple[OverlayEntry, ...]
    record: Mapping[str, Any]
    activations: TableEntry | None

    def __post_init__(self) -> None:
        check_overlay_names([overlay.name for overlay in self.overlays], self.languages)
        for overlay in self.overlays:
            check_within(f"the overlay {overlay.name}", overlay.languages, "languages", self.languages)

    @property
    def files(self) -> tuple[str, ...]:
        entries = (*self.overlays, *(() if self.activations is None else (self.activations,)))
        return tuple(dict.fromkeys(entry.file for entry in entries))


OVERLAYS = Kind("fairbits.overlays/1", "a manifest of overlays", "fairbits overlay", Manifest, stamped=False)


@dataclass(frozen=True, eq=False)
class Overlays:
    """All overlays of a base, by its fingerprint, and which of them, or BASE, serves every language.

    `record` says how they were made, and `activations` have the thresholds of inputs, if these are quantized.
    """

    base: str
    overlays: tuple[Overlay, ...]
    languages: Mapping[str, str]
    record: Mapping[str, Any] = field(default_factory=dict)
    activations: ActivationTable | None = None

    def __post_init__(self) -> None:
        check_overlay_names([overlay.name for overlay in self.overlays], self.languages)

    @property
    def size_bytes(self) -> int:
        rows = {id(overlay.patches): overlay.size_bytes for overlay in self.overlays}
        table = {} if self.activations is None else self.activations.tensors()
        return sum(rows.values()) + sum(tensor.nbytes for tensor in table.values())

    def save(self, directory: str | Path) -> None:
        """Writes all files, the manifest last; until then older overlays in the directory stay valid."""
        with open_for_writing(Path(directory)) as place:
            self.write(place)

    def write(self, place: Path) -> None:
        files: dict[Path, list[Piece]] = {}
        entries: dict[int, OverlayEntry] = {}  # by their patches, which overlays may share
        for overlay in self.overlays:
            if id(overlay.patches) not in entries:
                pieces = in_memory(overlay.tensors())
                file, digest = _place_for(place, overlay.name, pieces)
                patches = tuple(
                    PatchEntry(patch.tensor, patch.module, patch.form, patch.bits, patch.count, patch.transposed)
                    for patch in overlay.patches
                )
                entry = OverlayEntry(overlay.name, overlay.languages, file.name, digest, overlay.size_bytes, patches)
                files[file], entries[id(overlay.patches)] = pieces, entry
        table = None
        if self.activations is not None:
            pieces = in_memory(self.activations.tensors())
            file, digest = _place_for(place, THRESHOLDS, pieces)
            bits, clip, points = self.activations.bits, self.activations.clip, dict(self.activations.modules)
            files[file], table = pieces, TableEntry(file.name, digest, bits, clip, points, self.activations.languages)
        overlays = tuple(
            replace(entries[id(overlay.patches)], name=overlay.name, languages=overlay.languages)
            for overlay in self.overlays
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
            patches = {entry.file: _read_patches(place, entry, base) for entry in manifest.overlays}
            overlays = tuple(Overlay(entry.name, entry.languages, patches[entry.file]) for entry in manifest.overlays)
            table = None if manifest.activations is None else _read_table(place, manifest.activations)
            return cls(manifest.base, overlays, manifest.languages, manifest.record, table)
        except InputError as problem:
            raise InputError(f"{place / MANIFEST}: {problem}") from None


def check_directory(directory: Path) -> Path:
    """Returns the directory if overlays can be written to it: it is new, empty, or holds only overlays."""
    check_writable_directory(directory)
    names = sorted(entry.name for entry in directory.iterdir()) if directory.is_dir() else []
    foreign = [name for name in names if name != LOCK and not WRITTEN.fullmatch(name) and not TEMPORARY.fullmatch(name)]
    if foreign and MANIFEST not in names:
        raise InputError(f"{directory} holds other files ({foreign[0]} …); give a new or empty directory for overlays")
    return directory


@contextmanager
def open_for_writing(directory: Path) -> Iterator[Path]:
    """Yields a locked directory to write overlays to, without the files that a killed process has left."""
    with ExitStack() as stack:
        try:
            if not directory.exists():
                directory.mkdir(parents=True, exist_ok=True)
                stack.callback(_remove_empty, directory)
            stack.enter_context(lock_directory(directory))
            clear_temporary(directory)
            _clear(directory)
        except OSError as error:
            raise InputError(f"{directory} cannot be written ({error.strerror}); give another path") from None
        yield directory


def _named_files(place: Path) -> set[Path] | None:
    if not os.path.lexists(place / MANIFEST):
        return set()
    try:
        files = [place / name for name in OVERLAYS.read(place / MANIFEST).files]
    except InputError:
        return None
    return {file for file in files if file.parent == place and file.suffix == SUFFIX}


def _clear(place: Path, older: Iterable[Path] = ()) -> None:
    with uninterrupted():
        named = _named_files(place)
        if named is None:  # nothing is removed that it may name
            return
        for file in {*older, *(entry for entry in place.iterdir() if WRITTEN.fullmatch(entry.name))} - named:
            with suppress(OSError):  # it does no harm, and the next process removes it
                file.unlink()


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):
        directory.rmdir()


def _place_for(place: Path, name: str, pieces: list[Piece]) -> tuple[Path, str]:
    sha256 = hashlib.sha256()
    for chunk in tensor_chunks(pieces):
        sha256.update(chunk)
    digest = sha256.hexdigest()
    return place / f"{name}.{digest[:16]}{SUFFIX}", digest


def _read_tensors(place: Path, entry: OverlayEntry | TableEntry) -> dict[str, Tensor]:
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


def _read_table(place: Path, entry: TableEntry) -> ActivationTable:
    tensors = _read_tensors(place, entry)
    missing = sorted({"alpha", "blind"} - tensors.keys())
    if missing:
        raise InputError(f"the tensors of activation thresholds lack {missing[0]!r}; make them again")
    alpha, blind = (tensors[name].cpu().numpy() for name in ("alpha", "blind"))
    return ActivationTable(entry.bits, entry.clip, entry.points, entry.languages, alpha, blind)


def _read_patches(place: Path, entry: OverlayEntry, base: Checkpoint) -> tuple[Patch, ...]:
    tensors = _read_tensors(place, entry)
    try:
        return tuple(_patch(tensors, patch, base) for patch in entry.patches)
    except KeyError as missing:
        raise InputError(f"{place / entry.file} is damaged: it lacks {missing}; make it again") from None


def _patch(tensors: Mapping[str, Tensor], entry: PatchEntry, base: Checkpoint) -> Patch:
    name, bits, form = entry.tensor, entry.bits, entry.form
    shape, below = base.read(f"{name}_shape"), base.read(f"{name}_scale")
    rows = tensors.get(f"{name}_rows")
    if rows is not None:
        rows = rows.to(torch.int64).flatten()
        unique = set(rows.tolist())
        if not unique or len(unique) < len(rows) or min(unique) < 0 or max(unique) >= int(shape[0]):
            raise InputError(f"the file stores rows that {name} does not have, or one of them twice; make it again")
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
        raise InputError(f"the stored tensors of {name} do not fit the base, {shape.tolist()}; make them again")
    if form != "steps":
        stored = {f"{name}_packed": packed, f"{name}_scale": scales, f"{name}_shape": shape}
        codes = read_packed(stored, name, bits=bits).codes
    return Patch(form, name, entry.module, bits, rows, scales, codes, base_scales, entry.transposed)
