"""Verbs that decide and carry out: plan, quantize."""

from collections.abc import Callable, Mapping
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from fairbits.cli.drafts import check_agrees
from fairbits.cli.options import (
    AuditFile,
    AvgBits,
    BlockSteps,
    BlockTokens,
    Device,
    Embeddings,
    Json,
    Languages,
    Law,
    Mix,
    Model,
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
    Revision,
    Rounding,
    Rows,
    Sensitivity,
    Tau,
    TextFrom,
    Trust,
    Widths,
    check_out,
    embeddings_of,
    flag,
    flag_of,
    mix_of,
    names_of,
    plan_group_of,
    widths_of,
    write_out,
)
from fairbits.cli.terminal import out, print_json, print_notes, stages
from fairbits.errors import InputError, printable

if TYPE_CHECKING:
    from fairbits.model import Checkpoint
    from fairbits.quantize.plan import Plan

POLICY_OPTIONS = (
    *("bits", "avg_bits", "widths", "group", "embeddings", "objective", "language", "mix"),
    *("k", "tau", "law", "rounding", "sensitivity", "block_steps", "block_tokens"),
    *("model_steps", "rows"),
)
"""What some policies or all can be told."""
DECISIONS = ("policy", *POLICY_OPTIONS, "languages", "audit", "tokens", "sequence", "seed")
"""What a plan holds, and a user who gives one does not say again."""


def plan(
    model: Model,
    out_file: Annotated[Path | None, typer.Option("--out", help="Where to write it.", metavar="PLAN.json")] = None,
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
    """Decide the bits and the clipping of every layer; nothing is quantized yet.

    Examples:
      fairbits plan embedded:tiny
      fairbits plan ./model --policy mixed --languages eng,fra,heb --out plan.json
      fairbits plan ./model --policy allocate --avg-bits 4.25 --text texts
    """
    from fairbits.cli.tables.plan import plan_table
    from fairbits.model import Checkpoint  # heavy: only when the verb runs

    told = _told(locals())
    check_out(out_file, "plan.json")  # before anything that takes time
    checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    found = _planned(checkpoint, told)
    write_out(out_file, found.save)
    if as_json:
        print_json(found.as_data())
    else:
        out.print(plan_table(found, checkpoint))


def quantize(
    model: Model,
    out_directory: Annotated[Path, typer.Option("--out", help="The directory to write.", metavar="DIR")],
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
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Carry out this plan: only --text is said beside it.", metavar="FILE")
    ] = None,
    resume: Annotated[bool, flag("--resume", help="Go on where an interrupted run stopped.")] = False,
    text: TextFrom = None,
    tokens: PlanTokens = None,
    sequence: PlanSequence = None,
    seed: PlanSeed = None,
    device: Device = "cpu",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Write the quantized model in the format that transformers and vLLM load, with what came of every layer.

    Examples:
      fairbits quantize embedded:tiny --out tiny-w4
      fairbits quantize ./model --policy fair --text texts --out w4
      fairbits quantize ./model --plan plan.json --out w4
      fairbits quantize ./model --languages eng,fra,heb --mix minimax --out w4
    """
    from fairbits.cli.tables.plan import plan_table
    from fairbits.model import Checkpoint  # heavy: only when the verb runs
    from fairbits.verbs.quantize import check_quantize
    from fairbits.verbs.quantize import quantize as quantized

    told = _told(locals())
    checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    made = _made(told, plan_file=plan_file, draft=out_directory if resume else None)
    shape = _shape(told if made is None else made.settings)
    check_quantize(checkpoint, out_directory, resume=resume, device=device, **shape)  # before anything that takes time
    decided = _planned(checkpoint, told) if made is None else made
    print_notes(decided.notes)
    with stages("rounding blocks") as show:
        result = quantized(
            checkpoint, decided, out=out_directory, text=text, resume=resume, device=device, progress=show
        )
    if as_json:
        print_json(result.as_data())
        return
    out.print(plan_table(result, checkpoint))
    asked = {"reference": model, "languages": languages, "text": text}
    options = " ".join(f"{flag_of(name)} {quote(str(each))}" for name, each in asked.items() if each is not None)
    directory = printable(quote(str(out_directory)))
    out.print(Text(f"wrote {directory}; next: fairbits evaluate {directory} {printable(options)}"), soft_wrap=True)


def _told(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of `fairbits.verbs.plan.plan` that were given, among the arguments of a verb."""
    told = {name: given[name] for name in (*DECISIONS, "text", "device") if given[name] is not None}
    made: dict[str, Callable[[Any], Any]] = {
        "group": plan_group_of,
        "embeddings": embeddings_of,
        "mix": mix_of,
        "languages": names_of,
        "widths": lambda widths: widths_of(widths, "--widths"),
    }
    return told | {name: make(told[name]) for name, make in made.items() if name in told}


def _made(told: dict[str, Any], *, plan_file: Path | None, draft: Path | None) -> "Plan | None":
    """Returns the plan of a file, or of the draft that an interrupted run has left; None if one must be made."""
    from fairbits.quantize.plan import Plan
    from fairbits.verbs.quantize import drafted

    if plan_file is not None:
        return Plan.load(_alone(plan_file, told))
    left = None if draft is None else drafted(draft)
    return None if left is None else check_agrees(left, told)


def _shape(said: Mapping[str, Any]) -> dict[str, Any]:
    """Returns width, group and embeddings where they are said; one width per block is not one width."""
    return {name: said[name] for name in ("bits", "group", "embeddings") if isinstance(said.get(name), int | str)}


def _planned(checkpoint: "Checkpoint", told: dict[str, Any]) -> "Plan":
    from fairbits.cli.tables.languages import taken
    from fairbits.quantize.policies import DEFAULT
    from fairbits.verbs.plan import plan as planned

    _check_taken(told.get("policy", DEFAULT), told)
    print_notes(taken(told.get("languages", ())))
    with stages("opening the model") as show:
        return planned(checkpoint, **told, progress=show)


def _check_taken(policy: str, told: dict[str, Any]) -> None:
    """Raises if a policy does not take an option, and says which policies do."""
    from fairbits.quantize.policies import POLICIES, takes

    known = takes(policy)
    for name in POLICY_OPTIONS:
        if name in told and name not in known:
            others = ", ".join(other for other in POLICIES if name in takes(other))
            flags = ", ".join(flag_of(each) for each in POLICY_OPTIONS if each in known)
            raise InputError(f"{policy} takes no {flag_of(name)}, which is for {others}; it takes {flags}")


def _alone(plan_file: Path, told: dict[str, Any]) -> Path:
    """Returns the plan's file if nothing is said beside it that it decides."""
    beside = [flag_of(name) for name in DECISIONS if name in told]
    if beside:
        raise InputError(f"--plan decides what {', '.join(beside)} would; give the plan alone, or make another one")
    return plan_file
