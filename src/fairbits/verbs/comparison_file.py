"""The file of a comparison: every key of compare.json and its type."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Gt, MinLen

from fairbits.checks import one_of
from fairbits.errors import InputError
from fairbits.fields import (
    Code,
    Digest,
    Name,
    Number,
    Positive,
    Seconds,
    Share,
    TriedWidth,
    check_once,
    check_ordered,
    check_same_keys,
    check_within,
)
from fairbits.records import Kind
from fairbits.stats import Estimate
from fairbits.units import MEASURES, UNITS


@dataclass(frozen=True)
class SavedEntry:
    """One policy at one width; lists have one entry per seed."""

    policy: Name
    bits: TriedWidth
    size_bytes: Positive
    seconds: tuple[Seconds, ...]
    plans: tuple[str, ...]
    worst_language: Code
    best_language: Code
    worst: Estimate
    mean: Estimate
    gap: Estimate
    best: Estimate
    range_over_seeds: Mapping[str, tuple[Number, Number]]
    damage: Mapping[Code, Estimate]
    notes: tuple[str, ...]
    fallbacks: tuple[str, ...]

    def __post_init__(self) -> None:
        """Checks that the extreme languages are among the others, and that every seed has all of its entries."""
        check_within("worst_language", [self.worst_language], "damage", self.damage)
        check_within("best_language", [self.best_language], "damage", self.damage)
        if not self.plans or len(self.seconds) != len(self.plans):
            raise InputError(f"seconds has {len(self.seconds)} entries and plans {len(self.plans)}; one per seed each")
        for name, limits in self.range_over_seeds.items():
            check_ordered(f"range_over_seeds.{name}", limits)


@dataclass(frozen=True)
class TestedEstimate(Estimate):
    """A difference with its p-value, plain and adjusted by Holm's method."""

    p: Share = 1.0
    p_holm: Share = 1.0


@dataclass(frozen=True)
class SavedContrast:
    """A policy minus another at the same width."""

    policy: Name
    against: Name
    bits: TriedWidth
    size_ratio: Annotated[Number, Gt(0)]
    mean: TestedEstimate
    worst: Estimate
    better: tuple[str, ...]
    worse: tuple[str, ...]
    languages: Mapping[Code, TestedEstimate]

    def __post_init__(self) -> None:
        """Checks that the languages that got better or worse are among the others."""
        for name in ("better", "worse"):
            check_within(name, getattr(self, name), "languages", self.languages)


@dataclass(frozen=True)
class ComparisonFile:
    """The content of compare.json."""

    model: str
    fingerprint: Digest
    settings: Mapping[str, Any]
    measure: str
    unit: str
    baseline: str
    entries: Annotated[tuple[SavedEntry, ...], MinLen(1)]
    contrasts: tuple[SavedContrast, ...]
    notes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Checks that every policy is there once at a width, with the same languages, and contrasts are of these."""
        one_of("measure", self.measure, MEASURES)
        one_of("unit", self.unit, UNITS)
        kinds = [f"{each.policy} at {each.bits} bits" for each in self.entries]
        check_once("entries", kinds)
        for each in self.entries[1:]:
            check_same_keys("damage of an entry", each.damage, "that of the first", self.entries[0].damage)
        for found in self.contrasts:
            both = [f"{policy} at {found.bits} bits" for policy in (found.policy, found.against)]
            check_within("contrasts", both, "entries", kinds)
            check_same_keys("languages of a contrast", found.languages, "damage", self.entries[0].damage)


COMPARE = Kind(
    "fairbits.compare/2",
    "a comparison",
    "fairbits compare --out",
    ComparisonFile,
    earlier={"fairbits.compare/1": lambda data: data | {"measure": "loss"}},
)
