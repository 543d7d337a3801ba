"""The command line. READ FIRST: every verb has a module in `commands`, and its output a module in `tables`."""

from typing import Annotated

import typer

from fairbits.cli.command import Verb, end_on_sigterm
from fairbits.cli.commands.audit import audit
from fairbits.cli.commands.compare import compare
from fairbits.cli.commands.diff import diff
from fairbits.cli.commands.doctor import doctor
from fairbits.cli.commands.evaluate import evaluate
from fairbits.cli.commands.gate import gate
from fairbits.cli.commands.generate import generate
from fairbits.cli.commands.imatrix import imatrix
from fairbits.cli.commands.inspect import inspect
from fairbits.cli.commands.languages import languages
from fairbits.cli.commands.mix import mix
from fairbits.cli.commands.overlay import overlay
from fairbits.cli.commands.plan import plan
from fairbits.cli.commands.quantize import quantize
from fairbits.cli.commands.report import report
from fairbits.cli.commands.research import research
from fairbits.cli.commands.run import run
from fairbits.cli.commands.screen import screen
from fairbits.cli.commands.serve import serve
from fairbits.cli.commands.sweep import sweep
from fairbits.cli.commands.tasks import tasks
from fairbits.cli.commands.theory import theory
from fairbits.cli.options import flag
from fairbits.cli.terminal import hush, silence
from fairbits.torchrun import this_process
from fairbits.version import __version__

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fairbits {__version__}")
        raise typer.Exit


def _be_quiet(wanted: bool) -> None:
    if wanted:  # the flag may come before or after the verb: its absence in one place must not undo the other
        hush(True)


def _debug(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.ensure_object(dict)["debug"] = True


@app.callback()
def fairbits(
    version: Annotated[
        bool, flag("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
    quiet: Annotated[
        bool,
        flag("--quiet", "-q", help="Print no progress, notes or signature.", callback=_be_quiet, expose_value=False),
    ] = False,
    debug: Annotated[
        bool, flag("--debug", help="Show the traceback of an error.", callback=_debug, expose_value=False)
    ] = False,
) -> None:
    """Quantize multilingual language models so that no language is left behind, and prove it.

    Results go to stdout (as JSON with --json), progress and notes to stderr.
    Exit codes: 0 success, 1 a gate did not pass, 2 wrong usage or input,
    3 a bug in fairbits, 130 interrupted, 143 terminated.

    Examples:
    fairbits run
    fairbits run ./model --languages eng,fra,heb --out run
    fairbits gate run/scores.json --max-worst 0.02
    """


VERBS = {
    "The whole job": (run,),
    "Step by step": (audit, plan, quantize, evaluate, report, gate),
    "Adapt and serve": (overlay, generate, serve),
    "Compare": (compare, sweep, screen, diff),
    "Models, languages, theory": (inspect, languages, mix, imatrix, tasks, theory, research, doctor),
}
"""In the order of --help."""

for panel, verbs in VERBS.items():
    for each in verbs:
        app.command(cls=Verb, rich_help_panel=panel)(each)


def main() -> None:
    """Runs the command line; an error ends it with one line and an exit code, see `fairbits.cli.command`."""
    hush(False)
    end_on_sigterm()
    if not this_process().leads:
        silence()
    app(obj={})
