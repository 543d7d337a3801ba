"""The command `compare` on the command line."""

from pathlib import Path
from typing import Annotated

from fairbits.cli import compute, early_checks, options, policy_options
from fairbits.cli.terminal import print_json, print_tables
from fairbits.core.checks import one_of
from fairbits.core.errors import InputError
from fairbits.quantization.policies.option import parse_bits


def compare(
    model: options.Model,
    policies: Annotated[
        str,
        options.option(
            "Policies, with options after colons: rtn,gptq:mix=english.", "LIST", policy_options.complete_policies
        ),
    ],
    bits: Annotated[str, options.option("Bit widths, such as 4,3 or 2..8.", "LIST")] = "4",
    group: policy_options.PlanGroup = None,
    embeddings: policy_options.Embeddings = None,
    languages: options.Languages = None,
    text: options.TextFrom = None,
    tokens: options.Tokens = 4096,
    evaluation_tokens: options.EvaluationTokens = 8192,
    sequence: options.Sequence = 512,
    seeds: Annotated[
        str, options.option("Random seeds, such as 0,1,2: one sample of calibration text each.", "LIST")
    ] = "0",
    baseline: Annotated[
        str | None,
        options.option("The policy to compare with; by default the first.", "POLICY", policy_options.complete_policy),
    ] = None,
    groups: options.LanguageGroups = None,
    measure: options.Measure = "divergence",
    unit: options.Unit = "bits_per_byte",
    device: options.Device = "auto",
    out_file: Annotated[Path | None, options.out_option("COMPARE.json")] = None,
    results: options.Results = None,
    ray: compute.Ray = None,
    ray_cpus: compute.RayCpus = 1.0,
    ray_gpus: compute.RayGpus = 1.0,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
) -> None:
    """Compare quantization methods on one model and the same text.

    It shows the damage, the gap between languages, the size, and which differences are significant.

    Examples:
      fairbits compare embedded:tiny --policies rtn,mse,gptq --bits 4,3
      fairbits compare ./model --policies gptq,gptq:mix=english --text texts
      fairbits compare ./model --policies rtn,gptq --text texts --ray local
    """
    cluster = compute.open_cluster(ray, ray_cpus, ray_gpus)
    names = early_checks.check(locals() | {"bits": None}, example="compare.json")
    variants, widths = options.split_names(policies) or [], parse_bits(bits, "--bits")
    common = policy_options.policy_values({"group": group, "embeddings": embeddings})
    early_checks.check_policies(variants, bits=widths, common=common)
    if baseline is not None:
        one_of("--baseline", baseline, variants)
    samples = _parse_seeds(seeds)
    from fairbits.api.compare import compare as run_compare
    from fairbits.models.checkpoint import Checkpoint

    device = compute.device_here(device, cluster)
    with compute.show_progress(cluster, "opening the model") as (show, cluster):
        comparison = run_compare(
            Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision),
            policies=variants,
            bits=widths,
            **common,
            languages=names,
            seeds=samples,
            ray=cluster,
            progress=show,
            **options.pick(
                locals(), "text tokens evaluation_tokens sequence baseline groups measure unit device results"
            ),
        )
    options.write_out(out_file, comparison.save)
    print_json(comparison.as_data()) if as_json else print_tables(comparison.tables())


def _parse_seeds(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--seeds is {text!r:.40}; it must be whole numbers such as 0,1,2")
    return [int(part) for part in parts]
