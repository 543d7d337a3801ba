"""Where a quantized checkpoint is drafted until it is whole, and what may be in its way."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fairbits.core.errors import InputError
from fairbits.core.files import TEMPORARY, remove_tree
from fairbits.core.records import Digest, FileName, Kind, Name, Positive, StoredBits

STATE = "state.json"
PLAN = "plan.json"
LEARNING = "learning"
FILES = {"model", "done", STATE, PLAN, LEARNING}  # all that a draft can hold, except for temporary files


@dataclass(frozen=True)
class DraftState:
    """What a draft is for: a draft is continued only if all of this is the same.

    `plan`, `model`  the digest of the plan, and the fingerprint of the model
    `tokenizer`      the hash of its tokenizer
    `fairbits`       the version
    `device`         what computes
    `stored`         the bits and the group size of every tensor that is quantized; null: a row has one scale
    """

    plan: Digest
    model: Digest
    tokenizer: Digest
    fairbits: Name
    device: Name
    stored: Mapping[str, tuple[StoredBits, Positive | None]]


DRAFT = Kind(
    "fairbits.draft/2", "the state of a draft", "fairbits quantize, after you have deleted the draft", DraftState
)


@dataclass(frozen=True)
class BlockNote:
    """The note on a finished block: its record, and the SHA-256 of its files."""

    record: str
    sha256: Mapping[FileName, Digest]


def draft_directory(directory: str | Path) -> Path:
    """Returns where the checkpoint `directory` is drafted, next to it.

    >>> draft_directory("models/tiny-w4").name
    '.tiny-w4.partial'
    """
    target = Path(os.path.abspath(directory))
    if not target.name:
        raise InputError(f"{target} is the root of all files; give a new directory in it")
    return target.with_name(f".{target.name}.partial")


def draft_lock(directory: str | Path) -> Path:
    """Returns the file that locks the draft of the checkpoint `directory`, such as `.tiny-w4.lock`."""
    return draft_directory(directory).with_suffix(".lock")


def is_draft_file(path: Path) -> bool:
    """Returns whether a path in a draft is one that a draft can hold."""
    return path.name in FILES or bool(TEMPORARY.fullmatch(path.name))


def clear_remains(directory: str | Path) -> None:
    """Removes what a process that was killed right after finishing the checkpoint `directory` left of its draft."""
    draft = draft_directory(directory)
    if not _is_there(directory) or not draft.is_dir() or (draft / "model").exists():
        return
    if all(map(is_draft_file, draft.iterdir())):
        remove_tree(draft)


def check_target(directory: str | Path) -> None:
    """Raises if there is anything where the checkpoint will appear."""
    target = Path(os.path.abspath(directory))
    if _is_there(target):
        raise InputError(f"{target} exists and is not empty; give a new directory")


def check_draft(directory: str | Path, *, resume: bool) -> bool:
    """Returns whether a draft of the checkpoint has finished blocks, which only `resume` may go on from."""
    draft = draft_directory(directory)
    done = draft / "done"
    # not so where a draft was killed at birth or after its end
    begun = (draft / STATE).is_file() and (draft / "model").is_dir() and done.is_dir()
    begun = begun and (any(done.iterdir()) or (draft / LEARNING).is_dir())
    if begun and not resume:
        raise InputError(f"{draft} holds what an interrupted run has finished; continue it with --resume, or delete it")
    return begun


def _is_there(directory: str | Path) -> bool:
    """Returns whether there is anything but an empty directory."""
    target = Path(os.path.abspath(directory))
    return target.exists() and (not target.is_dir() or any(target.iterdir()))
