"""How commands are found, imported and run, the options that all have, and the one line that an error prints.

Help and shell completion answer at once, although torch and transformers take seconds to import: a command is
imported when it is called, and its module imports what computes inside the functions that need it.
"""

import ast
import errno
import os
import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import typer
from rich.markup import escape
from typer.core import TyperArgument, TyperCommand, TyperGroup

from fairbits.cli.terminal import out, print_error
from fairbits.core.errors import AlreadyReportedError, FairbitsError, InputError, MemoryLimitError, is_out_of_memory
from fairbits.core.plugins import COMMANDS, plugins
from fairbits.core.torchrun import this_process

PANELS = {
    "Measure": ("evaluate", "release", "gate", "power", "report", "audit", "compare"),
    "Quantize": ("run", "quantize", "plan", "sweep"),
    "Serve": ("overlay", "generate", "serve"),
    "Text and tools": ("languages", "mix", "imatrix", "tasks", "inspect", "doctor"),
    "Research": ("screen", "diff", "laaciq"),
}
"""The commands of fairbits in the order of --help; those of other packages follow in the last panel. `audit` is the
function of that name in `audit_command`."""
ENVIRONMENT = {name: {"OPENBLAS_NUM_THREADS": "1"} for name in ("gate", "power")}
"""Set before a command loads numpy: the matrices of these are small, and threads would only wait for each other."""
EVERYWHERE = ("quiet", "debug")  # options of `fairbits` itself that may also follow the command
SHARED = ("quantize",)  # commands whose work several processes can share
BAD_INPUT, DEFECT, INTERRUPTED, TERMINATED = 2, 3, 130, 143
DISK = (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ESTALE)
"""Errors of the system that are not a defect of fairbits, wherever they occur."""
HOW_TO_CONTINUE = {
    "run": "run the same command again to continue",
    "quantize": "run the same command with --resume to continue after the last finished block",
}
"""What to do after a command was interrupted."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a scheduler sends it: it ends a command as Ctrl-C does, so that nothing is left half written."""


def end_on_sigterm() -> None:
    """Has SIGTERM raise `Terminated`, if this process may decide so.

    One of several processes ends at once: it may be waiting for another one, where no exception reaches it.
    """

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated

    main, unused = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    if main and unused is signal.SIG_DFL and not this_process().several:
        signal.signal(signal.SIGTERM, end)


def find_commands() -> dict[str, list[EntryPoint]]:
    """Returns where the commands are, by panel of --help, commands of other packages last; none is imported."""
    panels = {
        panel: [EntryPoint(name, f"fairbits.cli.{name}_command:{name}", COMMANDS) for name in names]
        for panel, names in PANELS.items()
    }
    panels["Research"] += [point for _, point in sorted(plugins(COMMANDS).items())]
    return panels


class CommandGroup(TyperGroup):
    """The commands of `fairbits`: each is imported when it is called."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for panel, entry_points in find_commands().items():
            self.commands.update({point.name: LazyCommand(point, panel) for point in entry_points})

    def get_params(self, ctx: Any) -> list[Any]:
        return [without_type(param) for param in super().get_params(ctx)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        self._describe_commands()
        super().format_help(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        self._describe_commands()
        return super().shell_complete(ctx, incomplete)

    def _describe_commands(self) -> None:
        for command in self.commands.values():
            if isinstance(command, LazyCommand):
                command.help = docstring(command.entry_point).partition("\n\n")[0]


class LazyCommand(TyperCommand):
    """A command that is known by name only; its function is imported when it is called."""

    def __init__(self, entry_point: EntryPoint, panel: str) -> None:
        super().__init__(entry_point.name, rich_help_panel=panel)
        self.entry_point = entry_point

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Returns the context of the imported command, with which click continues."""
        with report_errors(self.name or "", parent):
            command = self.load()
        return command.make_context(info_name, args, parent=parent, **extra)

    def load(self) -> Any:
        for name, value in ENVIRONMENT.get(self.name or "", {}).items():
            os.environ.setdefault(name, value)
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich")
        app.command(self.name, cls=FairbitsCommand)(self.entry_point.load())
        command = typer.main.get_command(app)
        parts = escape(command.help or "").split("\n\n")  # [ray] is not markup
        command.help = "\n\n".join(
            part if part.startswith(("Examples:", "Kinds:")) else " ".join(map(str.strip, part.split("\n")))
            for part in parts
        )
        for param in command.params:
            param.help = escape(getattr(param, "help", None) or "")  # type: ignore[attr-defined]
        return command


def without_type(param: Any) -> Any:
    """Returns a parameter whose help does not name the type of a flag or an argument, such as <bool>."""
    if isinstance(param, TyperArgument):
        param.display_type_rich = lambda ctx: None  # type: ignore[method-assign]  # noqa: ARG005
    elif param.metavar is None:
        param.metavar = ""
    return param


def docstring(entry_point: EntryPoint) -> str:
    """Returns the docstring of a command, read from its source: importing all commands would take longer."""
    spec = find_spec(entry_point.module)
    if spec is None or spec.origin is None:
        return entry_point.load().__doc__ or ""
    nodes = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name == entry_point.attr]
    return (ast.get_docstring(functions[-1]) or "") if functions else ""


class FairbitsCommand(TyperCommand):
    """A command with the options that all commands have; it reports an error in one line."""

    def get_params(self, ctx: Any) -> list[Any]:
        shared = [] if ctx.parent is None else [p for p in ctx.parent.command.params if p.name in EVERYWHERE]
        *options, help_option = super().get_params(ctx)
        return [without_type(param) for param in (*options, *shared, help_option)]

    def invoke(self, ctx: Any) -> Any:
        with report_errors(ctx.info_name or "", ctx):
            return super().invoke(ctx)


@contextmanager
def report_errors(command: str, ctx: Any) -> Iterator[None]:
    """Ends the process with one line and an exit code if an error is raised, after a traceback with --debug."""
    try:
        _check_processes(command)
        yield
    except typer.Exit:
        raise
    except AlreadyReportedError:
        _end(BAD_INPUT)
    except BrokenPipeError:
        out.on_broken_pipe()
    except (Exception, KeyboardInterrupt) as error:  # the last resort: the user must see every error
        if ((ctx and ctx.obj) or {}).get("debug"):
            traceback.print_exc(file=sys.stderr if this_process().leads else sys.__stderr__)
        message, code = explain(error, command)
        print_error(message)
        _end(code)


def _check_processes(command: str) -> None:
    process = this_process()
    if process.several and command not in SHARED:
        started = f"fairbits {command} runs in one process, and torchrun has started {process.count}"
        message = f"{started}; start it without torchrun"
        raise InputError(message) if process.leads else AlreadyReportedError(message)


def _end(code: int) -> NoReturn:
    """Ends the command; one of several processes ends at once, without waiting for others that may wait for it."""
    if this_process().several:
        for stream in (sys.stdout, sys.stderr, sys.__stderr__):
            if stream is not None:
                stream.flush()
        os._exit(code)
    raise typer.Exit(code) from None


def explain(error: BaseException, command: str = "") -> tuple[str, int]:
    """Returns the message for the user, and the exit code."""
    if isinstance(error, MemoryLimitError):
        advice = HOW_TO_CONTINUE.get(command)
        return f"{error}; {advice} as soon as more memory is free" if advice else str(error), BAD_INPUT
    if isinstance(error, FairbitsError):
        return str(error), BAD_INPUT
    if isinstance(error, KeyboardInterrupt):
        word, code = ("terminated", TERMINATED) if isinstance(error, Terminated) else ("interrupted", INTERRUPTED)
        return "; ".join(filter(None, (word, HOW_TO_CONTINUE.get(command)))), code
    if is_out_of_memory(error):
        advice = "use fewer --tokens, a shorter --sequence, another --device, or a machine with more memory"
        return f"there is not enough memory ({_first_line(error)}); {advice}", BAD_INPUT
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" for {error.filename}" if error.filename else ""
        return f"there is no room left on the disk{where} ({error.strerror}); free some and run it again", BAD_INPUT
    if isinstance(error, OSError) and error.errno in DISK:
        where = error.filename or "a file"
        return f"{where} cannot be read or written ({error.strerror}); check the disk and run it again", BAD_INPUT
    advice = "this is a bug in fairbits: run it again with --debug and report the output"
    return f"unexpected {type(error).__name__}: {_first_line(error)}; {advice}", DEFECT


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or ["it has no message"])[0][:200]
