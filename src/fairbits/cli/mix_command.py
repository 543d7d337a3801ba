"""The verb `mix` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.options import Device, Json, Model, Revision, Seed, TextFrom, Trust, flag, out_option, write_out
from fairbits.cli.parsing import names_of
from fairbits.cli.terminal import chosen_device, out, print_json, print_notes, stages
from fairbits.core.errors import InputError


def mix(
    model: Model,
    out_file: Annotated[Path, out_option("CALIB.jsonl")],
    languages: Annotated[
        str | None,
        typer.Option(
            help="Languages, such as eng,fra,he; by default all languages of the text.",
            metavar="CODES",
            autocompletion=completion.languages,
        ),
    ] = None,
    text: TextFrom = None,
    weights: Annotated[
        str,
        typer.Option(
            help="Shares of the languages: equal, proportional to the text, or numbers: eng=2,fra=1.",
            metavar="NAME|WEIGHTS",
            autocompletion=completion.one_of("equal", "proportional"),
        ),
    ] = "equal",
    tokens: Annotated[
        int | None, typer.Option(help="Tokens in total; by default as many as the text allows.", metavar="N")
    ] = None,
    sequence: Annotated[int, typer.Option(help="Tokens per sample.", metavar="N")] = 512,
    seed: Seed = 0,
    repeat: Annotated[bool, flag("--repeat", help="Repeat text of a language that has too little.")] = False,
    cover: Annotated[
        int | None,
        typer.Option(help="Keep only the N languages that protect all audited ones best; needs --audit.", metavar="N"),
    ] = None,
    audit: Annotated[
        Path | None,
        typer.Option(help="With --cover: an audit of the model in all languages it will serve.", metavar="AUDIT.json"),
    ] = None,
    experts: Annotated[
        int | None,
        typer.Option(
            help="Read N times as many samples, and keep those that reach the experts with the least text.", metavar="N"
        ),
    ] = None,
    device: Device = "auto",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Write a calibration set with a fixed share of tokens per language, for any quantization tool.

    Examples:
      fairbits mix embedded:tiny --languages eng,fra,heb --out calib.jsonl
      fairbits mix ./model --text texts --weights eng=2,fra=1 --out calib.jsonl
      fairbits mix ./model --cover 6 --audit audit.json --out calib.jsonl
      fairbits mix ./moe --text texts --experts 4 --out calib.jsonl
    """
    from fairbits.auditing.cover import audited_languages, cover_languages
    from fairbits.cli.languages_command import language_notes, mix_table
    from fairbits.core.checks import whole
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.text.included_texts import udhr  # heavy: only when the verb runs
    from fairbits.text.mix import build_mix, check_mix_path, parse_weights
    from fairbits.text.reading import open_corpus

    check_mix_path(out_file)  # before anything that takes time
    if (cover is None) != (audit is None):
        missing, given = ("--audit AUDIT.json", "--cover") if audit is None else ("--cover N", "--audit")
        raise InputError(f"{given} is given without {missing}; give both, or neither: fairbits audit writes an audit")
    times = 1 if experts is None else whole("--experts", experts, least=2)
    names = names_of(languages)
    if audit is not None and names is None and text is None:
        names = list(audited_languages(audit))
    with stages("reading text and tokenizer") as show:
        corpus = udhr() if text is None and names is None else open_corpus(text, names)
        checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
        chosen: tuple[str, ...] = ()
        if cover is not None and audit is not None:
            found = cover_languages(audit, cover, candidates=corpus.calibration, fingerprint=checkpoint.fingerprint)
            corpus, chosen = corpus.restrict(found.languages), found.notes
        result = build_mix(
            corpus,
            checkpoint.tokenizer(),
            weights=parse_weights(weights),
            tokens=None if tokens is None else tokens * times,
            sequence=sequence,
            seed=seed,
            repeat=repeat,
            model=checkpoint.target,
            notes=(*checkpoint.notes, *chosen),
            progress=show,
        )
        if experts is not None:
            from fairbits.auditing.expert_use import even_experts  # loads torch

            result = even_experts(checkpoint, result, one_in=times, device=chosen_device(device), progress=show)
    write_out(out_file, result.save)
    print_notes((*language_notes(names or ()), *result.notes))
    if as_json:
        print_json(result.manifest)
    else:
        out.print(mix_table(result))
