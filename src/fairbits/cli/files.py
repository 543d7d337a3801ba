"""Files that the user names: checked before the work begins, written when it is done."""

from collections.abc import Callable
from pathlib import Path

from fairbits.artifacts import check_writable
from fairbits.cli.terminal import print_notes


def check_out(path: Path | None, example: str) -> None:
    """Raises if the file cannot be written; call it before anything that takes time."""
    if path is not None:
        check_writable(path, example=example)


def write_out(path: Path | None, save: Callable[[Path], object]) -> None:
    """Writes the file if the user named one, and prints a note if it replaced another."""
    if path is None:
        return
    existed = path.exists()
    save(path)
    if existed:
        print_notes([f"replaced {path}"])
