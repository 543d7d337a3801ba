"""The directory of a run: which of its files are finished, and which must be made again."""

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from fairbits.artifacts import write_files
from fairbits.errors import InputError
from fairbits.locks import check_free
from fairbits.measure.audit.audit_file import AUDIT
from fairbits.measure.scores.scores import Scores
from fairbits.measure.scores.setting import Identity
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.files.draft import PLAN, clear_remains, draft_of, lock_of
from fairbits.quantization.plan import Plan
from fairbits.records import to_json
from fairbits.reports.figures import curves
from fairbits.reports.sources import RUN, SWEEP, RunFile, digest
from fairbits.trials.trial_name import method_of
from fairbits.verbs.quantize import draft_plan
from fairbits.verbs.report import RUN_FILE, SCORES_FILE
from fairbits.verbs.run.job import Job, measured_files
from fairbits.verbs.run.plans import digest_without_search

REPORTS = ("report.html", "report.md", "report.json")
MADE_OF_SCORES = ("sweep.json", *REPORTS)


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
    """The files of a job. A file is sound if it is complete and belongs to this job; others are made again."""

    path: Path
    job: Job

    def file(self, name: str) -> Path:
        """Returns the path of a file."""
        return self.path / name

    def note(self, text: str) -> None:
        """Adds a note to run.json, once."""
        if text not in self.notes():
            self._record(notes=(*self.notes(), text))

    def notes(self) -> tuple[str, ...]:
        """Returns the notes of run.json."""
        return self._read_record().notes

    def has_audit(self) -> bool:
        """Returns whether there is a sound audit; a damaged one is removed."""
        file = self.file("audit.json")
        if self._is_sound("audit.json", lambda: _check_audit(file, self.job.checkpoint.fingerprint)):
            return True
        for each in (file, file.with_suffix(".safetensors")):
            each.unlink(missing_ok=True)
        return False

    def draft_plan(self) -> Plan | None:
        """Returns the plan that an interrupted run was carrying out."""
        draft = draft_of(self.file("model")).name
        sound = self._is_sound(f"{draft}/{PLAN}", lambda: self._check_plan(Plan.load(self.path / draft / PLAN)))
        return draft_plan(self.file("model")) if sound else None

    def has_model(self) -> bool:
        """Returns whether there is a sound model; a damaged one is set aside, and its scores are removed."""
        check_free(lock_of(self.file("model")), self.file("model"))  # which removes the lock of a process that is dead
        clear_remains(self.file("model"))
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
        """Removes files, or links, that no longer belong to this run."""
        for file in map(self.file, names):
            if file.is_file() or file.is_symlink():
                file.unlink()

    def saved_scores(self, name: str) -> Scores | None:
        """Returns the scores in a file; None if there are no sound ones."""
        file = self.file(name)
        return Scores.load(file) if self._is_sound(name, lambda: self._check_scores(name)) else None

    def has_sweep(self, sizes: Mapping[int, int]) -> bool:
        """Returns whether there is a sound sweep over widths of these sizes; a damaged one is removed."""
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
        if (plan.fingerprint, plan.policy) != (self.job.checkpoint.fingerprint, self.job.policy.policy):
            raise InputError("it is the plan of another run")
        return plan

    def _check_model(self) -> None:
        """Raises unless the model is complete and was written by this run."""
        directory = self.file("model")
        plan = self._check_plan(Plan.load(directory / "plan.json"))
        found, written = self._written_model(), self._read_record().written
        if found.size_bytes != plan.size_bytes:
            raise InputError(f"its tensors have {found.size_bytes:,} bytes, but {plan.size_bytes:,} were written")
        if written is None:  # the run was killed right after writing it
            self._record(written=found.fingerprint)
        elif written != found.fingerprint:
            raise InputError("its weights or its config.json have changed since it was written")

    def _written_model(self) -> Identity:
        trusted = self.job.checkpoint.trust_remote_code
        return Identity.of(Checkpoint(self.file("model"), trust_remote_code=trusted))

    def _check_scores(self, name: str) -> None:
        """Raises unless scores belong to this run's text, and to the model or plan that the file is for."""
        found, job = Scores.load(self.file(name)), self.job
        if (found.question, found.reference.fingerprint) != (job.setting, job.checkpoint.fingerprint):
            raise InputError("it has the scores of another run")
        if name == SCORES_FILE:
            expected, right = self._read_record().written, True
        else:
            variant, bits = measured_files(job)[name]
            expected, right = digest_without_search(job, variant, bits=bits), method_of(found) == (variant.name, bits)
        if not right or expected not in (None, found.quantized.fingerprint):
            raise InputError(f"it has the scores of {found.quantized.target}, not of what it is for")

    def _check_sweep(self, sizes: Mapping[int, int]) -> None:
        """Raises unless the report can show the sweep, and it belongs to this run."""
        data, languages = SWEEP.read(self.file("sweep.json")), list(self.job.corpus.evaluation)
        shown = curves(data, languages)
        found = data.fingerprint, *(shown[name] for name in ("policy", "languages", "bits", "sizes"))
        job = self.job
        if found != (job.checkpoint.fingerprint, job.policy.name, languages, [*sizes], [*sizes.values()]):
            raise InputError("it is the sweep of another run")

    def _set_aside(self, name: str) -> None:
        """Renames a damaged file or directory, because someone may still need it."""
        if not self.file(name).exists():
            return
        names = (f"{name}.damaged" + (f"-{i}" if i > 1 else "") for i in count(1))
        free = next(each for each in names if not os.path.lexists(self.file(each)))
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
    """Raises unless an audit is complete, with its arrays, and belongs to this model."""
    audit, arrays = AUDIT.read(file), file.with_suffix(".safetensors")
    found = digest(arrays) if arrays.is_file() else None
    if (audit.arrays.sha256, audit.model.fingerprint) != (found, fingerprint):
        raise InputError("it has changed since it was written")
