"""The command `sweep` on the command line."""

from pathlib import Path
from typing import Annotated

from fairbits.cli import compute, early_checks, options, policy_options
from fairbits.cli.terminal import print_json, print_tables
from fairbits.core.checks import positive
from fairbits.quantization.policies import DEFAULT
from fairbits.quantization.policies.option import parse_bits


def sweep(
    model: options.Model,
    bits: Annotated[str, options.option("Bit widths, such as 2..8 or 8,4,3.", "LIST")] = "2..8",
    policy: Annotated[
        str,
        options.option(
            "The policy, with options after colons: gptq:mix=english.", "NAME", policy_options.complete_policy
        ),
    ] = DEFAULT,
    group: policy_options.PlanGroup = None,
    languages: options.Languages = None,
    text: options.TextFrom = None,
    tokens: options.Tokens = 4096,
    evaluation_tokens: options.EvaluationTokens = 8192,
    sequence: options.Sequence = 512,
    seed: options.Seed = 0,
    threshold: Annotated[
        float | None,
        options.option("Largest acceptable damage; by default 0.01 bits per byte or 0.03 nats per token.", "X"),
    ] = None,
    measure: options.Measure = "divergence",
    unit: options.Unit = "bits_per_byte",
    device: options.Device = "auto",
    out_file: Annotated[Path | None, options.out_option("SWEEP.json")] = None,
    results: options.Results = None,
    ray: compute.Ray = None,
    ray_cpus: compute.RayCpus = 1.0,
    ray_gpus: compute.RayGpus = 1.0,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Measure several bit widths; find the fewest bits per language.

    Examples:
      fairbits sweep embedded:tiny --bits 2..8
      fairbits sweep ./model --policy rtn --text texts --threshold 0.02
    """
    cluster = compute.open_cluster(ray, ray_cpus, ray_gpus)
    names = early_checks.check(locals() | {"bits": None}, example="sweep.json")
    widths, common = parse_bits(bits, "--bits"), policy_options.policy_values({"group": group})
    early_checks.check_policies([policy], bits=widths, common=common)
    if threshold is not None:
        positive("--threshold", threshold)
    from fairbits.api.sweep import sweep as run_sweep
    from fairbits.models.checkpoint import Checkpoint

    device = compute.device_here(device, cluster)
    with compute.show_progress(cluster, "opening the model") as (show, cluster):
        result = run_sweep(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            bits=widths,
            **common,
            languages=names,
            ray=cluster,
            progress=show,
            **options.pick(
                locals(), "policy text tokens evaluation_tokens sequence seed threshold measure unit device results"
            ),
        )
    options.write_out(out_file, result.save)
    print_json(result.as_data()) if as_json else print_tables(result.tables())
