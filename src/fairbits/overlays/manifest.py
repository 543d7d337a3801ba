"""The manifest of overlays: every key of overlays.json and its type."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbits.fields import Code, Count, Digest, FileName, Name, Positive, TriedWidth, Width, check_once, check_within
from fairbits.overlays.activation_table import Clip, SavedTable
from fairbits.overlays.overlay import Form, check_overlay_names
from fairbits.records import Kind

MANIFEST = "overlays.json"


@dataclass(frozen=True)
class PatchEntry:
    """A patch, without its tensors; `rows` is how many rows it changes."""

    tensor: Name
    module: Name
    form: Form
    bits: Width
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
    bits: TriedWidth
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
