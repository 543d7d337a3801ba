"""The verb `screen` on the command line."""

from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.options import Bits, Json, Trust
from fairbits.cli.parsing import names_of
from fairbits.cli.terminal import out, print_json, print_notes, stages


def screen(
    models: Annotated[
        list[str],
        typer.Argument(
            help="Directories, .gguf files, model ids on the Hub (ID or ID@REVISION), or embedded:tiny.",
            metavar="MODEL",
            autocompletion=completion.model,
        ),
    ],
    languages: Annotated[
        str | None,
        typer.Option(
            help="Also measure C2 and D̂, in these languages.",
            metavar="CODES",
            autocompletion=completion.languages,
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(help="Also measure C2 and D̂, on this text.", metavar="PATH|NAME", autocompletion=completion.text),
    ] = None,
    bits: Bits = 4,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare models, one row each: outlier blocks, risk class of the founding documents, and predicted damage.

    Examples:
      fairbits screen embedded:tiny "embedded:tiny?outliers=3:125"
      fairbits screen ./model ./other --languages eng,heb
    """
    from fairbits.cli.tables.languages import language_notes  # heavy: only when the verb runs
    from fairbits.cli.tables.screen import screen_table
    from fairbits.language.reading import open_corpus
    from fairbits.verbs.screen import screen as run_screen

    names = names_of(languages)
    print_notes(language_notes(names or ()))
    corpus = None if names is None and text is None else open_corpus(text, names)
    with stages("opening the models") as show:
        found = run_screen(models, corpus=corpus, bits=bits, trust_remote_code=trust_remote_code, progress=show)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(screen_table(found))
    if not found.complete:
        raise typer.Exit(2)
