"""Scores for a terminal of 80 columns: the damage of every language, the worst first, and the disparity."""

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbits.cli.table_parts import (
    bar,
    columns,
    formatter,
    interval_text,
    language_name,
    notes_section,
    section,
    unit_of,
    worst_first,
)
from fairbits.core.checks import instance
from fairbits.core.errors import count_of, printable
from fairbits.core.units import MEASURES, megabytes
from fairbits.evaluation.disparity import Disparity
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import TASK_NAMES
from fairbits.text.language_codes import language_from_code

LEGEND = (
    "Divergence: KL from the reference model's predictions, with 95 % intervals over documents. Loss: added bits per "
    "byte. Same top: tokens whose most probable prediction is unchanged. Recovery: bits per byte before / after."
)
TOKENS_LEGEND = (
    "KL per token in nats: median and upper percentiles. Margin: how much the reference's first choice gains or loses "
    "on the next best token, in nats; the 1st percentile shows the tokens that suffer most."
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
        *section("Per token", _tokens(scores)),
        *section("Over languages", _disparity(scores)),
        *notes_section([*scores.notes, *scores.interval_notes]),
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
    """Returns one row per language, the most damaged first."""
    damage, added = (scores.frame(measure=measure).by_language() for measure in MEASURES)
    top = max(each.value for each in damage.values())
    factor, prefix = unit_of(top)
    number, limit = formatter(top * factor), formatter(top * factor, 3)
    loss = formatter(max(abs(each.value) for each in added.values()) * factor, 3)
    table = columns(
        *("\nlanguage", "\ncode", f"divergence, {prefix}bits/byte\n(95 % interval)", ""),
        *("\nloss", "same\ntop", "\nrecovery"),
        left=(1, 2, 3),
    )
    for code in worst_first(damage):
        own = damage[code]
        interval = f" {interval_text(own, factor=factor, limit=limit)}"
        table.add_row(
            language_name(code),
            Text(code, style="dim"),
            Text.assemble(number(own.value * factor), (interval, "dim")),
            bar(own.value, top),
            loss(added[code].value * factor),
            f"{1 - scores.flips[code].value:.1%}",
            f"{scores.recovery[code]:.1%}",
        )
    return table


def _tokens(scores: Scores) -> Iterator[RenderableType]:
    """Yields percentiles of divergence and margin, one row per language."""
    table = columns("", "KL 50 %", "95 %", "99 %", "99.9 %", "margin 50 %", "1 %")
    for code in worst_first(scores.frame().by_language()):
        own = scores.percentiles[code]
        numbers = (own.kl_p50, own.kl_p95, own.kl_p99, own.kl_p99_9, own.margin_p50, own.margin_p1)
        table.add_row(code, *(f"{each:.4f}" for each in numbers))
    yield table
    yield Text(TOKENS_LEGEND, style="dim")


def _disparity(scores: Scores) -> Iterator[RenderableType]:
    """Yields worst, best, mean, gap, ratio and deviation of both measures, then a line per parallel section."""
    found = [scores.disparity(measure=measure) for measure in MEASURES]
    scales = [_scale(each) for each in found]
    names = ("divergence", "loss")
    heads = (f"{name}, {prefix}bits/byte" for (_, prefix), name in zip(scales, names, strict=True))
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
            f"{prefix}nats of divergence per parallel section: ".capitalize(),
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
    top = times * max(abs(each) for each in (own.value, own.low, own.high) if math.isfinite(each))
    number, limit = formatter(top), formatter(top, 3)
    interval = interval_text(own, factor=times, limit=limit)
    return Text.assemble(number(times * own.value), (f" {interval}", "dim"), f" {_short_name(code)}" if code else "")


def _short_name(code: str) -> str:
    """Returns the code without its script; the name itself might run from right to left."""
    return code.partition("_")[0] if language_from_code(code).script else code
