"""The verb `run` on the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.cluster import cluster_of, device_here, progress_of
from fairbits.cli.estimate_table import show_estimates
from fairbits.cli.options import (
    Bits,
    Device,
    DryRun,
    Embeddings,
    Json,
    Languages,
    PlanGroup,
    Ray,
    RayCpus,
    RayGpus,
    Revision,
    Seed,
    Sequence,
    TextFrom,
    Trust,
    out_option,
)
from fairbits.cli.parsing import names_of
from fairbits.cli.policy_options import values_of
from fairbits.cli.terminal import out, print_done, print_json, print_notes, stages
from fairbits.core.errors import FairbitsError, count_of
from fairbits.quantization.policies import DEFAULT
from fairbits.quantization.policies.option import parse_bits

if TYPE_CHECKING:
    from fairbits.api.run import FinishedRun
    from fairbits.api.run.many_models import FinishedRuns


def run(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            help="A directory or a model id on the Hub, or several; by default embedded:tiny, as a demonstration.",
            metavar="MODEL",
            autocompletion=completion.model,
        ),
    ] = None,
    out_directory: Annotated[
        Path,
        out_option("DIR", help="The directory to write, or to continue in; with several models, of their directories."),
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
    dry_run: DryRun = False,
    ray: Ray = None,
    ray_cpus: RayCpus = 1.0,
    ray_gpus: RayGpus = 1.0,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Do the whole job: audit, quantize, evaluate against baselines, and write a report, all in one directory.

    To continue an interrupted run, run the same command again. With several models, each has a directory of its own
    in DIR, and one that fails does not stop the others.

    Examples:
      fairbits run
      fairbits run ./model --languages eng,fra,heb --out run
      fairbits run ./model --text texts --bits 3 --baselines rtn --widths none
      fairbits run ./model --languages eng,fra,heb --dry-run
      fairbits run ./model-a ./model-b --text texts --out runs --ray auto
    """
    cluster = cluster_of(ray, ray_cpus, ray_gpus)  # before anything that takes time
    from fairbits.api.run.many_models import run_many
    from fairbits.api.run.run_settings import estimate_run, recorded_device
    from fairbits.cli.languages_command import language_notes  # heavy: only when the verb runs
    from fairbits.models.checkpoint import Checkpoint

    names = names_of(languages)
    print_notes(language_notes(names or ()))
    others = None if baselines is None else [] if baselines == "none" else names_of(baselines)
    other_widths = None if widths is None else [] if widths == "none" else parse_bits(widths, "--widths")
    here = device_here(device, cluster, earlier=recorded_device(out_directory))
    several = models is not None and len(models) > 1  # then each may continue on a device of its own
    opened = [Checkpoint(each, trust_remote_code=trust_remote_code, revision=revision) for each in models or ()]
    arguments = {
        "policy": policy,
        "baselines": others,
        "bits": bits,
        **values_of({"group": group, "embeddings": embeddings}),
        "languages": names,
        "text": text,
        "tokens": tokens,
        "evaluation_tokens": evaluation_tokens,
        "sequence": sequence,
        "seed": seed,
        "widths": other_widths,
        "device": device if several else here,
    }
    if dry_run:
        with stages("measuring this machine"):
            estimates = [estimate_run(each, out=out_directory, **arguments) for each in opened or (None,)]
        show_estimates(estimates, as_json=as_json)
        return
    with progress_of(cluster, "opening the model") as (show, cluster):
        found = run_many(
            opened or [None], out=out_directory, **arguments, ray=cluster, progress=show, finished=_print_finished
        )
    if several:
        _print_runs(found, as_json=as_json)
    else:
        _print_run(*found.runs.values(), as_json=as_json)


def _print_run(found: "FinishedRun", *, as_json: bool) -> None:
    from fairbits.cli.run_table import as_data, next_steps, run_table

    if as_json:
        print_json(as_data(found))
        return
    out.print(run_table(found))
    out.print()
    for line in next_steps(found):
        out.print(line, soft_wrap=True)


def _print_runs(found: "FinishedRuns", *, as_json: bool) -> None:
    """Prints one row per model; an error ends the command if any of them failed."""
    from fairbits.cli.run_table import runs_data, runs_table

    if as_json:
        print_json(runs_data(found))
    else:
        out.print(runs_table(found))
    if found.failed:
        name, problem = next(iter(found.failed.items()))
        count = f"{len(found.failed)} of {count_of(len(found.failed) + len(found.runs), 'model')}"
        raise FairbitsError(f"{count} failed, such as {name}: {problem}")


def _print_finished(what: str, seconds: float | None) -> None:
    if seconds is None:
        print_notes([f"{what} already exists"])
    else:
        print_done(what, seconds)
