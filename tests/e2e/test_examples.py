"""Every example runs as it is, and prints what it says that it printed, but for numbers."""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from test_docs import parse, words_of

from fairbits.models import embedded

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted([*EXAMPLES.glob("*.py"), *EXAMPLES.glob("*.sh")])
PRINTED = re.compile(r"It printed:\n(.*?)(?:\"\"\"|\nset )", re.DOTALL)


def documented_output(script: Path) -> str:
    """Returns what an example says it printed; its lines may be wrapped."""
    match = PRINTED.search(script.read_text("utf-8"))
    assert match, f"{script.name} does not say what it printed"
    return without_numbers(" ".join(line.lstrip("#") for line in match[1].splitlines()))


def without_numbers(text: str) -> str:
    """Returns what is printed on any machine, in one line."""
    return " ".join(re.sub(r"[-+]?\d[\d.]*", "#", text).split())


def test_all_examples_are_here() -> None:
    assert [script.name for script in SCRIPTS] == [
        *("compare_policies.py", "gate.sh", "load_in_transformers.py", "own_samples.py", "own_text.py"),
        "quickstart.py",
    ]


@pytest.mark.long
@pytest.mark.parametrize("script", [path for path in SCRIPTS if path.suffix == ".py"], ids=lambda script: script.name)
def test_python_example_runs_and_prints_what_it_says(script, tmp_path, monkeypatch, capsys, outer_blocks) -> None:
    monkeypatch.chdir(tmp_path)
    if script.name != "quickstart.py":  # which says who is the worst
        monkeypatch.setattr(embedded, "ASSETS", outer_blocks(2).directory.parent)
    runpy.run_path(str(script), run_name="__main__")
    assert without_numbers(capsys.readouterr().out) == documented_output(script)
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_shell_example_runs_and_prints_what_it_says(tmp_path) -> None:
    script = EXAMPLES / "gate.sh"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "TMPDIR": str(tmp_path)}
    done = subprocess.run(["bash", script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert without_numbers(done.stdout) == documented_output(script)
    assert not list(tmp_path.iterdir())


def test_workflow_is_a_workflow() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((EXAMPLES / "github-workflow.yml").read_text("utf-8"))
    steps = workflow["jobs"]["gate"]["steps"]
    runs = [step["run"] for step in steps if "run" in step]
    assert any(run.startswith("fairbits gate ") and "--junit gate.xml" in run for run in runs)
    assert all({"run", "uses"} & set(step) for step in steps)
    kept = next(step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", ""))
    assert kept.split() == ["out/report.html", "out/scores.json", "gate.xml"]


def test_workflow_of_a_server_gates_what_it_measures() -> None:
    yaml = pytest.importorskip("yaml")
    workflow = yaml.safe_load((EXAMPLES / "github-workflow-server.yml").read_text("utf-8"))
    steps = workflow["jobs"]["gate"]["steps"]
    assert all({"run", "uses"} & set(step) for step in steps)
    commands = [words_of(step["run"]) for step in steps if step.get("run", "").startswith("fairbits ")]
    for words in commands:
        parse(words)
    assert [words[0] for words in commands] == ["evaluate", "report", "gate"]
    files = {words[words.index("--out") + 1] for words in commands if "--out" in words} | {"gate.xml"}
    kept = next(step["with"]["path"] for step in steps if "upload-artifact" in step.get("uses", ""))
    assert set(kept.split()) == files
    assert set(re.findall(r"\$(\w+)", str(steps))) - {"PWD"} <= workflow["env"].keys()
    assert steps[-2] == {"if": "always()", "run": "docker logs server --tail 200; docker rm --force server"}
