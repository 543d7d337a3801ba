"""Reading the second file of an audit, which holds its large arrays."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from fairbits.errors import InputError
from fairbits.measure.audit.audit_file import AuditFile


def stored_arrays(path: Path, found: AuditFile, names: Sequence[str]) -> list[NDArray[Any]]:
    """Returns arrays of an audit by name; `path` is that of audit.json, `found` its content."""
    from safetensors import SafetensorError, safe_open

    beside = path.with_name(found.arrays.file)
    try:
        with safe_open(beside, framework="numpy") as arrays:
            return [arrays.get_tensor(name) for name in names]
    except (OSError, SafetensorError) as problem:
        raise InputError(
            f"{beside}, the second file of {path}, cannot be read ({problem}); keep both files together, or audit again"
        ) from None
