"""The mathematics imports no deep-learning framework, and the command line starts without either.

Time depends on the machine, so that modules are counted: those of numpy alone would be more than a hundred.
"""

import subprocess
import sys
from functools import cache

import pytest

HEAVY = {"numba", "numpy", "scipy", "torch", "transformers"}
HELP = """
import sys
from fairbits.cli import main
sys.argv[1:] = {} + ["--help"]
try:
    main()
except SystemExit:
    pass
"""


@cache
def modules_after(statement: str) -> set[str]:
    code = f"import sys\n{statement}\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.rpartition("MODULES")[2].split())


def packages(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def test_no_torch_or_transformers() -> None:
    names = {f"fairbits.{name}" for name in ("stats.frame", "text.reading", "models.scales.scheme")}
    loaded = modules_after(f"import {', '.join(sorted(names))}")
    assert names <= loaded
    assert packages(loaded).isdisjoint({"torch", "transformers"})


@pytest.mark.parametrize("command", ["gate", "languages", "tasks"])
def test_commands_that_only_read_files_do_not_wait_for_torch(command) -> None:
    assert packages(modules_after(f"import fairbits.cli.{command}_command")).isdisjoint({"torch", "transformers"})


@pytest.mark.parametrize(
    ("statement", "own", "others"),
    [
        ("import fairbits", 3, 10),
        ("import fairbits.cli", 15, 280),
        (HELP.format([]), 15, 420),  # rich reads Markdown
    ],
    ids=["fairbits", "command line", "help"],
)
def test_what_is_imported_at_once_is_little(statement, own, others) -> None:
    loaded = modules_after(statement) - modules_after("pass")
    ours = {name for name in loaded if name.split(".")[0] == "fairbits"}
    assert packages(loaded).isdisjoint(HEAVY)
    assert (1 <= len(ours) <= own, len(loaded - ours) <= others) == (True, True), (len(ours), len(loaded - ours))
