"""What all commands have in common: help, options, errors, colour, completion."""

import errno
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.cells import cell_len
from typer.main import get_command

from fairbits.cli import app, completion, main
from fairbits.cli import lazy_group as cli_command
from fairbits.text.reading import EMBEDDED

COMMAND = Path(sys.executable).with_name("fairbits")
GROUP = get_command(app)
COLOUR = r"\x1b\[[\d;]*3\dm"
EXAMPLE = re.compile(r"^ *(fairbits .*)$", flags=re.MULTILINE)
EXAMPLES = {
    name: EXAMPLE.findall(cli_command.docstring(command.entry_point).partition("Examples:")[2])
    for name, command in GROUP.commands.items()
} | {"": EXAMPLE.findall(GROUP.help.partition("Examples:")[2])}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Returns what came of the command in a process of its own, without a terminal."""
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, env=settings(**environment))


def settings(**environment: str) -> dict[str, str]:
    mine = ("NO_COLOR", "FORCE_COLOR", "TERM", "PYTHONUNBUFFERED", "GITHUB_ACTIONS")
    return {**{key: value for key, value in os.environ.items() if key not in mine}, "COLUMNS": "80", **environment}


def parsed(example: str) -> typer.Context:
    """Returns how the command of an example is parsed; raises if there is no such command or option."""
    _, *words = shlex.split(example.partition(" >")[0])
    context = GROUP.make_context("fairbits", words)
    name, command, rest = GROUP.resolve_command(context, words)
    return command.make_context(name, rest, parent=context)


def test_the_order_of_the_commands() -> None:
    order = "evaluate release gate power report audit compare run quantize plan sweep overlay generate serve "
    order += "languages mix imatrix tasks inspect doctor screen diff laaciq research theory"
    assert GROUP.list_commands(GROUP.make_context("fairbits", ["doctor"])) == order.split()


@pytest.mark.parametrize("name", EXAMPLES)
def test_help_shows_examples_that_can_be_typed(name, command) -> None:
    code, printed, _ = command(*name.split(), "--help")
    assert code == 0
    assert max(map(cell_len, printed.splitlines())) <= 80
    lines = {line.strip() for line in printed.splitlines()}
    assert len(EXAMPLES[name]) > (name != "doctor")
    for example in EXAMPLES[name]:
        assert example in lines  # on a line of its own, whole
        assert parsed(example).info_name == (name or parsed(example).info_name)


def test_an_example_that_cannot_be_typed_would_be_found() -> None:
    for wrong in (
        "fairbits audt x",
        "fairbits audit x --bitts 4",
        "fairbits evaluate x",
        "fairbits plan x --bits four",
    ):
        with pytest.raises(Exception, match=r"No such|Missing|valid integer"):
            parsed(wrong)


@pytest.mark.parametrize("name", GROUP.commands)
def test_every_command_has_the_options_that_all_have(name) -> None:
    context = GROUP.make_context("fairbits", [name])
    command = GROUP.get_command(context, name).load()
    options = {
        flag
        for parameter in command.get_params(command.context_class(command, parent=context))
        for flag in parameter.opts
    }
    assert {"--json", "--quiet", "-q", "--debug", "--help"} <= options


@pytest.mark.parametrize("arguments", [("--quiet", "languages", "he"), ("languages", "he", "-q")])
def test_quiet_before_and_after_the_command(arguments, command) -> None:
    code, printed, errors = command(*arguments)
    assert (code, errors) == (0, "")
    assert "heb_Hebr" in printed
    assert command("languages", "he")[2] == "he → Hebrew, heb_Hebr (BCP-47 code)\n"  # nothing stays behind
    assert command(*arguments[:-1], "hebrw", *arguments[-1:])[2].startswith("error: ")


@pytest.mark.parametrize(
    "arguments",
    [
        ("quantize", "embedded:tiny", "--policy", "rtn", "--out", "w4"),
        ("tasks", "--languages", "eng,heb", "--out", "tasks"),
        ("mix", "embedded:tiny", "--languages", "eng,heb", "--tokens", "1024", "--out", "mix.jsonl"),
        ("imatrix", "embedded:tiny", "--languages", "eng,heb", "--tokens", "256", "--out", "importance.gguf"),
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_quiet_command_that_writes_prints_nothing(arguments, command, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert command(*arguments, "-q") == (0, "", "")
    assert Path(arguments[-1]).exists()


def test_a_quiet_result_has_no_notes(command) -> None:
    arguments = ("plan", "embedded:tiny", "--policy", "laaciq", "--languages", "eng,heb", "--tokens", "256")
    assert "\nNotes\n" in command(*arguments)[1]
    code, printed, errors = command(*arguments, "-q")
    assert (code, errors) == (0, "")
    assert "embedded:tiny" in printed
    assert "Notes" not in printed


@pytest.mark.parametrize("arguments", [("inspect", "embedded:tiny"), ("theory", "--claim", "000-07"), ("doctor",)])
def test_json_alone_on_stdout(arguments, command) -> None:
    code, printed, errors = command(*arguments, "--json")
    assert (code, errors.count(" …\n")) == (0, errors.count("\n"))  # progress alone
    assert json.loads(printed)


def test_progress_without_a_terminal_is_one_line_per_stage(monkeypatch, capsys) -> None:
    for options, expected in (((), "recomputing claims …\n"), (("--quiet",), "")):
        monkeypatch.setattr(sys, "argv", ["fairbits", "theory", "--claim", "000-07", *options])
        with pytest.raises(SystemExit):
            main()
        assert capsys.readouterr().err == expected


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1", "FORCE_COLOR": "1"}, {}, {"TERM": "dumb"}])
def test_no_colour_where_it_is_not_wanted(environment) -> None:
    done = run("languages", "hebrw", **environment)
    assert done.stderr.replace("\x1b[1m", "").replace("\x1b[0m", "").startswith("error: language")  # bold is no colour
    assert not re.search(COLOUR, run("--help", **environment).stdout)


def test_colour_where_it_is_wanted() -> None:
    assert re.search(COLOUR, run("languages", "hebrw", FORCE_COLOR="1").stderr)


@pytest.mark.parametrize("arguments", [("audt",), ("audit", "embedded:tiny", "--bitts", "3"), ("plan",)])
def test_wrong_usage_ends_with_2(arguments, command) -> None:
    code, printed, errors = command(*arguments)
    assert (code, printed) == (2, "")
    assert "--help" in errors


def failing(error: BaseException, *options: str) -> int:
    """Returns the exit code of a command that fails."""
    application = typer.Typer(pretty_exceptions_enable=False)
    application.callback()(app.registered_callback.callback)

    def quantize() -> None:
        raise error

    application.command(cls=cli_command.FairbitsCommand)(quantize)
    with pytest.raises(SystemExit) as ended:
        application([*options, "quantize"], obj={})
    return ended.value.code


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (TypeError("no\nsuch \x1b[2J"), 3, "unexpected TypeError: no; this is a bug in fairbits: run it again"),
        (KeyError(), 3, "unexpected KeyError: it has no message"),
        (KeyboardInterrupt(), 130, "interrupted; run the same command with --resume"),
        (cli_command.Terminated(), 143, "terminated; run the same command with --resume"),
        (
            OSError(errno.EIO, "Input/output error", "a.json"),
            2,
            "a.json cannot be read or written (Input",
        ),
        (MemoryError("of 8 GB"), 2, "not enough memory (of 8 GB)"),
        (RuntimeError("alloc.cpp: DefaultCPUAllocator: can't allocate memory"), 2, "not enough memory"),
        (type("OutOfMemoryError", (RuntimeError,), {})("CUDA out of memory."), 2, "not enough memory (CUDA out of"),
        (OSError(errno.ENOSPC, "No space left on device", "a.json"), 2, "no room left on the disk for a.json"),
    ],
)
def test_errors_end_in_one_line_with_their_code(error, code, message, capsys) -> None:
    assert failing(error) == code
    printed, errors = capsys.readouterr()
    assert (printed, errors.count("\n")) == ("", 1)
    assert errors.startswith("error: ")
    assert message in errors
    assert "\x1b" not in errors
    assert failing(error, "--debug") == code
    assert "Traceback (most recent call last)" in capsys.readouterr().err


def test_torch_says_that_memory_ran_out_as_expected() -> None:
    import torch

    assert cli_command.explain(torch.OutOfMemoryError("CUDA out of memory."))[1] == 2
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert "not enough memory" in cli_command.explain(caught.value)[0]


def test_debug_after_the_command_shows_the_traceback() -> None:
    done = run("languages", "hebrw", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in run("languages", "hebrw").stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a disk that is always full is needed")
@pytest.mark.parametrize("options", [(), ("--json",)])
def test_a_full_disk(options) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run([COMMAND, "languages", *options], stdout=full, stderr=-1, text=True, env=settings())
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "no room left on the disk" in done.stderr


def test_a_reader_that_goes_is_no_error() -> None:
    line = f"{shlex.quote(str(COMMAND))} languages --json | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=settings())
    assert (done.stdout.split(), done.stderr) == (["[", "141"], "")


def interrupted(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Returns what a process said in the end; a signal that arrives within a compiler's callback is lost, so again."""
    while True:
        process.send_signal(signal.SIGINT)
        try:
            return process.communicate(timeout=3)
        except subprocess.TimeoutExpired:
            continue


def test_an_interrupted_command() -> None:
    arguments = [COMMAND, "theory"]
    with subprocess.Popen(
        arguments, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings()
    ) as process:
        assert process.stderr.readline() == "recomputing claims …\n"
        printed, errors = interrupted(process)
    assert (process.returncode, printed) == (130, "")
    assert errors.splitlines()[-1] == "error: interrupted"
    assert "Traceback" not in errors


def test_a_file_that_is_replaced_is_named(command, tmp_path) -> None:
    arguments = (
        "mix",
        "embedded:tiny",
        "--languages",
        "eng_Latn",
        "--tokens",
        "512",
        "--out",
        tmp_path / "calib.jsonl",
    )
    assert "replaced" not in command(*arguments)[2]
    assert f"replaced {tmp_path / 'calib.jsonl'}\n" in command(*arguments)[2]


def test_completion_knows_what_there_is() -> None:
    assert tuple(EMBEDDED) == completion.TEXTS


def test_completion_of_lists_and_models(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("models", "models/tiny-w4", ".hidden"):
        Path(name).mkdir()
    for name in ("model.gguf", "notes.txt"):
        Path(name).touch()
    assert completion.model("") == ["embedded:tiny", "model.gguf", "models/"]
    assert completion.model("models/t") == ["models/tiny-w4/"]
    assert completion.model("./mod") == ["./model.gguf", "./models/"]
    assert completion.model("nowhere/") == []
    assert completion.text("") == ["declaration", "help", "models/"]
    assert completion.text("h") == ["help"]
    assert completion.languages("eng_Latn,eng") == []
    assert ("eng_Latn,fra_Latn", "French") in completion.languages("eng_Latn,")


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("fairbits au", ["audit"]),
        ("fairbits audit embedded:tiny --languages eng_Latn,heb", ["eng_Latn,heb_Hebr"]),
        ("fairbits compare m --policies rtn,g", ["rtn,gateway", "rtn,gptq"]),
        ("fairbits report run --format m", ["md"]),
        ("fairbits overlay m --form c", ["codes"]),
    ],
)
def test_completion_in_the_shell(words, offered) -> None:
    asked = {"_FAIRBITS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    done = run(**asked)
    assert (done.stdout.split(), done.stderr) == (offered, "")


def test_completion_waits_for_nothing_heavy() -> None:
    asked = {"_FAIRBITS_COMPLETE": "complete_bash", "COMP_WORDS": "fairbits languages he", "COMP_CWORD": "2"}
    code = "import sys\nfrom fairbits.cli import app\ntry:\n    app(prog_name='fairbits')\nfinally:\n    "
    code += "print('LOADED', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=settings(**asked))
    offered, _, loaded = done.stdout.partition("LOADED")
    assert "heb_Hebr" in offered.split()
    assert {"torch", "transformers", "scipy", "numba"}.isdisjoint(loaded.split())


def test_completion_is_shown_for_a_shell() -> None:
    done = run(_FAIRBITS_COMPLETE="source_zsh")
    assert done.returncode == 0
    assert "compdef _fairbits_completion fairbits" in done.stdout


def test_names_of_languages_are_not_cut(command) -> None:
    options = ("--languages", "zho_Hans,arb_Arab", "--tokens", "64", "--sequence", "64", "--details")
    code, printed, _ = command("audit", "embedded:tiny", *options)
    assert code == 0
    assert max(map(cell_len, printed.splitlines())) <= 80
    assert "…" not in printed
    assert re.search(r"^(\? )?Arabic +arb_Arab ", printed, flags=re.MULTILINE)
    assert re.search(r"^(\? )?Chinese +zho_Hans ", printed, flags=re.MULTILINE)
