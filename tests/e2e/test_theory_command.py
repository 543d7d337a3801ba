"""`fairbits theory` as a user runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.cells import cell_len

COMMAND = Path(sys.executable).with_name("fairbits")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, env={**os.environ, "COLUMNS": "80", **environment}
    )


def test_one_claim_explained() -> None:
    done = run("theory", "--claim", "000-07", "--quiet")
    assert done.returncode == 0
    assert "does not hold" in done.stdout
    assert "3.408" in done.stdout
    assert done.stderr == ""
    assert max(cell_len(line) for line in done.stdout.splitlines()) <= 80


def test_one_claim_as_data(command) -> None:
    claim = json.loads(command("theory", "--claim", "000-06", "--json")[1])["claims"][0]
    assert claim["verdict"] == "holds"
    assert claim["numbers"]["alpha_symmetric"] == pytest.approx(2.474, abs=1e-3)


def test_bad_input_ends_with_code_2_and_no_traceback(command) -> None:
    code, printed, errors = command("theory", "--claim", "[bold]999-01")
    assert (code, printed) == (2, "")
    assert "there is no claim '[bold]999-01'" in errors
    assert "Traceback" not in errors
    assert command("theory", "--no-such-flag")[0] == 2
    assert "give one of them" in command("theory", "--json", "--markdown")[2]


def test_version_and_help(command) -> None:
    assert command("--version")[1].startswith("fairbits ")
    assert "Examples" in command("theory", "--help")[1]
