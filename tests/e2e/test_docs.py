"""What the pages of the documentation show runs, and every command and option they name exists."""

import importlib
import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from fairbits.cli import app
from fairbits.models import embedded

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text("utf-8") for page in PAGES}
GROUP: Any = typer.main.get_command(app)
UsageError = typer.BadParameter.__mro__[1]  # typer has no public name for it

FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
INLINE = re.compile(r"`(fairbits [a-z][^`\n]*)`")
PLACEHOLDER = re.compile(r"^(?:- )?(?:run: )?(?=fairbits )")
FILES = {
    "audit": ["fairbits.auditing.audit_file"],
    "plan": ["fairbits.quantization.plan"],
    "scores": ["fairbits.evaluation.scores"],
    "overlays": ["fairbits.serve.overlays.overlay_files", "fairbits.api.overlay"],
    "sweep": ["fairbits.reports.sources"],
    "compare": ["fairbits.comparison.comparison"],
    "verdict": ["fairbits.evaluation.gate", "fairbits.evaluation.lm_eval.gate_samples"],
    "power": ["fairbits.api.power"],
    "report": ["fairbits.reports.content"],
    "run": ["fairbits.reports.sources", "fairbits.api.run.run_settings"],
    "laaciq": ["fairbits.kurtosis.clipping_record"],
    "research": ["fairbits_research.experiments.result"],
}
"""The modules that describe each file of docs/reference/files.md."""


def commands(text: str) -> list[str]:
    """Returns the lines of code blocks that call fairbits, those with a trailing backslash joined."""
    fenced = [code for language, code in FENCED.findall(text) if language not in ("python", "py", "bibtex")]
    indented = INDENTED.findall(FENCED.sub("", text))
    lines = re.sub(r" \\\n\s*", " ", "\n".join(fenced + indented)).splitlines()
    return [PLACEHOLDER.sub("", line.strip()) for line in lines if PLACEHOLDER.match(line.strip())]


def words_of(command: str) -> list[str]:
    """Returns the words of a command up to where the shell takes over."""
    words = shlex.split(command, comments=True)
    ends = [i for i, word in enumerate(words) if word in (">", "|", "||", "&&", ";")]
    return words[1 : min(ends, default=len(words))]


def parse(words: list[str]) -> None:
    """Raises what the application would say to a command that it does not take; nothing is run."""
    verb, *arguments = words
    parent = GROUP.make_context("fairbits", [verb], obj={})
    GROUP.commands[verb].make_context(verb, arguments, parent=parent)


def test_commands_are_found() -> None:
    command_lines = commands(
        "Do\n\n    fairbits audit MODEL \\\n        --bits 3  # three\n\n```sh\nfairbits run > log\n```\n"
    )
    assert [words_of(line) for line in command_lines] == [["run"], ["audit", "MODEL", "--bits", "3"]]
    assert sum(len(commands(text)) for text in TEXTS.values()) > 40


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if commands(text)])
def test_command_lines_parse(page: str) -> None:
    refused = {}
    for command in commands(TEXTS[page]):
        try:
            parse(words_of(command))
        except (UsageError, KeyError) as problem:
            refused[command] = str(problem)
    assert not refused


@pytest.mark.parametrize("wrong", ["gate s.json --no-such-option 1", "gate s.json --max-worst much", "quantize"])
def test_a_wrong_command_line_would_be_noticed(wrong: str) -> None:
    with pytest.raises(UsageError):
        parse(wrong.split())


@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if INLINE.search(text)])
def test_verbs_and_options_within_sentences_exist(page: str) -> None:
    shared = {flag for parameter in GROUP.params for flag in parameter.opts} | {"--help"}
    for command in INLINE.findall(TEXTS[page]):
        _, verb, *rest = command.split()
        options = shared | {flag for parameter in GROUP.commands[verb].load().params for flag in parameter.opts}
        assert {word for word in rest if word.startswith("--")} <= options, command


@pytest.mark.parametrize("page", list(TEXTS))
def test_scripts_and_make_targets_exist(page: str) -> None:
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for script in re.findall(r"\b((?:benchmarks|examples|training|data)/[\w-]+\.\w+)", TEXTS[page]):
        assert (ROOT / script).exists(), script
    for target in re.findall(r"`make ([a-z]+)`", TEXTS[page]):
        assert f"\n{target}:" in makefile, target


PAGES_WITH_PYTHON = [
    *[[page] for page in ("docs/index.md", "docs/models.md", "docs/research/index.md")],
    ["docs/guides/quantize.md", "docs/guides/evaluate.md"],  # the second begins with what the first has written
    *[[f"docs/guides/{page}.md"] for page in ("audit", "text", "python", "other-quantizers", "overlays")],
]


@pytest.mark.long
@pytest.mark.parametrize("pages", PAGES_WITH_PYTHON, ids=lambda pages: pages[-1])
def test_python_examples_run(pages, tmp_path, monkeypatch, outer_blocks) -> None:
    monkeypatch.chdir(tmp_path)
    if "docs/research/index.md" not in pages:  # which names blocks
        monkeypatch.setattr(embedded, "ASSETS", outer_blocks(2).directory.parent)
    for page in pages:
        blocks = [code for language, code in FENCED.findall(TEXTS[page]) if language == "python"]
        assert blocks, page
        for block in blocks:
            exec(compile(block, page, "exec"), {})


def test_no_python_example_is_forgotten() -> None:
    with_python = {page for page, text in TEXTS.items() if "```python\n" in text}
    assert with_python - {"README.md"} == {page for pages in PAGES_WITH_PYTHON for page in pages}


@pytest.mark.parametrize("name", FILES)
def test_keys_of_files_are_those_that_are_written(name: str) -> None:
    section = TEXTS["docs/reference/files.md"].split(f"\n## {name}\n")[1].split("\n## ")[0]
    first_cells = re.findall(r"^\| (`[^|]*) \|", section, re.MULTILINE)
    source = "".join(inspect.getsource(importlib.import_module(module)) for module in FILES[name])
    keys = re.findall(r"`(\w+)`", " ".join(first_cells))
    assert len(keys) > 3
    for key in keys:
        assert re.search(rf'"{key}"|^    {key}: ', source, re.MULTILINE), key


def test_the_workflow_of_the_guide_is_the_example() -> None:
    assert (ROOT / "examples/github-workflow.yml").read_text("utf-8") in TEXTS["docs/guides/evaluate.md"]
