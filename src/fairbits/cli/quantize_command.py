"""The command `quantize` on the command line, and whether its options agree with the plan of an interrupted run."""

from collections.abc import Container, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from fairbits.cli import compute, early_checks, options, policy_options
from fairbits.cli.estimate_table import print_estimates
from fairbits.cli.terminal import print_json, print_notes, print_written, stages
from fairbits.core.errors import InputError
from fairbits.core.files import check_directory
from fairbits.core.torchrun import this_process
from fairbits.quantization.plan import Plan
from fairbits.text.language_codes import find_language, find_languages

if TYPE_CHECKING:
    from fairbits.api.dry_run import ResourceEstimate
    from fairbits.models.checkpoint import Checkpoint


def check_agrees(plan: Plan, chosen: dict[str, Any]) -> Plan:
    """Returns the plan if no option contradicts it; options that a plan does not record are not compared."""
    recorded = _recorded_options(plan)
    for name, value in chosen.items():
        wanted = _comparable(name, value, user_codes={*plan.languages, *recorded.get("languages", ())})
        if name in recorded and recorded[name] != wanted:
            raise InputError(
                f"{options.spell_flag(name)} is {_text(wanted)}, but the interrupted run had {_text(recorded[name])}; "
                "--resume takes the same options or none: to start anew, give another --out"
            )
    return plan


def _recorded_options(plan: Plan) -> dict[str, Any]:
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
        english = recorded.get("mix") == "english"  # which has the tokens of all languages
        shared = len(text.hashes) if english else 1
        recorded |= {"tokens": text.tokens // shared, "sequence": text.sequence, "seed": text.seed}
        recorded["languages"] = sorted(text.hashes)
    return recorded


def _comparable(name: str, value: Any, *, user_codes: Container[str]) -> Any:
    if name == "languages":
        return sorted(language.code for language in find_languages(value, user_codes=user_codes))
    if name == "language":
        return find_language(value, user_codes=user_codes).code
    if name == "mix" and isinstance(value, dict):
        total = sum(value.values())
        return {
            find_language(name, user_codes=user_codes).code: round(weight / total, 9)
            for name, weight in value.items()
            if weight
        }
    return value


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{code}={weight:g}" for code, weight in value.items())
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


@policy_options.with_policy_options
def quantize(
    model: options.Model,
    out_directory: Annotated[Path, options.out_option("DIR", help="The directory to write.")],
    languages: options.Languages = None,
    text: options.TextFrom = None,
    audit: policy_options.AuditOption = None,
    plan_file: Annotated[
        Path | None, options.option("Execute this plan. Only --text may be given with it.", "FILE", flag="--plan")
    ] = None,
    resume: Annotated[bool, options.flag("--resume", help="Continue an interrupted run.")] = False,
    tokens: policy_options.PlanTokens = None,
    sequence: policy_options.PlanSequence = None,
    seed: policy_options.PlanSeed = None,
    device: options.Device = "auto",
    dry_run: options.DryRun = False,
    revision: options.Revision = None,
    trust_remote_code: options.Trust = False,
    as_json: options.Json = False,
    **policy_arguments: Any,
) -> None:
    """Write a quantized model that transformers and vLLM load.

    Examples:
      fairbits quantize embedded:tiny --out tiny-w4
      fairbits quantize ./model --policy fair --text texts --out w4
      fairbits quantize ./model --plan plan.json --out w4
      fairbits quantize ./model --languages eng,fra,heb --mix minimax --out w4
    """
    chosen = policy_options.plan_options(locals() | policy_arguments)
    if not this_process().several:  # else the first of them refuses for all
        _check_early(locals(), chosen, plan_file=plan_file, resume=resume)
    from fairbits.api.quantize import check_quantize, draft_device
    from fairbits.api.quantize import quantize as run_quantize
    from fairbits.models.checkpoint import Checkpoint
    from fairbits.models.sketched_checkpoint import open_sketch
    from fairbits.quantization.gptq.ranks import Ranks

    if dry_run:
        checkpoint = open_sketch(model, trust_remote_code=trust_remote_code, revision=revision).without_fingerprint()
        estimate = _estimate(checkpoint, chosen, out=out_directory, plan_file=plan_file, resume=resume, device=device)
        print_estimates([estimate], as_json=as_json)
        return
    ranks = Ranks.here()
    with ranks.together():
        draft = out_directory if resume else None
        device = compute.choose_device(
            device, earlier=ranks.share(lambda: None if draft is None else draft_device(draft))
        )
        chosen["device"] = device
        checkpoint = ranks.lead_first(lambda: Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision))

        def decide() -> Plan:
            earlier = _earlier_plan(chosen, plan_file=plan_file, draft=draft)
            shape = _shape(chosen if earlier is None else earlier.settings)
            check_quantize(checkpoint, out_directory, resume=resume, device=device, **shape)  # before the slow part
            return policy_options.make_plan(checkpoint, chosen) if earlier is None else earlier

        plan = ranks.share(decide)
        print_notes(plan.notes)
        with stages("rounding blocks") as show:
            result = run_quantize(
                checkpoint, plan, out=out_directory, text=text, resume=resume, device=device, progress=show
            )
    if as_json:
        print_json(result.as_data())
        return
    named = {"reference": model, "languages": languages, "text": text}
    flags = (f"{options.spell_flag(name)} {quote(str(value))}" for name, value in named.items() if value is not None)
    directory = quote(str(out_directory))
    following = f"wrote {directory}; next: fairbits evaluate {directory} {' '.join(flags)}"
    print_written(result.tables(checkpoint), following)


def _check_early(
    arguments: Mapping[str, Any], chosen: Mapping[str, Any], *, plan_file: Path | None, resume: bool
) -> None:
    """Raises if an argument is wrong, before torch is imported."""
    if plan_file is not None:
        Plan.load(_check_alone(plan_file, chosen))
    decided = resume or plan_file is not None  # by an earlier plan
    early_checks.check(arguments, with_text=not decided and policy_options.check_options(chosen))
    check_directory(arguments["out_directory"], holding=("plan.json",) if resume else ())


def _estimate(
    checkpoint: "Checkpoint",
    chosen: dict[str, Any],
    *,
    out: Path,
    plan_file: Path | None,
    resume: bool,
    device: str,
) -> "ResourceEstimate":
    """Returns what the quantization takes, by a plan that exists or is still to be made."""
    from fairbits.api.dry_run import estimate_quantize
    from fairbits.api.quantize import check_quantize, draft_device

    device = compute.choose_device(device, earlier=draft_device(out) if resume else None)
    plan = _earlier_plan(chosen, plan_file=plan_file, draft=out if resume else None)
    check_quantize(checkpoint, out, resume=resume, **_shape(chosen if plan is None else plan.settings))
    settings = {name: chosen[name] for name in chosen if name == "text" or (plan is None and name != "device")}
    with stages("measuring this machine"):
        return estimate_quantize(checkpoint, plan=plan, device=device, out=out, **settings)


def _earlier_plan(chosen: dict[str, Any], *, plan_file: Path | None, draft: Path | None) -> Plan | None:
    """Returns the plan in a file, or the plan of an interrupted run; None if there is neither."""
    from fairbits.api.quantize import draft_plan, finished_plan

    if plan_file is not None:
        return Plan.load(_check_alone(plan_file, chosen))
    plan = None if draft is None else draft_plan(draft) or finished_plan(draft)
    return None if plan is None else check_agrees(plan, chosen)


def _shape(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns bits, group, embeddings and scheme if they are set; a list of bits per block is left out."""
    names = ("bits", "group", "embeddings", "scheme")
    return {name: settings[name] for name in names if isinstance(settings.get(name), int | str)}


def _check_alone(plan_file: Path, chosen: Mapping[str, Any]) -> Path:
    names = ("policy", *policy_options.policy_options(), *policy_options.TEXT_OPTIONS)
    decided = [options.spell_flag(name) for name in names if name in chosen]
    if decided:
        raise InputError(f"--plan has already decided {', '.join(decided)}; give the plan alone, or make a new plan")
    return plan_file
