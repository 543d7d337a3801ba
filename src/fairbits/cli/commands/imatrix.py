"""The verb `imatrix` on the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.files import check_out, write_out
from fairbits.cli.options import Device, Json, Languages, Revision, Seed, Sequence, TextFrom, Tokens, Trust, out_option
from fairbits.cli.parsing import files_with_weights, names_of
from fairbits.cli.terminal import chosen_device, out, print_json, print_notes, stages
from fairbits.errors import InputError

if TYPE_CHECKING:
    from fairbits.model.files.imatrix import Imatrix


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
    from fairbits.cli.tables.imatrix import imatrix_data, imatrix_table
    from fairbits.cli.tables.languages import language_notes
    from fairbits.language.mix import parse_weights
    from fairbits.model import Checkpoint
    from fairbits.verbs.imatrix import imatrix as measure  # heavy: only when the verb runs
    from fairbits.verbs.imatrix import imatrix_targets
    from fairbits.verbs.imatrix import merge as merge_files

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
