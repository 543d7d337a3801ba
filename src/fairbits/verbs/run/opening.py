"""Opens the directory of a run: a new one, or one that the same run has started; never for two runs at once."""

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fairbits.artifacts import TEMPORARY, clear_temporary, write_files
from fairbits.errors import InputError
from fairbits.locks import LOCK, lock_directory
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.policies import decide
from fairbits.reports.sources import RUN, RunFile
from fairbits.verbs.quantize import check_quantize
from fairbits.verbs.report import RUN_FILE
from fairbits.verbs.run.directory import RunDirectory, run_bytes
from fairbits.verbs.run.job import Job

LONGEST = 40
"""Characters of a setting that an error shows."""
IRRELEVANT = ("model", "notes", "schema", "versions", "written")
"""Keys of run.json that may differ between two runs with the same result."""


@contextmanager
def open_directory(out: str | Path, job: Job) -> Iterator[RunDirectory]:
    """Yields the directory of a job, a new one or one that the same job has started; it is locked meanwhile."""
    path, data = Path(out), job.record()
    with ExitStack() as stack:
        try:
            _has_run(path, data)  # before a lock file is left in a directory of someone else
            path.mkdir(parents=True, exist_ok=True)
            unlocked = stack.enter_context(lock_directory(path))
            started = _has_run(path, data)  # again: another run may have been working there until now
            clear_temporary(path)
        except OSError as problem:
            reason = f"{path} cannot be written ({problem.strerror})"
            raise InputError(f"{reason}; give another directory with --out") from None
        if not started:
            write_files({path / RUN_FILE: run_bytes(data)})
        place = RunDirectory(path, job)
        for note in filter(None, (unlocked, _version_note(RUN.read(path / RUN_FILE).versions, data.versions))):
            place.note(note)
        yield place


def recorded_device(out: str | Path) -> str | None:
    """Returns the device of the run that a directory has; None if it has none."""
    file = Path(out) / RUN_FILE
    return RUN.read(file).settings.get("device") if file.is_file() else None


def _has_run(path: Path, data: RunFile) -> bool:
    """Returns whether a directory has a run of this job; raises if it has anything else."""
    if path.exists() and not path.is_dir():
        raise InputError(f"{path} is not a directory; give a new one with --out")
    names = {each.name for each in path.iterdir()} if path.is_dir() else set()
    if RUN_FILE in names:
        _check_same(path, RUN.read(path / RUN_FILE), data)
    elif not all(name == LOCK or TEMPORARY.fullmatch(name) for name in names):
        raise InputError(f"{path} is not empty and has no run in it; give a new directory with --out")
    return RUN_FILE in names


def _version_note(before: Mapping[str, str], now: Mapping[str, str]) -> str | None:
    """Returns a note on the versions that differ from those that a run was started with.

    >>> _version_note({"torch": "2.13.0", "numpy": "2.4"}, {"torch": "2.14.0", "numpy": "2.4"})
    'continued with torch 2.14.0 (started with 2.13.0)'
    """
    other = [
        f"{name} {version} (started with {before[name]:.40})"
        for name, version in now.items()
        if name in before and before[name] != version
    ]
    return f"continued with {', '.join(other)}" if other else None


def check_out(out: str | Path, job: Job) -> None:
    """Raises if the quantized model cannot be written or has no room, unless it is already there."""
    target = Path(out) / "model"
    shape: dict[str, Any] = {"bits": job.bits, "group": job.group, "embeddings": job.embeddings}
    if target.is_symlink():
        raise InputError(f"{target} is a link; a run must write its own model: remove the link, or give another --out")
    if target.exists():
        return
    check_quantize(job.checkpoint, target, resume=True, device=job.device, **shape)
    there = next(each for each in target.absolute().parents if each.is_dir())
    needed, free = decide("rtn", Evidence(job.checkpoint), **shape).size_bytes, shutil.disk_usage(there).free
    if needed > free:
        raise InputError(
            f"{there} has {free:,} bytes free, but the quantized model needs {needed:,}; free some space, "
            "or give another directory with --out"
        )


def _check_same(path: Path, found: RunFile, now: RunFile) -> None:
    """Raises if a directory has another run; the error names the differences."""
    differing = list(_differences(*(json.loads(run_bytes(each)) for each in (found, now))))
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise InputError(
            f"{path} has a run with other settings: {'; '.join(differing[:3])}{more}. "
            "Give the same settings to continue it, or another directory with --out"
        )


def _differences(found: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """Yields the differences in words."""
    for key in asked:
        before, now = found.get(key), asked[key]
        if key in IRRELEVANT or before == now:
            continue
        if key == "fingerprint":
            yield f"model {found.get('model')} there, {asked['model']} now"
        elif key == "hashes":
            yield "other text"
        elif isinstance(now, dict) and isinstance(before, dict):
            yield from (
                f"{name} {_short_text(before.get(name))} there, {_short_text(each)} now"
                for name, each in now.items()
                if before.get(name) != each
            )
        else:
            yield f"{key} {_short_text(before)} there, {_short_text(now)} now"


def _short_text(value: Any) -> str:
    """Returns a setting in a few characters.

    >>> _short_text([3, 8]), _short_text([{"name": "rtn", "scores": "baselines/rtn.json"}]), _short_text([])
    ('3,8', 'rtn', 'none')
    """
    listed = value if isinstance(value, list) else [value]
    text = ",".join(str(each["name"]) if isinstance(each, dict) else str(each) for each in listed) or "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
