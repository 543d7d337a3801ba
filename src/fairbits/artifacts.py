"""Writing result files: all of them completely, or none."""

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from fairbits.errors import InputError


def check_writable(path: str | Path, *, example: str) -> Path:
    """Returns the path of the file to write, with links resolved; raises if it cannot be written."""
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            raise InputError(f"{target} is not a regular file; give the path of a file to write, such as {example}")
        if not target.parent.is_dir():
            raise InputError(f"{target.parent} is not a directory; give a path in a directory that exists")
    except (OSError, RuntimeError) as error:  # the name is too long, or links form a loop
        raise _unwritable(Path(path), error) from None
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{target.parent} is not writable; give a path in a directory where you may write")
    return target


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Writes under temporary names first, so a full disk or an interruption leaves existing files unchanged."""
    drafts = {path: path.with_name(f".{uuid.uuid4().hex}.part") for path in contents}
    try:
        for path, draft in drafts.items():
            with draft.open("xb") as file:
                file.write(contents[path])
        for path, draft in drafts.items():
            draft.replace(path)
    except OSError as error:
        raise _unwritable(path, error) from None
    finally:
        for draft in drafts.values():
            draft.unlink(missing_ok=True)


def _unwritable(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else error
    return InputError(f"{path} cannot be written ({reason}); give another path, or free some space")
