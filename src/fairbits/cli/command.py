"""How every verb runs: the options that all verbs have, and the one line that an error prints."""

import errno
import os
import signal
import sys
import threading
import traceback
from types import FrameType
from typing import Any, NoReturn

import typer
from typer.core import TyperCommand

from fairbits.cli.terminal import out, print_error
from fairbits.core.errors import AlreadyReportedError, FairbitsError, InputError, MemoryLimitError, is_out_of_memory
from fairbits.core.torchrun import this_process

EVERYWHERE = ("quiet", "debug")
"""Options of `fairbits` itself that may also follow the verb."""
SHARED = ("quantize",)
"""Verbs whose work several processes can share."""
BAD_INPUT, DEFECT, INTERRUPTED, TERMINATED = 2, 3, 130, 143
DISK = (errno.EIO, errno.EROFS, errno.EACCES, errno.EPERM, errno.ESTALE)
"""Errors of the system that are no defect of fairbits, wherever they occur."""
HOW_TO_CONTINUE = {
    "run": "run the same command again to continue",
    "quantize": "run the same command with --resume to continue after the last finished block",
}
"""What to do after a verb was interrupted."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, as a scheduler sends it: it ends a verb as Ctrl-C does, so that nothing half written is left."""


def end_on_sigterm() -> None:
    """Has SIGTERM raise `Terminated`, if this process may decide so.

    One of several processes ends at once: it may be waiting for the others, where no exception reaches it.
    """

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        raise Terminated

    main, unused = threading.current_thread() is threading.main_thread(), signal.getsignal(signal.SIGTERM)
    if main and unused is signal.SIG_DFL and not this_process().several:
        signal.signal(signal.SIGTERM, end)


class Verb(TyperCommand):
    """A verb: it has the options that all verbs have, and reports an error in one line."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the verb's own options, then those that all verbs have."""
        shared = [] if ctx.parent is None else [p for p in ctx.parent.command.params if p.name in EVERYWHERE]
        *own, help_option = super().get_params(ctx)
        return [*own, *shared, help_option]

    def invoke(self, ctx: Any) -> Any:
        """Runs the verb; an error ends it with one line and an exit code, after a traceback with --debug."""
        try:
            _check_processes(ctx.info_name)
            return super().invoke(ctx)
        except typer.Exit:
            raise
        except AlreadyReportedError:
            return _end(BAD_INPUT)
        except BrokenPipeError:
            out.on_broken_pipe()
        except (Exception, KeyboardInterrupt) as error:  # the last resort: the user must see every error
            if (ctx.obj or {}).get("debug"):
                traceback.print_exc(file=sys.stderr if this_process().leads else sys.__stderr__)
            message, code = explain(error, ctx.info_name or "")
            print_error(message)
            return _end(code)


def _check_processes(verb: str | None) -> None:
    """Raises if torchrun has started several processes for a verb that only one can do."""
    process = this_process()
    if process.several and verb not in SHARED:
        found = f"fairbits {verb} runs in one process, and torchrun has started {process.count}"
        message = f"{found}; start it without torchrun"
        raise InputError(message) if process.leads else AlreadyReportedError(message)


def _end(code: int) -> NoReturn:
    """Ends the verb; one of several processes ends at once, without waiting for others that may wait for it."""
    if this_process().several:
        for stream in (sys.stdout, sys.stderr, sys.__stderr__):
            if stream is not None:
                stream.flush()
        os._exit(code)
    raise typer.Exit(code) from None


def explain(error: BaseException, verb: str = "") -> tuple[str, int]:
    """Returns the message for the user, and the exit code.

    >>> explain(TypeError("no such thing"))
    ('unexpected TypeError: no such thing; this is a bug in fairbits: run it again with --debug and ...', 3)
    """
    if isinstance(error, MemoryLimitError):
        later = "as soon as more memory is free"
        return "; ".join(filter(None, (str(error), _continue_when(verb, later)))), BAD_INPUT
    if isinstance(error, FairbitsError):
        return str(error), BAD_INPUT
    if isinstance(error, Terminated):
        return "; ".join(filter(None, ("terminated", HOW_TO_CONTINUE.get(verb)))), TERMINATED
    if isinstance(error, KeyboardInterrupt):
        return "; ".join(filter(None, ("interrupted", HOW_TO_CONTINUE.get(verb)))), INTERRUPTED
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


def _continue_when(verb: str, when: str) -> str | None:
    """Returns how to continue a verb later; None if it cannot be continued."""
    return f"{HOW_TO_CONTINUE[verb]} {when}" if verb in HOW_TO_CONTINUE else None


def _first_line(error: BaseException) -> str:
    """Returns the beginning of an error's message."""
    return (str(error).strip().splitlines() or ["it has no message"])[0][:200]
