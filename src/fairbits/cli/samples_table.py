"""What languages lost in a task, for a terminal of 80 columns: the largest loss first, and what chance would give."""

from collections.abc import Callable

from rich.console import Group
from rich.table import Table
from rich.text import Text

from fairbits.cli.table_parts import columns, interval_text, language_name
from fairbits.core.errors import count_of, printable
from fairbits.evaluation.lm_eval.gate_samples import LEVEL, LanguageLoss, SamplesGateResult

ITEMS_LEGEND = (
    "Loss: before minus after, in points of 100, with Tango's 95 % interval. p: McNemar's exact test, corrected for "
    "the number of languages (Holm). Noise: what chance alone exceeds in one of 20 cases. Recovery: after / before."
)
BOOTSTRAP_LEGEND = (
    "Loss: how much worse it is after, with bootstrap-t 95 % intervals. p: paired bootstrap, corrected for the "
    "number of languages (Holm). Noise: what chance alone exceeds in one of 20 cases."
)


def samples_table(found: SamplesGateResult) -> Group:
    """Returns the scores of every language before and after, and what the worst would lose by chance."""
    items = found.verdict.unit == "per_item"
    percent = items and all(row.lost is not None for row in found.languages)
    factor, number = (100.0, "{:.1f}".format) if percent else (1.0, "{:.4f}".format)
    tasks = sorted({name for names in found.tasks.values() for name in names})
    counted = f"{count_of(len(found.languages), 'language')}, {count_of(len(tasks), 'task')}"
    chance, (code, worst) = found.worst_by_chance * factor, found.worst
    return Group(
        Text.assemble((printable(found.verdict.target), "bold cyan"), f"  {found.metric}, {counted}"),
        "",
        _languages(found, factor, number),
        Text(ITEMS_LEGEND if percent else BOOTSTRAP_LEGEND, style="dim"),
        "",
        Text(
            f"worst {number(worst.value * factor)} {interval_text(worst, factor=factor, limit=number)} {code}, mean "
            f"{number(found.mean.value * factor)} {interval_text(found.mean, factor=factor, limit=number)}; if nothing "
            f"had changed, the worst language would seem to lose {number(chance)}"
        ),
    )


def _languages(found: SamplesGateResult, factor: float, number: Callable[[float], str]) -> Table:
    table = columns(
        "language", "code", "n", "before", "after", "loss (95 % interval)", "p", "noise", "recovery", left=(1,)
    )
    for row in found.languages:
        style = "red" if row.p_holm < LEVEL and row.loss.value > 0 else ""
        table.add_row(
            language_name(row.language),
            Text(row.language, style="dim"),
            f"{row.items:,}",
            number(row.before * factor),
            number(row.after * factor),
            Text.assemble(
                (number(row.loss.value * factor), style),
                (f" {interval_text(row.loss, factor=factor, limit=number)}", "dim"),
            ),
            _p(row),
            "–" if row.noise is None else number(row.noise * factor),
            "–" if row.recovery is None else f"{row.recovery:.1%}",
        )
    return table


def _p(row: LanguageLoss) -> str:
    """Returns the corrected p, short."""
    return "<.001" if row.p_holm < 0.001 else f"{row.p_holm:.3f}".removeprefix("0")
