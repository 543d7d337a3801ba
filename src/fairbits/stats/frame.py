"""LanguageFrame: damage per language from paired documents; its worst, best, mean, gap and ratio.

Contrast is the difference between two frames, with tests of every language. The functions at the end show the damage
of languages in tables, DataFrames and figures, worst first, and say why some have no interval.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import as_array, finite_array, nonnegative_array
from fairbits.core.checks import in_range, instance, one_of, same_shape
from fairbits.core.errors import InputError
from fairbits.core.figure import Figure, dots
from fairbits.core.table import Shown, Table, data_frame, number
from fairbits.core.units import bits
from fairbits.stats.draws import FRAME_UNITS, DocumentRecords
from fairbits.stats.intervals import Estimate, combination, combination_p, estimate_within, holm, p_values
from fairbits.stats.intervals import simultaneous as simultaneous_limits
from fairbits.stats.resample import Replicates
from fairbits.stats.worst_language import (
    best_language,
    bias_corrected_range,
    random_effects_sd,
    worst_difference,
    worst_language,
)

if TYPE_CHECKING:
    import pandas

NAMED = 5  # languages that a note names at most


@dataclass(frozen=True)
class Contrast:
    """The damage of one frame minus another's, per language, with p and Holm's p; 1 without an interval."""

    differences: dict[str, Estimate]
    p: dict[str, float]
    p_holm: dict[str, float]

    def significant(self, level: float = 0.05) -> dict[str, Estimate]:
        """Returns the differences whose Holm-adjusted p is below the level."""
        level = in_range("level", level, above=0, below=1)
        chosen = (code for code, gap in self.differences.items() if gap.value and self.p_holm[code] < level)
        return {code: self.differences[code] for code in chosen}

    def worse(self, level: float = 0.05) -> dict[str, Estimate]:
        """Returns the significant differences above 0: the languages that are damaged more, and by how much."""
        return {code: difference for code, difference in self.significant(level).items() if difference.value > 0}


class FrameSettings(TypedDict, total=False):
    """The settings of a frame, whatever its damage is computed from."""

    unit: str
    confidence: float
    resamples: int
    seed: int
    least: float


@dataclass(frozen=True, eq=False, repr=False)
class LanguageFrame(DocumentRecords, Shown):
    """Damage of each language, v_λ = Σ values / Σ weights over its documents, with one shared bootstrap.

    Each record is one document in one language. The same document id in several languages means parallel
    text; such documents are resampled jointly. Documents are assumed to be independent.

    A language with fewer than 5 documents has no interval, nor has one whose interval would be unbounded
    (`without_interval` has the reasons). It keeps its estimate, and is left out of worst, best, mean and gap. If no
    language has an interval, these are plain numbers of all languages, without an interval.
    """

    @classmethod
    def from_nats(
        cls,
        lang: ArrayLike,
        document: ArrayLike,
        *,
        nats: ArrayLike,
        tokens: ArrayLike,
        size_bytes: ArrayLike,
        **settings: Unpack[FrameSettings],
    ) -> "LanguageFrame":
        """Returns the frame of a damage given in nats per document: added loss or divergence.

        bits_per_byte: nats / (ln 2 · bytes); nats_per_token: nats / tokens; nats_per_section: nats / documents.
        """
        values = finite_array("nats", nats, ndim=1)
        weights = nonnegative_array("size_bytes", size_bytes, ndim=1)
        counts = nonnegative_array("tokens", tokens, ndim=1)
        for name, array in (("size_bytes", weights), ("tokens", counts)):
            same_shape(name, array.shape, "the shape of nats", values.shape)
        unit = one_of("unit", settings.get("unit", cls.unit), FRAME_UNITS)
        return cls(
            as_array("lang", lang),
            as_array("document", document),
            values=bits(values) if unit == "bits_per_byte" else values,
            weights={"bits_per_byte": weights, "nats_per_section": np.ones_like(counts)}.get(unit, counts),
            **settings,
        )

    @property
    def without_interval(self) -> Mapping[str, str]:
        return self.draws.without_interval

    @property
    def replicates(self) -> Replicates:
        return self.draws.replicates

    @property
    def bounded(self) -> Replicates:
        """The replicates of the languages that have an interval, which all other results use."""
        return self.draws.bounded

    def by_language(self, *, simultaneous: bool = False) -> dict[str, Estimate]:
        """Returns the damage of each language with bootstrap-t limits, or max-T limits that hold for all at once."""
        drawn = self.bounded if simultaneous else self.replicates
        low, high = simultaneous_limits(drawn, self.confidence) if simultaneous else self.draws.limits
        numbers = zip(drawn.languages, drawn.value, low, high, drawn.documents, strict=True)
        estimates = {
            lang: estimate_within(float(v), float(a), float(b), n=int(n), confidence=self.confidence, least=self.least)
            for lang, v, a, b, n in numbers
        }
        return {lang: estimates.get(lang) or self.draws.plain(lang) for lang in self.languages}

    def language(self, lang: str) -> Estimate:
        if lang not in self.languages:
            raise InputError(f"language {lang!r} is not in the frame; it has {', '.join(self.languages)}")
        return self.by_language()[lang]

    def worst(self) -> tuple[str, Estimate]:
        """Returns the most damaged language, and the largest damage corrected for selection (see `worst_language`)."""
        return self._cut(worst_language) if self.bounded.languages else self._extreme(max)

    def best(self) -> tuple[str, Estimate]:
        """Returns the least damaged language and an estimate of the least damage, corrected for selection."""
        return self._cut(best_language) if self.bounded.languages else self._extreme(min)

    def mean(self) -> Estimate:
        """Returns the unweighted mean damage of the languages; n is the number of distinct documents."""
        size = len(self.bounded.languages)
        if not size:
            return self._over_all(float(np.mean(list(self.draws.values.values()))))
        value, low, high = combination(self.bounded, np.full(size, 1 / size), self.confidence)
        n = self.bounded.clusters
        return estimate_within(value, low, high, n=n, confidence=self.confidence, least=self.least)

    def mean_p(self) -> float:
        """Returns the two-sided p of a mean of 0, as `mean` has intervals; 1 if no language has an interval."""
        size = len(self.bounded.languages)
        return combination_p(self.bounded, np.full(size, 1 / size)) if size else 1.0

    def gap(self) -> Estimate:
        """Returns the worst minus the best damage, corrected for noise; n is the number of distinct documents."""
        return self._range("shrinkage")

    def plain_gap(self) -> Estimate:
        """Returns the largest minus the smallest estimate, uncorrected; the interval is for the true range."""
        return self._range("naive")

    def ratio(self) -> Estimate:
        """Returns the worst divided by the best damage: exp of the bias-corrected range of log damage."""
        lang, best = self.best()
        if best.low <= 0:
            raise InputError(
                f"the smallest damage ({lang}: {best}) may be 0, so the ratio is unbounded; "
                "its interval must be above 0: report gap() instead, or give more documents"
            )
        log = bias_corrected_range(self.bounded.logarithm(), self.confidence)
        return log.transform(np.exp)

    def spread(self) -> Estimate:
        """Returns the standard deviation of true damage between languages; n is their number."""
        if self._too_few_to_compare:
            return Estimate.without_interval(
                float(np.std(list(self.draws.values.values()), ddof=1)), len(self.languages), self.confidence
            )
        return random_effects_sd(self.bounded, self.confidence)

    def minus(self, baseline: "LanguageFrame") -> "LanguageFrame":
        """Returns the frame of this damage minus the baseline's, paired by document; positive values are worse."""
        order, match = self.pair(instance("the baseline", baseline, LanguageFrame))
        return replace(
            self,
            lang=self.lang[order],
            document=self.document[order],
            values=self.values[order] - baseline.values[match],
            weights=self.weights[order],
            least=-math.inf,
        )

    def worst_minus(self, baseline: "LanguageFrame") -> Estimate:
        """Returns the largest damage minus the baseline's, each in its worst language, corrected for selection."""
        joint = self.draw_jointly(instance("the baseline", baseline, LanguageFrame))
        if not joint.languages:
            return self._over_all(self.worst()[1].value - baseline.worst()[1].value)
        return worst_difference(joint, self.confidence)

    def contrast(self, baseline: "LanguageFrame") -> Contrast:
        """Returns this damage minus the baseline's per language, paired by document, with Holm's p values."""
        return self.minus(baseline).contrast_with_zero()

    def contrast_with_zero(self) -> Contrast:
        """Returns the damage with tests that it is 0, for a frame of differences."""
        tested, untested = self.bounded.languages, dict.fromkeys(self.languages, 1.0)
        p = p_values(self.bounded) if tested else np.ones(0)
        adjusted = holm(p) if tested else p
        return Contrast(
            self.by_language(),
            untested | dict(zip(tested, p.tolist(), strict=True)),
            untested | dict(zip(tested, adjusted.tolist(), strict=True)),
        )

    def to_pandas(self) -> "pandas.DataFrame":
        damage = self.by_language()
        order = worst_first(damage)
        columns: dict[str, list[Any]] = {"language": order}
        columns |= estimate_columns("damage", (damage[code] for code in order))
        columns["documents"] = [damage[code].n for code in order]
        return data_frame(columns, index="language")

    def plot(self, title: str = "Damage of every language") -> Figure:
        return figure_of_series({"damage": self.by_language()}, title=title, unit=self.unit)

    def tables(self) -> list[Table]:
        damage, (worst, most) = self.by_language(), self.worst()
        rows = tuple((code, *cells(damage[code]), str(damage[code].n)) for code in worst_first(damage))
        title = f"Damage in {self.unit.replace('_', ' ')} with {self.confidence:.0%} intervals over documents"
        summary = f"worst {worst} {most}; mean {self.mean()}" + (f"; gap {self.gap()}" if len(damage) > 1 else "")
        return [Table(title, ("language", "damage", "low", "high", "documents"), rows, (summary,))]

    @property
    def _too_few_to_compare(self) -> bool:
        return len(self.bounded.languages) < 2 <= len(self.languages)

    def _range(self, method: str) -> Estimate:
        if self._too_few_to_compare:
            return self._over_all(float(np.ptp(list(self.draws.values.values()))))
        return bias_corrected_range(self.bounded, self.confidence, method=method)

    def _cut(self, extreme: Callable[[Replicates, float], tuple[str, Estimate]]) -> tuple[str, Estimate]:
        lang, estimate = extreme(self.bounded, self.confidence)
        if not estimate.bounded:
            return lang, estimate
        return lang, estimate.transform(lambda x: max(x, self.least))

    def _extreme(self, choose: Callable[..., str]) -> tuple[str, Estimate]:
        lang = choose(self.languages, key=self.draws.values.__getitem__)
        return lang, self.draws.plain(lang)

    def _over_all(self, value: float) -> Estimate:
        return Estimate.without_interval(value, len(np.unique(self.document)), self.confidence)


def worst_first(damage: Mapping[str, Estimate]) -> list[str]:
    """Returns the languages by their damage, the largest first."""
    return sorted(damage, key=lambda code: -damage[code].value)


def cells(estimate: Estimate) -> tuple[str, str, str]:
    """Returns value and limits of an estimate for a table; limits are "–" if it has no interval."""
    low, high = (estimate.low, estimate.high) if estimate.bounded else (float("nan"), float("nan"))
    return number(estimate.value), number(low), number(high)


def estimate_columns(name: str, estimates: Iterable[Estimate]) -> dict[str, list[float | None]]:
    """Returns the columns NAME, NAME_low and NAME_high; a limit is missing if there is no interval."""
    rows = [(e.value, e.low, e.high) if e.bounded else (e.value, None, None) for e in estimates]
    names = (name, f"{name}_low", f"{name}_high")
    return {column: [row[i] for row in rows] for i, column in enumerate(names)}


def figure_of_series(series: Mapping[str, Mapping[str, Estimate]], *, title: str, unit: str) -> Figure:
    """Returns a dot with its interval for every language, worst first by the first series."""
    points = {name: {code: (e.value, e.low, e.high) for code, e in damage.items()} for name, damage in series.items()}
    return dots(title, points, axis=unit.replace("_", " "), order=worst_first(next(iter(series.values()))))


def interval_notes(frame: LanguageFrame, shown: Mapping[str, Estimate | None] | None = None) -> tuple[str, ...]:
    """Returns notes on the languages without an interval, and on `shown` statistics of all languages without one."""
    codes: dict[str, list[str]] = {}
    for code, reason in frame.without_interval.items():
        codes.setdefault(reason, []).append(code)
    if len(frame.without_interval) == len(frame.languages):
        reasons = "; ".join(f"{_listed(affected)}: {reason}" for reason, affected in codes.items())
        return (f"no language has an interval, so worst, best, mean and gap have none either ({reasons})",)
    notes = [
        f"no interval for {_listed(affected)}: {reason}; left out of worst, best, mean and gap"
        for reason, affected in codes.items()
    ]
    missing = [name for name, estimate in (shown or {}).items() if estimate is not None and not estimate.bounded]
    if missing:
        notes.append(f"no interval for {', '.join(missing)}: {why_none_over_languages(frame)}")
    return tuple(notes)


def why_none_over_languages(frame: LanguageFrame) -> str:
    """Returns why a statistic of all languages has no interval."""
    if len(frame.languages) - len(frame.without_interval) < 2 <= len(frame.languages):
        return "fewer than 2 languages have an interval"
    return "there are too few documents per language for this many languages"


def _listed(codes: list[str]) -> str:
    more = len(codes) - NAMED
    return ", ".join(codes[:NAMED]) + (f" and {more} more" if more > 0 else "")
