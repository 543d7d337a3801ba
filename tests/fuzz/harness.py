"""The harness: gives readers mutated files, one by one, and counts what they make of them.

A reader may accept a file or refuse it with one sentence. Everything else is a failure: another error, a refusal that
names no file, an accepted file that breaks a rule which the reader did not check, a hang, memory beyond the limit.
"""

import faulthandler
import json
import random
import resource
import shutil
import signal
import sys
import traceback
import unicodedata
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

SECONDS = 10
MEMORY_BYTES = 10**9
EVERY_SECONDS = 60
"""Seconds between two lines that say how far it is."""
LONGEST_SENTENCE = 2000
DIRECTIONS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
Files = dict[str, bytes]
"""The content of the files of a case by name; the harness writes them into a directory of its own."""


class Refused(Exception):  # noqa: N818
    """A refusal, with the sentence that says why."""


class BrokenRuleError(AssertionError):
    """An accepted file that should have been refused, or a refusal that does not say what it must."""


@dataclass(frozen=True)
class Target:
    """A reader that is tried.

    `name`    what the table calls it
    `make`    returns the files of one case
    `read`    reads them in the directory where they are; raises Refused; returns "accepted" or another class of answer,
              after it has checked that what was accepted may be
    `share`   how many cases it gets, relative to the others
    """

    name: str
    make: Callable[[random.Random], Files]
    read: Callable[[Path], str]
    share: float = 1.0


@dataclass
class Tally:
    """What became of the cases of every target, and where the files of the failures are."""

    counts: dict[str, Counter[str]] = field(default_factory=dict)
    seconds: Counter[str] = field(default_factory=Counter)
    failures: list[Path] = field(default_factory=list)

    @property
    def total(self) -> int:
        """The number of cases."""
        return sum(sum(counter.values()) for counter in self.counts.values())

    def table(self) -> str:
        """Returns the table as Markdown: a row for every reader."""
        lines = ["| reader | inputs | accepted | refused | failed |", "|---|---:|---:|---:|---:|"]
        both: Counter[str] = Counter()
        for name, counts in self.counts.items():
            lines.append(_row(name, counts))
            both += counts
        return "\n".join([*lines, _row("all", both)])


def _row(name: str, counts: Mapping[str, int]) -> str:
    numbers = (sum(counts.values()), *(counts.get(kind, 0) for kind in ("accepted", "refused", "failed")))
    return f"| {name} | " + " | ".join(f"{number:,}" for number in numbers) + " |"


def run_case(target: Target, files: Files, place: Path) -> tuple[str, str]:
    """Returns the class of one case, and the reason if it failed."""
    if place.exists():
        shutil.rmtree(place)
    place.mkdir(parents=True)
    for name, data in files.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_bytes(data)
    before = _peak()
    try:
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("error")
            kind = target.read(place)
    except Refused as problem:
        fault = sentence_fault(str(problem))
        return ("failed", f"the refusal {fault}: {problem!s:.300}") if fault else ("refused", "")
    except BaseException as problem:
        if isinstance(problem, KeyboardInterrupt):
            raise
        return "failed", "".join(traceback.format_exception(problem))
    if _peak() - before > MEMORY_BYTES:
        return "failed", f"memory grew by {_peak() - before:,} bytes"
    return kind, ""


def sentence_fault(sentence: str) -> str:
    """Returns what is wrong with the sentence of a refusal; "" if nothing is."""
    if not sentence.strip() or len(sentence) > LONGEST_SENTENCE:
        return f"has {len(sentence):,} characters"
    if any(
        unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") or character in DIRECTIONS for character in sentence
    ):
        return "holds characters that steer a terminal"
    if "Traceback" in sentence or "pydantic" in sentence:
        return "quotes the inside of a program"
    return ""


def run(
    targets: list[Target],
    *,
    place: Path,
    saved: Path,
    seed: int,
    cases: int | None = None,
    seconds: float | None = None,
) -> Tally:
    """Tries the targets in turn, until all have their cases or the time is over; case i has its own seed."""
    tally, begun = Tally({target.name: Counter() for target in targets}), monotonic()
    turn, last_report = 0, begun
    while (cases is None or tally.total < cases) and (seconds is None or monotonic() - begun < seconds):
        for target in targets:
            for number in _numbers(target, turn):
                if seconds is not None and monotonic() - begun >= seconds:
                    break
                started = monotonic()
                files = target.make(random.Random(f"{seed} {target.name} {number}"))
                kind, reason = run_case(target, files, place)
                if kind == "failed" and "TimeoutError" in reason:  # of a hang, not of a machine that is busy
                    kind, reason = run_case(target, files, place)
                tally.counts[target.name][kind] += 1
                tally.seconds[target.name] += monotonic() - started
                if kind == "failed":
                    tally.failures.append(save(saved, target, files, reason, seed=seed, number=number))
        turn += 1
        if monotonic() - last_report > EVERY_SECONDS:
            last_report = monotonic()
            print(f"{tally.total:,} inputs, {len(tally.failures)} failed", file=sys.stderr, flush=True)
    return tally


def _numbers(target: Target, turn: int) -> range:
    """Returns the numbers of the cases that a target has in a turn."""
    return range(int(turn * 10 * target.share), int((turn + 1) * 10 * target.share))


def save(saved: Path, target: Target, files: Files, reason: str, *, seed: int, number: int) -> Path:
    """Returns the directory in which a failed case is kept: its files, and why.txt, which says how to repeat it."""
    place = saved / f"{target.name.replace(' ', '-').replace('/', '-')}-{seed}-{number}"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    names = {}
    for i, (name, data) in enumerate(files.items()):
        names[f"file-{i}"] = name
        (place / f"file-{i}").write_bytes(data)
    (place / "case.json").write_text(json.dumps({"target": target.name, "files": names}))
    (place / "why.txt").write_text(
        f"again: python tests/fuzz/fuzz.py --again {place}\n\n{reason}\n", "utf-8", "replace"
    )
    return place


def load(place: Path) -> tuple[str, Files]:
    """Returns the target and the files of a saved case."""
    case = json.loads((place / "case.json").read_text())
    return case["target"], {name: (place / kept).read_bytes() for kept, name in case["files"].items()}


@contextmanager
def _limited() -> Iterator[None]:
    """Raises TimeoutError in the reader after SECONDS; a reader that does not even see it is ended with its trace."""

    def give_up(*_: object) -> None:
        raise TimeoutError(f"not done after {SECONDS} s")

    earlier = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    faulthandler.dump_traceback_later(6 * SECONDS, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_IGN if earlier is signal.SIG_DFL else earlier)
        faulthandler.cancel_dump_traceback_later()


def _peak() -> int:
    """Returns the most memory that this process has had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
