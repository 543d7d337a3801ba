"""Directories that are made once and kept: models derived from a GGUF file or from the embedded model."""

import os
from collections.abc import Callable
from pathlib import Path

from fairbits.core.errors import InputError
from fairbits.core.files import whole_directory


def cache_directory() -> Path:
    """Returns where derived models are kept: `$XDG_CACHE_HOME/fairbits`, else `~/.cache/fairbits`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "fairbits"


def kept_directory(name: str, write: Callable[[Path], object]) -> Path:
    """Returns the directory `name` of the cache; if it is not there, `write` fills it, under another name at first."""
    final = cache_directory() / name
    if final.is_dir():
        return final
    try:
        with whole_directory(final) as draft:
            write(draft)
    except OSError as problem:
        if not final.is_dir():  # else another process was faster, and made the same
            raise InputError(
                f"cannot write to {final.parent} ({problem}); make room there, or set XDG_CACHE_HOME to another place"
            ) from problem
    return final
