"""The verb `languages` on the command line."""

from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.options import Json
from fairbits.cli.terminal import out, print_json, print_notes


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
    from fairbits.cli.tables.languages import language_data, language_notes, language_table
    from fairbits.language import catalog, find_languages
    from fairbits.language.lookup import unlisted_notes

    found = find_languages(names) if names else catalog()
    print_notes((*language_notes(names or ()), *unlisted_notes(found)))
    if as_json:
        print_json(language_data(found))
    else:
        out.print(language_table(found))
