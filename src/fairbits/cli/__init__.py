"""The command line: one function per verb, no logic."""

from typing import Annotated

import typer

from fairbits.cli.adaptive import generate, overlay
from fairbits.cli.audits import audit, diff, screen
from fairbits.cli.doctor import doctor
from fairbits.cli.evaluation import compare, evaluate, gate, sweep
from fairbits.cli.look import inspect, languages, mix, theory
from fairbits.cli.options import flag
from fairbits.cli.quantization import plan, quantize
from fairbits.cli.report import report
from fairbits.cli.research import research
from fairbits.cli.run import run
from fairbits.cli.serving import serve
from fairbits.cli.terminal import hush
from fairbits.cli.verb import Verb
from fairbits.version import __version__

app = typer.Typer(no_args_is_help=True, add_completion=True, pretty_exceptions_enable=False, rich_markup_mode="rich")


def _version(show: bool) -> None:
    if show:
        typer.echo(f"fairbits {__version__}")
        raise typer.Exit


def _quiet(wanted: bool) -> None:
    if wanted:  # it may stand before the verb or behind it: what is not there takes nothing back
        hush(True)


def _debug(ctx: typer.Context, wanted: bool) -> None:
    if wanted:
        ctx.ensure_object(dict)["debug"] = True


@app.callback()
def fairbits(
    version: Annotated[
        bool, flag("--version", help="Print the version and stop.", callback=_version, is_eager=True)
    ] = False,
    quiet: Annotated[
        bool, flag("--quiet", "-q", help="No progress and no notes on stderr.", callback=_quiet, expose_value=False)
    ] = False,
    debug: Annotated[
        bool, flag("--debug", help="Show the traceback of an error.", callback=_debug, expose_value=False)
    ] = False,
) -> None:
    """Quantize multilingual language models so that no language is left behind, and prove it.

    Results go to stdout (as JSON with --json), progress and notes to stderr.
    Exit codes: 0 done, 1 a gate's limit is missed, 2 wrong usage or input,
    3 a defect of fairbits, 130 interrupted.

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
    "Models, languages, theory": (inspect, languages, mix, theory, research, doctor),
}
"""In the order in which --help names them."""

for panel, verbs in VERBS.items():
    for each in verbs:
        app.command(cls=Verb, rich_help_panel=panel)(each)


def main() -> None:
    """Runs the command line; errors end with an exit code and one line, as `fairbits.cli.verb` says."""
    hush(False)
    app(obj={})
