"""The command line. READ FIRST: every verb has a module in `commands`, and its output a module in `tables`."""

from typing import Annotated

import typer

from fairbits.cli.audit_command import audit
from fairbits.cli.command import Verb, end_on_sigterm
from fairbits.cli.compare_command import compare
from fairbits.cli.diff_command import diff
from fairbits.cli.doctor_command import doctor
from fairbits.cli.evaluate_command import evaluate
from fairbits.cli.gate_command import gate
from fairbits.cli.generate_command import generate
from fairbits.cli.imatrix_command import imatrix
from fairbits.cli.inspect_command import inspect
from fairbits.cli.languages_command import languages
from fairbits.cli.mix_command import mix
from fairbits.cli.options import flag
from fairbits.cli.overlay_command import overlay
from fairbits.cli.plan_command import plan
from fairbits.cli.quantize_command import quantize
from fairbits.cli.report_command import report
from fairbits.cli.run_command import run
from fairbits.cli.screen_command import screen
from fairbits.cli.serve_command import serve
from fairbits.cli.sweep_command import sweep
from fairbits.cli.tasks_command import tasks
from fairbits.cli.terminal import hush, silence
from fairbits.core.plugins import COMMANDS, plugins
from fairbits.core.torchrun import this_process
from fairbits.core.version import __version__

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
    "Models and languages": (inspect, languages, mix, imatrix, tasks, doctor),
    "Research": tuple(point.load() for _, point in sorted(plugins(COMMANDS).items())),
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
