"""The command line: one function per verb, no logic."""

import json
import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress
from rich.text import Text

from fairbits import __version__
from fairbits.errors import FairbitsError, InputError

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)
out = Console()
err = Console(stderr=True)


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
        typer.echo(json.dumps(render.as_data(results), ensure_ascii=False, indent=1))
    elif markdown:
        typer.echo(render.as_markdown(results), nl=False)
    elif claim is None:
        out.print(render.as_table(results))
    else:
        out.print(render.as_panel(claims[0], results[claims[0]]))


def main() -> None:
    """Runs the command line; an error the user can act on ends with exit code 2 and no traceback."""
    try:
        app()
    except FairbitsError as error:
        err.print(Text.assemble(("error: ", "bold red"), str(error)))
        sys.exit(2)
