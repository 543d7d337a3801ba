"""Scores for a terminal of 80 columns: the damage of every language, the worst first, and the disparity."""

from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbits.checks import instance
from fairbits.cli.tables.layout import (
    bar,
    columns,
    formatter,
    language_name,
    notes_section,
    section,
    span,
    unit_of,
    worst_first,
)
from fairbits.errors import count_of, printable
from fairbits.language.lookup import language_of
from fairbits.measure.scores.disparity import Disparity
from fairbits.measure.scores.scores import TASK_NAMES, Scores
from fairbits.units import megabytes

LEGEND = (
    "Added loss with 95 % intervals over documents; compare languages in bits per byte. PPL: perplexity per token. "
    "KL: divergence from the reference model in nats per token (its 99th percentile is in the JSON). flips: share of "
    "tokens whose most probable prediction changed."
)
ROWS = ("worst", "best", "mean", "gap", "plain_gap", "ratio", "deviation")
NAMES = {"gap": "gap, corrected", "plain_gap": "gap, plain", "ratio": "worst/best"}


def evaluate_table(scores: Scores) -> Group:
    """Returns the damage of every language, the disparity over languages, and the notes."""
    instance("scores", scores, Scores)
    return Group(
        *_heading(scores),
        "",
        _languages(scores),
        Text(LEGEND, style="dim"),
        *section("Over languages", _disparity(scores)),
        *notes_section(scores.notes),
    )


def _heading(scores: Scores) -> Iterator[Text]:
    asked, after, before = scores.question, scores.quantized, scores.reference
    least = min(each.n for each in scores.flips.values())
    amounts = (
        count_of(len(scores.languages), "language"),
        count_of(len(scores.documents.lang), "document"),
        count_of(int(scores.documents.tokens.sum()), "predicted token"),
    )
    share = f"{megabytes(after.size_bytes)}, {after.size_bytes / before.size_bytes:.0%} of the reference"
    yield Text.assemble((printable(after.target), "bold cyan"), "  ", (share, "bold"))
    yield Text(f"reference: {printable(before.target)}", style="dim")
    yield Text(printable(f"{asked.split} text of {asked.corpus}: {', '.join(amounts)}"), style="dim")
    yield Text(f"predicting {TASK_NAMES[asked.task]}; at least {count_of(least, 'document')} per language", style="dim")


def _languages(scores: Scores) -> Table:
    """Returns one row per language, worst first."""
    added, per_token = (scores.frame(unit).by_language() for unit in ("bits_per_byte", "nats_per_token"))
    top = max(abs(each.value) for each in added.values())
    factor, prefix = unit_of(top)
    number, limit = formatter(top * factor), formatter(top * factor, 3)
    nats = formatter(max(abs(each.value) for each in per_token.values()), 3)
    kl = formatter(max(each.value for each in scores.kl.values()), 3)
    table = columns(
        *("\nlanguage", "\ncode", f"added {prefix}bits/byte\n(95 % interval)", ""),
        *("nats\n/token", "added\nPPL", "\nKL", "\nflips"),
        left=(1, 2, 3),
    )
    for code in worst_first(added):
        own = added[code]
        interval = f" ({span(limit(own.low * factor), limit(own.high * factor))})"
        table.add_row(
            language_name(code),
            Text(code, style="dim"),
            Text.assemble(number(own.value * factor), (interval, "dim")),
            bar(own.value, top),
            nats(per_token[code].value),
            _percent(scores.relative_perplexity[code].value),
            kl(scores.kl[code].value),
            f"{scores.flips[code].value:.1%}",
        )
    return table


def _disparity(scores: Scores) -> Iterator[RenderableType]:
    """Yields worst, best, mean, gap, ratio and deviation per byte and per token, then a line per parallel section."""
    found = [scores.disparity(unit) for unit in ("bits_per_byte", "nats_per_token")]
    scales = [_scale(each) for each in found]
    heads = (f"{prefix}{unit}" for (_, prefix), unit in zip(scales, ("bits/byte", "nats/token"), strict=True))
    table = columns("", *heads, left=(1, 2))
    table.columns[0].no_wrap = True
    for row in ROWS:
        cells = [_cell(each, row, factor) for each, (factor, _) in zip(found, scales, strict=True)]
        if any(cells):
            table.add_row(NAMES.get(row, row), *(each or "–" for each in cells))
    yield table
    if any(each.ratio is None and each.gap is not None for each in found):
        yield Text(
            "The ratio is left out where the least damage may be 0. Gap: worst minus best.",
            style="dim",
        )
    if scores.question.parallel:
        section = scores.disparity("nats_per_section")
        factor, prefix = _scale(section)
        parts = [(name, _cell(section, name, factor)) for name in ("worst", "mean", "gap")]
        yield Text.assemble(
            f"{prefix}nats per parallel section: ".capitalize(),
            Text(", ").join(Text.assemble(f"{name} ", cell) for name, cell in parts if cell is not None),
        )


def _scale(found: Disparity) -> tuple[float, str]:
    """Returns a factor that makes the numbers short, and the prefix of their unit."""
    return unit_of(max(abs(found.worst[1].value), abs(found.best[1].value)))


def _cell(found: Disparity, row: str, factor: float) -> Text | None:
    """Returns a number with its interval and its language if it has one; None if there is no such number."""
    value = getattr(found, row)
    if value is None:
        return None
    code, own = value if isinstance(value, tuple) else ("", value)
    times = 1.0 if row == "ratio" else factor
    top = times * max(abs(own.value), abs(own.low), abs(own.high))
    number, limit = formatter(top), formatter(top, 3)
    interval = span(limit(times * own.low), limit(times * own.high))
    return Text.assemble(number(times * own.value), (f" ({interval})", "dim"), f" {_short_name(code)}" if code else "")


def _short_name(code: str) -> str:
    """Returns the code without its script; the name itself might run from right to left."""
    return code.partition("_")[0] if language_of(code).script else code


def _percent(value: float) -> str:
    """Returns a share in a few characters, however large it is.

    >>> _percent(0.0345), _percent(250.0)
    ('3.5%', '×251')
    """
    return f"{value:.1%}" if value < 10 else f"×{value + 1:.3g}"
