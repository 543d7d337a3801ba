"""Overlays for a terminal of 80 columns: their content, the gain of every language, and the numbers tried."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from fairbits.cli.table_parts import columns, formatter, language_name, section, unit_of
from fairbits.core.checks import instance
from fairbits.core.errors import count_of, printable
from fairbits.core.units import megabytes
from fairbits.serve.overlays.overlay_files import Overlay, Overlays

LEGEND = "KL: divergence from the original model on held-out calibration text."
BEFORE_ROUNDING = "KL was measured before inputs were rounded."


def overlay_table(found: Overlays) -> Group:
    """Returns the overlays, what every language gains, and the numbers of clusters that were tried."""
    instance("found", found, Overlays)
    return Group(
        *_heading(found),
        "",
        _overlays(found),
        *section("Languages", _languages(found)),
        *section("Clusters", [_clusters(found.record)]),
    )


def _heading(found: Overlays) -> Iterator[Text]:
    record, size = found.record, found.size_bytes
    text = record["text"]
    together = f"{megabytes(size)}, {size / record['base_bytes']:.1%} of {megabytes(record['base_bytes'])}"
    count = count_of(len(_groups(found)), "overlay")
    yield Text.assemble((printable(record["model"]), "bold cyan"), "  ", (f"{count}, {together}", "bold"))
    yield Text(f"{record['form']} rows, at most {record['budget']:.1%} of the base each", style="dim")
    amount = f"{count_of(len(found.languages), 'language')}, {text['tokens']:,} tokens each, seed {text['seed']}"
    yield Text(printable(f"calibration text of {text['corpus']}: {amount}"), style="dim")
    if found.activations is not None:
        table = found.activations
        points = count_of(len(table.points), "input")
        yield Text(f"{points} rounded to {table.bits} bits, thresholds for every language: {table.extra_bytes:,} bytes")


def _groups(found: Overlays) -> list[tuple[str, list[str], Overlay]]:
    """Returns one entry per stored file: its name, its languages, and one of the overlays that share its rows."""
    groups: dict[int, list[Overlay]] = {}
    for each in found.overlays:
        if each.patches:
            groups.setdefault(id(each.patches), []).append(each)
    serving = {
        name: [code for code, own in found.languages.items() if own == name] for name in found.languages.values()
    }
    return [
        (own[0].name, [code for each in own for code in serving.get(each.name, [])], own[0]) for own in groups.values()
    ]


def _overlays(found: Overlays) -> RenderableType:
    """Returns one row per stored set of rows."""
    groups = _groups(found)
    if not groups:
        return Text("No overlay serves any language better than the base, so none was kept.")
    table = columns("overlay", "layers", "rows", "bytes", "of the base", "serves", left=(5,))
    table.columns[5].no_wrap = False
    for name, codes, own in groups:
        table.add_row(
            Text(printable(name)),
            str(len(own.patches)),
            f"{sum(patch.count for patch in own.patches):,}",
            f"{own.size_bytes:,}",
            f"{own.size_bytes / found.record['base_bytes']:.1%}",
            ", ".join(map(language_name, codes)),
        )
    return table


def _languages(found: Overlays) -> Iterator[RenderableType]:
    """Yields one row per language, the most damaged first, and the languages that stay with the base."""
    apart: Mapping[str, Mapping[str, float]] = found.record["apart"]
    rows = {code: name for name, codes, _ in _groups(found) for code in codes}
    top = max(each for own in apart.values() for each in own.values())
    factor, prefix = unit_of(top)
    number = formatter(factor * top)
    table = columns(
        "\nlanguage", "\ncode", f"KL, {prefix}bits/byte\nbase", "\noverlay", "\nchange", "\nserved by", left=(1, 5)
    )
    for code in sorted(apart, key=lambda code: -apart[code]["base"]):
        before, after = apart[code]["base"], apart[code]["overlay"]
        table.add_row(
            language_name(code),
            Text(code, style="dim"),
            *(number(each * factor) for each in (before, after)),
            f"{after / before - 1:+.0%}" if before > 0 else "–",
            Text(printable(rows.get(code, "base")), style="" if code in rows else "yellow"),
        )
    yield table
    yield Text(LEGEND + (f" {BEFORE_ROUNDING}" if found.activations is not None else ""), style="dim")
    stay = [language_name(code) for code in apart if code not in rows]
    if stay:
        yield Text(f"Languages that stay with the base because no overlay helps: {', '.join(stay)}.")


def _clusters(record: Mapping[str, Any]) -> Table:
    """Returns one row per number of clusters that was tried."""
    tried: Mapping[str, Mapping[str, float]] = record["tried"]
    factor, prefix = unit_of(max(each["worst"] for each in tried.values()))
    number = formatter(factor * max(each["worst"] for each in tried.values()))
    table = columns("clusters", f"worst KL, {prefix}bits/byte", "mean", "", left=(3,))
    for count, each in tried.items():
        chosen = "chosen" if int(count) == record["clusters"] else ""
        table.add_row(count, number(each["worst"] * factor), number(each["mean"] * factor), Text(chosen, style="green"))
    return table
