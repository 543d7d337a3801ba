"""The verb `quantize` on the command line."""

from collections.abc import Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fairbits.cli.estimates import show_estimate
from fairbits.cli.options import Device, DryRun, Json, Languages, Model, Revision, TextFrom, Trust, flag, out_option
from fairbits.cli.parsing import flag_of
from fairbits.cli.policy_options import (
    AuditFile,
    PlanSeed,
    PlanSequence,
    PlanTokens,
    decisions,
    make_plan,
    plan_options,
    with_policy_options,
)
from fairbits.cli.resume import check_agrees
from fairbits.cli.terminal import chosen_device, out, print_json, print_notes, stages
from fairbits.errors import InputError, printable

if TYPE_CHECKING:
    from fairbits.model import Checkpoint
    from fairbits.quantization.plan import Plan
    from fairbits.verbs.estimate.estimate import Estimate


@with_policy_options
def quantize(
    model: Model,
    out_directory: Annotated[Path, out_option("DIR", help="The directory to write.")],
    languages: Languages = None,
    audit: AuditFile = None,
    plan_file: Annotated[
        Path | None,
        typer.Option("--plan", help="Carry out this plan. Only --text may be given with it.", metavar="FILE"),
    ] = None,
    resume: Annotated[bool, flag("--resume", help="Continue an interrupted run.")] = False,
    text: TextFrom = None,
    tokens: PlanTokens = None,
    sequence: PlanSequence = None,
    seed: PlanSeed = None,
    device: Device = "auto",
    dry_run: DryRun = False,
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
    **options: Any,
) -> None:
    """Write the quantized model, in the format that transformers and vLLM load.

    Examples:
      fairbits quantize embedded:tiny --out tiny-w4
      fairbits quantize ./model --policy fair --text texts --out w4
      fairbits quantize ./model --plan plan.json --out w4
      fairbits quantize ./model --languages eng,fra,heb --mix minimax --out w4
    """
    from fairbits.cli.tables.plan import plan_table
    from fairbits.model import Checkpoint  # heavy: only when the verb runs
    from fairbits.quantization.rounding.ranks import Ranks
    from fairbits.verbs.quantize import check_quantize, draft_device
    from fairbits.verbs.quantize import quantize as run_quantize

    if dry_run:
        given = plan_options(locals() | options)
        checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision).without_fingerprint()
        found = _estimate(checkpoint, given, out=out_directory, plan_file=plan_file, resume=resume, device=device)
        show_estimate(found, as_json=as_json)
        return
    ranks = Ranks.here()
    with ranks.together():
        draft = out_directory if resume else None
        device = chosen_device(device, earlier=ranks.share(lambda: None if draft is None else draft_device(draft)))
        given = plan_options(locals() | options)
        checkpoint = ranks.lead_first(lambda: Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision))

        def decide() -> "Plan":
            earlier = _earlier_plan(given, plan_file=plan_file, draft=draft)
            shape = _shape(given if earlier is None else earlier.settings)
            check_quantize(
                checkpoint, out_directory, resume=resume, device=device, **shape
            )  # before all that takes time
            return make_plan(checkpoint, given) if earlier is None else earlier

        plan = ranks.share(decide)
        print_notes(plan.notes)
        with stages("rounding blocks") as show:
            result = run_quantize(
                checkpoint, plan, out=out_directory, text=text, resume=resume, device=device, progress=show
            )
    if as_json:
        print_json(result.as_data())
        return
    out.print(plan_table(result, checkpoint))
    named = {"reference": model, "languages": languages, "text": text}
    flags = " ".join(f"{flag_of(name)} {quote(str(each))}" for name, each in named.items() if each is not None)
    directory = printable(quote(str(out_directory)))
    out.print(Text(f"wrote {directory}; next: fairbits evaluate {directory} {printable(flags)}"), soft_wrap=True)


def _estimate(
    checkpoint: "Checkpoint",
    given: dict[str, Any],
    *,
    out: Path,
    plan_file: Path | None,
    resume: bool,
    device: str,
) -> "Estimate":
    """Returns what the quantization takes, whose plan is made already or still to be made."""
    from fairbits.verbs.estimate.verbs import estimate_quantize
    from fairbits.verbs.quantize import check_quantize, draft_device

    device = chosen_device(device, earlier=draft_device(out) if resume else None)
    plan = _earlier_plan(given, plan_file=plan_file, draft=out if resume else None)
    check_quantize(checkpoint, out, resume=resume, **_shape(given if plan is None else plan.settings))
    settings = {name: each for name, each in given.items() if name == "text" or (plan is None and name != "device")}
    with stages("measuring this machine"):
        return estimate_quantize(checkpoint, plan=plan, device=device, out=out, **settings)


def _earlier_plan(given: dict[str, Any], *, plan_file: Path | None, draft: Path | None) -> "Plan | None":
    """Returns the plan in a file, or the plan of an interrupted run; None if there is neither."""
    from fairbits.quantization.plan import Plan
    from fairbits.verbs.quantize import draft_plan, finished_plan

    if plan_file is not None:
        return Plan.load(_check_alone(plan_file, given))
    plan = None if draft is None else draft_plan(draft) or finished_plan(draft)
    return None if plan is None else check_agrees(plan, given)


def _shape(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns bits, group and embeddings where they are given; a list of bits per block is left out."""
    names = ("bits", "group", "embeddings")
    return {name: options[name] for name in names if isinstance(options.get(name), int | str)}


def _check_alone(plan_file: Path, given: dict[str, Any]) -> Path:
    """Returns the plan's file if no option is given that the plan has decided."""
    decided = decisions(given)
    if decided:
        raise InputError(f"--plan has already decided {', '.join(decided)}; give the plan alone, or make a new plan")
    return plan_file
