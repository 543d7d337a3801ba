"""The verb `compare` on the command line."""

from pathlib import Path
from typing import Annotated

import typer

from fairbits.cli import completion
from fairbits.cli.cluster import cluster_of, device_here, progress_of
from fairbits.cli.files import check_out, write_out
from fairbits.cli.options import (
    Device,
    Embeddings,
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
    Sequence,
    TextFrom,
    Tokens,
    Trust,
    Unit,
    out_option,
)
from fairbits.cli.parsing import names_of, seeds_of
from fairbits.cli.policy_options import values_of
from fairbits.cli.terminal import out, print_json, print_notes
from fairbits.quantization.policies.option import widths_of


def compare(
    model: Model,
    policies: Annotated[
        str,
        typer.Option(
            help="Policies, with options after colons: rtn,gptq:mix=english.",
            metavar="LIST",
            autocompletion=completion.policies,
        ),
    ],
    bits: Annotated[str, typer.Option(help="Widths in bits, such as 4,3 or 2..8.", metavar="LIST")] = "4",
    group: PlanGroup = None,
    embeddings: Embeddings = None,
    languages: Languages = None,
    text: TextFrom = None,
    tokens: Tokens = 4096,
    evaluation_tokens: EvaluationTokens = 8192,
    sequence: Sequence = 512,
    seeds: Annotated[
        str, typer.Option(help="Seeds, such as 0,1,2. Each samples its own calibration text.", metavar="LIST")
    ] = "0",
    baseline: Annotated[
        str | None,
        typer.Option(
            help="The policy that the others are compared with; by default the first.",
            metavar="POLICY",
            autocompletion=completion.policy,
        ),
    ] = None,
    measure: Measure = "divergence",
    unit: Unit = "bits_per_byte",
    device: Device = "auto",
    out_file: Annotated[Path | None, out_option("COMPARE.json")] = None,
    results: Results = None,
    ray: Ray = None,
    ray_cpus: RayCpus = 1.0,
    ray_gpus: RayGpus = 1.0,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Compare policies on one model and the same text: damage, gap between languages, size, significant differences.

    Examples:
      fairbits compare embedded:tiny --policies rtn,mse,gptq --bits 4,3
      fairbits compare ./model --policies gptq,gptq:mix=english --text texts
      fairbits compare ./model --policies rtn,gptq --text texts --ray local
    """
    cluster = cluster_of(ray, ray_cpus, ray_gpus)  # before anything that takes time
    from fairbits.cli.tables.compare import compare_table
    from fairbits.cli.tables.languages import language_notes  # heavy: only when the verb runs
    from fairbits.model import Checkpoint
    from fairbits.verbs.compare import compare as run_compare

    check_out(out_file, "compare.json")  # before anything that takes time
    names = names_of(languages)
    print_notes(language_notes(names or ()))
    device = device_here(device, cluster)
    with progress_of(cluster, "opening the model") as (show, cluster):
        found = run_compare(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            policies=[each.strip() for each in policies.split(",")],
            bits=widths_of(bits, "--bits"),
            **values_of({"group": group, "embeddings": embeddings}),
            languages=names,
            text=text,
            tokens=tokens,
            evaluation_tokens=evaluation_tokens,
            sequence=sequence,
            seeds=seeds_of(seeds),
            baseline=baseline,
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
        out.print(compare_table(found))
