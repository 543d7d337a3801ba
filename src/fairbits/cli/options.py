"""Arguments and options that several commands share, and how the text that the user typed is read."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from fairbits.cli import completion
from fairbits.cli.completion import Complete
from fairbits.cli.terminal import print_notes
from fairbits.core.errors import InputError
from fairbits.core.files import check_writable
from fairbits.core.units import MEASURES, UNITS
from fairbits.models.scales.scheme import Group
from fairbits.text.language_codes import resolve_language, user_codes


def option(help: str, metavar: str, complete: Complete | None = None, *, flag: str | None = None, **more: Any) -> Any:
    """Returns an option; `flag` is its name if this is not the name of the parameter."""
    return typer.Option(*filter(None, [flag]), help=help, metavar=metavar, autocompletion=complete, **more)


def argument(help: str, metavar: str, complete: Complete | None = None) -> Any:
    """Returns an argument without a flag."""
    return typer.Argument(help=help, metavar=metavar, autocompletion=complete)


def flag(*names: str, help: str, **settings: Any) -> Any:
    """Returns an option that is either given or not and takes no value."""
    return typer.Option(*names, help=help, metavar="", **settings)


def out_option(metavar: str, help: str = "The file to write; without it the result is only printed.") -> Any:
    """Returns the option --out; `metavar` shows what kind of file or directory it writes."""
    return option(help, metavar, flag="--out")


Model = Annotated[
    str, argument("A directory, a .gguf file, a model id on the Hub, or embedded:tiny.", "MODEL", completion.model)
]
Base = Annotated[str, argument("The quantized model: a directory, or a model id on the Hub.", "BASE", completion.model)]
Languages = Annotated[
    str | None,
    option(
        "Languages, such as eng,fra,he. Required unless --text is given or MODEL is embedded:tiny.",
        "CODES",
        completion.languages,
    ),
]
TextFrom = Annotated[
    str | None,
    option(
        "Your text, a directory or a JSONL file; or a text that comes with fairbits: declaration (the Universal "
        "Declaration of Human Rights, the default) or help (LibreOffice help). For a file called help, write ./help.",
        "PATH|NAME",
        completion.text,
    ),
]
Bits = Annotated[int, option("Bits per weight, 2 to 8.", "N")]
Revision = Annotated[
    str | None, option("Branch, tag or commit of a model on the Hub; by default its main branch.", "NAME")
]
Trust = Annotated[bool, flag("--trust-remote-code", help="Run Python code that comes with the model.")]
DryRun = Annotated[
    bool,
    flag(
        "--dry-run", help="Only estimate time, memory and disk on this machine; takes some 20 seconds, writes nothing."
    ),
]
Json = Annotated[bool, flag("--json", help="Print the result as JSON.")]

OutlierLayers = Annotated[
    str | None,
    option(
        "The outlier blocks, such as 5,21,22. Default: those with κ over 100; if there are none, those that stand out.",
        "LIST",
    ),
]
OutlierKappa = Annotated[float | None, option("Blocks with κ above this are outlier blocks.", "X")]

Tokens = Annotated[int, option("Calibration tokens per language.", "N")]
EvaluationTokens = Annotated[int, option("Evaluation tokens per language.", "N")]
Quantized = Annotated[
    str,
    argument(
        "The quantized model: a directory, a .gguf file, a model id on the Hub, or the address of a running server "
        "(http://HOST:PORT/v1).",
        "QUANTIZED",
        completion.model,
    ),
]
AllText = Annotated[
    bool,
    flag(
        "--all-text",
        help="Evaluate on all documents of --text, also on the half that fairbits keeps for calibration. For a model "
        "that was not calibrated on this text.",
    ),
]
Sequence = Annotated[int, option("Maximum window length in tokens.", "N")]
Seed = Annotated[int, option("Random seed for sampling text.", "N")]
GroupOrChannel = Annotated[
    str,
    option(
        "Number of weights that share a scale, such as 128; or channel.",
        "N|channel",
        completion.one_of("32", "64", "128", "channel"),
        flag="--group",
    ),
]
LanguageGroups = Annotated[
    str | None,
    option(
        "Groups of languages to compare: 'high=eng,fra;low=swh,yor'; a JSON file with lists of languages, or with "
        "shares of the training text, which halve the languages; or training for embedded:tiny.",
        "GROUPS",
        flag="--groups",
    ),
]
Measure = Annotated[
    str,
    option(
        "Measure of damage: divergence (KL from the reference model) or loss (added loss).",
        "NAME",
        completion.one_of(*MEASURES),
    ),
]
Unit = Annotated[
    str,
    option(
        "Unit of damage: bits_per_byte (roughly comparable between languages), nats_per_token or nats_per_section.",
        "UNIT",
        completion.one_of(*UNITS),
    ),
]
Device = Annotated[
    str,
    option(
        "auto (the GPU if there is one, else the CPU), cpu, cuda, or one of several GPUs such as cuda:1.",
        "NAME",
        completion.one_of("auto", "cpu", "cuda"),
    ),
]
Results = Annotated[
    Path | None,
    option("Store every finished trial in this directory; the same command then resumes where it stopped.", "DIR"),
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


def pick(arguments: Mapping[str, Any], names: str) -> dict[str, Any]:
    """Returns the arguments of a command that a function takes under the same names."""
    return {name: arguments[name] for name in names.split()}


def spell_flag(option: str) -> str:
    """Returns the flag of an option."""
    return f"--{option.replace('_', '-')}"


def split_names(names: str | None) -> list[str] | None:
    """Returns the names in a list with commas."""
    return None if names is None else [name.strip() for name in names.split(",")]


def parse_layers(layers: str | None) -> list[int] | None:
    """Returns the blocks in a list with commas.

    >>> parse_layers("5,21,22")
    [5, 21, 22]
    """
    names = split_names(layers)
    if names is not None and not all(name.isdecimal() for name in names):
        raise InputError(f"blocks are {layers!r:.40}; they must be whole numbers with commas, such as 5,21,22")
    return None if names is None else [int(name) for name in names]


def parse_group(text: str) -> Group:
    """Returns how many weights share a scale, or channel."""
    if text != "channel" and not text.isdecimal():
        raise InputError(f"--group is {text!r:.40}; it must be a number of weights, such as 128, or channel")
    return "channel" if text == "channel" else int(text)


def language_names(languages: str | None) -> list[str] | None:
    """Returns the names in --languages, after notes on how those that are not codes were understood."""
    names = split_names(languages)
    print_notes(language_notes(names or ()))
    return names


def language_notes(names: Iterable[str]) -> list[str]:
    """Returns a note on each name of a language in the catalog that is not its code: how it was understood.

    Names that the catalog does not hold are left to the text that has them.
    """
    names = list(names)
    resolved = [resolve_language(name, user_codes=user_codes(names)) for name in names]
    return [
        f"{match.name} → {match.language.name}, {match.language.code} ({match.because})"
        for match in resolved
        if match.language.listed and match.name != match.language.code
    ]
