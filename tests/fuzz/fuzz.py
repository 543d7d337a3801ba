"""Fuzzing: mutated files and requests for every reader, until the time is over.

    python tests/fuzz/fuzz.py --minutes 5 --seed 1
    python tests/fuzz/fuzz.py --again build/fuzz/plan-1-42

Prints the seed and a table; exits with 1 if a case failed. The files of failed cases are under build/fuzz; if the whole
process dies, the files of the last case are in the directory that it prints first.
"""

import argparse
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from time import time

from draft_targets import draft_targets
from harness import Target, load, run, run_case
from opening_targets import opening_targets
from quantized_targets import quantized_targets
from record_targets import record_targets
from request_targets import request_targets
from text_targets import text_targets
from tokenizer_children import CHILDREN
from untrusted_targets import untrusted_targets

SAVED = Path("build/fuzz")


def all_targets() -> list[Target]:
    """Returns every reader that is tried."""
    files = [*record_targets(), *draft_targets(), *untrusted_targets(), *opening_targets(), *text_targets()]
    return [*files, *quantized_targets(), *request_targets()]


def main() -> int:
    """Returns the exit status."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--minutes", type=float, default=5.0)
    options.add_argument("--cases", type=int)
    options.add_argument("--seed", type=int, default=int(time()))
    options.add_argument("--only", nargs="*", help="names of readers")
    options.add_argument("--again", type=Path, help="the directory of a failed case")
    asked = options.parse_args()
    targets = [target for target in all_targets() if not asked.only or target.name in asked.only]
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as temporary:
        place = Path(temporary) / "case"
        if asked.again:
            name, files = load(asked.again)
            kind, reason = run_case(next(target for target in targets if target.name == name), files, place)
            print(name, kind, reason, sep="\n")
            return int(kind == "failed")
        print(f"seed {asked.seed}, cases in {place}", flush=True)
        tally = run(
            targets,
            place=place,
            saved=SAVED,
            seed=asked.seed,
            cases=asked.cases,
            seconds=None if asked.cases else 60 * asked.minutes,
        )
    print(f"\n{tally.table()}\n\nseed {asked.seed}, {sum(tally.seconds.values()):.0f} s")
    for where in tally.failures[:40]:
        print(f"{where}: {(where / 'why.txt').read_text().strip().splitlines()[-1]:.200}")
    reasons = Counter((where / "why.txt").read_text().strip().splitlines()[-1][:70] for where in tally.failures)
    for words, times in reasons.most_common(30):
        print(f"{times:6} {words}")
    return int(bool(tally.failures))


if __name__ == "__main__":
    try:
        sys.exit(main())
    finally:
        CHILDREN.end()
