"""Times `fairbits gate --samples` on two runs of 122 languages with 900 items each, in lines of 6.5 kB.

    python benchmarks/samples.py [--languages 122] [--items 900]

The samples are drawn: every language has lost 1 % of its items and gained 1 % (seed 0).
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from fairbits.text.catalog import catalog

DATE = "2026-01-01T00-00-00.000000"
PASSAGE = "Ο άνθρωπος γεννιέται ελεύθερος και ίσος στην αξιοπρέπεια και τα δικαιώματα. " * 8
"""A passage of a reading test, in a script of two bytes per letter."""


def write_run(directory: Path, languages: list[str], right: np.ndarray) -> int:
    """Writes the samples of one run, and returns their bytes."""
    directory.mkdir()
    total = 0
    for language, own in zip(languages, right.tolist(), strict=True):
        path = directory / f"samples_belebele_{language}_{DATE}.jsonl"
        with path.open("w", encoding="utf-8") as file:
            for document, value in enumerate(own):
                choices = {
                    f"gen_args_{i}": {"arg_0": f"P: {PASSAGE}\nQ: ?", "arg_1": f" {c}"} for i, c in enumerate("ABCD")
                }
                line = {
                    "doc_id": document,
                    "doc": {"flores_passage": PASSAGE, "question": "?", "mc_answer1": "a", "correct_answer_num": "1"},
                    "target": "0",
                    "arguments": choices,
                    "resps": [[["-1.25", "False"]]] * 4,
                    "filtered_resps": [["-1.25", "False"]] * 4,
                    "filter": "none",
                    "metrics": ["acc", "acc_norm"],
                    **{f"{name}_hash": f"{document:064x}" for name in ("doc", "prompt", "target")},
                    "acc": float(value),
                    "acc_norm": float(value),
                }
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        total += path.stat().st_size
    return total


def main() -> None:
    """Writes two runs, gates them, and prints the time and the memory that it took."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--languages", type=int, default=122)
    parser.add_argument("--items", type=int, default=900)
    given = parser.parse_args()
    languages = [language.code for language in catalog()][: given.languages]
    rng = np.random.default_rng(0)
    before = rng.random((given.languages, given.items)) < 0.6
    after = before ^ (rng.random(before.shape) < 0.02)
    with tempfile.TemporaryDirectory() as name:
        runs = [Path(name) / "before", Path(name) / "after"]
        size = sum(write_run(run, languages, right) for run, right in zip(runs, (before, after), strict=True))
        began = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "fairbits",
            "gate",
            "--samples",
            *map(str, runs),
            "--max-worst",
            "0.05",
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
    found = json.loads(done.stdout)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{given.languages} languages, {given.items} items each, two runs of {size / 2e6:,.0f} MB:")
    print(f"{seconds:.1f} s ({used.ru_utime + used.ru_stime:.1f} s of CPU), {used.ru_maxrss / 1e6:.2f} GB of memory")
    print(f"exit code {done.returncode}: {found['reason']}")


if __name__ == "__main__":
    main()
