"""How every verb is run: the options that all of them have, and what is said when one fails."""

import errno
import traceback
from typing import Any

import typer
from typer.core import TyperCommand

from fairbits.cli.terminal import out, print_error
from fairbits.errors import FairbitsError

EVERYWHERE = ("quiet", "debug")
"""Options of the command itself, which may stand behind the verb as well."""
BAD_INPUT, DEFECT, INTERRUPTED = 2, 3, 130
RESUMED = {
    "run": "the same command goes on with what is not finished",
    "quantize": "the same command with --resume goes on behind the blocks that are finished",
}
"""How a verb that was interrupted goes on."""


class Verb(TyperCommand):
    """A verb: it knows the options that stand everywhere, and fails in one line."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Returns the verb's own options, and those of the command."""
        shared = [] if ctx.parent is None else [p for p in ctx.parent.command.params if p.name in EVERYWHERE]
        *own, help_option = super().get_params(ctx)
        return [*own, *shared, help_option]

    def invoke(self, ctx: Any) -> Any:
        """Runs the verb; an error ends it with its exit code and one line, and a traceback above it under --debug."""
        try:
            return super().invoke(ctx)
        except typer.Exit:
            raise
        except BrokenPipeError:
            out.on_broken_pipe()
        except (Exception, KeyboardInterrupt) as error:  # the last resort: whatever it is, the user is told
            if (ctx.obj or {}).get("debug"):
                traceback.print_exc()
            message, code = explained(error, ctx.info_name or "")
            print_error(message)
            raise typer.Exit(code) from None


def explained(error: BaseException, verb: str = "") -> tuple[str, int]:
    """Returns what to tell the user, and the exit code.

    >>> explained(TypeError("no such thing"))
    ('unexpected TypeError: no such thing; this is a defect of fairbits: run it again with --debug and ...', 3)
    """
    if isinstance(error, FairbitsError):
        return str(error), BAD_INPUT
    if isinstance(error, KeyboardInterrupt):
        return "; ".join(filter(None, ("interrupted", RESUMED.get(verb)))), INTERRUPTED
    if _out_of_memory(error):
        advice = "take less --tokens or a shorter --sequence, another --device, or a machine with more"
        return f"there is not enough memory ({_first_line(error)}); {advice}", BAD_INPUT
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        where = f" for {error.filename}" if error.filename else ""
        return f"there is no room left on the disk{where} ({error.strerror}); make room and run it again", BAD_INPUT
    advice = "this is a defect of fairbits: run it again with --debug and report what that shows"
    return f"unexpected {type(error).__name__}: {_first_line(error)}; {advice}", DEFECT


def _out_of_memory(error: BaseException) -> bool:
    """Returns whether memory ran out, of the machine or of a device; torch may not be there to be asked."""
    named = type(error).__name__ == "OutOfMemoryError"
    return isinstance(error, MemoryError) or named or "DefaultCPUAllocator: can't allocate" in str(error)


def _first_line(error: BaseException) -> str:
    """Returns the beginning of what an error says."""
    return (str(error).strip().splitlines() or ["no more is known"])[0][:200]
