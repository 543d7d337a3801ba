"""`fairbits power` as a user runs it."""

import json
import re
from pathlib import Path

import pytest

PILOT = Path(__file__).parents[1] / "data" / "records" / "scores.json"


def test_it_prints_a_table_a_sentence_and_the_next_command(command) -> None:
    code, printed, errors = command("power", PILOT, "--max-worst", "1", "--expected", "0.1", "--releases", "50")
    assert (code, errors) == (0, "")
    words = " ".join(printed.split())
    assert "worst language by divergence: limit 1 bits per byte; a good release has 0.1 (--expected)" in words
    assert "false passes misses releases" in words
    (tokens,) = re.findall(r"([0-9,]+) tokens per language decide: of 50 simulated releases", words)
    assert (
        printed.splitlines()[-1] == f"next: fairbits evaluate MODEL --reference BASE --tokens {tokens.replace(',', '')}"
    )


def test_json(command) -> None:
    code, printed, _ = command(
        "power", PILOT, *["--max-worst", "1", "--measure", "loss", "--tokens", "500", "--releases", "50", "--json"]
    )
    answer = json.loads(printed)
    assert code == 0
    assert (answer["schema"], answer["measure"], answer["expected"]) == ("fairbits.power/1", "loss", 0.5)
    assert [trial["tokens"] for trial in answer["trials"]] == [500]


def test_a_share_is_not_a_percentage(command) -> None:
    _, _, errors = command("power", PILOT, *["--max-changed", "0.5", "--tokens", "500", "--releases", "50"])
    assert "--max-changed 0.5 is 0.5 of 100 tokens, not 50%" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PILOT,), "there is no limit; give either --max-changed, such as 10, or --max-worst"),
        ((PILOT, "--max-changed", "10", "--expected", "12"), "the expected value is 12 and the limit is 10"),
        (("none.json", "--max-changed", "10"), "none.json"),
    ],
)
def test_errors_take_one_line(command, arguments, message) -> None:
    code, printed, errors = command("power", *arguments)
    assert (code, printed) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1
