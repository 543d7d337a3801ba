"""Options that several verbs have, and what is made of their text."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from fairbits.artifacts import check_writable
from fairbits.cli import completion
from fairbits.cli.terminal import print_notes
from fairbits.errors import InputError
from fairbits.units import UNITS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fairbits.quantize.plan import Group


def flag(*names: str, help: str, **settings: Any) -> Any:
    """Returns an option that is given or not, and takes no value."""
    return typer.Option(*names, help=help, metavar="", **settings)


Model = Annotated[
    str,
    typer.Argument(
        help="A directory, a .gguf file, an id on the Hub, or embedded:tiny.",
        metavar="MODEL",
        autocompletion=completion.model,
    ),
]
Languages = Annotated[
    str | None,
    typer.Option(
        help="Such as eng,fra,he; needed unless --text is given (embedded:tiny has its own).",
        metavar="CODES",
        autocompletion=completion.languages,
    ),
]
TextFrom = Annotated[
    Path | None, typer.Option(help="Directory or JSONL file; else the embedded declaration.", metavar="PATH")
]
Bits = Annotated[int, typer.Option(help="Bits per weight, 2 to 8.")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the Hub.", metavar="NAME")]
Trust = Annotated[bool, flag("--trust-remote-code", help="Run the model's own Python code.")]
Json = Annotated[bool, flag("--json", help="Print the result as JSON.")]

Tokens = Annotated[int, typer.Option(help="Calibration text, in tokens per language.")]
EvaluationTokens = Annotated[int, typer.Option(help="Evaluation text, in tokens per language.")]
Sequence = Annotated[int, typer.Option(help="The longest piece of text, in tokens.")]
Seed = Annotated[int, typer.Option(help="Decides what text is taken.")]
GroupOf = Annotated[
    str,
    typer.Option(
        "--group",
        help="Weights that share a step, or channel, or tensor.",
        metavar="N|channel|tensor",
        autocompletion=completion.one_of("32", "64", "128", "channel", "tensor"),
    ),
]
GroupOrChannel = Annotated[
    str,
    typer.Option(
        "--group",
        help="Weights that share a step, or channel.",
        metavar="N|channel",
        autocompletion=completion.one_of("32", "64", "128", "channel"),
    ),
]
Unit = Annotated[
    str,
    typer.Option(
        help="bits_per_byte, to compare languages by; nats_per_token; nats_per_section.",
        metavar="UNIT",
        autocompletion=completion.one_of(*UNITS),
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="cpu, or a device that torch has, such as cuda or cuda:1.",
        metavar="NAME",
        autocompletion=completion.one_of("cpu", "cuda"),
    ),
]
Embeddings = Annotated[
    str | None,
    typer.Option(
        help="Embedding and head: keep (the default), 8 bits, or 4 (the embedding 8).",
        metavar="keep|8|4",
        autocompletion=completion.one_of("keep", "8", "4"),
    ),
]

# What policies can be told, and their text; none of it is passed on unless the user gives it.
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
        help="Weights that share a step; 128 if not given.",
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


def check_out(path: Path | None, example: str) -> None:
    """Raises if a file cannot be written there; for before what takes time."""
    if path is not None:
        check_writable(path, example=example)


def write_out(path: Path | None, save: "Callable[[Path], object]") -> None:
    """Writes a file where one is asked for, and prints a note on stderr if it took the place of another."""
    if path is None:
        return
    there = path.exists()
    save(path)
    if there:
        print_notes([f"replaced {path}"])


def flag_of(option: str) -> str:
    """Returns how an option is written.

    >>> flag_of("avg_bits")
    '--avg-bits'
    """
    return f"--{option.replace('_', '-')}"


def names_of(languages: str | None) -> list[str] | None:
    """Returns the names that are parted by commas."""
    return None if languages is None else [name.strip() for name in languages.split(",")]


def shares_of(given: str | None) -> dict[str, float] | None:
    """Returns the share of each language, by its code.

    >>> shares_of("eng=0.4,fra=0.2")
    {'eng_Latn': 0.4, 'fra_Latn': 0.2}
    """
    if given is None:
        return None
    from fairbits.language import find_language  # heavy: only when shares are given
    from fairbits.language.mix import parse_weights

    weights = parse_weights(given)
    if isinstance(weights, str) or not all(share > 0 for share in weights.values()):
        raise InputError(f"--shares is {given!r:.60}; it must be a positive number per language: eng=0.4,fra=0.2")
    return {find_language(name).code: share for name, share in weights.items()}


def group_of(given: str) -> int | None:
    """Returns how many weights share a step; None for the whole row."""
    if given == "channel":
        return None
    if not given.isdecimal():
        raise InputError(f"--group is {given!r:.40}; it must be a number of weights, such as 128, or channel")
    return int(given)


def plan_group_of(given: str) -> "Group":
    """Returns how many weights share a step, or channel, or tensor.

    >>> plan_group_of("64"), plan_group_of("tensor")
    (64, 'tensor')
    """
    if given in ("channel", "tensor"):
        return given  # type: ignore[return-value]
    if not given.isdecimal():
        raise InputError(
            f"--group is {given!r:.40}; it must be a number of weights, such as 128, or channel, or tensor"
        )
    return int(given)


def embeddings_of(given: str) -> Literal["keep", 8, 4]:
    """Returns what becomes of embedding and head."""
    if given not in ("keep", "8", "4"):
        raise InputError(f"--embeddings is {given!r:.40}; it must be keep, 8 or 4")
    return "keep" if given == "keep" else 8 if given == "8" else 4


def mix_of(given: str) -> "str | Mapping[str, float]":
    """Returns the name of a mix, or the weights of languages."""
    from fairbits.language.mix import parse_weights  # heavy: only when the verb runs

    return parse_weights(given) if "=" in given else given


def widths_of(given: str, flag: str = "--bits") -> list[int]:
    """Returns the widths in a list such as 4,3, in a range such as 2..8, or in both.

    >>> widths_of("4,3"), widths_of("2..4,8")
    ([4, 3], [2, 3, 4, 8])
    """
    widths: list[int] = []
    for part in given.split(","):
        ends = [end.strip() for end in part.split("..")]
        if len(ends) > 2 or not all(end.isdecimal() and len(end) <= 2 for end in ends) or int(ends[0]) > int(ends[-1]):
            raise InputError(f"{flag} is {given!r:.40}; it must be widths such as 4,3 or a range such as 2..8")
        widths += range(int(ends[0]), int(ends[-1]) + 1)
    return widths


def seeds_of(given: str) -> list[int]:
    """Returns the seeds that are parted by commas."""
    parts = [part.strip() for part in given.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"--seeds is {given!r:.40}; it must be whole numbers such as 0,1,2")
    return [int(part) for part in parts]
