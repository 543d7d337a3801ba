"""The file of a comparison: every key of compare.json and its type."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbits.records import Count, Kind, Number
from fairbits.stats import Estimate


@dataclass(frozen=True)
class SavedEntry:
    """One policy at one width; lists have one entry per seed."""

    policy: str
    bits: int
    size_bytes: Count
    seconds: tuple[Number, ...]
    plans: tuple[str, ...]
    worst_language: str
    best_language: str
    worst: Estimate
    mean: Estimate
    gap: Estimate
    best: Estimate
    range_over_seeds: Mapping[str, tuple[Number, Number]]
    damage: Mapping[str, Estimate]
    notes: tuple[str, ...]
    fallbacks: tuple[str, ...]


@dataclass(frozen=True)
class TestedEstimate(Estimate):
    """A difference with its p-value, plain and adjusted by Holm's method."""

    p: Number = 1.0
    p_holm: Number = 1.0


@dataclass(frozen=True)
class SavedContrast:
    """A policy minus another at the same width."""

    policy: str
    against: str
    bits: int
    size_ratio: Number
    mean: TestedEstimate
    worst: Estimate
    better: tuple[str, ...]
    worse: tuple[str, ...]
    languages: Mapping[str, TestedEstimate]


@dataclass(frozen=True)
class ComparisonFile:
    """The content of compare.json."""

    model: str
    fingerprint: str
    settings: Mapping[str, Any]
    unit: str
    baseline: str
    entries: tuple[SavedEntry, ...]
    contrasts: tuple[SavedContrast, ...]
    notes: tuple[str, ...]


COMPARE = Kind("fairbits.compare/1", "a comparison", "fairbits compare --out", ComparisonFile)
