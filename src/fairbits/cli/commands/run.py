"""The verb `run` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.options import (
    Bits,
    Device,
    Embeddings,
    Json,
    Languages,
    PlanGroup,
    Revision,
    Seed,
    Sequence,
    TextFrom,
    Trust,
    out_option,
)
from fairbits.cli.parsing import names_of
from fairbits.cli.policy_options import values_of
from fairbits.cli.terminal import chosen_device, out, print_done, print_json, print_notes, stages
from fairbits.quantization.policies import DEFAULT
from fairbits.quantization.policies.option import widths_of


def run(
    model: Annotated[
        str | None,
        typer.Argument(
            help="A directory or a model id on the Hub; by default embedded:tiny, as a demonstration.",
            metavar="MODEL",
            autocompletion=completion.model,
        ),
    ] = None,
    out_directory: Annotated[
        Path,
        out_option("DIR", help="The directory to write, or to continue in."),
    ] = Path("fairbits-run"),
    languages: Languages = None,
    text: TextFrom = None,
    policy: Annotated[
        str,
        typer.Option(
            help="The policy, with options after colons: gptq:mix=minimax.",
            metavar="NAME",
            autocompletion=completion.policy,
        ),
    ] = DEFAULT,
    baselines: Annotated[
        str | None,
        typer.Option(
            help="Policies to compare with, or none; the report leads with the first. Default: gptq:mix=english, rtn.",
            metavar="NAMES",
            autocompletion=completion.policies,
        ),
    ] = None,
    bits: Bits = 4,
    widths: Annotated[
        str | None,
        typer.Option(
            help="Other widths at which to measure the policy, or none; by default 2,3,6,8, without MODEL 3,8.",
            metavar="LIST",
        ),
    ] = None,
    group: PlanGroup = None,
    embeddings: Embeddings = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="Calibration tokens per language; by default 4096, without MODEL 512.", metavar="N"),
    ] = None,
    evaluation_tokens: Annotated[
        int | None,
        typer.Option(help="Evaluation tokens per language; by default 8192, without MODEL 1536.", metavar="N"),
    ] = None,
    sequence: Sequence = 512,
    seed: Seed = 0,
    device: Device = "auto",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Do the whole job: audit, quantize, evaluate against baselines, and write a report, all in one directory.

    To continue an interrupted run, run the same command again.

    Examples:
      fairbits run
      fairbits run ./model --languages eng,fra,heb --out run
      fairbits run ./model --text texts --bits 3 --baselines rtn --widths none
    """
    from fairbits.cli.tables.languages import language_notes  # heavy: only when the verb runs
    from fairbits.cli.tables.run import as_data, next_steps, run_table
    from fairbits.model import Checkpoint
    from fairbits.verbs.run import run as run_job
    from fairbits.verbs.run.opening import recorded_device

    names = names_of(languages)
    print_notes(language_notes(names or ()))
    others = None if baselines is None else [] if baselines == "none" else names_of(baselines)
    other_widths = None if widths is None else [] if widths == "none" else widths_of(widths, "--widths")
    device = chosen_device(device, earlier=recorded_device(out_directory))
    with stages("opening the model") as show:
        found = run_job(
            None if model is None else Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            out=out_directory,
            policy=policy,
            baselines=others,
            bits=bits,
            **values_of({"group": group, "embeddings": embeddings}),
            languages=names,
            text=text,
            tokens=tokens,
            evaluation_tokens=evaluation_tokens,
            sequence=sequence,
            seed=seed,
            widths=other_widths,
            device=device,
            progress=show,
            finished=_print_finished,
        )
    if as_json:
        print_json(as_data(found))
        return
    out.print(run_table(found))
    out.print()
    for line in next_steps(found):
        out.print(line, soft_wrap=True)


def _print_finished(what: str, seconds: float | None) -> None:
    if seconds is None:
        print_notes([f"{what} already exists"])
    else:
        print_done(what, seconds)
