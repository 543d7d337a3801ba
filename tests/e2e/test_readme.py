"""What the README shows runs as written; commands and scripts are checked with those of the docs (test_docs.py)."""

import re
import shlex
from pathlib import Path

import pytest

from fairbits.models import embedded

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_python_examples_run(tmp_path, monkeypatch, outer_blocks) -> None:
    monkeypatch.setattr(embedded, "ASSETS", outer_blocks(2).directory.parent)
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {})  # a warning is an error, as in all tests


@pytest.mark.parametrize("line", sorted(set(re.findall(r"`(fairbits [^`>]+ --claim [^`>]+)`", README))))
def test_commands_of_the_results_table_run(line, command) -> None:
    _, *arguments = shlex.split(line)
    code, _, errors = command(*arguments)
    assert code == 0, errors


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
