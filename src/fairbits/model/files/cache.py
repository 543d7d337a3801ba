"""Directories that are made once and kept: models derived from a GGUF file or from the embedded model."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from fairbits.errors import InputError


def cache_directory() -> Path:
    """Returns where derived models are kept: `$XDG_CACHE_HOME/fairbits`, else `~/.cache/fairbits`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "fairbits"


def kept_directory(name: str, write: Callable[[Path], object]) -> Path:
    """Returns the directory `name` of the cache; if it is not there, `write` fills it.

    It is filled under another name and then renamed, so that nobody ever sees half of it.
    """
    final = cache_directory() / name
    if final.is_dir():
        return final
    try:
        final.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".draft-", dir=final.parent))
    except OSError as problem:
        raise InputError(_advice(final.parent, problem)) from None
    try:
        write(draft)
        draft.rename(final)
    except OSError as problem:
        if not final.is_dir():  # else another process was faster, and made the same
            raise InputError(_advice(final.parent, problem)) from problem
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return final


def _advice(directory: Path, problem: OSError) -> str:
    return f"cannot write to {directory} ({problem}); make room there, or set XDG_CACHE_HOME to another place"
