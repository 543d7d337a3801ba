"""How the directory of a run is opened: a new one, or one that the same run has begun; never by two runs at once."""

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fairbits.artifacts import write_files
from fairbits.errors import InputError
from fairbits.quantize.evidence import Evidence
from fairbits.quantize.policies import decide
from fairbits.reports.files import RUN, RunFile
from fairbits.verbs.quantize import check_quantize
from fairbits.verbs.report import RUN_FILE
from fairbits.verbs.run.directory import RunDirectory, run_bytes
from fairbits.verbs.run.job import Job
from fairbits.verbs.run.lock import LOCK, locked

LEFT = re.compile(r"\.[0-9a-f]{32}\.part")
"""What `write_files` leaves where it is killed."""
LONGEST = 40
"""Characters of a setting that an error shows."""
BESIDE = ("model", "notes", "schema", "versions", "written")
"""What may differ in run.json between two runs that find the same."""


@contextmanager
def open_directory(out: str | Path, job: Job) -> Iterator[RunDirectory]:
    """Yields the directory of a job, a new one or one that the same job has begun; it is held against other runs."""
    path, data = Path(out), job.record()
    with ExitStack() as stack:
        try:
            _begun(path, data)  # before a lock is left in the directory of somebody else
            path.mkdir(parents=True, exist_ok=True)
            unlocked = stack.enter_context(locked(path))
            begun = _begun(path, data)  # again, as another run may have been at it until now
            for left in path.rglob(".*.part"):
                if LEFT.fullmatch(left.name):
                    left.unlink()
        except OSError as problem:
            reason = f"{path} cannot be written ({problem.strerror})"
            raise InputError(f"{reason}; give another directory with --out") from None
        if not begun:
            write_files({path / RUN_FILE: run_bytes(data)})
        place = RunDirectory(path, job)
        for note in filter(None, (unlocked, _gone_on_with(RUN.read(path / RUN_FILE).versions, data.versions))):
            place.note(note)
        yield place


def _begun(path: Path, data: RunFile) -> bool:
    """Returns whether a directory holds this job; raises if it holds anything else."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is no directory; give a new one with --out")
    names = {each.name for each in path.iterdir()} if path.is_dir() else set()
    if RUN_FILE in names:
        _check_same(path, RUN.read(path / RUN_FILE), data)
    elif not all(name == LOCK or LEFT.fullmatch(name) for name in names):
        raise InputError(f"{path} exists, is not empty and holds no run; give a new directory with --out")
    return RUN_FILE in names


def _gone_on_with(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Returns a note on the versions that differ from those a run was begun with.

    >>> _gone_on_with({"torch": "2.13.0", "numpy": "2.4"}, {"torch": "2.14.0", "numpy": "2.4"})
    'gone on with torch 2.14.0 (it was begun with 2.13.0)'
    """
    other = [
        f"{name} {version} (it was begun with {before[name]:.40})"
        for name, version in now.items()
        if name in before and before[name] != version
    ]
    return f"gone on with {', '.join(other)}" if other else None


def check_out(out: str | Path, job: Job) -> None:
    """Raises if the quantized model cannot be written or has no room; one that is there already has been written."""
    target = Path(out) / "model"
    shape: dict[str, Any] = {"bits": job.bits, "group": job.group, "embeddings": job.embeddings}
    if target.is_symlink():
        raise InputError(f"{target} is a link; a run writes its model itself: remove the link, or give another --out")
    if target.exists():
        return
    check_quantize(job.checkpoint, target, resume=True, device=job.device, **shape)
    there = next(each for each in target.absolute().parents if each.is_dir())
    needed, free = decide("rtn", Evidence(job.checkpoint), **shape).size_bytes, shutil.disk_usage(there).free
    if needed > free:
        raise InputError(
            f"{there} has {free:,} bytes free, and the quantized model takes {needed:,}; make room there, "
            "or give another directory with --out"
        )


def _check_same(path: Path, found: RunFile, asked: RunFile) -> None:
    """Raises, naming what differs, if the run of a directory is another one."""
    differing = list(_differences(*(json.loads(run_bytes(each)) for each in (found, asked))))
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise InputError(
            f"{path} holds a run with other settings: {'; '.join(differing[:3])}{more}. "
            "Give the same to go on with it, or another directory with --out"
        )


def _differences(found: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """Yields what differs and how."""
    for key in asked:
        before, now = found.get(key), asked[key]
        if key in BESIDE or before == now:
            continue
        if key == "fingerprint":
            yield f"model {found.get('model')} there, {asked['model']} now"
        elif key == "hashes":
            yield "other text"
        elif isinstance(now, dict) and isinstance(before, dict):
            yield from (
                f"{name} {_shown(before.get(name))} there, {_shown(each)} now"
                for name, each in now.items()
                if before.get(name) != each
            )
        else:
            yield f"{key} {_shown(before)} there, {_shown(now)} now"


def _shown(value: Any) -> str:
    """Returns a setting in few words.

    >>> _shown([3, 8]), _shown([{"name": "rtn", "scores": "baselines/rtn.json"}]), _shown([])
    ('3,8', 'rtn', 'none')
    """
    listed = value if isinstance(value, list) else [value]
    text = ",".join(str(each["name"]) if isinstance(each, dict) else str(each) for each in listed) or "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
