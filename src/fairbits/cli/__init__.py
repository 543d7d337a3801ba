"""The command line. READ FIRST: every command has a module here, with its flags and what it prints."""

import os
from typing import Annotated, Any

import typer

from fairbits.cli.lazy_group import CommandGroup, end_on_sigterm
from fairbits.cli.terminal import hush, silence
from fairbits.core.torchrun import this_process
from fairbits.core.version import __version__

app = typer.Typer(
    cls=CommandGroup, no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode="rich"
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairbits {__version__}")
        raise typer.Exit


def _be_quiet(wanted: bool) -> None:
    if wanted:  # the flag may come before or after the command: its absence in one place must not undo the other
        hush(True)


def _debug(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.ensure_object(dict)["debug"] = True


def _flag(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, metavar="", **settings)


@app.callback()
def fairbits(
    version: Annotated[
        bool, _flag("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    quiet: Annotated[
        bool,
        _flag("--quiet", "-q", help="Print nothing but results and errors.", callback=_be_quiet, expose_value=False),
    ] = False,
    debug: Annotated[
        bool, _flag("--debug", help="Show the traceback of an error.", callback=_debug, expose_value=False)
    ] = False,
) -> None:
    """Quantize multilingual language models so that no language is left behind, and prove it.

    Results go to stdout (as JSON with --json), progress and notes to stderr.
    Exit codes: 0 success, 1 a gate did not pass, 2 wrong usage or input,
    3 a bug in fairbits, 130 interrupted, 143 terminated.

    Examples:
    fairbits evaluate ./quantized --reference ./model --text texts
    fairbits run ./model --languages eng,fra,heb --out run
    fairbits gate run/scores.json --max-changed 10
    """


def main() -> None:
    """Runs the command line; an error ends it with one line and an exit code, see `fairbits.cli.lazy_group`."""
    hush(False)
    # threads that wait let others compute; libgomp reads it when torch is imported
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    end_on_sigterm()
    if not this_process().leads:
        silence()
    app(obj={})
