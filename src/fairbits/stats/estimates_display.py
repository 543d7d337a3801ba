"""How the damage of languages is shown: as a table, a pandas DataFrame and a figure, worst first."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from fairbits.display.figure import Figure, dots
from fairbits.display.table import Table, data_frame, number
from fairbits.stats.intervals import Estimate

if TYPE_CHECKING:
    import pandas

    from fairbits.stats.frame import LanguageFrame


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
