"""LanguageFrame: damage per language from paired documents; its worst, best, mean, gap and ratio.

Contrast: the difference between two frames, per language, and which of the differences are significant.

How the damage of languages is shown: as a table, a pandas DataFrame and a figure, worst first.

Languages for which no interval can be formed: the reasons, and the notes that state them.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fairbits.core.array_checks import Floats, as_array, finite_array, nonnegative_array
from fairbits.core.checks import in_range, instance, one_of, same_shape, whole
from fairbits.core.errors import InputError
from fairbits.core.figure import Figure, dots
from fairbits.core.table import Shown, Table, data_frame, number
from fairbits.core.units import UNITS, bits
from fairbits.stats.draws import Draws, check_records, draw_jointly, draw_languages, pair_records
from fairbits.stats.intervals import Estimate, combination, combination_p, estimate_within, holm, p_values
from fairbits.stats.intervals import simultaneous as simultaneous_limits
from fairbits.stats.resample import Replicates
from fairbits.stats.worst_language import best_of, bias_corrected_range, random_effects_sd, worst_difference, worst_of

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Contrast:
    """The damage of one frame minus that of another, per language, with p values as they are and adjusted by Holm.

    A language without an interval is not tested: its p is 1, and Holm's correction does not count it.
    """

    differences: dict[str, Estimate]
    p: dict[str, float]
    p_holm: dict[str, float]

    def significant(self, level: float = 0.05) -> dict[str, Estimate]:
        """Returns the differences whose Holm-adjusted p is below the level."""
        level = in_range("level", level, above=0, below=1)
        return {code: each for code, each in self.differences.items() if each.value and self.p_holm[code] < level}


def contrast_of(paired: "LanguageFrame", *, simultaneous: bool = False) -> Contrast:
    """Returns the contrast of a frame of differences."""
    tested, untested = paired.bounded.languages, dict.fromkeys(paired.languages, 1.0)
    p = p_values(paired.bounded) if tested else np.ones(0)
    adjusted = holm(p) if tested else p
    return Contrast(
        paired.by_language(simultaneous=simultaneous),
        untested | dict(zip(tested, p.tolist(), strict=True)),
        untested | dict(zip(tested, adjusted.tolist(), strict=True)),
    )


def worst_first(damage: Mapping[str, Estimate]) -> list[str]:
    """Returns the languages by their damage, the largest first."""
    return sorted(damage, key=lambda code: -damage[code].value)


def table_of(frame: "LanguageFrame") -> Table:
    """Returns the damage of every language, then worst, mean and gap."""
    found, (worst, most) = frame.by_language(), frame.worst()
    rows = tuple((code, *cells(found[code]), str(found[code].n)) for code in worst_first(found))
    return Table(
        f"Damage in {frame.unit.replace('_', ' ')} with {frame.confidence:.0%} intervals over documents",
        ("language", "damage", "low", "high", "documents"),
        rows,
        (f"worst {worst} {most}; mean {frame.mean()}" + (f"; gap {frame.gap()}" if len(found) > 1 else ""),),
    )


def cells(estimate: Estimate) -> tuple[str, str, str]:
    """Returns value and limits of an estimate for a table; limits are "–" if it has no interval."""
    limits = (estimate.low, estimate.high) if estimate.bounded else (float("nan"), float("nan"))
    low, high = map(number, limits)
    return number(estimate.value), low, high


def estimate_columns(name: str, estimates: Iterable[Estimate]) -> dict[str, list[float | None]]:
    """Returns the columns NAME, NAME_low and NAME_high; a limit is missing if there is no interval."""
    given = list(estimates)
    return {
        name: [each.value for each in given],
        f"{name}_low": [each.low if each.bounded else None for each in given],
        f"{name}_high": [each.high if each.bounded else None for each in given],
    }


def pandas_of(damage: Mapping[str, Estimate]) -> "pandas.DataFrame":
    """Returns one row per language, worst first."""
    order = worst_first(damage)
    columns: dict[str, list[Any]] = {"language": order}
    columns |= estimate_columns("damage", (damage[code] for code in order))
    columns["documents"] = [damage[code].n for code in order]
    return data_frame(columns, index="language")


def figure_of_series(series: Mapping[str, Mapping[str, Estimate]], *, title: str, unit: str) -> Figure:
    """Returns a dot with its interval for every language, worst first by the first series."""
    first = next(iter(series.values()))
    points = {
        name: {code: (each.value, each.low, each.high) for code, each in own.items()} for name, own in series.items()
    }
    return dots(title, points, axis=unit.replace("_", " "), order=worst_first(first))


FRAME_UNITS = (*UNITS, "ratio", "per_item")


class FrameSettings(TypedDict, total=False):
    """The settings of a frame, whatever its damage is computed from."""

    unit: str
    confidence: float
    resamples: int
    seed: int


@dataclass(frozen=True, eq=False, repr=False)
class LanguageFrame(Shown):
    """Damage of each language, v_λ = Σ values / Σ weights over its documents, with one shared bootstrap.

    Each record is one document in one language. The same document id in several languages means parallel
    text; such documents are resampled jointly. All results use the same replicates, which are drawn once
    from `seed`. Assumes independent documents.

    A language with fewer than 5 documents has no interval, nor has one whose interval would be unbounded
    (`without_interval` has the reasons). It keeps its own estimate, and is left out of worst, best, mean and gap. If no
    language has an interval, these are plain numbers of all languages, without an interval.

    >>> rng = np.random.default_rng(0)
    >>> lang, document = np.repeat(["deu", "heb"], 50), np.tile(np.arange(50), 2)
    >>> bits = rng.normal(np.repeat([3, 9], 50))
    >>> frame = LanguageFrame(lang, document, values=bits, weights=np.full(100, 100))
    >>> print(frame.by_language()["heb"])
    0.0903 [0.0875, 0.0932] (n=50)
    >>> print(frame.gap())
    0.0590 [0.0544, 0.0631] (n=50)
    """

    lang: NDArray[np.str_]
    document: NDArray[np.generic]
    _: KW_ONLY
    values: Floats
    weights: Floats
    unit: str = "bits_per_byte"
    confidence: float = 0.95
    resamples: int = 10_000
    seed: int = 0

    def __post_init__(self) -> None:
        """Checks and freezes the records."""
        records = check_records(self.lang, self.document, values=self.values, weights=self.weights)
        one_of("unit", self.unit, FRAME_UNITS)
        in_range("confidence", self.confidence, above=0, below=1)
        whole("resamples", self.resamples, least=200)
        whole("seed", self.seed, least=0)
        for name, array in records.items():
            object.__setattr__(self, name, array)

    @classmethod
    def from_nll(
        cls,
        lang: ArrayLike,
        document: ArrayLike,
        *,
        reference: ArrayLike,
        quantized: ArrayLike,
        tokens: ArrayLike,
        size_bytes: ArrayLike,
        **settings: Unpack[FrameSettings],
    ) -> "LanguageFrame":
        """Returns the frame of the added loss (quantized − reference) of total NLLs in nats per document.

        The units are those of `from_nats`.
        """
        before = nonnegative_array("reference", reference, ndim=1)
        after = nonnegative_array("quantized", quantized, ndim=1)
        same_shape("quantized", after.shape, "the shape of reference", before.shape)
        return cls.from_nats(lang, document, nats=after - before, tokens=tokens, size_bytes=size_bytes, **settings)

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

        bits_per_byte: nats / (ln 2 · bytes), comparable across languages; nats_per_token: nats / tokens;
        nats_per_section: nats / documents, comparable where they are the same content in every language.
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

    @cached_property
    def languages(self) -> tuple[str, ...]:
        """The language codes, sorted."""
        return tuple(str(code) for code in np.unique(self.lang))

    @property
    def without_interval(self) -> Mapping[str, str]:
        """The languages for which no interval can be formed, and the reason for each."""
        return self._draws.without_interval

    @property
    def replicates(self) -> Replicates:
        """The bootstrap replicates of the languages with enough documents; drawn once."""
        return self._draws.replicates

    @property
    def bounded(self) -> Replicates:
        """The replicates of the languages that have an interval, which all other results use."""
        return self._draws.bounded

    def by_language(self, *, simultaneous: bool = False) -> dict[str, Estimate]:
        """Returns the damage of each language; n is its number of documents.

        The limits are bootstrap-t limits of each language by itself; with `simultaneous` they are max-T limits,
        which hold for all languages at once.
        """
        drawn = self.bounded if simultaneous else self.replicates
        low, high = simultaneous_limits(drawn, self.confidence) if simultaneous else self._draws.limits
        numbers = zip(drawn.languages, drawn.value, low, high, drawn.documents, strict=True)
        found = {
            lang: estimate_within(float(v), float(a), float(b), n=int(n), confidence=self.confidence)
            for lang, v, a, b, n in numbers
        }
        return {lang: found[lang] if lang in found else self._draws.plain(lang) for lang in self.languages}

    def language(self, lang: str) -> Estimate:
        """Returns the damage of one language."""
        if lang not in self.languages:
            raise InputError(f"language {lang!r} is not in the frame; it holds {', '.join(self.languages)}")
        return self.by_language()[lang]

    def worst(self) -> tuple[str, Estimate]:
        """Returns the most damaged language and an estimate of the largest damage, corrected for selection.

        The value is less than that language's own estimate: see `fairbits.stats.worst_language.worst_of`.
        """
        return worst_of(self.bounded, confidence=self.confidence) if self.bounded.languages else self._extreme(max)

    def best(self) -> tuple[str, Estimate]:
        """Returns the least damaged language and an estimate of the least damage, corrected for selection."""
        return best_of(self.bounded, confidence=self.confidence) if self.bounded.languages else self._extreme(min)

    def mean(self) -> Estimate:
        """Returns the unweighted mean damage of the languages; n is the number of distinct documents."""
        size = len(self.bounded.languages)
        if not size:
            return self._over_all(float(np.mean(self._values)))
        value, low, high = combination(self.bounded, np.full(size, 1 / size), self.confidence)
        return estimate_within(value, low, high, n=self.bounded.clusters, confidence=self.confidence)

    def mean_p(self) -> float:
        """Returns the two-sided p of a mean of 0: below 0.05 where the 95 % interval of `mean` excludes 0.

        It is 1 if no language has an interval.
        """
        size = len(self.bounded.languages)
        return combination_p(self.bounded, np.full(size, 1 / size)) if size else 1.0

    def gap(self) -> Estimate:
        """Returns the worst minus the best damage, corrected for noise; n is the number of distinct documents.

        If fewer than 2 of several languages have an interval, it is the plain difference over all, without an interval.
        """
        return self._range("shrinkage")

    def plain_gap(self) -> Estimate:
        """Returns the largest minus the smallest estimate, uncorrected; the interval is that of the true range."""
        return self._range("naive")

    def ratio(self) -> Estimate:
        """Returns the worst divided by the best damage: exp of the bias-corrected range of log damage.

        Raises if the interval of the best language reaches 0, because the ratio is then unbounded.
        """
        lang, best = self.best()
        if best.low <= 0:
            raise InputError(
                f"the smallest damage ({lang}: {best}) may be 0, so the ratio is unbounded; "
                "its interval must lie above 0: report gap() instead, or give more documents"
            )
        log = bias_corrected_range(self.bounded.logarithm(), confidence=self.confidence)
        return log.transform(np.exp)

    def spread(self) -> Estimate:
        """Returns the standard deviation of true damage between languages; n is their number."""
        if self._too_few_to_compare:
            return Estimate.without_interval(float(np.std(self._values, ddof=1)), len(self.languages), self.confidence)
        return random_effects_sd(self.bounded, confidence=self.confidence)

    def minus(self, other: "LanguageFrame") -> "LanguageFrame":
        """Returns the frame of this one's damage minus the other's, paired by document.

        Positive values mean that this frame is damaged more. Both frames must hold the same documents with the same
        weights.
        """
        order, match = pair_records(self, instance("other", other, LanguageFrame))
        return replace(
            self,
            lang=self.lang[order],
            document=self.document[order],
            values=self.values[order] - other.values[match],
            weights=self.weights[order],
        )

    def worst_minus(self, other: "LanguageFrame") -> Estimate:
        """Returns this frame's largest damage minus the other's, each in its own worst language, paired by document.

        Both are corrected for selection, as in `worst`; the interval covers whichever languages are the worst.
        """
        order, match = pair_records(self, instance("other", other, LanguageFrame))
        joint = draw_jointly(self, order, others=other.values[match])
        if not joint.languages:
            return self._over_all(self.worst()[1].value - other.worst()[1].value)
        return worst_difference(joint, confidence=self.confidence)

    def contrast(self, other: "LanguageFrame", *, simultaneous: bool = False) -> Contrast:
        """Returns this frame's damage minus the other's per language, paired by document, with Holm p values.

        The test is slightly liberal: with 40 documents of skewed damage it rejects 6 % of equal methods at 0.05.
        """
        return contrast_of(self.minus(other), simultaneous=simultaneous)

    def to_pandas(self) -> "pandas.DataFrame":
        """Returns a table with the damage of every language, its limits and its number of documents, worst first."""
        return pandas_of(self.by_language())

    def plot(self, title: str = "Damage of every language") -> Figure:
        """Returns a figure of the damage of every language, worst first, which a notebook shows."""
        return figure_of_series({"damage": self.by_language()}, title=title, unit=self.unit)

    def tables(self) -> list[Table]:
        """Returns the damage of every language, then worst, mean and gap."""
        return [table_of(self)]

    @cached_property
    def _draws(self) -> Draws:
        return draw_languages(self)

    @property
    def _values(self) -> list[float]:
        return list(self._draws.values.values())

    @property
    def _too_few_to_compare(self) -> bool:
        """Whether there are several languages, but not two with an interval."""
        return len(self.bounded.languages) < 2 <= len(self.languages)

    def _range(self, method: str) -> Estimate:
        if self._too_few_to_compare:
            return self._over_all(float(np.ptp(self._values)))
        return bias_corrected_range(self.bounded, confidence=self.confidence, method=method)

    def _extreme(self, choose: Callable[..., str]) -> tuple[str, Estimate]:
        lang = choose(self.languages, key=self._draws.values.__getitem__)
        return lang, self._draws.plain(lang)

    def _over_all(self, value: float) -> Estimate:
        """Returns a number over all languages and documents, without an interval."""
        return Estimate.without_interval(value, len(np.unique(self.document)), self.confidence)


NAMED = 5
"""Languages that a note names at most."""


def interval_notes(frame: "LanguageFrame", shown: Mapping[str, Estimate | None] | None = None) -> tuple[str, ...]:
    """Returns notes on the languages without an interval, and on `shown` statistics of all languages without one."""
    codes: dict[str, list[str]] = {}
    for code, reason in frame.without_interval.items():
        codes.setdefault(reason, []).append(code)
    reasons = "; ".join(f"{_listed(each)}: {reason}" for reason, each in codes.items())
    if len(frame.without_interval) == len(frame.languages):
        return (f"no language has an interval, so worst, best, mean and gap have none either ({reasons})",)
    notes = [
        f"no interval for {_listed(each)}: {reason}; left out of worst, best, mean and gap"
        for reason, each in codes.items()
    ]
    missing = [name for name, each in (shown or {}).items() if each is not None and not each.bounded]
    if missing:
        notes.append(f"no interval for {', '.join(missing)}: {why_none_over_languages(frame)}")
    return tuple(notes)


def why_none_over_languages(frame: "LanguageFrame") -> str:
    """Returns why a statistic of all languages has no interval."""
    if len(frame.languages) - len(frame.without_interval) < 2 <= len(frame.languages):
        return "fewer than 2 languages have an interval"
    return "there are too few documents per language for this many languages"


def _listed(codes: list[str]) -> str:
    """Returns the first codes, and how many more there are.

    >>> _listed(["a", "b"]), _listed(list("abcdefg"))
    ('a, b', 'a, b, c, d, e and 2 more')
    """
    more = len(codes) - NAMED
    return ", ".join(codes[:NAMED]) + (f" and {more} more" if more > 0 else "")
