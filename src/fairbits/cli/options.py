"""Arguments and options that several verbs share.

Files that the user names: checked before the work begins, written when it is done.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from fairbits.cli import completion
from fairbits.cli.policy_options import common_flag
from fairbits.cli.terminal import print_notes
from fairbits.core.files import check_writable
from fairbits.core.units import MEASURES, UNITS


def flag(*names: str, help: str, **settings: Any) -> Any:
    """Returns an option that is either given or not and takes no value."""
    return typer.Option(*names, help=help, metavar="", **settings)


def out_option(metavar: str, help: str = "The file to write.") -> Any:
    """Returns the option --out; `metavar` shows what kind of file or directory it writes."""
    return typer.Option("--out", help=help, metavar=metavar)


Model = Annotated[
    str,
    typer.Argument(
        help="A directory, a .gguf file, a model id on the Hub, or embedded:tiny.",
        metavar="MODEL",
        autocompletion=completion.model,
    ),
]
Base = Annotated[
    str,
    typer.Argument(
        help="The quantized model: a directory, or a model id on the Hub.",
        metavar="BASE",
        autocompletion=completion.model,
    ),
]
Languages = Annotated[
    str | None,
    typer.Option(
        help="Languages, such as eng,fra,he. Required unless --text is given or MODEL is embedded:tiny.",
        metavar="CODES",
        autocompletion=completion.languages,
    ),
]
TextFrom = Annotated[
    str | None,
    typer.Option(
        help="Your text, a directory or a JSONL file; or a text that comes with fairbits: declaration (the Universal "
        "Declaration of Human Rights, used by default) or help (of LibreOffice). Write ./help for a file of that name.",
        metavar="PATH|NAME",
        autocompletion=completion.text,
    ),
]
Bits = Annotated[int, typer.Option(help="Bits per weight, 2 to 8.", metavar="N")]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the Hub.", metavar="NAME")]
Trust = Annotated[bool, flag("--trust-remote-code", help="Run the model's own Python code.")]
DryRun = Annotated[
    bool,
    flag("--dry-run", help="Only estimate time, memory and disk on this machine, in a few seconds; write nothing."),
]
Json = Annotated[bool, flag("--json", help="Print the result as JSON.")]

Tokens = Annotated[int, typer.Option(help="Calibration tokens per language.", metavar="N")]
EvaluationTokens = Annotated[int, typer.Option(help="Evaluation tokens per language.", metavar="N")]
Sequence = Annotated[int, typer.Option(help="Longest window of text, in tokens.", metavar="N")]
Seed = Annotated[int, typer.Option(help="Selects the text that is sampled.", metavar="N")]
PlanGroup = Annotated[str | None, common_flag("group")]
GroupOrChannel = Annotated[
    str,
    typer.Option(
        "--group",
        help="Number of weights that share a scale, or channel.",
        metavar="N|channel",
        autocompletion=completion.one_of("32", "64", "128", "channel"),
    ),
]
Measure = Annotated[
    str,
    typer.Option(
        help="What decides: divergence (KL from the reference model) or loss (added loss).",
        metavar="NAME",
        autocompletion=completion.one_of(*MEASURES),
    ),
]
Unit = Annotated[
    str,
    typer.Option(
        help="Unit of damage: bits_per_byte (comparable between languages), nats_per_token or nats_per_section.",
        metavar="UNIT",
        autocompletion=completion.one_of(*UNITS),
    ),
]
Device = Annotated[
    str,
    typer.Option(
        help="auto (the GPU if there is one, else the CPU), cpu, cuda, or one of several GPUs such as cuda:1.",
        metavar="NAME",
        autocompletion=completion.one_of("auto", "cpu", "cuda"),
    ),
]
Embeddings = Annotated[str | None, common_flag("embeddings")]
Results = Annotated[
    Path | None,
    typer.Option(
        help="Keep every finished trial in this directory; the same command then continues where it stopped.",
        metavar="DIR",
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        help="Do the work on a Ray cluster: host:port of its head, auto (the one of this machine), or local (start one "
        "here). Needs fairbits[ray].",
        metavar="ADDRESS",
        autocompletion=completion.one_of("local", "auto"),
    ),
]
RayCpus = Annotated[float, typer.Option(help="With --ray: processors of each task.", metavar="N")]
RayGpus = Annotated[
    float, typer.Option(help="With --ray, on GPUs: GPUs of each task; 0.5 puts two on one.", metavar="X")
]


def check_out(path: Path | None, example: str) -> None:
    """Raises if the file cannot be written; call it before anything that takes time."""
    if path is not None:
        check_writable(path, example=example)


def write_out(path: Path | None, save: Callable[[Path], object]) -> None:
    """Writes the file if the user named one, and prints a note if it replaced another."""
    if path is None:
        return
    existed = path.exists()
    save(path)
    if existed:
        print_notes([f"replaced {path}"])
