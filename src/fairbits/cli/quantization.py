"""Verbs that decide and carry out: plan, quantize."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairbits.cli.options import (
    AuditFile,
    AvgBits,
    Device,
    Embeddings,
    Json,
    Languages,
    Law,
    Mix,
    Model,
    Objective,
    OneLanguage,
    PolicyBits,
    PolicyGroup,
    PolicyOption,
    Protected,
    Revision,
    Rounding,
    Seed,
    Sensitivity,
    Sequence,
    Tau,
    TextFrom,
    Tokens,
    Trust,
    embeddings_of,
    mix_of,
    names_of,
    plan_group_of,
)
from fairbits.errors import InputError
from fairbits.terminal import out, print_json, print_notes, stages

if TYPE_CHECKING:
    from fairbits.model import Checkpoint
    from fairbits.plans import Plan

DECISIONS = (
    *("policy", "bits", "avg_bits", "group", "embeddings", "languages", "objective", "language", "mix"),
    *("k", "tau", "law", "rounding", "sensitivity", "audit"),
)
"""What a plan holds, and a user who gives one does not say again."""


def plan(
    model: Model,
    out_file: Annotated[Path | None, typer.Option("--out", help="Where to write it.", metavar="PLAN.json")] = None,
    policy: PolicyOption = None,
    bits: PolicyBits = None,
    avg_bits: AvgBits = None,
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
    audit: AuditFile = None,
    text: TextFrom = None,
    tokens: Tokens = 4096,
    sequence: Sequence = 512,
    seed: Seed = 0,
    device: Device = "cpu",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Decide the bits and the clipping of every layer; nothing is quantized yet.

    Examples: `fairbits plan embedded:tiny`, `fairbits plan ./model --policy mixed --out plan.json`,
    `fairbits plan ./model --policy allocate --avg-bits 4.25 --objective worst --languages eng,fra,heb`.
    """
    from fairbits.artifacts import check_writable  # heavy: only when the verb runs
    from fairbits.model import Checkpoint
    from fairbits.steps.plan_table import plan_table

    if out_file is not None:
        check_writable(out_file, example="plan.json")  # before anything that takes time
    told = _told(locals())
    checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    found = _planned(checkpoint, told)
    if out_file is not None:
        found.save(out_file)
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
    audit: AuditFile = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", help="Carry out this plan; it decides all of the above.", metavar="FILE")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")] = False,
    text: TextFrom = None,
    tokens: Tokens = 4096,
    sequence: Sequence = 512,
    seed: Seed = 0,
    device: Device = "cpu",
    revision: Revision = None,
    trust_remote_code: Trust = False,
    as_json: Json = False,
) -> None:
    """Write the quantized model, which transformers and vLLM load; `plan.json` in it says what came of every layer.

    Examples: `fairbits quantize embedded:tiny --out tiny-w4`, `fairbits quantize ./model --plan plan.json --out w4`,
    `fairbits quantize ./model --policy gptq --bits 3 --group channel --mix minimax --languages eng,fra,heb --out w3`.
    """
    from fairbits.model import Checkpoint  # heavy: only when the verb runs
    from fairbits.plans import Plan
    from fairbits.steps.plan_table import plan_table
    from fairbits.steps.quantize import quantize as quantized

    told = _told(locals())
    checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    decided = _planned(checkpoint, told) if plan_file is None else Plan.load(_alone(plan_file, told))
    with stages("rounding blocks") as show:
        result = quantized(
            checkpoint, decided, out=out_directory, text=text, resume=resume, device=device, progress=show
        )
    if as_json:
        print_json(result.as_data())
    else:
        out.print(plan_table(result, checkpoint))


def _told(given: dict[str, Any]) -> dict[str, Any]:
    """Returns the options of `fairbits.steps.plan.plan` among the arguments of a verb."""
    told = {name: given[name] for name in (*DECISIONS, "text", "tokens", "sequence", "seed", "device")}
    made = {"group": plan_group_of, "embeddings": embeddings_of, "mix": mix_of, "languages": names_of}
    return told | {name: make(told[name]) for name, make in made.items() if told[name] is not None}


def _planned(checkpoint: "Checkpoint", told: dict[str, Any]) -> "Plan":
    from fairbits.language.render import taken
    from fairbits.policies import DEFAULT
    from fairbits.steps.plan import plan as planned

    print_notes(taken(told["languages"] or ()))
    with stages("opening the model") as show:
        return planned(checkpoint, **told | {"policy": told["policy"] or DEFAULT}, progress=show)


def _alone(plan_file: Path, told: dict[str, Any]) -> Path:
    """Returns the plan's file if nothing is said beside it that it decides."""
    beside = [f"--{name.replace('_', '-')}" for name in DECISIONS if told[name] is not None]
    if beside:
        raise InputError(f"--plan decides what {', '.join(beside)} would; give the plan alone, or make another one")
    return plan_file
