"""The command `mix` on the command line."""

from pathlib import Path
from typing import Annotated

from fairbits.cli import completion, options
from fairbits.cli.terminal import print_json, print_notes, print_tables, stages
from fairbits.core.errors import InputError
from fairbits.core.table import Cell, Table
from fairbits.text.included_texts import udhr
from fairbits.text.language_codes import language_from_code
from fairbits.text.mix import Mix, build_mix, check_mix_path, parse_weights
from fairbits.text.reading import open_corpus


def mix(
    model: options.Model,
    out_file: Annotated[Path, options.out_option("CALIB.jsonl")],
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
    """Write a calibration set with a fixed share of tokens per language, for any quantization tool.

    Examples:
      fairbits mix embedded:tiny --languages eng,fra,heb --out calib.jsonl
      fairbits mix ./model --text texts --weights eng=2,fra=1 --out calib.jsonl
      fairbits mix ./model --cover 6 --audit audit.json --out calib.jsonl
    """
    from fairbits.auditing.cover import audited_languages, cover_languages
    from fairbits.models.checkpoint import Checkpoint

    check_mix_path(out_file)  # before anything that takes time
    if (cover is None) != (audit is None):
        flag, missing = ("--cover", "--audit AUDIT.json") if audit is None else ("--audit", "--cover N")
        raise InputError(f"{flag} is given without {missing}; give both, or neither: fairbits audit writes an audit")
    names = options.split_names(languages)
    if audit is not None and names is None and text is None:
        names = list(audited_languages(audit))
    with stages("reading text and tokenizer") as show:
        corpus = udhr() if text is None and names is None else open_corpus(text, names)
        checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
        chosen: tuple[str, ...] = ()
        if cover is not None and audit is not None:
            cover_set = cover_languages(audit, cover, candidates=corpus.calibration, fingerprint=checkpoint.fingerprint)
            corpus, chosen = corpus.restrict(cover_set.languages), cover_set.notes
        result = build_mix(
            corpus,
            checkpoint.tokenizer(),
            weights=parse_weights(weights),
            tokens=tokens,
            sequence=sequence,
            seed=seed,
            repeat=repeat,
            model=checkpoint.target,
            notes=(*checkpoint.notes, *chosen),
            progress=show,
        )
    options.write_out(out_file, result.save)
    print_notes((*options.language_notes(names or ()), *result.notes))
    print_json(result.manifest) if as_json else print_tables([mix_table(result)])


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
