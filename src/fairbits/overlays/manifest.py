"""The manifest of overlays: every key of overlays.json and its type."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le

from fairbits.overlays.activation_table import Clip, SavedTable
from fairbits.overlays.overlay import Form
from fairbits.records import Count, Kind

MANIFEST = "overlays.json"


@dataclass(frozen=True)
class PatchEntry:
    """A patch, without its tensors; `rows` is how many rows it changes."""

    tensor: str
    module: str
    form: Form
    bits: Annotated[int, Ge(2), Le(8)]
    rows: Count
    transposed: bool


@dataclass(frozen=True)
class OverlayEntry:
    """An overlay, and the file that holds the tensors of its patches; overlays with the same patches share a file."""

    name: str
    languages: tuple[str, ...]
    file: str
    sha256: str
    size_bytes: Count
    patches: tuple[PatchEntry, ...]


@dataclass(frozen=True)
class TableEntry:
    """The table of activation thresholds, and the file that holds its tensors."""

    file: str
    sha256: str
    bits: int
    clip: Clip
    points: Mapping[str, tuple[str, ...]]
    languages: tuple[str, ...]

    @property
    def table(self) -> SavedTable:
        """The table without its file."""
        return SavedTable(self.bits, self.clip, self.points, self.languages)


@dataclass(frozen=True)
class Manifest:
    """The content of overlays.json; the fields are those of Overlays."""

    base: str
    languages: Mapping[str, str]
    overlays: tuple[OverlayEntry, ...]
    record: Mapping[str, Any]
    activations: TableEntry | None

    @property
    def files(self) -> tuple[str, ...]:
        """The names of all files with tensors."""
        entries = (*self.overlays, *(() if self.activations is None else (self.activations,)))
        return tuple(dict.fromkeys(each.file for each in entries))


OVERLAYS = Kind("fairbits.overlays/1", "a manifest of overlays", "fairbits overlay", Manifest, stamped=False)
