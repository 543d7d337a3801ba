"""The verb `plan` on the command line."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fairbits.cli.files import check_out, write_out
from fairbits.cli.options import Device, Embeddings, Json, Languages, Model, Revision, TextFrom, Trust, out_option
from fairbits.cli.policy_options import (
    AuditFile,
    AvgBits,
    BlockSteps,
    BlockTokens,
    Law,
    Mix,
    ModelSteps,
    Objective,
    OneLanguage,
    PlanSeed,
    PlanSequence,
    PlanTokens,
    PolicyBits,
    PolicyGroup,
    PolicyOption,
    Protected,
    Rounding,
    Rows,
    Sensitivity,
    Tau,
    Widths,
    make_plan,
    options_given,
)
from fairbits.cli.terminal import out, print_json

if TYPE_CHECKING:
    pass


def plan(
    model: Model,
    out_file: Annotated[Path | None, out_option("PLAN.json")] = None,
    policy: PolicyOption = None,
    bits: PolicyBits = None,
    avg_bits: AvgBits = None,
    widths: Widths = None,
    group: PolicyGroup = None,
    embeddings: Embeddings = None,
    languages: Languages = None,
    objective: Objective = None,
    language: OneLanguage = None,
    mix: Mix = None,
    k: Protected = None,
    tau: Tau = None,
    law: Law = None,
    rounding: Rounding = None,
    sensitivity: Sensitivity = None,
    block_steps: BlockSteps = None,
    block_tokens: BlockTokens = None,
    model_steps: ModelSteps = None,
    rows: Rows = None,
    audit: AuditFile = None,
    text: TextFrom = None,
    tokens: PlanTokens = None,
    sequence: PlanSequence = None,
    seed: PlanSeed = None,
    device: Device = "cpu",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Decide the bits, the clipping and the rounding of every layer; nothing is quantized yet.

    Examples:
      fairbits plan embedded:tiny
      fairbits plan ./model --policy mixed --languages eng,fra,heb --out plan.json
      fairbits plan ./model --policy allocate --avg-bits 4.25 --text texts
    """
    from fairbits.cli.tables.plan import plan_table
    from fairbits.model import Checkpoint  # heavy: only when the verb runs

    given = options_given(locals())
    check_out(out_file, "plan.json")  # before anything that takes time
    checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    found = make_plan(checkpoint, given)
    write_out(out_file, found.save)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(plan_table(found, checkpoint))
