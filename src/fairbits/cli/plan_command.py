"""The command `plan` on the command line."""

from pathlib import Path
from typing import Annotated, Any

from fairbits.cli import compute, early_checks, options, policy_options
from fairbits.cli.estimate_table import estimate_tables
from fairbits.cli.terminal import out, print_json, print_tables, stages


@policy_options.with_policy_options
def plan(
    model: options.Model,
    out_file: Annotated[Path | None, options.out_option("PLAN.json")] = None,
    languages: options.Languages = None,
    text: options.TextFrom = None,
    audit: policy_options.AuditOption = None,
    tokens: policy_options.PlanTokens = None,
    sequence: policy_options.PlanSequence = None,
    seed: policy_options.PlanSeed = None,
    device: options.Device = "auto",
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
    **policy_arguments: Any,
) -> None:
    """Decide how to quantize every layer, without doing it yet.

    A plan holds the bits, the clipping and the rounding of every layer. `fairbits quantize --plan` carries it out.

    Examples:
      fairbits plan embedded:tiny
      fairbits plan ./model --policy mixed --languages eng,fra,heb --out plan.json
      fairbits plan ./model --policy allocate --avg-bits 4.25 --text texts
    """
    chosen = policy_options.plan_options(locals() | policy_arguments)
    reads_text = policy_options.check_options(chosen)
    early_checks.check(locals(), example="plan.json", with_text=reads_text)
    from fairbits.api.dry_run import estimate_quantize
    from fairbits.models.checkpoint import Checkpoint

    chosen["device"] = device = compute.choose_device(device)
    checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    result = policy_options.make_plan(checkpoint, chosen)
    options.write_out(out_file, result.save)
    if as_json:
        print_json(result.as_data())
        return
    print_tables(result.tables(checkpoint))
    with stages("measuring this machine"):
        estimate = estimate_quantize(checkpoint, plan=result, text=text, device=device, out=None)
    out.print()
    print_tables(estimate_tables(estimate))
