"""The verb `sweep` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.cluster import cluster_of, device_here, progress_of
from fairbits.cli.files import check_out, write_out
from fairbits.cli.options import (
    Device,
    EvaluationTokens,
    Json,
    Languages,
    Measure,
    Model,
    PlanGroup,
    Ray,
    RayCpus,
    RayGpus,
    Results,
    Revision,
    Seed,
    Sequence,
    TextFrom,
    Tokens,
    Trust,
    Unit,
    out_option,
)
from fairbits.cli.parsing import names_of
from fairbits.cli.policy_options import values_of
from fairbits.cli.terminal import out, print_json, print_notes
from fairbits.quantization.policies import DEFAULT
from fairbits.quantization.policies.option import widths_of


def sweep(
    model: Model,
    bits: Annotated[str, typer.Option(help="Widths in bits, such as 2..8 or 8,4,3.", metavar="LIST")] = "2..8",
    policy: Annotated[
        str,
        typer.Option(
            help="The policy, with options after colons: gptq:mix=english.",
            metavar="NAME",
            autocompletion=completion.policy,
        ),
    ] = DEFAULT,
    group: PlanGroup = None,
    languages: Languages = None,
    text: TextFrom = None,
    tokens: Tokens = 4096,
    evaluation_tokens: EvaluationTokens = 8192,
    sequence: Sequence = 512,
    seed: Seed = 0,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Largest acceptable damage; by default 0.01 bits per byte, 0.03 nats per token.", metavar="X"
        ),
    ] = None,
    measure: Measure = "divergence",
    unit: Unit = "bits_per_byte",
    device: Device = "auto",
    out_file: Annotated[Path | None, out_option("SWEEP.json")] = None,
    results: Results = None,
    ray: Ray = None,
    ray_cpus: RayCpus = 1.0,
    ray_gpus: RayGpus = 1.0,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Measure the damage at several widths, and find the critical width of every language.

    Examples:
      fairbits sweep embedded:tiny --bits 2..8
      fairbits sweep ./model --policy rtn --text texts --threshold 0.02
    """
    cluster = cluster_of(ray, ray_cpus, ray_gpus)  # before anything that takes time
    from fairbits.cli.tables.languages import language_notes  # heavy: only when the verb runs
    from fairbits.cli.tables.sweep import sweep_table
    from fairbits.model import Checkpoint
    from fairbits.verbs.sweep import sweep as run_sweep

    check_out(out_file, "sweep.json")  # before anything that takes time
    names = names_of(languages)
    print_notes(language_notes(names or ()))
    device = device_here(device, cluster)
    with progress_of(cluster, "opening the model") as (show, cluster):
        found = run_sweep(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            bits=widths_of(bits, "--bits"),
            policy=policy,
            **values_of({"group": group}),
            languages=names,
            text=text,
            tokens=tokens,
            evaluation_tokens=evaluation_tokens,
            sequence=sequence,
            seed=seed,
            threshold=threshold,
            measure=measure,
            unit=unit,
            device=device,
            results=results,
            ray=cluster,
            progress=show,
        )
    write_out(out_file, found.save)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(sweep_table(found))
