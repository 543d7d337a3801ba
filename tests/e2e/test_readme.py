"""What the README shows runs as written; commands and scripts are checked with those of the docs (test_docs.py)."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_examples_run(tmp_path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        command = [sys.executable, "-W", "error", "-c", block]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", sorted(set(re.findall(r"`(fairbits [^`>]+ --claim [^`>]+)`", README))))
def test_commands_of_the_results_table_run(command) -> None:
    program, *arguments = shlex.split(command)
    done = subprocess.run([Path(sys.executable).with_name(program), *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_links_lead_somewhere() -> None:
    targets = re.findall(r"\]\(([\w./:-]+)\)", README)
    assert targets
    for target in targets:
        assert target.startswith("http") or (ROOT / target).exists(), target


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"`?make ([a-z]+)", README))
    assert targets
    for target in targets:
        assert f"\n{target}:" in makefile
