"""The verb `quantize` on the command line.

The plan of an interrupted run, and whether the options that the user gives now agree with it.
"""

from collections.abc import Container, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fairbits.cli.estimate_table import show_estimate
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
from fairbits.cli.terminal import chosen_device, out, print_json, print_notes, stages
from fairbits.core.errors import InputError, printable

if TYPE_CHECKING:
    from fairbits.api.dry_run import ResourceEstimate
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.quantization.plan import Plan


def check_agrees(plan: "Plan", given: dict[str, Any]) -> "Plan":
    """Returns the plan if no option contradicts it; options that a plan does not record are not compared."""
    recorded = _recorded_options(plan)
    for name, value in given.items():
        wanted = _comparable(name, value, own={*plan.languages, *recorded.get("languages", ())})
        if name in recorded and recorded[name] != wanted:
            raise InputError(
                f"{flag_of(name)} is {_text(wanted)}, but the interrupted run had {_text(recorded[name])}; "
                "--resume takes the same options or none: to start anew, give another --out"
            )
    return plan


def _recorded_options(plan: "Plan") -> dict[str, Any]:
    """Returns the options that a plan was made with, as far as it records them."""
    recorded = {**plan.settings, "policy": plan.policy}
    if isinstance(recorded.get("bits"), list):  # one width per block: a result, not an option
        del recorded["bits"]
    if isinstance(recorded.get("sensitivity"), dict):
        recorded["sensitivity"] = recorded["sensitivity"]["how"]
    if recorded.get("mix") == "given":
        recorded["mix"] = {code: round(weight, 9) for code, weight in plan.languages.items() if weight}
    text = plan.calibration
    if text is not None:
        shared = (
            len(text.hashes) if recorded.get("mix") == "english" else 1
        )  # English then has the tokens of all languages
        recorded |= {"tokens": text.tokens // shared, "sequence": text.sequence, "seed": text.seed}
        recorded["languages"] = sorted(text.hashes)
    return recorded


def _comparable(name: str, value: Any, *, own: Container[str]) -> Any:
    """Returns an option as a plan would record it."""
    from fairbits.text.language_codes import find_language, find_languages  # heavy: only when the verb runs

    if name == "languages":
        return sorted(language.code for language in find_languages(value, user_codes=own))
    if name == "language":
        return find_language(value, user_codes=own).code
    if name == "mix" and isinstance(value, dict):
        total = sum(value.values())
        return {
            find_language(each, user_codes=own).code: round(weight / total, 9)
            for each, weight in value.items()
            if weight
        }
    return value


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{code}={weight:g}" for code, weight in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


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
    from fairbits.api.quantize import check_quantize, draft_device
    from fairbits.api.quantize import quantize as run_quantize
    from fairbits.cli.plan_table import plan_table
    from fairbits.models.checkpoint import Checkpoint  # heavy: only when the verb runs
    from fairbits.quantization.gptq.ranks import Ranks

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
) -> "ResourceEstimate":
    """Returns what the quantization takes, whose plan is made already or still to be made."""
    from fairbits.api.dry_run import estimate_quantize
    from fairbits.api.quantize import check_quantize, draft_device

    device = chosen_device(device, earlier=draft_device(out) if resume else None)
    plan = _earlier_plan(given, plan_file=plan_file, draft=out if resume else None)
    check_quantize(checkpoint, out, resume=resume, **_shape(given if plan is None else plan.settings))
    settings = {name: each for name, each in given.items() if name == "text" or (plan is None and name != "device")}
    with stages("measuring this machine"):
        return estimate_quantize(checkpoint, plan=plan, device=device, out=out, **settings)


def _earlier_plan(given: dict[str, Any], *, plan_file: Path | None, draft: Path | None) -> "Plan | None":
    """Returns the plan in a file, or the plan of an interrupted run; None if there is neither."""
    from fairbits.api.quantize import draft_plan, finished_plan
    from fairbits.quantization.plan import Plan

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
