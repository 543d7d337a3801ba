"""`fairbits screen` and `fairbits diff` as a user runs them."""

import json
import re
from collections.abc import Iterator

import pytest
from rich.cells import cell_len

TINY, OUTLIERS = "embedded:tiny", "embedded:tiny?outliers=3:125"


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory) -> Iterator[None]:
    """Models derived from the embedded one are kept here, not in the home of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


def fits(printed: str) -> bool:
    return max(cell_len(line) for line in printed.splitlines()) <= 80


def test_screen_shows_a_row_per_model(command) -> None:
    code, printed, errors = command("screen", TINY, OUTLIERS)
    assert (code, errors) == (0, "")
    assert fits(printed)
    assert re.search(r"^embedded:tiny +12 +8\.6 +2 ", printed, flags=re.MULTILINE)
    assert "HIGH" in printed
    assert "no data support (001-22, 001-23)" in " ".join(printed.split())


def test_a_model_that_cannot_be_opened_does_not_stop_the_others(command, tmp_path) -> None:
    code, printed, _ = command("screen", tmp_path / "[red]nowhere\x1b[2J", TINY, "--json")
    assert code == 2
    first, second = json.loads(printed)["models"]
    assert "there is no" in first["problem"]
    assert (second["target"], second["problem"], len(second["kappa"])) == (TINY, None, 12)
    assert "\x1b" not in printed


def test_text_brings_damage_to_the_screen(command, tmp_path) -> None:
    (tmp_path / "calibration").mkdir()
    for lang, line in {"eng": "It rains in {}.", "heb": "יורד גשם ב-{}."}.items():
        lines = (line.format(year) for year in range(2001, 2009))
        (tmp_path / "calibration" / f"{lang}.txt").write_text("\n".join(lines), encoding="utf-8")
    options = ("--text", tmp_path, "--languages", "eng_Latn,he", "--bits", "3", "--json")
    code, printed, errors = command("screen", TINY, *options)
    assert code == 0
    assert errors == "he → Hebrew, heb_Hebr (BCP-47 code)\n"
    data = json.loads(printed)
    assert data["bits"] == 3
    damage = data["models"][0]["predicted_damage"]
    assert damage.keys() == {"eng_Latn", "heb_Hebr"}
    assert min(damage.values()) > 0


def test_screen_refuses_bad_input(command) -> None:
    for options in (("--bits", "9"), ("--languages", "qqq")):
        code, printed, errors = command("screen", TINY, *options)
        assert (code, printed, errors.count("\n")) == (2, "", 1)
        assert errors.startswith("error: ")


def test_diff_shows_blocks_side_by_side(command) -> None:
    code, printed, errors = command("diff", TINY, OUTLIERS)
    assert (code, errors) == (0, "")
    assert fits(printed)
    assert re.search(r"^ *b  max κ 12[3-6]\.\d\d in block 3 of 12$", printed, flags=re.MULTILINE)


def test_diff_as_json(command) -> None:
    code, printed, errors = command("diff", TINY, OUTLIERS, "--json")
    assert (code, errors) == (0, "")
    data = json.loads(printed)
    assert (data["differing"], data["b"]["max_kappa_block"]) == ([], 3)


def test_diff_refuses_what_cannot_be_opened(command, tmp_path) -> None:
    code, printed, errors = command("diff", TINY, tmp_path / "nowhere")
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert "there is no" in errors
