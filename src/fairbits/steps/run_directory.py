"""The directory of a run: what it is for, what in it is finished, and what must be made again."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairbits.artifacts import write_files
from fairbits.errors import InputError, printable
from fairbits.evaluation.scores import Identity, Scores
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.draft import PLAN, draft_of
from fairbits.plans import Plan
from fairbits.policies import decide
from fairbits.reports.sources import AUDIT, SWEEP, digest, part, read_json
from fairbits.risk.evidence import Evidence
from fairbits.steps.quantize import check_quantize, drafted
from fairbits.steps.run_job import SCHEMA, SCORES, Job

RUN = "run.json"
LEFT = re.compile(r"\.[0-9a-f]{32}\.part")
"""What `write_files` leaves where it is killed."""
LONGEST = 40
"""Characters of a setting that an error shows."""
BESIDE = ("model", "notes", "schema")
"""What may differ in run.json between two runs that find the same."""


@dataclass(frozen=True, eq=False)
class RunDirectory:
    """Where the files of a job lie. A file is sound if it is whole and of this job; what is not is made again."""

    path: Path
    job: Job

    def file(self, name: str) -> Path:
        """Returns where a file lies."""
        return self.path / name

    def note(self, text: str) -> None:
        """Adds a note to run.json, once."""
        data = _read(self.file(RUN))
        if text not in data["notes"]:
            write_files({self.file(RUN): _as_bytes(data | {"notes": [*data["notes"], text]})})

    def notes(self) -> tuple[str, ...]:
        """Returns the notes of run.json."""
        return tuple(map(str, _read(self.file(RUN))["notes"]))

    def audited(self) -> bool:
        """Returns whether the audit is there; one that is damaged is removed."""
        file = self.file("audit.json")
        if self._sound("audit.json", lambda: _check_audit(file, self.job.checkpoint.fingerprint)):
            return True
        for each in (file, file.with_suffix(".safetensors")):
            each.unlink(missing_ok=True)
        return False

    def drafted(self) -> Plan | None:
        """Returns the plan that an interrupted run was carrying out."""
        draft = draft_of(self.file("model")).name
        sound = self._sound(f"{draft}/{PLAN}", lambda: self._check_plan(Plan.load(self.path / draft / PLAN)))
        return drafted(self.file("model")) if sound else None

    def quantized(self) -> bool:
        """Returns whether the quantized model is there; one that is damaged is removed."""
        if self._sound("model", self._check_model):
            return True
        if self.file("model").exists():
            shutil.rmtree(self.file("model"))
        return False

    def scored(self, name: str) -> Scores | None:
        """Returns the scores of a file."""
        file = self.file(name)
        return Scores.load(file) if self._sound(name, lambda: self._check_scores(name)) else None

    def swept(self) -> bool:
        """Returns whether the sweep is there."""
        return self._sound("sweep.json", lambda: read_json(self.file("sweep.json"), SWEEP))

    def _sound(self, name: str, check: Callable[[], object]) -> bool:
        if not self.file(name).exists():
            return False
        try:
            check()
        except InputError as problem:
            self.note(f"{name} was made again: {problem}")
            return False
        return True

    def _check_plan(self, plan: Plan) -> Plan:
        if (plan.fingerprint, plan.policy) != (self.job.checkpoint.fingerprint, self.job.policy.policy):
            raise InputError("it is the plan of another run")
        return plan

    def _check_model(self) -> None:
        """Raises unless the model is whole, was made by this run's policy, and is what the scores are about."""
        directory = self.file("model")
        plan = self._check_plan(Plan.load(directory / "plan.json"))
        found = Identity.of(Checkpoint(directory, trust_remote_code=self.job.checkpoint.trust_remote_code))
        if found.size_bytes != plan.size_bytes:
            raise InputError(f"its tensors have {found.size_bytes:,} bytes and {plan.size_bytes:,} were written")
        scores = self.scored(SCORES)
        if scores is not None and scores.quantized.fingerprint != found.fingerprint:
            raise InputError("it is not the model that was measured")

    def _check_scores(self, name: str) -> None:
        found = Scores.load(self.file(name))
        if (found.question, found.reference.fingerprint) != (self.job.question, self.job.checkpoint.fingerprint):
            raise InputError("it has the scores of another run")


def open_directory(out: str | Path, job: Job) -> RunDirectory:
    """Returns the directory of a job: a new one, or one that the same job has begun."""
    path, data = Path(out), job.as_data()
    try:
        if path.exists() and not path.is_dir():
            raise InputError(f"{path} is no directory; give a new one with --out")
        names = {each.name for each in path.iterdir()} if path.is_dir() else set()
        if RUN in names:
            _check_same(path, _read(path / RUN), data)
        elif not all(map(LEFT.fullmatch, names)):
            raise InputError(f"{path} exists, is not empty and holds no run; give a new directory with --out")
        path.mkdir(parents=True, exist_ok=True)
        for left in path.rglob(".*.part"):
            if LEFT.fullmatch(left.name):
                left.unlink()
    except OSError as problem:
        raise InputError(f"{path} cannot be written ({problem.strerror}); give another directory with --out") from None
    if RUN not in names:
        write_files({path / RUN: _as_bytes(data)})
    return RunDirectory(path, job)


def check_out(out: str | Path, job: Job) -> None:
    """Raises if the quantized model cannot be written or has no room; one that is there already has been written."""
    target = Path(out) / "model"
    shape: dict[str, Any] = {"bits": job.bits, "group": job.group, "embeddings": job.embeddings}
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


def _check_same(path: Path, found: Mapping[str, Any], asked: Mapping[str, Any]) -> None:
    """Raises, naming what differs, if the run of a directory is another one."""
    differing = list(_differences(found, json.loads(_as_bytes(asked))))
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise InputError(
            f"{path} holds a run with another {', '.join(differing[:3])}{more}; "
            "give the same settings to go on with it, or another directory with --out"
        )


def _differences(found: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    """Yields what differs and how."""
    for key in asked:
        before, now = found.get(key), asked[key]
        if key in BESIDE or before == now:
            continue
        if key == "fingerprint":
            yield f"model ({found.get('model')}, not {asked['model']})"
        elif key == "hashes":
            yield "text"
        elif isinstance(now, dict) and isinstance(before, dict):
            yield from (
                f"{name} ({_shown(before.get(name))}, not {_shown(each)})"
                for name, each in now.items()
                if before.get(name) != each
            )
        else:
            yield f"{key} ({_shown(before)}, not {_shown(now)})"


def _shown(value: Any) -> str:
    """Returns a setting in few words.

    >>> _shown([3, 8]), _shown([{"name": "rtn", "scores": "baselines/rtn.json"}]), _shown([])
    ('3,8', 'rtn', 'none')
    """
    listed = value if isinstance(value, list) else [value]
    text = ",".join(str(each["name"]) if isinstance(each, dict) else str(each) for each in listed) or "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _read(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise InputError(f"{file} is damaged ({problem}); give another directory with --out") from None
    if not isinstance(data, dict) or data.get("schema") != SCHEMA or not isinstance(data.get("notes"), list):
        raise InputError(f"{file} does not describe a run; give another directory with --out")
    return data


def _as_bytes(data: Mapping[str, Any]) -> bytes:
    text = json.dumps(data, ensure_ascii=False, indent=1, allow_nan=False)
    return "\n".join(map(printable, text.split("\n"))).encode() + b"\n"


def _check_audit(file: Path, fingerprint: str) -> None:
    """Raises unless an audit is whole, with its arrays, and of this model."""
    data, arrays = read_json(file, AUDIT), file.with_suffix(".safetensors")
    found = digest(arrays) if arrays.is_file() else None
    if (part(data, "arrays", "sha256"), part(data, "model", "fingerprint")) != (found, fingerprint):
        raise InputError("it is not what was written")
