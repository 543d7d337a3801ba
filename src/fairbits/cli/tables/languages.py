"""Languages and calibration sets for a terminal of 80 columns, and how the names of languages were understood."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from rich.table import Table

from fairbits.language.catalog import Language, find_language, resolve
from fairbits.language.declaration import udhr_languages
from fairbits.language.detect import detectable_languages
from fairbits.language.mix_file import Mix


def language_notes(names: Iterable[str]) -> list[str]:
    """Returns a note on each name that is not a code: which language it was taken to mean.

    >>> language_notes(["he", "fra_Latn"])
    ['he → Hebrew, heb_Hebr (BCP-47 code)']
    """
    found = [resolve(name) for name in names]
    return [
        f"{each.given} → {each.language.name}, {each.language.code} ({each.because})"
        for each in found
        if each.given != each.language.code
    ]


def mix_table(mix: Mix) -> Table:
    """Returns one row per language with its samples, tokens, bytes per token and share of the tokens."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=len(mix.languages) > 1)
    total = sum(part.tokens for part in mix.languages.values())
    table.add_column("language", overflow="ellipsis", no_wrap=True, footer="all")
    table.add_column("code", no_wrap=True)
    table.add_column("samples", justify="right", footer=f"{len(mix.samples):,}")
    table.add_column("tokens", justify="right", footer=f"{total:,}")
    table.add_column("bytes/token", justify="right")
    table.add_column("share", justify="right")
    for code, part in mix.languages.items():
        share = f"{part.tokens / total:.1%}"
        row = (f"{part.samples:,}", f"{part.tokens:,}", f"{part.bytes_per_token:.2f}", share)
        table.add_row(find_language(code).name, code, *row)
    return table


def language_data(languages: Iterable[Language]) -> list[dict[str, Any]]:
    """Returns the facts about each language for JSON, with what fairbits brings for it.

    >>> language_data([find_language("he")])[0]["detected"]
    True
    """
    with_text, detected = set(udhr_languages()), set(detectable_languages())
    return [
        {**asdict(each), "right_to_left": each.right_to_left, "text": each in with_text, "detected": each in detected}
        for each in languages
    ]


def language_table(languages: Iterable[Language]) -> Table:
    """Returns one row per language with its facts and what fairbits brings for it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("code", "BCP-47", "language", "autonym", "family", "text", "detected"):
        table.add_column(name, no_wrap=name in ("code", "BCP-47"), overflow="fold")
    for row in language_data(languages):
        marks = ("✓" if row[name] else "–" for name in ("text", "detected"))
        table.add_row(row["code"], row["bcp47"], row["name"], row["autonym"], row["family"], *marks)
    return table
