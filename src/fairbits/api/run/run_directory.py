"""The directory of a run: which of its files are finished, and which must be made again; never for two runs at once."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from fairbits.api.quantize import draft_plan
from fairbits.api.report import SCORES_FILE
from fairbits.api.run.run_settings import RunSettings
from fairbits.auditing.audit_file import AUDIT
from fairbits.comparison.comparison import trial_method
from fairbits.core.errors import InputError
from fairbits.core.files import RUN_FILE, check_directory, clear_temporary, file_sha256, write_files
from fairbits.core.locks import check_free, lock_directory
from fairbits.core.records import to_json
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.setting import Identity
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.checkpoint_writer import PLAN, clear_remains, draft_directory, draft_lock
from fairbits.quantization.plan import Plan
from fairbits.reports.figures import curves
from fairbits.reports.sources import RUN, SWEEP, RunFile

REPORTS = ("report.html", "report.md", "report.json")
MADE_OF_SCORES = ("sweep.json", *REPORTS)
LONGEST = 40  # characters of a setting that an error shows
IRRELEVANT = ("model", "notes", "schema", "versions", "written")
"""Keys of run.json that may differ between two runs with the same result."""


@contextmanager
def can_continue(path: Path) -> Iterator[None]:
    """Says of a file or directory that the system could not write that the run goes on once there is space."""
    try:
        yield
    except InputError as problem:
        if not isinstance(problem.__context__, OSError):
            raise
        reason = problem.__context__.strerror or problem.__context__
        raise InputError(
            f"{path} cannot be written ({reason}); free some space and run the same command again"
        ) from None


@dataclass(frozen=True, eq=False)
class RunDirectory:
    """The files of a run. A file is sound if it is complete and belongs to this run; others are made again."""

    path: Path
    settings: RunSettings

    def file(self, name: str) -> Path:
        return self.path / name

    def note(self, text: str) -> None:
        if text not in self.notes():
            self._record(notes=(*self.notes(), text))

    def notes(self) -> tuple[str, ...]:
        return self._read_record().notes

    def plan_notes(self) -> tuple[str, ...]:
        return Plan.load(self.file("model") / PLAN).notes

    def has_audit(self) -> bool:
        file = self.file("audit.json")
        if self._is_sound("audit.json", lambda: _check_audit(file, self.settings.checkpoint.fingerprint)):
            return True
        for part in (file, file.with_suffix(".safetensors")):
            part.unlink(missing_ok=True)
        return False

    def draft_plan(self) -> Plan | None:
        draft = draft_directory(self.file("model")).name
        sound = self._is_sound(f"{draft}/{PLAN}", lambda: self._check_plan(Plan.load(self.path / draft / PLAN)))
        return draft_plan(self.file("model")) if sound else None

    def has_model(self) -> bool:
        """Returns whether there is a sound model; a damaged one is set aside, and its scores are removed."""
        model = self.file("model")
        check_free(draft_lock(model), model)  # which removes the lock of a process that is dead
        clear_remains(model)
        if self._is_sound("model", self._check_model):
            return True
        self._set_aside("model")
        self.drop(SCORES_FILE, *MADE_OF_SCORES)
        self._record(written=None)
        return False

    def record_model(self) -> None:
        """Records the fingerprint of the written model, by which damage is noticed and scores are recognized."""
        self._record(written=self._written_model().fingerprint)

    def drop(self, *names: str) -> None:
        for file in map(self.file, names):
            if file.is_file() or file.is_symlink():
                file.unlink()

    def saved_scores(self, name: str) -> Scores | None:
        return Scores.load(self.file(name)) if self._is_sound(name, lambda: self._check_scores(name)) else None

    def has_sweep(self, sizes: Mapping[int, int]) -> bool:
        if self._is_sound("sweep.json", lambda: self._check_sweep(sizes)):
            return True
        self.drop("sweep.json")
        return False

    def _is_sound(self, name: str, check: Callable[[], object]) -> bool:
        if not self.file(name).exists():
            return False
        try:
            check()
        except InputError as problem:
            self.note(f"{name} was made again: {problem}")
            return False
        return True

    def _check_plan(self, plan: Plan) -> Plan:
        if (plan.fingerprint, plan.policy) != (self.settings.checkpoint.fingerprint, self.settings.policy.policy):
            raise InputError("it is the plan of another run")
        return plan

    def _check_model(self) -> None:
        """Raises unless the model is complete and was written by this run."""
        directory = self.file("model")
        plan = self._check_plan(Plan.load(directory / "plan.json"))
        model, written = self._written_model(), self._read_record().written
        if model.size_bytes != plan.size_bytes:
            raise InputError(f"its tensors have {model.size_bytes:,} bytes, but {plan.size_bytes:,} were written")
        if written is None:  # the run was killed right after writing it
            self._record(written=model.fingerprint)
        elif written != model.fingerprint:
            raise InputError("its weights or its config.json have changed since it was written")

    def _written_model(self) -> Identity:
        trusted = self.settings.checkpoint.trust_remote_code
        return Identity.of(Checkpoint(self.file("model"), trust_remote_code=trusted))

    def _check_scores(self, name: str) -> None:
        """Raises unless scores belong to this run's text, and to the model or plan that the file is for."""
        scores, settings = Scores.load(self.file(name)), self.settings
        if (scores.setting, scores.reference.fingerprint) != (settings.setting, settings.checkpoint.fingerprint):
            raise InputError("it has the scores of another run")
        if name == SCORES_FILE:
            expected, right = self._read_record().written, True
        else:
            policy, bits = settings.measured_files[name]
            expected, right = settings.plan_digest(policy, bits), trial_method(scores) == (policy.name, bits)
        if not right or expected not in (None, scores.quantized.fingerprint):
            raise InputError(f"it has the scores of {scores.quantized.target}, not of what it is for")

    def _check_sweep(self, sizes: Mapping[int, int]) -> None:
        """Raises unless the report can show the sweep, and it belongs to this run."""
        data, languages = SWEEP.read(self.file("sweep.json")), list(self.settings.corpus.evaluation)
        shown = curves(data, languages)
        settings, names = self.settings, ("policy", "languages", "bits", "sizes")
        expected = settings.checkpoint.fingerprint, settings.policy.name, languages, [*sizes], [*sizes.values()]
        if (data.fingerprint, *(shown[name] for name in names)) != expected:
            raise InputError("it is the sweep of another run")

    def _set_aside(self, name: str) -> None:
        """Renames a damaged file or directory, because someone may still need it."""
        if not self.file(name).exists():
            return
        names = (f"{name}.damaged" + (f"-{i}" if i > 1 else "") for i in count(1))
        free = next(name for name in names if not os.path.lexists(self.file(name)))
        self.file(name).rename(self.file(free))
        self.note(f"the {name} that was found there is now {free}")

    def _read_record(self) -> RunFile:
        return RUN.read(self.file(RUN_FILE))

    def _record(self, **changes: Any) -> None:
        with can_continue(self.file(RUN_FILE)):
            write_files({self.file(RUN_FILE): run_bytes(replace(self._read_record(), **changes))})


def run_bytes(record: RunFile) -> bytes:
    """Returns the content of run.json."""
    return to_json(RUN.stamp(asdict(record)))


def _check_audit(file: Path, fingerprint: str) -> None:
    audit, arrays = AUDIT.read(file), file.with_suffix(".safetensors")
    stored = file_sha256(arrays) if arrays.is_file() else None
    if (audit.arrays.sha256, audit.model.fingerprint) != (stored, fingerprint):
        raise InputError("it has changed since it was written")


@contextmanager
def open_directory(out: str | Path, settings: RunSettings) -> Iterator[RunDirectory]:
    """Yields the directory of a run, a new one or one that the same run has started; it is locked until the end."""
    path, data = Path(out), settings.record()
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
        place = RunDirectory(path, settings)
        before = RUN.read(path / RUN_FILE).versions
        changed = [
            f"{name} {version} (started with {before[name]:.40})"
            for name, version in data.versions.items()
            if before.get(name, version) != version
        ]
        for note in filter(None, (unlocked, f"continued with {', '.join(changed)}" if changed else None)):
            place.note(note)
        yield place


def _has_run(path: Path, data: RunFile) -> bool:
    """Returns whether a directory has this run; raises if it has anything else."""
    check_directory(path, holding=(RUN_FILE,))
    if started := (path / RUN_FILE).is_file():
        _check_same(path, RUN.read(path / RUN_FILE), data)
    return started


def _check_same(path: Path, before: RunFile, now: RunFile) -> None:
    differing = list(_differences(*(json.loads(run_bytes(record)) for record in (before, now))))
    if differing:
        more = f" and {len(differing) - 3} more" if len(differing) > 3 else ""
        raise InputError(
            f"{path} has a run with other settings: {'; '.join(differing[:3])}{more}. "
            "Give the same settings to continue it, or another directory with --out"
        )


def _differences(recorded: Mapping[str, Any], asked: Mapping[str, Any]) -> Iterator[str]:
    for key in asked:
        before, now = recorded.get(key), asked[key]
        if key in IRRELEVANT or before == now:
            continue
        if key == "fingerprint":
            yield f"model {recorded.get('model')} there, {asked['model']} now"
        elif key == "hashes":
            yield "other text"
        elif isinstance(now, dict) and isinstance(before, dict):
            yield from (
                f"{name} {_short_text(before.get(name))} there, {_short_text(value)} now"
                for name, value in now.items()
                if before.get(name) != value
            )
        else:
            yield f"{key} {_short_text(before)} there, {_short_text(now)} now"


def _short_text(value: Any) -> str:
    listed = value if isinstance(value, list) else [value]
    text = ",".join(str(entry["name"]) if isinstance(entry, dict) else str(entry) for entry in listed) or "none"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
