"""The verb `languages` on the command line.

Languages and calibration sets for a terminal of 80 columns, and how the names of languages were understood.
"""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from fairbits.cli import completion
from fairbits.cli.options import Json
from fairbits.cli.terminal import out, print_json, print_notes
from fairbits.text.catalog import Language
from fairbits.text.detect import detectable_languages
from fairbits.text.language_codes import language_from_code, resolve_language, user_codes
from fairbits.text.mix import Mix
from fairbits.text.reading import EMBEDDED


def languages(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Codes or names, such as he, heb, Hebrew; by default all languages.",
            metavar="NAME",
            autocompletion=completion.language,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List languages: code, name, family, and whether fairbits has text for them and detects them.

    Examples:
      fairbits languages
      fairbits languages he zh swahili
    """
    from fairbits.text.catalog import catalog
    from fairbits.text.language_codes import find_languages, unlisted_notes

    found = find_languages(names) if names else catalog()
    print_notes((*language_notes(names or ()), *unlisted_notes(found)))
    if as_json:
        print_json(language_data(found))
    else:
        out.print(language_table(found))


def language_notes(names: Iterable[str]) -> list[str]:
    """Returns a note on each name of a language in the catalog that is not its code: how it was understood.

    Names that the catalog does not hold are left to the text that has them.

    >>> language_notes(["he", "fra_Latn", "my-dialect"])
    ['he → Hebrew, heb_Hebr (BCP-47 code)']
    """
    names = list(names)
    found = [resolve_language(name, user_codes=user_codes(names)) for name in names]
    return [
        f"{each.name} → {each.language.name}, {each.language.code} ({each.because})"
        for each in found
        if each.language.listed and each.name != each.language.code
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
        row = (f"{part.samples:,}", f"{part.tokens:,}", f"{part.bytes / part.tokens:.2f}", share)
        table.add_row(language_from_code(code).name, code, *row)
    return table


def language_data(languages: Iterable[Language]) -> list[dict[str, Any]]:
    """Returns the facts about each language for JSON, which texts fairbits has in it, and whether it detects it.

    >>> [(each["texts"], each["detected"]) for each in language_data(map(language_from_code, ["fin_Latn", "heb_Hebr"]))]
    [(['declaration', 'help'], True), (['declaration'], True)]
    """
    with_text = {name: set(available()) for name, (_, available) in EMBEDDED.items()}
    detected = set(detectable_languages())
    rows = []
    for each in languages:
        texts = [name for name, those in with_text.items() if each in those]
        row = {"right_to_left": each.right_to_left, "text": bool(texts), "texts": texts, "detected": each in detected}
        rows.append({**asdict(each), **row})
    return rows


def language_table(languages: Iterable[Language]) -> Table:
    """Returns one row per language: its facts, and whether fairbits has text for it and detects it."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("code", "BCP-47", "language", "autonym", "family", "text", "detected"):
        table.add_column(name, no_wrap=name in ("code", "BCP-47"), overflow="fold")
    for row in language_data(languages):
        marks = ("✓" if row[name] else "–" for name in ("text", "detected"))
        facts = (row[name] or "–" for name in ("bcp47", "name", "autonym", "family"))
        table.add_row(row["code"], *facts, *marks)
    return table
