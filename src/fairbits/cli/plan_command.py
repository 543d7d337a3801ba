"""The verb `plan` on the command line."""

from pathlib import Path
from typing import Annotated, Any

from fairbits.cli.options import (
    Device,
    Json,
    Languages,
    Model,
    Revision,
    TextFrom,
    Trust,
    check_out,
    out_option,
    write_out,
)
from fairbits.cli.policy_options import (
    AuditFile,
    PlanSeed,
    PlanSequence,
    PlanTokens,
    make_plan,
    plan_options,
    with_policy_options,
)
from fairbits.cli.terminal import chosen_device, out, print_json, stages


@with_policy_options
def plan(
    model: Model,
    out_file: Annotated[Path | None, out_option("PLAN.json")] = None,
    languages: Languages = None,
    audit: AuditFile = None,
    text: TextFrom = None,
    tokens: PlanTokens = None,
    sequence: PlanSequence = None,
    seed: PlanSeed = None,
    device: Device = "auto",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Decide the bits, the clipping and the rounding of every layer; nothing is quantized yet.

    Examples:
      fairbits plan embedded:tiny
      fairbits plan ./model --policy mixed --languages eng,fra,heb --out plan.json
      fairbits plan ./model --policy allocate --avg-bits 4.25 --text texts
    """
    from fairbits.api.dry_run import estimate_quantize
    from fairbits.cli.estimate_table import estimate_table
    from fairbits.cli.plan_table import plan_table
    from fairbits.cli.table_parts import section
    from fairbits.models.checkpoint import Checkpoint  # heavy: only when the verb runs

    device = chosen_device(device)
    given = plan_options(locals() | options)
    check_out(out_file, "plan.json")  # before anything that takes time
    checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    found = make_plan(checkpoint, given)
    write_out(out_file, found.save)
    if as_json:
        print_json(found.as_data())
        return
    out.print(plan_table(found, checkpoint))
    with stages("measuring this machine"):
        estimate = estimate_quantize(checkpoint, plan=found, text=text, device=device, out=None)
    out.print(*section("Quantizing by this plan", [estimate_table(estimate)]), sep="\n")
