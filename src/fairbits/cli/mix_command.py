"""The command `mix` on the command line."""

from pathlib import Path
from typing import Annotated

from fairbits.cli import completion, early_checks, options
from fairbits.cli.terminal import print_json, print_notes, print_written, stages
from fairbits.core.errors import InputError
from fairbits.core.table import Cell, Table
from fairbits.text.language_codes import language_from_code
from fairbits.text.mix import Mix, check_mix_path, parse_weights
from fairbits.text.reading import check_text


def mix(
    model: options.Model,
    out_file: Annotated[Path, options.out_option("CALIB.jsonl", help="The file to write.")],
    languages: Annotated[
        str | None,
        options.option(
            "Languages, such as eng,fra,he; by default all languages of the text.", "CODES", completion.languages
        ),
    ] = None,
    text: options.TextFrom = None,
    weights: Annotated[
        str,
        options.option(
            "Shares of the languages: equal, proportional to the text, or numbers: eng=2,fra=1.",
            "NAME|WEIGHTS",
            completion.one_of("equal", "proportional"),
        ),
    ] = "equal",
    tokens: Annotated[
        int | None, options.option("Tokens in total; by default as many as the text allows.", "N")
    ] = None,
    sequence: Annotated[int, options.option("Tokens per sample.", "N")] = 512,
    seed: options.Seed = 0,
    repeat: Annotated[
        bool, options.flag("--repeat", help="Repeat the text of a language that has too little.")
    ] = False,
    cover: Annotated[
        int | None,
        options.option("Keep only the N languages that protect all audited languages best; needs --audit.", "N"),
    ] = None,
    audit: Annotated[
        Path | None, options.option("With --cover: an audit of the model in all languages it will serve.", "AUDIT.json")
    ] = None,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Write calibration text with a fixed share for every language.

    Any quantization tool can read it.

    Examples:
      fairbits mix embedded:tiny --languages eng,fra,heb --out calib.jsonl
      fairbits mix ./model --text texts --weights eng=2,fra=1 --out calib.jsonl
      fairbits mix ./model --cover 6 --audit audit.json --out calib.jsonl
    """
    check_mix_path(out_file)
    early_checks.check_model(model, revision=revision)
    shares, names = parse_weights(weights), options.split_names(languages)
    if (cover is None) != (audit is None):
        flag, missing = ("--cover", "--audit AUDIT.json") if audit is None else ("--audit", "--cover N")
        raise InputError(f"{flag} is given without {missing}; give both, or neither: fairbits audit writes an audit")
    if names is not None or text is not None:
        check_text(text, names)
    from fairbits.api.calibration_mix import mix as run_mix
    from fairbits.models.checkpoint import Checkpoint

    with stages("reading text and tokenizer") as show:
        result = run_mix(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            languages=names,
            weights=shares,
            progress=show,
            **options.pick(locals(), "text tokens sequence seed repeat cover audit"),
        )
    options.write_out(out_file, result.save)
    print_notes((*options.language_notes(names or ()), *result.notes))
    print_json(result.manifest) if as_json else print_written([mix_table(result)])


def mix_table(mix: Mix) -> Table:
    """Returns one row per language with its samples, tokens, bytes per token and share of the tokens."""
    total = sum(part.tokens for part in mix.languages.values())
    rows: list[tuple[Cell, ...]] = [
        (
            language_from_code(code).name,
            code,
            f"{part.samples:,}",
            f"{part.tokens:,}",
            f"{part.bytes_per_token:.2f}",
            f"{part.tokens / total:.1%}",
        )
        for code, part in mix.languages.items()
    ]
    if len(rows) > 1:
        cells = ("all", "", f"{len(mix.samples):,}", f"{total:,}", "", "")
        rows.append(tuple([(cell, "bold")] for cell in cells))
    headers = ("language", "code", "samples", "tokens", "bytes/token", "share")
    return Table("", headers, tuple(rows), left=(1,))
