"""The command `tasks` on the command line."""

import shlex
from pathlib import Path
from typing import Annotated

from fairbits.api.lm_eval_tasks import KINDS, TaskFiles, write_tasks
from fairbits.cli import completion, options
from fairbits.cli.terminal import print_json, print_notes, print_written
from fairbits.core.table import Table, dim
from fairbits.text.language_codes import short_name


def tasks(
    out_directory: Annotated[Path, options.out_option("DIR", help="The directory to write, new or empty.")],
    languages: Annotated[
        str | None,
        options.option(
            "Languages, such as eng,fra,he. Required for the declaration; else all languages of the text.",
            "CODES",
            completion.languages,
        ),
    ] = None,
    text: options.TextFrom = None,
    kinds: Annotated[
        str,
        options.option(
            "Kinds of tasks, of those above. With translation, line i of every file must say the same.",
            "NAMES",
            completion.some_of(*KINDS),
        ),
    ] = "bpb,cloze",
    items: Annotated[int | None, options.option("Maximum items per language and kind; by default all.", "N")] = None,
    name: Annotated[str, options.option("Prefix of the task names.", "NAME")] = "fairbits",
    seed: options.Seed = 0,
    as_json: options.Json = False,
) -> None:
    """Write text as tasks of lm-eval, which run without a network.

    Kinds:
      bpb          bits per byte of documents (no choices)
      cloze        a sentence, or two neighbouring words exchanged
      next         which of four sentences follows
      number       a sentence, or one number in it changed
      name         a sentence, or one proper name in it changed
      negation     a sentence, or "never" for "always" and the like
      translation  which of four texts is the translation

    Examples:
      fairbits tasks --languages eng,fra,zho --text help --out tasks
      fairbits tasks --text texts --kinds cloze --items 500 --out tasks
      fairbits tasks --text help --kinds next,translation --out tasks
    """
    written = write_tasks(
        out_directory,
        languages=options.split_names(languages),
        text=text,
        kinds=options.split_names(kinds) or (),
        items=items,
        seed=seed,
        name=name,
    )
    print_notes(written.notes)
    print_json(written.as_data()) if as_json else print_written([tasks_table(written)])


def tasks_table(written: TaskFiles) -> Table:
    """Returns the number of items by language and kind, and the command that runs lm-eval."""
    codes = sorted({code for by_language in written.items.values() for code in by_language})
    rows = tuple(
        (short_name(code), dim(code), *(f"{items.get(code, 0):,}" for items in written.items.values()))
        for code in codes
    )
    path, groups = shlex.quote(str(written.directory)), ",".join(written.groups.values())
    command = (
        f"lm_eval --model hf --model_args pretrained=MODEL --include_path {path} --tasks {groups} --log_samples "
        "--output_path DIR --batch_size 16"
    )
    advice = "On a CPU, write pretrained=MODEL,dtype=float32: types of 16 bits can be many times slower there."
    return Table(
        "",
        ("language", "code", *(f"{kind} items" for kind in written.items)),
        rows,
        ("", command, "", advice),
        left=(1,),
    )
