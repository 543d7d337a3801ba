"""Options of policies on the command line, and the plan that is made with them."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fairbits.cli import completion
from fairbits.cli.parsing import embeddings_of, flag_of, mix_of, names_of, plan_group_of, widths_of
from fairbits.cli.terminal import print_notes, stages
from fairbits.errors import InputError

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

PolicyOption = Annotated[
    str | None,
    typer.Option(
        "--policy",
        help="gptq (the default), fair, rtn, aciq, kappa, mse, weighted, laaciq, mixed, allocate, gateway, protect.",
        metavar="NAME",
        autocompletion=completion.one_of(*completion.POLICIES),
    ),
]
PolicyBits = Annotated[int | None, typer.Option("--bits", help="Bits per weight, 2 to 8; 4 if not given.")]
AvgBits = Annotated[float | None, typer.Option(help="allocate, fair: bits per weight on average, such as 4.25.")]
Widths = Annotated[
    str | None, typer.Option(help="allocate, fair: the widths that blocks may have, such as 4,8.", metavar="LIST")
]
PolicyGroup = Annotated[
    str | None,
    typer.Option(
        "--group",
        help="Weights that share a scale; 128 if not given.",
        metavar="N|channel|tensor",
        autocompletion=completion.one_of("32", "64", "128", "channel", "tensor"),
    ),
]
Objective = Annotated[
    str | None,
    typer.Option(
        help="laaciq, allocate, fair: mean, worst or regret of languages; protect: mean, worst.",
        metavar="NAME",
        autocompletion=completion.one_of("mean", "worst", "regret"),
    ),
]
OneLanguage = Annotated[
    str | None,
    typer.Option(
        "--language",
        help="laaciq: the one language to clip for.",
        metavar="CODE",
        autocompletion=completion.language,
    ),
]
Mix = Annotated[
    str | None,
    typer.Option(
        help="gptq: equal, english, minimax, or numbers: eng=2,fra=1.",
        metavar="NAME|WEIGHTS",
        autocompletion=completion.one_of("equal", "english", "minimax"),
    ),
]
Protected = Annotated[int | None, typer.Option("--k", help="gateway, protect: how many blocks have 8 bits.")]
Tau = Annotated[float | None, typer.Option(help="mixed: blocks with κ above it have 8 bits.")]
Law = Annotated[
    str | None,
    typer.Option(
        help="aciq: gaussian or laplace.",
        metavar="NAME",
        autocompletion=completion.one_of("gaussian", "laplace"),
    ),
]
Rounding = Annotated[
    str | None,
    typer.Option(
        help="mixed, allocate, gateway, protect: gptq or nearest.",
        metavar="NAME",
        autocompletion=completion.one_of("gptq", "nearest"),
    ),
]
Sensitivity = Annotated[
    str | None,
    typer.Option(
        help="allocate, protect, fair: cost of blocks, predicted or measured.",
        metavar="NAME",
        autocompletion=completion.one_of("predicted", "measured"),
    ),
]
BlockSteps = Annotated[
    int | None, typer.Option(help="fair: how often the codes of a block are changed; 200 if not given, 0 for never.")
]
ModelSteps = Annotated[
    int | None,
    typer.Option(help="fair: how often all codes are then changed together; 500 if not given, 0 for large models."),
]
BlockTokens = Annotated[
    int | None,
    typer.Option(help="fair: tokens of each language that blocks are learned with; 4096 if not given, 16384 on a GPU."),
]
Rows = Annotated[
    int | None, typer.Option(help="fair: windows of text that are read for a change; 4 if not given, 32 on a GPU.")
]
AuditFile = Annotated[Path | None, typer.Option("--audit", help="mixed: take κ from it.", metavar="AUDIT.json")]
PlanTokens = Annotated[
    int | None,
    typer.Option("--tokens", help="Calibration text, in tokens per language; 4096 if not given, 16384 for fair."),
]
PlanSequence = Annotated[
    int | None, typer.Option("--sequence", help="The longest piece of text, in tokens; 512 if not given.")
]
PlanSeed = Annotated[int | None, typer.Option("--seed", help="Decides what text is taken; 0 if not given.")]


def options_given(given: dict[str, Any]) -> dict[str, Any]:
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


def make_plan(checkpoint: "Checkpoint", given: dict[str, Any]) -> "Plan":
    """Returns the plan of a policy with the options that the user gave."""
    from fairbits.cli.tables.languages import language_notes
    from fairbits.quantize.policies import DEFAULT
    from fairbits.verbs.plan import plan as run_plan

    _check_options(given.get("policy", DEFAULT), given)
    print_notes(language_notes(given.get("languages", ())))
    with stages("opening the model") as show:
        return run_plan(checkpoint, **given, progress=show)


def _check_options(policy: str, given: dict[str, Any]) -> None:
    """Raises if a policy does not have an option; the error says which policies do."""
    from fairbits.quantize.policies import POLICIES, takes

    known = takes(policy)
    for name in POLICY_OPTIONS:
        if name in given and name not in known:
            others = ", ".join(other for other in POLICIES if name in takes(other))
            flags = ", ".join(flag_of(each) for each in POLICY_OPTIONS if each in known)
            raise InputError(f"{policy} takes no {flag_of(name)}, which is for {others}; it takes {flags}")
