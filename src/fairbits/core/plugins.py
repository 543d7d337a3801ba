"""What other packages add to fairbits, found by the entry points that they declare."""

from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from fairbits.core.errors import InputError

COMMANDS = "fairbits.commands"  # commands of the command line: a function each, as Typer takes it
SOURCES = "fairbits.sources"  # functions that turn one checkpoint into another, asked for by `MODEL?name=value`


@cache
def plugins(group: str) -> dict[str, EntryPoint]:
    """Returns the entry points of a group by name; none is loaded."""
    return {point.name: point for point in entry_points(group=group)}


def load_plugin(group: str, name: str) -> Any:
    """Returns what the entry point of that name points to, imported now."""
    if name not in plugins(group):
        raise InputError(f"{name!r} needs the package fairbits_research, which is not installed; reinstall fairbits")
    return plugins(group)[name].load()
