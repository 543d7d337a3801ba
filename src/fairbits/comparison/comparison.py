"""Comparison: the damage of policies to every language on the same text, their sizes, what is significant; its file."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import Gt, MinLen

from fairbits.core.checks import one_of
from fairbits.core.errors import InputError, count_of
from fairbits.core.figure import Figure
from fairbits.core.files import check_writable, write_files
from fairbits.core.records import (
    Code,
    Digest,
    Kind,
    Name,
    Number,
    Positive,
    Seconds,
    Share,
    TriedBits,
    check_once,
    check_ordered,
    check_same_keys,
    check_within,
    to_json,
)
from fairbits.core.table import Cell, NumberFormat, Shown, Table, data_frame, dim, notes_table, short_unit
from fairbits.core.units import MB, MEASURE_LABELS, MEASURES, UNIT_LABELS, UNITS
from fairbits.evaluation.language_groups import GroupDamage, Groups, group_damage
from fairbits.evaluation.scores import Scores
from fairbits.quantization.plan import Plan
from fairbits.stats.frame import Contrast, LanguageFrame, estimate_columns, figure_of_series, interval_notes
from fairbits.stats.intervals import Estimate, holm

if TYPE_CHECKING:
    import pandas


LEGEND = (
    "worst, best: the most and the least damaged language, corrected for selection; gap: their difference; intervals "
    "of 95 % over documents. s: seconds of rounding."
)
PAIRED = (
    "Paired by document. p: test of no difference in the mean, Holm-corrected over all contrasts of this table. +/−: "
    "number of languages with significantly less and more damage, Holm-corrected over the languages of a contrast."
)
SEEDS = (
    "Numbers are means over these seeds; intervals and p do not extend to other seeds. Below them: the least and the "
    "largest over the seeds."
)
NO_INTERVAL = "–: no interval can be formed, because there are too few documents that differ."


@dataclass(frozen=True)
class SavedEntry:
    """One policy at one width; lists have one entry per seed."""

    policy: Name
    bits: TriedBits
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
    groups: GroupDamage | None = None

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
    bits: TriedBits
    size_ratio: Annotated[Number, Gt(0)]
    mean: TestedEstimate
    worst: Estimate
    better: tuple[str, ...]
    worse: tuple[str, ...]
    languages: Mapping[Code, TestedEstimate]

    def __post_init__(self) -> None:
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
        kinds = [f"{entry.policy} at {entry.bits} bits" for entry in self.entries]
        check_once("entries", kinds)
        for entry in self.entries[1:]:
            check_same_keys("damage of an entry", entry.damage, "that of the first", self.entries[0].damage)
        for contrast in self.contrasts:
            both = [f"{policy} at {contrast.bits} bits" for policy in (contrast.policy, contrast.against)]
            check_within("contrasts", both, "entries", kinds)
            check_same_keys("languages of a contrast", contrast.languages, "damage", self.entries[0].damage)


COMPARE = Kind("fairbits.compare/2", "a comparison", "fairbits compare --out", ComparisonFile)
STATISTICS: Mapping[str, Callable[[LanguageFrame], Estimate]] = {
    "worst": lambda frame: frame.worst()[1],
    "mean": LanguageFrame.mean,
    "gap": LanguageFrame.gap,
    "best": lambda frame: frame.best()[1],
}


@dataclass(frozen=True, eq=False)
class PolicyEntry:
    """One policy at one width; the other fields have one entry per seed.

    `frames` holds the damage in the unit of the comparison, `scores` all measurements, `seconds` the time of rounding.
    """

    policy: str
    bits: int
    plans: tuple[Plan, ...]
    frames: tuple[LanguageFrame, ...]
    seconds: tuple[float, ...]
    scores: tuple[Scores, ...] = ()

    @property
    def size_bytes(self) -> int:
        return max(plan.size_bytes for plan in self.plans)

    @cached_property
    def frame(self) -> LanguageFrame:
        return replace(self.frames[0], values=np.mean([frame.values for frame in self.frames], axis=0))

    @cached_property
    def statistics(self) -> dict[str, Estimate]:
        """Worst, mean, gap and best of the mean over seeds; intervals over documents."""
        return {name: statistic(self.frame) for name, statistic in STATISTICS.items()}

    @cached_property
    def ranges(self) -> dict[str, tuple[float, float]]:
        values = {name: [statistic(frame).value for frame in self.frames] for name, statistic in STATISTICS.items()}
        return {name: (min(by_seed), max(by_seed)) for name, by_seed in values.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        plans = (note for plan in self.plans for note in plan.notes)
        return tuple(dict.fromkeys([*plans, *interval_notes(self.frame, self.statistics)]))

    @property
    def fallbacks(self) -> tuple[str, ...]:
        notes = (f"{layer.name}: {note}" for plan in self.plans for layer in plan.results for note in layer.notes)
        return tuple(dict.fromkeys(notes))

    def minus(self, base: "PolicyEntry") -> "PolicyContrast":
        """Returns how an entry differs from another on the same documents; `p_holm` is not corrected yet."""
        paired = self.frame.minus(base.frame)
        p = paired.mean_p()
        return PolicyContrast(
            policy=self.policy,
            against=base.policy,
            bits=self.bits,
            mean=paired.mean(),
            worst=self.frame.worst_minus(base.frame),
            contrast=self.frame.contrast(base.frame),
            size_ratio=self.size_bytes / base.size_bytes,
            p=p,
            p_holm=p,
        )

    def as_data(self) -> dict[str, Any]:
        return {
            "policy": self.policy,
            "bits": self.bits,
            "size_bytes": self.size_bytes,
            "seconds": [round(seconds, 3) for seconds in self.seconds],
            "plans": [plan.digest for plan in self.plans],
            "worst_language": self.frame.worst()[0],
            "best_language": self.frame.best()[0],
            **{name: estimate.to_dict() for name, estimate in self.statistics.items()},
            "range_over_seeds": {name: list(limits) for name, limits in self.ranges.items()},
            "damage": {code: damage.to_dict() for code, damage in self.frame.by_language().items()},
            "notes": list(self.notes),
            "fallbacks": list(self.fallbacks),
        }


@dataclass(frozen=True)
class PolicyContrast:
    """Damage of a policy minus that of another at the same width, paired by document.

    `p` tests that the mean does not differ; `p_holm` is corrected by Holm's method over all contrasts. The worst has no
    p, because its interval is a heuristic where several languages may be the worst. `better` and `worse` are the
    languages with a significant difference, by Holm's method over the languages of this contrast.
    """

    policy: str
    against: str
    bits: int
    mean: Estimate
    worst: Estimate
    contrast: Contrast
    size_ratio: float
    p: float
    p_holm: float

    @property
    def better(self) -> tuple[str, ...]:
        return tuple(code for code in self._significant if self.contrast.differences[code].value < 0)

    @property
    def worse(self) -> tuple[str, ...]:
        return tuple(code for code in self._significant if self.contrast.differences[code].value > 0)

    @property
    def _significant(self) -> list[str]:
        return [code for code, p in self.contrast.p_holm.items() if p < 1 - self.mean.confidence]

    def as_data(self) -> dict[str, Any]:
        contrast = self.contrast
        return {
            "policy": self.policy,
            "against": self.against,
            "bits": self.bits,
            "size_ratio": self.size_ratio,
            "mean": {**self.mean.to_dict(), "p": self.p, "p_holm": self.p_holm},
            "worst": self.worst.to_dict(),
            "better": list(self.better),
            "worse": list(self.worse),
            "languages": {
                code: {**difference.to_dict(), "p": contrast.p[code], "p_holm": contrast.p_holm[code]}
                for code, difference in contrast.differences.items()
            },
        }


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Shown):
    """Entries by width, in the order in which policies were named; the others are compared with `baseline`."""

    model: str
    fingerprint: str
    settings: Mapping[str, Any]
    measure: str
    entries: tuple[PolicyEntry, ...]
    baseline: str
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        return self.entries[0].frame.unit

    @property
    def groups(self) -> Groups:
        """The groups of languages that are compared; none unless they were named."""
        groups: Groups = self.settings.get("groups", {})
        return groups

    @cached_property
    def contrasts(self) -> tuple[PolicyContrast, ...]:
        base = {entry.bits: entry for entry in self.entries if entry.policy == self.baseline}
        contrasts = [entry.minus(base[entry.bits]) for entry in self.entries if entry.policy != self.baseline]
        adjusted = holm([contrast.p for contrast in contrasts]).tolist() if contrasts else []
        return tuple(replace(contrast, p_holm=p) for contrast, p in zip(contrasts, adjusted, strict=True))

    def as_data(self) -> dict[str, Any]:
        content: dict[str, Any] = {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "settings": dict(self.settings),
            "measure": self.measure,
            "unit": self.unit,
            "baseline": self.baseline,
            "entries": [entry.as_data() for entry in self.entries],
            "contrasts": [contrast.as_data() for contrast in self.contrasts],
            "notes": list(self.notes),
        }
        for entry, data in zip(self.entries, content["entries"], strict=True):
            if self.groups:
                data["groups"] = group_damage(entry.frame, self.groups).as_data()
        return COMPARE.stamp(content)

    def to_pandas(self) -> "pandas.DataFrame":
        rows = [(entry, code, damage) for entry in self.entries for code, damage in entry.frame.by_language().items()]
        columns: dict[str, list[Any]] = {
            "policy": [entry.policy for entry, _, _ in rows],
            "bits": [entry.bits for entry, _, _ in rows],
            "language": [code for _, code, _ in rows],
            **estimate_columns("damage", (damage for _, _, damage in rows)),
            "documents": [damage.n for _, _, damage in rows],
            "size_bytes": [entry.size_bytes for entry, _, _ in rows],
        }
        return data_frame(columns)

    def plot(self) -> Figure:
        series = {f"{entry.policy}, {entry.bits} bits": entry.frame.by_language() for entry in self.entries}
        title = f"{MEASURE_LABELS[self.measure].capitalize()} of every language"
        return figure_of_series(series, title=title, unit=self.unit)

    def tables(self) -> list[Table]:
        widths = list(dict.fromkeys(entry.bits for entry in self.entries))
        seeds = (dim(SEEDS),) if self._has_seeds else ()
        tables = [self._table(bits) for bits in widths]
        frame = self.entries[0].frame
        amounts = f"{count_of(len(frame.languages), 'language')}, {count_of(len(frame.document), 'document')}"
        text = dim(f"evaluation text of {self.settings['text']}: {amounts}")
        about = f"group {self.settings['group']}, {MEASURE_LABELS[self.measure]}"
        title: Cell = [(self.model, "bold cyan"), "  ", (about, "bold")]
        tables[0] = replace(tables[0], title=title, above=(text, "", [(f"{widths[0]} bits", "bold")]))
        tables[-1] = replace(tables[-1], below=(dim(LEGEND), *seeds))
        contrasts = [self._contrast_table()] if self.contrasts else []
        contrasts += [self._group_table()] if self.groups else []
        return [*tables, *contrasts, *notes_table(self._all_notes())]

    @property
    def _has_seeds(self) -> bool:
        return len(self.entries[0].frames) > 1

    def _table(self, bits: int) -> Table:
        """Returns one row per policy, and below it the ranges over several seeds."""
        entries = [entry for entry in self.entries if entry.bits == bits]
        number = NumberFormat(max(entry.statistics["worst"].value for entry in entries), 3 if self._has_seeds else 4)
        baseline = next(entry.size_bytes for entry in entries if entry.policy == self.baseline)
        rows: list[tuple[Cell, ...]] = []
        for entry in entries:
            code, size = entry.frame.worst()[0], entry.size_bytes
            rows.append(
                (
                    entry.policy,
                    f"{size / MB:.2f}{'' if size == baseline else '≠'}",
                    number.estimate(entry.statistics["worst"], "" if self._has_seeds else f" {code}"),
                    *(number(entry.statistics[name].value) for name in ("mean", "gap", "best")),
                    f"{sum(entry.seconds):.0f}",
                )
            )
            if self._has_seeds:
                worst, *rest = ("–".join(map(number, entry.ranges[name])) for name in ("worst", "mean", "gap"))
                rows.append(("", "", dim(f"{worst} {code}"), *map(dim, rest), "", ""))
        headers = ("policy", "MB", f"worst, {number.prefix}{UNIT_LABELS[self.unit]}", "mean", "gap", "best", "s")
        return Table(f"{bits} bits", headers, tuple(rows), left=(2,))

    def _contrast_table(self) -> Table:
        largest = max(abs(value) for row in self.contrasts for value in (row.mean.value, row.worst.value))
        factor, prefix = short_unit(largest)
        number = NumberFormat(max(abs(row.mean.value) for row in self.contrasts), 3, factor=factor)
        rows = tuple(
            (
                row.policy,
                str(row.bits),
                number.estimate(row.mean),
                number.estimate(row.worst),
                "<0.001" if row.p_holm < 0.001 else f"{row.p_holm:.3f}",
                f"{len(row.better)}/{len(row.worse)}",
            )
            for row in self.contrasts
        )
        below: list[Cell] = [
            f"{row.policy} at {row.bits} bits is significantly worse for {', '.join(row.worse)}"
            for row in self.contrasts
            if row.worse
        ]
        if not all(row.mean.bounded and row.worst.bounded for row in self.contrasts):
            below.insert(0, dim(NO_INTERVAL))
        title = f"{MEASURE_LABELS[self.measure].capitalize()}, difference from {self.baseline}"
        headers = ("policy", "bits", f"mean, {prefix}{UNIT_LABELS[self.unit]}", "worst", "p", "+/−")
        return Table(title, headers, rows, (*below, dim(PAIRED)), left=(2, 3))

    def _group_table(self) -> Table:
        damage = [group_damage(entry.frame, self.groups) for entry in self.entries]
        number = NumberFormat(max(abs(mean.value) for part in damage for mean in part.means.values()))
        first, *others = self.groups
        rows = tuple(
            (
                entry.policy,
                str(entry.bits),
                *(number(mean.value) for mean in part.means.values()),
                *(
                    NumberFormat(ratio.value, factor=1.0).estimate(ratio) if ratio else "–"
                    for ratio in (part.ratios.get(name) for name in others)
                ),
            )
            for entry, part in zip(self.entries, damage, strict=True)
        )
        below = [f"Mean of the languages of a group, in {number.prefix}{UNIT_LABELS[self.unit]}, and ratios."]
        below += dict.fromkeys(f"No ratio (–): {part.no_ratio}." for part in damage if part.no_ratio)
        headers = ("policy", "bits", *self.groups, *(f"{name} / {first}" for name in others))
        return Table("Groups of languages", headers, rows, tuple(map(dim, below)))

    def _all_notes(self) -> list[str]:
        """Returns every note once: different sizes, then model and text, then policies and fall-backs."""
        sizes = (
            f"≠ {row.policy} takes {abs(row.size_ratio - 1):.2%} {'more' if row.size_ratio > 1 else 'fewer'} bytes "
            f"than {row.against} at {row.bits} bits"
            for row in self.contrasts
            if row.size_ratio != 1
        )
        by_note: dict[str, dict[str, None]] = {}
        for entry in self.entries:
            for note in entry.notes:
                if note not in self.notes:
                    by_note.setdefault(note, {})[entry.policy] = None
        policies = (f"{', '.join(names)}: {note}" for note, names in by_note.items())
        layers = (
            f"{entry.policy} at {entry.bits} bits: {count_of(len(entry.fallbacks), 'fall-back')}, "
            f"such as {entry.fallbacks[0]}"
            for entry in self.entries
            if entry.fallbacks
        )
        return list(dict.fromkeys([*sizes, *self.notes, *policies, *layers]))

    def save(self, path: str | Path) -> None:
        write_files({check_writable(path, example="compare.json"): to_json(self.as_data())})


TRIAL_NAME = re.compile(r"(.+), (\d) bits")
"""How trials are named: a variant and its width."""


def trial_method(scores: Scores) -> tuple[str, int] | None:
    """Returns the variant and width of a trial's scores; None if they are the scores of a checkpoint."""
    start = f"{scores.reference.target}, "
    match = TRIAL_NAME.fullmatch(scores.quantized.target.removeprefix(start))
    is_trial = scores.quantized.target.startswith(start)
    return (match[1], int(match[2])) if is_trial and match is not None else None
