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


def test_one_claim_as_data() -> None:
    done = run("theory", "--claim", "000-06", "--json")
    claim = json.loads(done.stdout)["claims"][0]
    assert claim["verdict"] == "holds"
    assert claim["numbers"]["alpha_symmetric"] == pytest.approx(2.474, abs=1e-3)


def test_table_of_all_claims_fits_the_terminal() -> None:
    done = run("theory", NO_COLOR="1")
    assert done.returncode == 0
    assert "120 claims" in done.stdout
    assert "004-34" in done.stdout
    assert "\x1b[" not in done.stdout
    assert max(cell_len(line) for line in done.stdout.splitlines()) <= 80


def test_bad_input_ends_with_code_2_and_no_traceback() -> None:
    done = run("theory", "--claim", "[bold]999-01")
    assert done.returncode == 2
    assert "there is no claim '[bold]999-01'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert run("theory", "--no-such-flag").returncode == 2
    assert "choose one" in run("theory", "--json", "--markdown").stderr


def test_version_and_help() -> None:
    assert run("--version").stdout.startswith("fairbits ")
    assert "Examples" in run("theory", "--help").stdout
