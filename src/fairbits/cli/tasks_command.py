"""The verb `tasks` on the command line.

The tasks that were written for lm-eval, and the command that runs them.
"""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from fairbits.api.lm_eval_tasks import TaskFiles
from fairbits.cli import completion
from fairbits.cli.options import Json, Seed, TextFrom, out_option
from fairbits.cli.parsing import names_of
from fairbits.cli.table_parts import columns, language_name
from fairbits.cli.terminal import out, print_json, print_notes
from fairbits.core.errors import printable


def tasks(
    out_directory: Annotated[Path, out_option("DIR", help="The directory to write, new or empty.")],
    languages: Annotated[
        str | None,
        typer.Option(
            help="Languages, such as eng,fra,he. Required for the declaration; else all languages of the text.",
            metavar="CODES",
            autocompletion=completion.languages,
        ),
    ] = None,
    text: TextFrom = None,
    kinds: Annotated[
        str,
        typer.Option(
            help="Kinds of tasks: bpb (bits per byte of documents), cloze (sentences against corrupted ones).",
            metavar="NAMES",
            autocompletion=completion.one_of("bpb", "cloze", "bpb,cloze"),
        ),
    ] = "bpb,cloze",
    items: Annotated[
        int | None, typer.Option(help="Most items of each language and kind; by default all.", metavar="N")
    ] = None,
    name: Annotated[str, typer.Option(help="How the names of the tasks begin.", metavar="NAME")] = "fairbits",
    seed: Seed = 0,
    as_json: Json = False,
) -> None:
    """Write the evaluation text as tasks of lm-eval, which run without a network.

    Examples:
      fairbits tasks --languages eng,fra,heb --text help --out tasks
      fairbits tasks --text texts --kinds cloze --items 500 --out tasks
    """
    from fairbits.api.lm_eval_tasks import write_tasks  # heavy: only when the verb runs

    found = write_tasks(
        out_directory,
        languages=names_of(languages),
        text=text,
        kinds=names_of(kinds) or (),
        items=items,
        seed=seed,
        name=name,
    )
    print_notes(found.notes)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(tasks_table(found))


def tasks_table(found: TaskFiles) -> Group:
    """Returns the number of items by language and kind, and the command of lm-eval."""
    codes = sorted({code for by_language in found.items.values() for code in by_language})
    table = columns("language", "code", *(f"{kind} items" for kind in found.items), left=(1,))
    for code in codes:
        counts = (by_language.get(code, 0) for by_language in found.items.values())
        table.add_row(language_name(code), Text(code, style="dim"), *(f"{count:,}" for count in counts))
    path, groups = shlex.quote(str(found.directory)), ",".join(found.groups.values())
    command = (
        f"lm_eval --model hf --model_args pretrained=MODEL --include_path {path} --tasks {groups} --log_samples "
        "--output_path DIR"
    )
    return Group(table, "", Text(printable(command), overflow="fold"))
