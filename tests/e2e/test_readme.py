"""What the README shows runs as written."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("pages", [["README.md"], ["docs/quantize.md", "docs/evaluate.md"]])
def test_python_examples_run(pages, tmp_path) -> None:
    blocks = [
        block
        for page in pages
        for block in re.findall(r"```python\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    ]
    assert len(blocks) >= len(pages)
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
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([\w./:-]+)\)", page.read_text(encoding="utf-8")):
            assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in set(re.findall(r"`?make ([a-z]+)", README)):
        assert f"\n{target}:" in makefile
