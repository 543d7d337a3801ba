"""The verb `imatrix` on the command line.

What the terminal shows of an imatrix.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Group, RenderableType

from fairbits.cli import completion
from fairbits.cli.options import (
    Device,
    Json,
    Languages,
    Revision,
    Seed,
    Sequence,
    TextFrom,
    Tokens,
    Trust,
    check_out,
    out_option,
    write_out,
)
from fairbits.cli.parsing import files_with_weights, names_of
from fairbits.cli.table_parts import columns, language_name
from fairbits.cli.terminal import chosen_device, out, print_json, print_notes, stages
from fairbits.core.errors import InputError, count_of
from fairbits.models.io.imatrix_file import Imatrix

if TYPE_CHECKING:
    from fairbits.models.io.imatrix_file import Imatrix


def imatrix(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A directory, a .gguf file, a model id on the Hub, or embedded:tiny. Not with --merge.",
            metavar="MODEL",
            autocompletion=completion.model,
        ),
    ] = None,
    out_file: Annotated[Path | None, out_option("IMATRIX.gguf", help="The file to write: the mix.")] = None,
    per_language: Annotated[
        Path | None, typer.Option(help="Also write one file per language into this directory.", metavar="DIR")
    ] = None,
    languages: Languages = None,
    text: TextFrom = None,
    weights: Annotated[
        str,
        typer.Option(
            help="Weights of the languages in the mix: equal, or numbers: eng=2,fra=1.",
            metavar="equal|WEIGHTS",
            autocompletion=completion.one_of("equal"),
        ),
    ] = "equal",
    merge: Annotated[
        list[str] | None,
        typer.Option(
            help="Merge files instead, one --merge for each: a file and its weight, which is 1 if left out.",
            metavar="FILE=WEIGHT",
        ),
    ] = None,
    tokens: Tokens = 4096,
    sequence: Sequence = 512,
    seed: Seed = 0,
    device: Device = "auto",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Write an importance matrix for llama.cpp, in which every language counts the same.

    Examples:
      fairbits imatrix ./model --languages eng,fra,heb --out imatrix.gguf
      fairbits imatrix ./model --text texts --weights eng=1,heb=2 --out i.gguf
      fairbits imatrix ./model --text texts --per-language each
      fairbits imatrix --merge each/eng_Latn.gguf=2 --merge b.gguf --out i.gguf
    """
    from fairbits.api.imatrix import imatrix as measure  # heavy: only when the verb runs
    from fairbits.api.imatrix import imatrix_targets
    from fairbits.api.imatrix import merge as merge_files
    from fairbits.cli.languages_command import language_notes
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.text.mix import parse_weights

    result: Imatrix
    if merge:
        if model is not None or out_file is None or per_language is not None:
            raise InputError("--merge reads files, not a model; give --out for the file to write, and no MODEL")
        check_out(out_file, "imatrix.gguf")
        result, notes = merge_files(files_with_weights(merge)), tuple[str, ...]()
        write_out(out_file, result.save)
    else:
        if model is None:
            raise InputError("no model is given; name one, or files of languages with --merge")
        imatrix_targets(out_file, per_language, ())  # before anything that takes time
        names = names_of(languages)
        print_notes(language_notes(names or ()))
        opened = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
        with stages("opening the model") as show:
            found = measure(
                opened,
                languages=names,
                text=text,
                weights=parse_weights(weights),
                tokens=tokens,
                sequence=sequence,
                seed=seed,
                device=chosen_device(device),
                progress=show,
            )
        found.save(out_file, per_language=per_language)
        result, notes = found.mix, found.notes
    print_notes(notes)
    if as_json:
        print_json(imatrix_data(result))
    else:
        out.print(imatrix_table(result))


def imatrix_data(found: Imatrix) -> dict[str, Any]:
    """Returns what an imatrix holds, for JSON."""
    return {
        "layers": len(found.entries),
        "tokens": found.tokens,
        "datasets": list(found.datasets),
        "languages": dict(found.languages),
        "fingerprint": found.fingerprint,
    }


def imatrix_table(found: Imatrix) -> RenderableType:
    """Returns the size of an imatrix and the share of each language."""
    head = f"importance of {count_of(len(found.entries), 'layer')}, measured on {found.tokens:,} tokens"
    if not found.languages:
        return head
    table = columns("language", "code", "share", left=(1,))
    for code, share in found.languages.items():
        table.add_row(language_name(code), code, f"{share:.1%}")
    return Group(head, table)
