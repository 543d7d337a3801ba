"""How a comparison is shown: as a table, a pandas DataFrame and a figure."""

from typing import TYPE_CHECKING, Any

from fairbits.display.figure import Figure
from fairbits.display.table import Table, data_frame
from fairbits.stats.estimates_display import cells, estimate_columns, figure_of_series
from fairbits.units import MEASURE_LABELS, readable_size

if TYPE_CHECKING:
    import pandas

    from fairbits.verbs.comparison import Comparison


def table_of(comparison: "Comparison") -> Table:
    """Returns worst, mean, gap and best of every policy and width, with the limits of the worst."""
    rows = []
    for entry in comparison.entries:
        own = entry.statistics
        worst = (entry.frame.worst()[0], *cells(own["worst"]))
        others = (cells(own[name])[0] for name in ("mean", "gap", "best"))
        rows.append((entry.policy, str(entry.bits), *worst, *others, readable_size(entry.size_bytes)))
    measure, unit = MEASURE_LABELS[comparison.measure], comparison.unit.replace("_", " ")
    return Table(
        f"{comparison.model}: {measure} in {unit}, 95% intervals over documents",
        ("policy", "bits", "worst language", "worst", "low", "high", "mean", "gap", "best", "size"),
        tuple(rows),
        comparison.notes,
    )


def pandas_of(comparison: "Comparison") -> "pandas.DataFrame":
    """Returns one row per policy, width and language."""
    found = [(entry, code, each) for entry in comparison.entries for code, each in entry.frame.by_language().items()]
    columns: dict[str, list[Any]] = {
        "policy": [entry.policy for entry, _, _ in found],
        "bits": [entry.bits for entry, _, _ in found],
        "language": [code for _, code, _ in found],
        **estimate_columns("damage", (each for _, _, each in found)),
        "documents": [each.n for _, _, each in found],
        "size_bytes": [entry.size_bytes for entry, _, _ in found],
    }
    return data_frame(columns)


def figure_of(comparison: "Comparison") -> Figure:
    """Returns the damage of every language under every policy, worst first by the first of them."""
    series = {f"{entry.policy}, {entry.bits} bits": entry.frame.by_language() for entry in comparison.entries}
    title = f"{MEASURE_LABELS[comparison.measure].capitalize()} of every language"
    return figure_of_series(series, title=title, unit=comparison.unit)
