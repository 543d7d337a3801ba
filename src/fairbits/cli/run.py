"""The verb that does the whole job: run."""

from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.options import (
    Bits,
    Device,
    Embeddings,
    EvaluationTokens,
    GroupOf,
    Json,
    Languages,
    Revision,
    Seed,
    Sequence,
    TextFrom,
    Trust,
    embeddings_of,
    names_of,
    plan_group_of,
    widths_of,
)
from fairbits.cli.terminal import done, out, print_json, print_notes, stages


def run(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A directory or an id on the Hub; without one the embedded model, with little text.",
            metavar="MODEL",
            autocompletion=completion.model,
        ),
    ] = None,
    out_directory: Annotated[
        Path,
        typer.Option("--out", help="The directory to write, or to go on in.", metavar="DIR"),
    ] = Path("fairbits-run"),
    languages: Languages = None,
    text: TextFrom = None,
    policy: Annotated[
        str,
        typer.Option(
            help="With options if need be: gptq:mix=minimax.",
            metavar="NAME",
            autocompletion=completion.one_of(*completion.POLICIES),
        ),
    ] = "gptq",
    baselines: Annotated[
        str | None,
        typer.Option(
            help="What it is held to, or none; the headline is about the first: rtn, with --text gptq:mix=english.",
            metavar="NAMES",
            autocompletion=completion.some_of(*completion.POLICIES),
        ),
    ] = None,
    bits: Bits = 4,
    widths: Annotated[
        str, typer.Option(help="Where the policy is measured beside --bits, or none.", metavar="LIST")
    ] = "2,3,6,8",
    group: GroupOf = "128",
    embeddings: Embeddings = None,
    tokens: Annotated[
        int | None, typer.Option(help="Calibration text, in tokens per language; 4096, without a MODEL 512.")
    ] = None,
    evaluation_tokens: EvaluationTokens = 8192,
    sequence: Sequence = 512,
    seed: Seed = 0,
    device: Device = "cpu",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Do the whole job: audit, quantize, evaluate against baselines, and write a report, all in one directory.

    The same command goes on where an interrupted one stopped.

    Examples:
      fairbits run
      fairbits run ./model --languages eng,fra,heb --out run
      fairbits run ./model --text texts --bits 3 --baselines rtn --widths none
    """
    from fairbits.cli.tables.languages import taken  # heavy: only when the verb runs
    from fairbits.cli.tables.run import as_data, next_steps, run_table
    from fairbits.model import Checkpoint
    from fairbits.verbs.run import run as done_by

    names = names_of(languages)
    print_notes(taken(names or ()))
    others = None if baselines is None else [] if baselines == "none" else names_of(baselines)
    beside = [] if widths == "none" else widths_of(widths, "--widths")
    given = {"group": plan_group_of(group), "embeddings": embeddings_of(embeddings or "keep")}
    with stages("opening the model") as show:
        found = done_by(
            None if model is None else Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            out=out_directory,
            policy=policy,
            baselines=others,
            bits=bits,
            **given,  # type: ignore[arg-type]
            languages=names,
            text=text,
            tokens=tokens,
            evaluation_tokens=evaluation_tokens,
            sequence=sequence,
            seed=seed,
            widths=beside,
            device=device,
            progress=show,
            finished=_say,
        )
    if as_json:
        print_json(as_data(found))
        return
    out.print(run_table(found))
    out.print()
    for line in next_steps(found):
        out.print(line, soft_wrap=True)


def _say(what: str, seconds: float | None) -> None:
    if seconds is None:
        print_notes([f"{what} is there already"])
    else:
        done(what, seconds)
