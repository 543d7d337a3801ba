"""The files of a run that only a report reads back: run.json and sweep.json."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbits.errors import InputError
from fairbits.records import Count, Kind, Number
from fairbits.stats import Estimate


@dataclass(frozen=True)
class Baseline:
    """A policy that a run compares with, and the file of its scores in the directory."""

    name: str
    scores: str


@dataclass(frozen=True)
class RunFile:
    """The content of run.json: the request, the versions, and notes.

    `written` is the fingerprint of the quantized model, once it has been written.
    """

    fairbits: str
    versions: Mapping[str, str]
    model: str
    fingerprint: str
    policy: str
    settings: Mapping[str, Any]
    hashes: Mapping[str, Mapping[str, str]]
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...]
    written: str | None = None


@dataclass(frozen=True)
class SavedWidth:
    """A critical width; its text shows where an end is open."""

    value: Number
    low: Number
    high: Number
    text: str


@dataclass(frozen=True)
class FoundersWidth:
    """The largest excess kurtosis of a block, and the width that the founding documents derive from it."""

    max_kappa: Number
    critical_width: Number


@dataclass(frozen=True)
class SweepFile:
    """The content of sweep.json; widths are keys and therefore text, as JSON requires."""

    model: str
    fingerprint: str
    policy: str
    settings: Mapping[str, Any]
    unit: str
    threshold: Number
    sizes: Mapping[str, Count]
    damage: Mapping[str, Mapping[str, Estimate]]
    gap: Mapping[str, Estimate]
    critical_width: Mapping[str, SavedWidth]
    critical_width_of_gap: SavedWidth
    founders: FoundersWidth
    verdict: tuple[str, ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Checks that every language has its damage at every width, and a critical width."""
        for text in self.sizes:
            if not text.isdecimal():
                raise InputError(f"sizes has the width {text!r:.40}; it must be a whole number")
        for code, curve in self.damage.items():
            if curve.keys() != self.sizes.keys() or code not in self.critical_width:
                raise InputError(f"damage and critical_width of {code:.40} must have the widths of sizes")


RUN = Kind("fairbits.run/1", "the record of a run", "fairbits run in a new directory", RunFile, optional=("written",))
SWEEP = Kind("fairbits.sweep/1", "a sweep", "fairbits sweep --out", SweepFile)
