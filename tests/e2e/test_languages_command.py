"""`fairbits languages` as a user runs it."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from rich.cells import cell_len

from fairbits.text.catalog import catalog
from fairbits.text.language_codes import find_language

COMMAND = Path(sys.executable).with_name("fairbits")
Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(command) -> Call:
    """Returns a function that runs `fairbits languages` in this process."""
    return partial(command, "languages")


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR")}
    return subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, env={**kept, "COLUMNS": "80", **environment}
    )


def test_aliases_and_what_they_were_taken_for(call) -> None:
    code, printed, errors = call("he", "zh", "swahili", "fra_Latn")
    assert code == 0
    codes = re.findall(r"^\w{3}_\w{4}\b", printed, flags=re.MULTILINE)
    assert codes == ["heb_Hebr", "zho_Hans", "swh_Latn", "fra_Latn"]
    assert "he → Hebrew, heb_Hebr (BCP-47 code)" in errors
    assert "swahili → " in errors
    assert "fra_Latn" not in errors


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("hebrw",), "did you mean Hebrew (heb_Hebr)"),
        (("eng", "English"), "English"),
        (("[red]\x1b[2J:key:",), r"[red]\x1b[2J:key:"),
        (("",), "language"),
    ],
)
def test_names_that_are_none_end_with_code_2_in_one_line(names, message, call) -> None:
    code, printed, errors = call(*names)
    assert (code, printed) == (2, "")
    assert errors.startswith("error: ")
    assert message in errors
    assert errors.count("\n") == 1
    assert "\x1b" not in errors


def test_json_holds_every_language_and_fact(call) -> None:
    code, printed, errors = call("--json")
    assert (code, errors) == (0, "")
    data = json.loads(printed)
    assert [entry["code"] for entry in data] == [language.code for language in catalog()]
    (hebrew,) = (entry for entry in data if entry["code"] == "heb_Hebr")
    assert hebrew["autonym"] == "עברית"
    assert (hebrew["right_to_left"], hebrew["text"], hebrew["detected"]) == (True, True, True)
    assert hebrew["texts"] == ["declaration"]
    assert sum("help" in entry["texts"] for entry in data) == 30
    assert {entry["text"] for entry in data} == {entry["detected"] for entry in data} == {True, False}


def test_all_of_them_fit_80_columns_with_whole_autonyms(call) -> None:
    code, printed, _ = call()
    assert code == 0
    assert max(cell_len(line) for line in printed.splitlines()) <= 80
    assert all(f"\n{language.code} " in printed for language in catalog())
    for name in ("heb", "arb", "urd", "ydd", "amh"):
        assert all(word in printed for word in find_language(name).autonym.split())


def test_colour_only_where_it_is_wanted() -> None:
    assert "\x1b[" in run("languages", "heb_Hebr", FORCE_COLOR="1").stdout
    done = run("languages", "heb_Hebr", "he")
    assert (done.returncode, done.stderr[:6]) == (2, "error:")
    assert "\x1b" not in done.stderr
    plain = run("languages", "heb_Hebr", FORCE_COLOR="1", NO_COLOR="1").stdout
    assert not any(f"\x1b[{colour}m" in plain for colour in range(30, 38))


@pytest.mark.parametrize(
    ("arguments", "unneeded"),
    [
        (["--help"], {"torch", "transformers", "scipy", "numba", "numpy", "py3langid"}),
        (["languages", "he"], {"torch", "transformers", "scipy", "numba"}),
    ],
)
def test_no_verb_waits_for_what_it_does_not_need(arguments, unneeded) -> None:
    code = (
        f"import sys\nsys.argv = ['fairbits', *{arguments}]\n"
        "from fairbits.cli import main\ntry:\n    main()\nfinally:\n    print('LOADED', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    loaded = done.stdout.partition("LOADED")[2].split()
    assert "rich" in loaded, done.stderr
    assert not unneeded & set(loaded)
