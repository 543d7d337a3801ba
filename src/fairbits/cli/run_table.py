"""The results of a run for a terminal of 80 columns: every language under the baseline and the policy.

The runs of many models for a terminal: one row per model.
"""

from collections.abc import Callable, Iterator
from shlex import quote

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbits.api.run import FinishedRun
from fairbits.api.run.many_models import FinishedRuns
from fairbits.cli.table_parts import (
    columns,
    formatter,
    interval_text,
    language_name,
    notes_section,
    unit_of,
    worst_first,
)
from fairbits.core.errors import count_of, printable
from fairbits.core.units import megabytes
from fairbits.evaluation.scores import Scores
from fairbits.stats.intervals import Estimate

Cell = Callable[[Estimate], Text]
LEGEND = (
    "Divergence from the reference model, with 95 % confidence intervals over documents. better, worse: significant "
    "paired differences, Holm-corrected. worst, gap: corrected for selection."
)


def run_table(found: FinishedRun) -> Group:
    """Returns the damage of every language, a summary, and the notes."""
    names, scores = [*list(found.baselines)[:1], found.policy], [*list(found.baselines.values())[:1], found.scores]
    top = max(abs(each.value) for one in scores for each in one.frame().by_language().values())
    factor, prefix = unit_of(top)
    return Group(
        *_heading(found.scores, f"divergence, {prefix}bits per byte".replace("  ", " ")),
        "",
        _languages(names, scores, cell=_cell(top, factor)),
        "",
        _summary(names, scores, cell=_cell(top, factor)),
        Text(LEGEND, style="dim"),
        *notes_section(_notes(found)),
    )


def next_steps(found: FinishedRun) -> Iterator[Text]:
    """Yields the path of the report, a gate command without its limit, and what to weigh before choosing one."""
    frame = found.scores.frame()
    code, worst = frame.worst()
    yield Text(f"report: {printable(str(found.page))}")
    if frame.without_interval or not worst.bounded:
        return  # no limit is certainly met
    yield Text(f"next:   fairbits gate {printable(quote(str(found.directory / 'scores.json')))} --max-worst LIMIT")
    changed = f"the first choice changed in {found.scores.flips[code].value:.1%} of its tokens"
    yield Text(
        f"        Choose the limit. {language_name(code)} is worst: {worst.value:.2g} bits per byte;", style="dim"
    )
    yield Text(f"        {changed}.", style="dim")


def as_data(found: FinishedRun) -> dict[str, object]:
    """Returns the paths of the results and the headline of the report, for JSON."""
    return {
        "directory": str(found.directory.absolute()),
        "report": str(found.page),
        "policy": found.policy,
        "baselines": list(found.baselines),
        "headline": found.report.content["headline"],
        "notes": list(found.notes),
    }


def _heading(scores: Scores, unit: str) -> Iterator[Text]:
    asked = scores.question
    amounts = f"{count_of(len(scores.languages), 'language')}, {count_of(len(scores.documents.lang), 'document')}"
    yield Text.assemble((printable(scores.reference.target), "bold cyan"), "  ", (unit, "bold"))
    yield Text(printable(f"{asked.split} text of {asked.corpus}: {amounts}"), style="dim")


def _languages(names: list[str], scores: list[Scores], *, cell: Cell) -> Table:
    """Returns one row per language, the worst of the quantized model first."""
    added = [each.frame().by_language() for each in scores]
    marks = _marks(*scores) if len(scores) == 2 else {}
    table = columns("language", "code", *map(printable, names), "", left=tuple(range(1, 5)))
    for code in worst_first(added[-1]):
        word = marks.get(code, "")
        mark = Text(word, style={"better": "green", "worse": "red"}.get(word, ""))
        table.add_row(language_name(code), Text(code, style="dim"), *(cell(each[code]) for each in added), mark)
    return table


def _summary(names: list[str], scores: list[Scores], *, cell: Cell) -> Table:
    """Returns worst, gap and mean over languages and the size, one column per policy."""
    found = [each.disparity() for each in scores]
    table = columns("", *map(printable, names), left=(1, 2))
    table.columns[0].no_wrap = True
    worst = (Text.assemble(cell(each.worst[1]), f" {each.worst[0].partition('_')[0]}") for each in found)
    table.add_row("worst", *worst)
    table.add_row("gap", *("–" if each.gap is None else cell(each.gap) for each in found))
    table.add_row("mean", *(cell(each.mean) for each in found))
    table.add_row("size", *map(_size, scores))
    return table


def _marks(before: Scores, after: Scores) -> dict[str, str]:
    """Returns the languages whose damage is significantly smaller or larger than before."""
    significant = after.contrast(before).significant()
    return {code: "better" if each.value < 0 else "worse" for code, each in significant.items()}


def _notes(found: FinishedRun) -> dict[str, None]:
    """Returns the notes on the run, the quantized model and the first baseline, each once."""
    shown = [found.scores, *list(found.baselines.values())[:1]]
    notes = (note for scores in shown for note in (*scores.notes, *scores.interval_notes))
    return dict.fromkeys([*found.notes, *notes])


def _size(scores: Scores) -> RenderableType:
    own = scores.quantized.size_bytes
    return f"{megabytes(own, decimals=2)}, {own / scores.reference.size_bytes:.0%} of the model"


def _cell(top: float, factor: float) -> Cell:
    """Returns a function that writes an estimate with its interval; the largest estimate is `top`."""
    number, limit = formatter(top * factor), formatter(top * factor, 3)

    def cell(found: Estimate) -> Text:
        interval = interval_text(found, factor=factor, limit=limit)
        return Text.assemble(number(found.value * factor), (f" {interval}", "dim"))

    return cell


MODELS_LEGEND = (
    "Divergence from the reference model with 95 % confidence intervals over documents. DIR/report.html has more."
)


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
        Text(MODELS_LEGEND, style="dim"),
        *notes_section(f"{name}: {problem}" for name, problem in found.failed.items()),
    )


def runs_data(found: FinishedRuns) -> dict[str, object]:
    """Returns the runs by name, and the errors of those that failed, for JSON."""
    return {
        "runs": {name: as_data(each) for name, each in found.runs.items()},
        "failed": {name: str(problem) for name, problem in found.failed.items()},
    }
