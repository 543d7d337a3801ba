"""Disturbs fairbits at every change of the disk, and checks that nothing is lost and nothing half made is left.

    python tests/faults/fault_suite.py                         everything (make faults)
    python tests/faults/fault_suite.py --case evaluate --every 3 --kind SIGKILL

Every command is run undisturbed first, which gives its points and its result. Then, for every point and kind, a fork
of this process runs it until something happens to it there; a second fork runs the same command again, undisturbed.

    a  what a user sees after the fault is the old or the new result, complete
    b  the second run ends with the bytes of the undisturbed one
    c  it leaves nothing else: no temporary file, draft or lock
    d  exit codes are 0 and 2, or 130 and 143 for a signal
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from fault_cases import cases, make_base, make_models
from fault_disk import KINDS, built_layer
from fault_trial import Place, Trial, small_disks

HERE = "FAIRBITS_FAULTS"
SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "NUMBA_THREADING_LAYER": "workqueue",  # GNU OpenMP ends forks
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "COLUMNS": "200",
}
"""One thread, as a process with several must not be forked."""
SMALL = "small disk"
OUTCOMES = ("points", "unharmed", "complete", "resumed", "restarted", "failed")
HEAD = f"| command | fault | {' | '.join(OUTCOMES)} |\n|---|---|{'---:|' * len(OUTCOMES)}"


def main() -> int:
    """Returns 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", help="the beginning of a case's name; by default all")
    parser.add_argument("--kind", action="append", choices=[*KINDS, SMALL], help="by default all")
    parser.add_argument("--every", type=int, metavar="N", help="only every N-th point; by default as the case says")
    parser.add_argument("--first", type=int, metavar="N", help="only the first N points of a kind")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="work there, and keep it; by default a temporary one")
    options = parser.parse_args()
    if HERE not in os.environ:
        _again_with_layer(options.keep)
    home = Path(os.environ[HERE])
    try:
        return _disturb(options, home)
    finally:
        if options.keep is None:
            shutil.rmtree(home)


def _again_with_layer(keep: Path | None) -> None:
    """Starts this program again in a process that has the layer."""
    memory = Path("/dev/shm")  # where it takes no time to sync
    near = memory if os.access(memory, os.W_OK) else None
    home = Path(tempfile.mkdtemp(prefix="fairbits-faults-", dir=near)) if keep is None else keep.absolute()
    home.mkdir(parents=True, exist_ok=True)
    layer = {"LD_PRELOAD": str(built_layer(home)), HERE: str(home)}
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **SETTINGS, **layer})


def _disturb(options: argparse.Namespace, home: Path) -> int:
    model, base = make_models(home)
    make_base(model, base)
    _load()
    begin, total = time.monotonic(), Counter[str]()
    print(HEAD, flush=True)
    for case in cases(model, base):
        if options.case and not any(case.name.startswith(prefix) for prefix in options.case):
            continue
        trial = Trial(case, Place(home / "work", home / "log"))
        trial.prepare()
        for kind in options.kind or (*KINDS, SMALL):
            counts = Counter[str]()
            for where, (how, wrong) in islice(_outcomes(trial, kind, options.every), options.first):
                counts.update(["points", how])
                if wrong:
                    print(f"{case.name}, {kind}, {where}: {wrong}", file=sys.stderr, flush=True)
            total += counts
            print(row(case.name, kind, counts), flush=True)
        seconds = time.monotonic() - begin
        print(f"{case.name}: {len(trial.changes)} changes, {seconds:.0f} s so far", file=sys.stderr, flush=True)
    print(row("all", "", total))
    return int(total["failed"] > 0)


def _outcomes(trial: Trial, kind: str, every: int | None) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yields where a command was disturbed, and its outcome."""
    if kind == SMALL:
        yield from ((f"size {i}", outcome) for i, outcome in enumerate(small_disks(trial), 1))
        return
    for point in trial.points(kind, every=every):
        yield f"change {point} of {len(trial.changes)} ({trial.changes[point - 1]})", trial.disturb(kind, point)


def _load() -> None:
    """Imports what the commands import, so that the forks need not."""


def row(case: str, kind: str, counts: Counter[str]) -> str:
    """Returns a row of the table, in Markdown.

    >>> row("run", "SIGKILL", Counter(points=1200, resumed=1199, failed=1))
    '| run | SIGKILL | 1,200 | 0 | 0 | 1,199 | 0 | 1 |'
    """
    return f"| {case} | {kind} | {' | '.join(f'{counts[name]:,}' for name in OUTCOMES)} |"


if __name__ == "__main__":
    raise SystemExit(main())
