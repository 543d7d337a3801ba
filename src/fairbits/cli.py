"""The command line: one function per verb, no logic."""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.text import Text

from fairbits import __version__
from fairbits.errors import FairbitsError, InputError, printable

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
out = Console(emoji=False)
err = Console(stderr=True, emoji=False)
COLUMNS = (
    TextColumn("{task.description}"),
    BarColumn(),
    DownloadColumn(),
    TransferSpeedColumn(),
    TimeRemainingColumn(),
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fairbits {__version__}")
        raise typer.Exit


@app.callback()
def fairbits(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Quantize multilingual language models so that no language is left behind, and prove it."""


@app.command()
def theory(
    claim: Annotated[str | None, typer.Option(help="Explain one claim, such as 004-13.", metavar="ID")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page docs/theory.md.")] = False,
) -> None:
    """Recompute the verdict on every claim of the founding documents.

    Examples: `fairbits theory`, `fairbits theory --claim 000-07`, `fairbits theory --json > claims.json`.
    """
    from fairbits.claims import all_claims, find_claim, render  # heavy: only when the verb runs

    if as_json and markdown:
        raise InputError("--json and --markdown were both given; choose one")
    claims = all_claims() if claim is None else [find_claim(claim)]
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        results = {each: each.check() for each in progress.track(claims, description="recomputing claims")}
    if as_json:
        _print_json(render.as_data(results))
    elif markdown:
        typer.echo(render.as_markdown(results), nl=False)
    elif claim is None:
        out.print(render.as_table(results))
    else:
        out.print(render.as_panel(claims[0], results[claims[0]]))


@app.command()
def mix(
    model: Annotated[str, typer.Argument(help="The model whose tokenizer counts: a directory, an id on the Hub, …")],
    out_file: Annotated[Path, typer.Option("--out", help="Where to write the samples.", metavar="CALIB.jsonl")],
    languages: Annotated[str | None, typer.Option(help="Such as eng,fra,he; all of the text if not given.")] = None,
    text: Annotated[Path | None, typer.Option(help="Directory or JSONL file; else the embedded declaration.")] = None,
    weights: Annotated[str, typer.Option(help="equal, proportional, or numbers: eng=2,fra=1.")] = "equal",
    tokens: Annotated[int | None, typer.Option(help="Budget in tokens; else as many as the text allows.")] = None,
    sequence: Annotated[int, typer.Option(help="Tokens per sample.")] = 512,
    seed: Annotated[int, typer.Option(help="Decides what is drawn and its order.")] = 0,
    repeat: Annotated[bool, typer.Option("--repeat", help="Use text again where there is not enough.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the Hub.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run the model's own Python code.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the manifest as JSON.")] = False,
) -> None:
    """Write calibration samples with a fixed share of tokens per language, for any quantization tool.

    Example: `fairbits mix embedded:tiny --languages eng,fra,heb --out calib.jsonl`.
    """
    from fairbits.language import read_corpus, udhr  # heavy: only when the verb runs
    from fairbits.language.mix import build_mix, parse_weights
    from fairbits.language.mix_file import check_target
    from fairbits.language.render import mix_table, taken
    from fairbits.model import Checkpoint

    check_target(out_file)  # before anything that takes time
    names = None if languages is None else [name.strip() for name in languages.split(",")]
    with Progress(console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("reading text", total=None)
        corpus = udhr(names) if text is None else read_corpus(text, languages=names)
        progress.update(task, description="reading tokenizer")
        checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
        tokenizer = checkpoint.tokenizer()
        progress.update(task, description="cutting samples")
        result = build_mix(
            corpus,
            tokenizer,
            weights=parse_weights(weights),
            tokens=tokens,
            sequence=sequence,
            seed=seed,
            repeat=repeat,
            model=checkpoint.target,
            notes=checkpoint.notes,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    result.save(out_file)
    _print_notes((*taken(names or ()), *result.notes))
    if as_json:
        _print_json(result.manifest)
    else:
        out.print(mix_table(result))


@app.command()
def inspect(
    model: Annotated[str, typer.Argument(help="A directory, a .gguf file, an id on the Hub, or embedded:tiny.")],
    tensors: Annotated[bool, typer.Option("--tensors", help="One row per tensor instead of one per block.")] = False,
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a model on the Hub.")] = None,
    trust_remote_code: Annotated[bool, typer.Option(help="Run the model's own Python code.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print blocks, roles and moments as JSON.")] = False,
) -> None:
    """Show a model's blocks and the moments of their weights, in one pass over the files.

    Examples: `fairbits inspect embedded:tiny`, `fairbits inspect ./model --tensors`,
    `fairbits inspect "embedded:tiny?outliers=5:125" --json`.
    """
    from fairbits.model import Checkpoint, weight_moments  # heavy: only when the verb runs
    from fairbits.model.inspection import inspection_data, inspection_table

    checkpoint = Checkpoint(model, trust_remote_code=trust_remote_code, revision=revision)
    with Progress(*COLUMNS, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("reading weights")
        moments = weight_moments(
            checkpoint, progress=lambda done, total: progress.update(task, completed=done, total=total)
        )
    if as_json:
        _print_json(inspection_data(checkpoint, moments))
    else:
        out.print(inspection_table(checkpoint, moments, tensors=tensors))


@app.command()
def languages(
    names: Annotated[
        list[str] | None, typer.Argument(help="Codes or names, such as he, heb, Hebrew; else all.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the languages as JSON.")] = False,
) -> None:
    """List languages: code, names, script, family, and for which of them fairbits brings text and detection.

    Examples: `fairbits languages`, `fairbits languages he zh swahili`.
    """
    from fairbits.language import catalog, find_languages
    from fairbits.language.render import language_data, language_table, taken

    found = find_languages(names) if names else catalog()
    _print_notes(taken(names or ()))
    if as_json:
        _print_json(language_data(found))
    else:
        out.print(language_table(found))


def main() -> None:
    """Runs the command line; an error the user can act on ends with exit code 2 and no traceback."""
    try:
        app()
    except FairbitsError as error:
        err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(2)


def _print_json(data: Any) -> None:
    for line in json.dumps(data, ensure_ascii=False, indent=1).split("\n"):
        typer.echo(printable(line))


def _print_notes(notes: Iterable[str]) -> None:
    for note in notes:
        err.print(Text(printable(note), style="dim"), soft_wrap=True)
