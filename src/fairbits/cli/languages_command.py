"""The command `languages` on the command line."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Annotated, Any

from fairbits.cli import completion, options
from fairbits.cli.terminal import print_json, print_notes, print_tables
from fairbits.core.table import Table
from fairbits.text.catalog import Language, catalog
from fairbits.text.detect import detectable_languages
from fairbits.text.language_codes import (
    find_languages,
    unlisted_notes,
)
from fairbits.text.reading import EMBEDDED


def languages(
    names: Annotated[
        list[str] | None,
        options.argument(
            "Codes or names, such as he, heb, Hebrew; by default all languages.", "NAME", completion.language
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """List the languages that fairbits has names and codes for.

    It shows whether fairbits has text in a language, and whether it detects the language.

    Examples:
      fairbits languages
      fairbits languages he zh swahili
    """
    chosen = find_languages(names) if names else catalog()
    print_notes((*options.language_notes(names or ()), *unlisted_notes(chosen)))
    print_json(language_data(chosen)) if as_json else print_tables([language_table(chosen)])


def language_data(languages: Iterable[Language]) -> list[dict[str, Any]]:
    """Returns the facts about each language for JSON, which texts fairbits has in it, and whether it detects it."""
    with_text = {name: set(available()) for name, (_, available) in EMBEDDED.items()}
    detected = set(detectable_languages())
    rows = []
    for language in languages:
        texts = [name for name, available in with_text.items() if language in available]
        facts = {"right_to_left": language.right_to_left, "text": bool(texts), "texts": texts}
        rows.append({**asdict(language), **facts, "detected": language in detected})
    return rows


def language_table(languages: Iterable[Language]) -> Table:
    """Returns one row per language: its facts, and whether fairbits has text for it and detects it."""
    rows = tuple(
        (
            row["code"],
            *(row[name] or "–" for name in ("bcp47", "name", "autonym", "family")),
            *("✓" if row[name] else "–" for name in ("text", "detected")),
        )
        for row in language_data(languages)
    )
    headers = ("code", "BCP-47", "language", "autonym", "family", "text", "detected")
    return Table("", headers, rows, left=(1, 5, 6), wrap=(2, 3, 4))
