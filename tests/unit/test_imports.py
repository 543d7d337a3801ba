"""The command line starts without a deep-learning framework, and so does every command that only reads files.

Time depends on the machine, so that modules are counted: those of numpy alone would be more than a hundred.
"""

import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from fairbits.cli.lazy_group import PANELS, find_commands

FRAMEWORKS = {"numba", "torch", "transformers"}
HEAVY = {*FRAMEWORKS, "numpy", "scipy"}
RUN = """
import sys
from fairbits.cli import main
for arguments in {}:
    sys.argv = ["fairbits", *arguments]
    try:
        main()
    except SystemExit as end:
        assert end.code in (None, 0), (arguments, end.code)
"""
COMPLETE = """
import os
os.environ |= {"_FAIRBITS_COMPLETE": "complete_bash", "COMP_WORDS": "fairbits quantize --pol", "COMP_CWORD": "2"}
"""
RECORDS = Path(__file__).parents[1] / "data" / "records"


@cache
def output_and_modules(statement: str) -> tuple[str, set[str]]:
    code = f"import sys\n{statement}\nprint('MODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    output, _, modules = done.stdout.rpartition("MODULES")
    return output, set(modules.split())


def modules_after(statement: str) -> set[str]:
    return output_and_modules(statement)[1]


def run(*commands: list[str]) -> str:
    return RUN.format(commands)


def packages(modules: set[str]) -> set[str]:
    return {name.split(".")[0] for name in modules}


def assert_few(loaded: set[str], *, internal: int, others: int) -> None:
    loaded = loaded - modules_after("pass")
    ours = {name for name in loaded if name.split(".")[0] == "fairbits"}
    assert (1 <= len(ours) <= internal, len(loaded - ours) <= others) == (True, True), (len(ours), len(loaded - ours))


@pytest.mark.parametrize(
    ("statement", "internal", "others"),
    [
        ("import fairbits", 3, 10),
        ("import fairbits.cli", 13, 260),
        (run(["--help"]), 13, 400),  # rich reads Markdown
    ],
    ids=["fairbits", "command line", "help"],
)
def test_what_is_imported_at_once_is_little(statement, internal, others) -> None:
    loaded = modules_after(statement)
    assert packages(loaded).isdisjoint(HEAVY)
    assert_few(loaded, internal=internal, others=others)


@pytest.mark.parametrize(
    ("statement", "internal", "others"),
    [
        ("from fairbits.quantization.policies import POLICIES", 40, 350),
        (run(["quantize", "--help"]), 65, 600),  # typer takes pydantic to read options; with the checks of arguments
        (run(*([name, "--help"] for names in PANELS.values() for name in names)), 98, 600),
    ],
    ids=["policies", "help of a command", "help of all commands"],
)
def test_options_are_declared_without_what_computes(statement, internal, others) -> None:
    loaded = modules_after(statement)
    assert packages(loaded).isdisjoint(HEAVY - {"numpy"})
    assert_few(loaded, internal=internal, others=others)


def test_help_of_commands_of_other_packages_does_not_wait_for_torch() -> None:
    entry_points = find_commands()["Research"]
    loaded = modules_after(run(*([point.name, "--help"] for point in entry_points)))
    assert {point.module for point in entry_points} <= loaded
    assert packages(loaded).isdisjoint(FRAMEWORKS)


def test_completion_does_not_wait_for_torch() -> None:
    output, loaded = output_and_modules(COMPLETE + run([]))
    assert output.split() == ["--policy"]
    assert packages(loaded).isdisjoint(HEAVY - {"numpy"})


@pytest.mark.parametrize(
    "command",
    [
        ["gate", str(RECORDS / "scores.json"), "--max-worst", "9"],
        ["power", str(RECORDS / "scores.json"), *["--max-worst", "9", "--tokens", "400", "--releases", "50"]],
        [
            *("report", str(RECORDS / "scores.json"), "--against", str(RECORDS / "scores.json"), "--format", "json"),
            *(text for name in ("audit", "plan", "sweep") for text in (f"--{name}", str(RECORDS / f"{name}.json"))),
        ],
        ["languages", "he"],
        ["tasks", "--languages", "eng,fra", "--out", "DIRECTORY"],
    ],
    ids=["gate", "power", "report", "languages", "tasks"],
)
def test_commands_that_only_read_files_do_not_wait_for_torch(command, tmp_path) -> None:
    command = [str(tmp_path / "tasks") if text == "DIRECTORY" else text for text in command]
    assert packages(modules_after(run(command))).isdisjoint(FRAMEWORKS)


def test_texts_and_schemes_do_not_wait_for_torch() -> None:
    names = {f"fairbits.{name}" for name in ("stats.frame", "text.reading", "models.scales.scheme")}
    loaded = modules_after(f"import {', '.join(sorted(names))}")
    assert names <= loaded
    assert packages(loaded).isdisjoint(FRAMEWORKS)
