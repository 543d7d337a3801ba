"""Comparison: the damage of policies to every language on the same text, their sizes, what is significant; its file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbits.artifacts import check_writable, write_files
from fairbits.display.figure import Figure
from fairbits.display.table import Shown, Table
from fairbits.measure.scores.scores import Scores
from fairbits.quantization.plan import Plan
from fairbits.records import to_json
from fairbits.stats import Estimate, LanguageFrame, holm
from fairbits.stats.contrast import Contrast
from fairbits.stats.no_interval import interval_notes
from fairbits.verbs import comparison_display
from fairbits.verbs.comparison_file import COMPARE

if TYPE_CHECKING:
    import pandas

STATISTICS: Mapping[str, Callable[[LanguageFrame], Estimate]] = {
    "worst": lambda frame: frame.worst()[1],
    "mean": LanguageFrame.mean,
    "gap": LanguageFrame.gap,
    "best": lambda frame: frame.best()[1],
}


@dataclass(frozen=True, eq=False)
class Entry:
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
        """The size of the quantized model; the largest over the seeds."""
        return max(plan.size_bytes for plan in self.plans)

    @cached_property
    def frame(self) -> LanguageFrame:
        """The damage of every document, the mean over seeds."""
        return replace(self.frames[0], values=np.mean([frame.values for frame in self.frames], axis=0))

    @cached_property
    def statistics(self) -> dict[str, Estimate]:
        """Worst, mean, gap and best of the mean over seeds; intervals over documents."""
        return {name: statistic(self.frame) for name, statistic in STATISTICS.items()}

    @cached_property
    def ranges(self) -> dict[str, tuple[float, float]]:
        """Least and largest of each statistic over the seeds."""
        found = {name: [statistic(frame).value for frame in self.frames] for name, statistic in STATISTICS.items()}
        return {name: (min(values), max(values)) for name, values in found.items()}

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes on the plans, and on languages for which no interval can be formed."""
        plans = (note for plan in self.plans for note in plan.notes)
        return tuple(dict.fromkeys([*plans, *interval_notes(self.frame, self.statistics)]))

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """Every layer that was not treated as planned, and how."""
        found = (f"{each.name}: {note}" for plan in self.plans for each in plan.outcomes for note in each.notes)
        return tuple(dict.fromkeys(found))

    def as_data(self) -> dict[str, Any]:
        """Returns everything for JSON."""
        return {
            "policy": self.policy,
            "bits": self.bits,
            "size_bytes": self.size_bytes,
            "seconds": [round(each, 3) for each in self.seconds],
            "plans": [plan.digest for plan in self.plans],
            "worst_language": self.frame.worst()[0],
            "best_language": self.frame.best()[0],
            **{name: each.to_dict() for name, each in self.statistics.items()},
            "range_over_seeds": {name: list(limits) for name, limits in self.ranges.items()},
            "damage": {code: each.to_dict() for code, each in self.frame.by_language().items()},
            "notes": list(self.notes),
            "fallbacks": list(self.fallbacks),
        }


@dataclass(frozen=True)
class PolicyContrast:
    """Damage of a policy minus that of another at the same width, paired by document.

    `mean` and `worst` are the differences of the mean and of the largest damage. `p` tests that the mean does not
    differ, and `p_holm` is the same corrected by Holm's method over all contrasts of the comparison. The worst has no
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
        """Languages with significantly less damage than under the other policy."""
        return tuple(code for code in self._significant if self.contrast.differences[code].value < 0)

    @property
    def worse(self) -> tuple[str, ...]:
        """Languages with significantly more damage."""
        return tuple(code for code in self._significant if self.contrast.differences[code].value > 0)

    @property
    def _significant(self) -> list[str]:
        return [code for code, p in self.contrast.p_holm.items() if p < 1 - self.mean.confidence]

    def as_data(self) -> dict[str, Any]:
        """Returns everything for JSON."""
        found = self.contrast
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
                code: {**each.to_dict(), "p": found.p[code], "p_holm": found.p_holm[code]}
                for code, each in found.differences.items()
            },
        }


@dataclass(frozen=True, eq=False, repr=False)
class Comparison(Shown):
    """Entries by width, in the order in which policies were named; the others are compared with `baseline`."""

    model: str
    fingerprint: str
    settings: Mapping[str, Any]
    measure: str
    entries: tuple[Entry, ...]
    baseline: str
    notes: tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        """The unit of the damage."""
        return self.entries[0].frame.unit

    @cached_property
    def contrasts(self) -> tuple[PolicyContrast, ...]:
        """Every other policy against the baseline of its width."""
        base = {entry.bits: entry for entry in self.entries if entry.policy == self.baseline}
        found = [contrast_of(entry, base[entry.bits]) for entry in self.entries if entry.policy != self.baseline]
        adjusted = holm([each.p for each in found]).tolist() if found else []
        return tuple(replace(each, p_holm=p) for each, p in zip(found, adjusted, strict=True))

    def as_data(self) -> dict[str, Any]:
        """Returns everything for JSON."""
        content = {
            "model": self.model,
            "fingerprint": self.fingerprint,
            "settings": dict(self.settings),
            "measure": self.measure,
            "unit": self.unit,
            "baseline": self.baseline,
            "entries": [entry.as_data() for entry in self.entries],
            "contrasts": [each.as_data() for each in self.contrasts],
            "notes": list(self.notes),
        }
        return COMPARE.stamp(content)

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a table with a row for every policy, width and language."""
        return comparison_display.pandas_of(self)

    def plot(self) -> Figure:
        """Returns a figure of the damage of every language under every policy, which a notebook shows."""
        return comparison_display.figure_of(self)

    def _table(self) -> Table:
        return comparison_display.table_of(self)

    def save(self, path: str | Path) -> None:
        """Writes the comparison."""
        write_files({check_writable(path, example="compare.json"): to_json(self.as_data())})


def contrast_of(entry: Entry, base: Entry) -> PolicyContrast:
    """Returns how an entry differs from another on the same documents; `p_holm` is not corrected yet."""
    mine, theirs = entry.frame, base.frame
    paired = mine.minus(theirs)
    p = paired.mean_p()
    return PolicyContrast(
        policy=entry.policy,
        against=base.policy,
        bits=entry.bits,
        mean=paired.mean(),
        worst=mine.worst_minus(theirs),
        contrast=mine.contrast(theirs),
        size_ratio=entry.size_bytes / base.size_bytes,
        p=p,
        p_holm=p,
    )
