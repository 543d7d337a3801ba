"""The experts of an audited model for a terminal: which of them get little calibration text of a language."""

from collections.abc import Iterable, Iterator

from rich.table import Table
from rich.text import Text

from fairbits.cli.tables.layout import columns
from fairbits.errors import count_of
from fairbits.language.lookup import language_of
from fairbits.measure.audit.expert_use import LEAST_POSITIONS, ExpertUse, Shortage

SHOWN = 3
"""Blocks and languages that are listed."""
EXPLANATION = (
    f"Starved: fewer than {LEAST_POSITIONS} positions of calibration text, from which the mean square of an input has "
    "a standard error of 25 % or more. Calibration then hardly knows what the expert does for the language. An expert "
    "that the language never reaches cannot harm it; to see which it is, raise --tokens."
)


def experts_section(found: ExpertUse) -> Iterator[Text]:
    """Yields how many experts are starved of a language, and the worst blocks and languages."""
    sizes = {each.counts.shape[1] for each in found.blocks}
    per_position = {each.per_position for each in found.blocks}
    shares = found.even_share()
    yield Text(
        f"{_range(sizes)} experts in each of {count_of(len(found.blocks), 'block')}, {_range(per_position)} per "
        f"position; on average an expert gets {_span(shares.min(), shares.max())} positions of a language."
    )
    starved, empty = int(found.starved().sum()), int(found.starved(1).sum())
    pairs = f"{starved:,} of {found.pairs:,} pairs of expert and language ({starved / found.pairs:.1%})"
    yield Text(f"{pairs} are starved; {empty:,} of them get no text.", style="yellow" if starved else "")
    shortages = found.shortages()
    for each in shortages[:SHOWN]:
        yield Text(_sentence(each))
    if len(shortages) > SHOWN:
        yield Text(f"… and {count_of(len(shortages) - SHOWN, 'other pair')} of block and language.", style="dim")
    unreached = sum(found.unreached.values())
    if unreached:
        verb = "gets" if unreached == 1 else "get"
        yield Text(f"{count_of(unreached, 'expert')} {verb} no text of any language, and would be rounded to nearest.")
    if starved:
        yield Text(EXPLANATION, style="dim")


def experts_table(found: ExpertUse, order: Iterable[str]) -> Table:
    """Returns for every language how many of all experts get little of its text."""
    starved, empty, shares = found.starved().sum(1), found.starved(1).sum(1), found.even_share()
    table = columns("language", f"under {LEAST_POSITIONS} positions", "no text", "mean positions of an expert")
    for code in order:
        row = found.languages.index(code)
        share = _span(shares[row].min(), shares[row].max())
        table.add_row(language_of(code).name, f"{starved[row]:,}", f"{empty[row]:,}", share)
    return table


def _sentence(found: Shortage) -> str:
    name = language_of(found.language).name
    if not found.empty:
        return f"Block {found.block}: {found.starved} of {found.experts} experts are starved of {name}."
    rest = f"; {found.starved} are starved" if found.starved > found.empty else ""
    verb = "gets" if found.empty == 1 else "get"
    return f"Block {found.block}: {found.empty} of {found.experts} experts {verb} no token of {name}{rest}."


def _range(values: set[int]) -> str:
    return _span(min(values), max(values))


def _span(least: float, most: float) -> str:
    low, high = f"{least:,.0f}", f"{most:,.0f}"
    return low if low == high else f"{low} to {high}"
