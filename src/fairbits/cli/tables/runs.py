"""The runs of many models for a terminal: one row per model."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.cli.tables.layout import columns, formatter, interval_text, notes_section, unit_of
from fairbits.cli.tables.run import as_data
from fairbits.errors import printable
from fairbits.stats import Estimate
from fairbits.units import megabytes
from fairbits.verbs.run.many import FinishedRuns

LEGEND = "Divergence from the reference model with 95 % confidence intervals over documents. DIR/report.html has more."


def runs_table(found: FinishedRuns) -> Group:
    """Returns worst language, mean and size of every model, and why the others failed."""
    results = {name: each.scores.disparity() for name, each in found.runs.items()}
    top = max((abs(each.worst[1].value) for each in results.values()), default=1.0)
    factor, prefix = unit_of(top)
    number, limit = formatter(top * factor), formatter(top * factor, 3)

    def cell(estimate: Estimate) -> Text:
        interval = interval_text(estimate, factor=factor, limit=limit)
        return Text.assemble(number(estimate.value * factor), (f" {interval}", "dim"))

    table: Table = columns("model", "worst language", "mean", "size", left=(1, 2))
    for name, each in found.runs.items():
        code, worst = results[name].worst
        size = megabytes(each.scores.quantized.size_bytes, decimals=2)
        row = Text.assemble(cell(worst), f" {code.partition('_')[0]}"), cell(results[name].mean), size
        table.add_row(Text(printable(name), style="bold cyan"), *row)
    for name in found.failed:
        table.add_row(Text(printable(name), style="bold cyan"), Text("failed", style="red"), "", "")
    return Group(
        Text(f"divergence, {prefix}bits per byte".replace("  ", " "), style="bold"),
        "",
        table,
        Text(LEGEND, style="dim"),
        *notes_section(f"{name}: {problem}" for name, problem in found.failed.items()),
    )


def runs_data(found: FinishedRuns) -> dict[str, object]:
    """Returns the runs by name, and the errors of those that failed, for JSON."""
    return {
        "runs": {name: as_data(each) for name, each in found.runs.items()},
        "failed": {name: str(problem) for name, problem in found.failed.items()},
    }
