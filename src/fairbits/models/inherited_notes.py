"""What a model with inserted outliers says of the model that it was made from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from fairbits.core.errors import InputError
from fairbits.core.records import Matching, Number, check_record, read_object


def inherited_notes(directory: Path) -> tuple[str, ...]:
    """Returns the notes of the model before, and the blocks that were given outliers; none without outliers.json."""
    file = directory / "outliers.json"
    if not file.is_file():
        return ()
    content = read_object(file)
    source = content.get("source")
    notes = source.get("notes") if isinstance(source, dict) else None
    try:
        record = check_record(MadeWithOutliers, {"notes": notes, "requested": content.get("requested")})
    except InputError as problem:
        raise InputError(
            f"{file} does not say what the model was made from: {problem}; write the model with outliers again"
        ) from None
    blocks = ", ".join(f"{block}: κ {kappa:g}" for block, kappa in record.requested.items())
    return (*record.notes, f"outliers were given to blocks ({blocks}); the function is the same")


@dataclass(frozen=True)
class MadeWithOutliers:
    """What is read of outliers.json: the notes of the model that was given them, and κ of every block."""

    notes: tuple[str, ...]
    requested: Mapping[Annotated[str, Matching("[0-9]{1,6}", "the number of a block")], Number]
