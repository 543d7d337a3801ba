"""The command `imatrix` on the command line."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fairbits.cli import completion, compute, early_checks, options
from fairbits.cli.terminal import print_json, print_notes, print_written, stages
from fairbits.core.errors import InputError, count_of
from fairbits.core.files import check_directory
from fairbits.core.table import Table
from fairbits.text.language_codes import short_name
from fairbits.text.mix import parse_weights

if TYPE_CHECKING:
    from fairbits.models.io.imatrix_file import Imatrix


def imatrix(
    model: Annotated[
        str | None,
        options.argument(
            "A directory, a .gguf file, a model id on the Hub, or embedded:tiny. Not with --merge.",
            "MODEL",
            completion.model,
        ),
    ] = None,
    out_file: Annotated[
        Path | None, options.out_option("IMATRIX.gguf", help="The file to write, for the mix of the languages.")
    ] = None,
    per_language: Annotated[
        Path | None, options.option("Also write one file per language into this directory.", "DIR")
    ] = None,
    languages: options.Languages = None,
    text: options.TextFrom = None,
    weights: Annotated[
        str,
        options.option(
            "Weights of the languages in the mix: equal, or numbers: eng=2,fra=1.",
            "equal|WEIGHTS",
            completion.one_of("equal"),
        ),
    ] = "equal",
    merge: Annotated[
        list[str] | None,
        options.option("Merge files instead, one --merge for each: a file and its weight (default: 1).", "FILE=WEIGHT"),
    ] = None,
    tokens: options.Tokens = 4096,
    sequence: options.Sequence = 512,
    seed: options.Seed = 0,
    device: options.Device = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Write an importance matrix for llama.cpp from all languages.

    Every language counts the same in it unless you give weights.

    Examples:
      fairbits imatrix ./model --languages eng,fra,heb --out imatrix.gguf
      fairbits imatrix ./model --text texts --weights eng=1,heb=2 --out i.gguf
      fairbits imatrix ./model --text texts --per-language each
      fairbits imatrix --merge each/eng_Latn.gguf=2 --merge b.gguf --out i.gguf
    """
    files = files_with_weights(merge or ())
    if merge and (model is not None or out_file is None or per_language is not None):
        raise InputError("--merge reads files, not a model; give --out for the file to write, and no MODEL")
    if not merge and model is None:
        raise InputError("no model is given; name one, or files of languages with --merge")
    shares = parse_weights(weights)
    names = early_checks.check(locals(), example="imatrix.gguf", with_text=model is not None)
    if per_language is not None:
        check_directory(per_language)
    from fairbits.api.imatrix import imatrix as measure
    from fairbits.api.imatrix import imatrix_targets
    from fairbits.api.imatrix import merge as merge_files
    from fairbits.models.checkpoint import Checkpoint

    result: Imatrix
    if model is None:
        result, notes = merge_files(files), tuple[str, ...]()
        options.write_out(out_file, result.save)
    else:
        imatrix_targets(out_file, per_language, ())  # before anything that takes time
        opened = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
        with stages("opening the model") as show:
            measured = measure(
                opened,
                languages=names,
                text=text,
                weights=shares,
                tokens=tokens,
                sequence=sequence,
                seed=seed,
                device=compute.choose_device(device),
                progress=show,
            )
        measured.save(out_file, per_language=per_language)
        result, notes = measured.mix, measured.notes
    print_notes(notes)
    print_json(imatrix_data(result)) if as_json else print_written([imatrix_table(result)])


def files_with_weights(arguments: Sequence[str]) -> list[tuple[str, float]]:
    """Returns files with their weights, which are 1 where none is written."""
    files = []
    for argument in arguments:
        file, equals, weight = argument.rpartition("=")
        try:
            files.append((file, float(weight)) if equals else (argument, 1.0))
        except ValueError:
            raise InputError(f"--merge is {argument!r:.80}; it must be a file and its weight: eng.gguf=2") from None
    return files


def imatrix_data(matrix: "Imatrix") -> dict[str, Any]:
    """Returns what an imatrix holds, for JSON."""
    return {
        "layers": len(matrix.entries),
        "tokens": matrix.tokens,
        "datasets": list(matrix.datasets),
        "languages": dict(matrix.languages),
        "fingerprint": matrix.fingerprint,
    }


def imatrix_table(matrix: "Imatrix") -> Table:
    """Returns the size of an imatrix and the share of each language."""
    title = [f"importance of {count_of(len(matrix.entries), 'layer')}, measured on {matrix.tokens:,} tokens"]
    rows = tuple((short_name(code), code, f"{share:.1%}") for code, share in matrix.languages.items())
    return Table([*title], ("language", "code", "share"), rows, left=(1,))
