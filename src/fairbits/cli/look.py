"""Verbs that look at something and change nothing: theory, inspect, languages, mix."""

from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.options import Json, Model, Revision, Seed, TextFrom, Trust, flag, names_of, write_out
from fairbits.cli.terminal import out, print_json, print_notes, stages
from fairbits.errors import InputError


def theory(
    claim: Annotated[str | None, typer.Option(help="Explain one claim, such as 004-13.", metavar="ID")] = None,
    as_json: Json = False,
    markdown: Annotated[bool, flag("--markdown", help="Print the page docs/theory.md.")] = False,
) -> None:
    """Recompute the verdict on every claim of the founding documents.

    Examples:
      fairbits theory
      fairbits theory --claim 000-07
      fairbits theory --json > claims.json
    """
    from fairbits.science.claims import all_claims, find_claim, render  # heavy: only when the verb runs

    if as_json and markdown:
        raise InputError("--json and --markdown were both given; choose one")
    claims = all_claims() if claim is None else [find_claim(claim)]
    results = {}
    with stages("recomputing claims") as show:
        for each in claims:
            results[each] = each.check()
            show("recomputing claims", len(results), len(claims))
    if as_json:
        print_json(render.as_data(results))
    elif markdown:
        typer.echo(render.as_markdown(results), nl=False)
    elif claim is None:
        out.print(render.as_table(results))
    else:
        out.print(render.as_panel(claims[0], results[claims[0]]))


def inspect(
    model: Model,
    tensors: Annotated[bool, flag("--tensors", help="One row per tensor instead of one per block.")] = False,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Show a model's blocks and the moments of their weights, in one pass over the files.

    Examples:
      fairbits inspect embedded:tiny
      fairbits inspect ./model --tensors
      fairbits inspect "embedded:tiny?outliers=5:125" --json
    """
    from fairbits.model import Checkpoint, weight_moments  # heavy: only when the verb runs
    from fairbits.model.inspection import inspection_data, inspection_table

    checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    with stages("reading weights") as show:
        moments = weight_moments(checkpoint, progress=show)
    if as_json:
        print_json(inspection_data(checkpoint, moments))
    else:
        out.print(inspection_table(checkpoint, moments, tensors=tensors))


def languages(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            help="Codes or names, such as he, heb, Hebrew; else all.",
            metavar="[NAME]...",
            autocompletion=completion.language,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List languages: code, names, script, family, and for which of them fairbits brings text and detection.

    Examples:
      fairbits languages
      fairbits languages he zh swahili
    """
    from fairbits.cli.tables.languages import language_data, language_table, taken
    from fairbits.language import catalog, find_languages

    found = find_languages(names) if names else catalog()
    print_notes(taken(names or ()))
    if as_json:
        print_json(language_data(found))
    else:
        out.print(language_table(found))


def mix(
    model: Model,
    out_file: Annotated[Path, typer.Option("--out", help="Where to write the samples.", metavar="CALIB.jsonl")],
    languages: Annotated[
        str | None,
        typer.Option(
            help="Such as eng,fra,he; all of the text if not given.",
            metavar="CODES",
            autocompletion=completion.languages,
        ),
    ] = None,
    text: TextFrom = None,
    weights: Annotated[
        str,
        typer.Option(
            help="equal, proportional, or numbers: eng=2,fra=1.",
            metavar="NAME|WEIGHTS",
            autocompletion=completion.one_of("equal", "proportional"),
        ),
    ] = "equal",
    tokens: Annotated[int | None, typer.Option(help="Budget in tokens; else as many as the text allows.")] = None,
    sequence: Annotated[int, typer.Option(help="Tokens per sample.")] = 512,
    seed: Seed = 0,
    repeat: Annotated[bool, flag("--repeat", help="Use text again where there is not enough.")] = False,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Write calibration samples with a fixed share of tokens per language, for any quantization tool.

    Examples:
      fairbits mix embedded:tiny --languages eng,fra,heb --out calib.jsonl
      fairbits mix ./model --text texts --weights eng=2,fra=1 --out calib.jsonl
    """
    from fairbits.cli.tables.languages import mix_table, taken
    from fairbits.language import read_corpus, udhr  # heavy: only when the verb runs
    from fairbits.language.mix import build_mix, parse_weights
    from fairbits.language.mix_file import check_target
    from fairbits.model import Checkpoint

    check_target(out_file)  # before anything that takes time
    names = names_of(languages)
    with stages("reading text and tokenizer") as show:
        corpus = udhr(names) if text is None else read_corpus(text, languages=names)
        checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
        result = build_mix(
            corpus,
            checkpoint.tokenizer(),
            weights=parse_weights(weights),
            tokens=tokens,
            sequence=sequence,
            seed=seed,
            repeat=repeat,
            model=checkpoint.target,
            notes=checkpoint.notes,
            progress=show,
        )
    write_out(out_file, result.save)
    print_notes((*taken(names or ()), *result.notes))
    if as_json:
        print_json(result.manifest)
    else:
        out.print(mix_table(result))
