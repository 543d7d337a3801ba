"""`fairbits overlay` as a user runs it."""

import json
import re
from pathlib import Path

import pytest
from rich.cells import cell_len

import fairbits as fb
from fairbits.cli.overlay_command import parse_budget
from fairbits.core.errors import InputError

LANGUAGES = ["eng_Latn", "heb_Hebr", "jpn_Jpan"]
LITTLE = ("--languages", ",".join(LANGUAGES), "--tokens", "192", "--sequence", "32")


@pytest.fixture(scope="module")
def model(reading_model) -> Path:
    return reading_model("llama").directory


@pytest.fixture(scope="module")
def base(model, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("overlay") / "w2"
    fb.quantize(model, fb.plan(model, policy="rtn", bits=2, group="channel"), out=out)
    return out


def rows_of(printed: str, title: str) -> dict[str, list[str]]:
    """Returns the words of every line below a title, by the first of them."""
    part = printed.split(f"\n{title}\n")[1].split("\n\n")[0]
    return {words[0]: words for words in map(str.split, part.splitlines()) if words}


def test_overlays_are_made_and_shown(command, model, base, tmp_path) -> None:
    code, printed, errors = command("overlay", model, "--base", base, *LITTLE, "--out", tmp_path / "made")
    assert (code, errors) == (0, "")
    assert max(map(cell_len, printed.splitlines()[:-1])) <= 80
    manifest = json.loads((tmp_path / "made/overlays.json").read_text())
    apart, size = manifest["record"]["apart"], manifest["record"]["base_bytes"]
    languages = rows_of(printed, "Languages")
    for name, language in zip(("English", "Hebrew", "Japanese"), LANGUAGES, strict=True):
        assert languages[name][1] == language
        assert float(languages[name][2]) == pytest.approx(apart[language]["base"], abs=1e-3)
        assert float(languages[name][3]) == pytest.approx(apart[language]["overlay"], abs=1e-3)
        assert languages[name][-1] == manifest["languages"][language]
    clusters = rows_of(printed, "Clusters")
    assert set(manifest["record"]["tried"]) == {"1", "2"} <= set(clusters)
    assert [count for count in ("1", "2") if clusters[count][-1] == "chosen"] == [str(manifest["record"]["clusters"])]
    for overlay in manifest["overlays"]:
        row = next(line.split() for line in printed.splitlines() if line.startswith(overlay["name"]))
        rows, share = sum(patch["rows"] for patch in overlay["patches"]), overlay["size_bytes"] / size
        assert row[1:5] == [str(len(overlay["patches"])), f"{rows:,}", f"{overlay['size_bytes']:,}", f"{share:.1%}"]
        assert 0 < share <= 0.05
    assert f"next: fairbits generate {base} --overlays {tmp_path / 'made'}" in printed


def test_json_is_the_manifest_and_the_default_place_is_in_the_base(command, model, base) -> None:
    options = ("--budget", "0.1", "--clusters", "1", "--form", "steps", "--activations", "8", "--json")
    before = fb.Checkpoint(base).fingerprint
    code, printed, errors = command("overlay", model, "--base", base, *LITTLE, *options)
    assert (code, errors) == (0, "")
    manifest = json.loads(printed)
    assert manifest == json.loads((base / "overlays/overlays.json").read_text())
    assert manifest["schema"] == "fairbits.overlays/1"
    assert manifest["base"] == before == fb.Checkpoint(base).fingerprint  # what lies in it is no part of it
    record = manifest["record"]
    assert (record["budget"], record["form"], record["clusters"]) == (0.1, "steps", 1)
    assert (manifest["activations"]["bits"], manifest["activations"]["languages"]) == (8, LANGUAGES)
    assert fb.AdaptiveModel(base, base / "overlays").names == ("base", *LANGUAGES)


def test_what_was_made_is_used(command, model, base, tmp_path) -> None:
    overlays = tmp_path / "made"
    quiet = command("overlay", model, "--base", base, *LITTLE, "--clusters", "1", "--out", overlays, "-q")
    assert quiet == (0, "", "")
    asked = ("--language", "en", "--max-tokens", "2", "--json")
    code, printed, errors = command("generate", base, "All human beings", "--overlays", overlays, *asked)
    assert code == 0, errors
    assert json.loads(printed)[0]["overlay"] == "eng_Latn-and-2"


def test_a_budget_of_nothing_leaves_all_with_the_base(command, model, base, tmp_path) -> None:
    options = ("--budget", "0%", "--clusters", "1", "--out", tmp_path / "none")
    code, printed, _ = command("overlay", model, "--base", base, *LITTLE, *options)
    assert code == 0
    assert "No overlay serves any language better than the base" in printed
    assert "Languages that stay with the base because no overlay helps: English, Hebrew, Japanese." in " ".join(
        printed.split()
    )
    assert set(fb.AdaptiveModel(base, tmp_path / "none").overlays.languages.values()) == {"base"}


def test_thresholds_of_activations_are_named(command, model, base, tmp_path) -> None:
    options = ("--clusters", "1", "--activations", "6", "--out", tmp_path / "made")
    code, printed, _ = command("overlay", model, "--base", base, *LITTLE, *options)
    assert code == 0
    assert re.search(r"^\d+ inputs rounded to 6 bits, thresholds for every language: \d+ bytes$", printed, re.MULTILINE)
    assert "KL was measured before inputs were rounded." in " ".join(printed.split())
    assert printed.splitlines()[0].split("  ")[1].startswith(("1 overlay,", "0 overlays,"))  # rows are stored once


@pytest.mark.parametrize("budget", ["-1%", "101%", "5", "-0.01", "nan", "inf", "", "%", "5 percent", "5%%"])
def test_a_budget_that_is_no_share(budget) -> None:
    with pytest.raises(InputError, match=re.escape("it must be a share of the base from 0 to 1: 5%, or 0.05")):
        parse_budget(budget)


@pytest.mark.parametrize(("budget", "share"), [("5%", 0.05), ("0.05", 0.05), ("0", 0), ("100%", 1), ("2.5 %", 0.025)])
def test_a_budget_that_is_a_share(budget, share) -> None:
    assert parse_budget(budget) == pytest.approx(share)


def test_what_is_wrong_ends_with_2_and_leaves_nothing(command, model, base, tmp_path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full/notes.txt").touch()
    out = tmp_path / "made"
    wrong = {
        (model, "--base", base, "--budget", "300%"): "--budget is '300%'",
        (model, "--base", base, "--budget", "some"): "--budget is 'some'",
        (model, "--base", base, "--form", "rows"): "--form is 'rows'",
        (model, "--base", base, "--clusters", "0"): "--clusters",
        (model, "--base", base, "--activations", "9"): "--activations",
        (model, "--base", model): "has no plan.json",
        ("embedded:tiny", "--base", base): "give the model that the base was made from",
        (model, "--base", base, "--out", tmp_path / "full"): "holds other files (notes.txt",
        (model, "--base", base, "--device", "tpu"): "tpu",
        (model, "--base", base, "--languages", "klingon"): "klingon",
    }
    for arguments, message in wrong.items():
        code, printed, errors = command("overlay", *LITTLE, "--out", out, *arguments)
        assert (code, printed) == (2, "")
        assert message in errors
        assert not out.exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
