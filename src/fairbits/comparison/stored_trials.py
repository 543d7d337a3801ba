"""Finished trials in a directory: each is kept as soon as it is done, so that the same command can continue."""

import json
import re
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from fairbits.comparison.plan_trial import PlanResult
from fairbits.core.errors import InputError
from fairbits.core.files import clear_temporary, write_files
from fairbits.core.locks import lock_directory
from fairbits.core.records import Kind, Name, Seconds, to_json
from fairbits.evaluation.scores import Scores
from fairbits.quantization.plan import Plan

TRIAL_FILE = "trial.json"
LONGEST = 60


@dataclass(frozen=True)
class TrialFile:
    """The content of trial.json, which is written last: everything that decides the trial, and how long it took."""

    name: Name
    settings: Mapping[str, Any]
    seconds: Seconds


TRIAL = Kind("fairbits.trial/1", "a finished trial", "fairbits compare --results", TrialFile)


class StoredTrials:
    """A directory with one subdirectory per finished trial; use it in a `with` statement, which locks it.

    The name of a subdirectory has a hash of everything that decides the trial, so that many commands can share one.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self._stack = ExitStack()

    def __enter__(self) -> "StoredTrials":
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            self._stack.enter_context(lock_directory(self.directory, option="--results"))
            clear_temporary(self.directory)
        except OSError as problem:
            reason = f"{self.directory} cannot be written ({problem.strerror})"
            raise InputError(f"{reason}; give another directory with --results") from None
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def load(self, name: str, settings: Mapping[str, Any]) -> PlanResult | None:
        place = self.place(name, settings)
        if not (place / TRIAL_FILE).is_file():
            return None
        stored = TRIAL.read(place / TRIAL_FILE)
        return PlanResult(Plan.load(place / "plan.json"), Scores.load(place / "scores.json"), stored.seconds)

    def save(self, name: str, settings: Mapping[str, Any], result: PlanResult) -> None:
        place = self.place(name, settings)
        record = TrialFile(name, settings, result.seconds)
        try:
            place.mkdir(exist_ok=True)
        except OSError as problem:
            raise InputError(f"{place} cannot be written ({problem.strerror}); free some space") from None
        write_files(
            {
                place / "plan.json": result.plan.as_bytes(),
                place / "scores.json": result.scores.as_bytes(),
                place / TRIAL_FILE: to_json(TRIAL.stamp(asdict(record))),  # last: it marks the others as complete
            }
        )

    def place(self, name: str, settings: Mapping[str, Any]) -> Path:
        digest = sha256(json.dumps([name, settings], sort_keys=True).encode()).hexdigest()
        plain = re.sub(r"[^\w.+]+", "-", name)[:LONGEST]
        return self.directory / f"{plain}-{digest[:12]}"
