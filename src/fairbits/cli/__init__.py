"""The command line: one function per verb, no logic."""

import sys
from typing import Annotated

import typer
from rich.text import Text

from fairbits import __version__
from fairbits.cli.audits import audit, diff, screen
from fairbits.cli.evaluation import compare, evaluate, gate, sweep
from fairbits.cli.look import inspect, languages, mix, theory
from fairbits.cli.quantization import plan, quantize
from fairbits.errors import FairbitsError
from fairbits.terminal import err

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False)


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


VERBS = (inspect, audit, screen, diff, plan, quantize, evaluate, gate, compare, sweep, languages, mix, theory)
"""In the order in which --help names them."""

for verb in VERBS:
    app.command()(verb)


def main() -> None:
    """Runs the command line; an error the user can act on ends with exit code 2 and no traceback."""
    try:
        app()
    except FairbitsError as error:
        err.print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(2)
