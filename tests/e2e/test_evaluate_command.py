"""`fairbits evaluate`, `gate`, `compare` and `sweep` as a user runs them."""

import json
import shutil
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.cells import cell_len

from fairbits.api.report import report
from fairbits.cli import main
from fairbits.evaluation.scores import Scores

TINY = "embedded:tiny"
LANGUAGES = ("--languages", "eng_Latn,heb_Hebr", "--sequence", "64")
LOSS = ("--measure", "loss")
RTN = ("--policy", "rtn", "--bits", "3", "--group", "channel")


def fits(printed: str) -> bool:
    return max(cell_len(line) for line in printed.splitlines() if not line.startswith("signature: ")) <= 80


@pytest.fixture(scope="module")
def quantized(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("models") / "w3"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["fairbits", "quantize", TINY, *RTN, "--out", str(directory)])
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return directory


@pytest.fixture
def scores(quantized, command, tmp_path) -> Path:
    options = ("--reference", TINY, *LANGUAGES, "--tokens", "256")
    code, printed, errors = command("evaluate", quantized, *options, "--out", tmp_path / "scores.json")
    file = tmp_path / "scores.json"
    advice, following = errors.splitlines()
    assert (code, advice) == (0, "try: more bits, smaller groups, or fairbits run --policy fair")
    assert following == f"next: fairbits gate {file} --max-changed 10, or fairbits report {file}"
    assert fits(printed)
    return file


@pytest.mark.long
def test_compare_finds_what_evaluate_finds_in_the_written_model(quantized, command, tmp_path) -> None:
    code, printed, _ = command("evaluate", quantized, "--reference", TINY, *LANGUAGES, "--tokens", "256", "--json")
    assert code == 0
    assert json.loads(printed)["schema"] == "fairbits.summary/2"
    evaluated = json.loads(printed)["languages"]
    out = tmp_path / "compare.json"
    options = ("--bits", "3", "--group", "channel", *LANGUAGES, "--evaluation-tokens", "256", "--out", out)
    code, printed, errors = command("compare", TINY, "--policies", "rtn,mse", *options)
    assert (code, errors) == (0, "")
    assert fits(printed)
    assert "divergence" in printed
    data = json.loads(out.read_text())
    rtn, mse = data["entries"]
    assert data["measure"] == "divergence"
    for lang, language_scores in evaluated.items():
        assert rtn["damage"][lang]["value"] == pytest.approx(
            language_scores["divergence"]["bits_per_byte"]["value"], rel=1e-3
        )
        assert mse["damage"][lang]["value"] < rtn["damage"][lang]["value"]
    code, printed, errors = command("compare", TINY, "--policies", "rtn", "--measure", "loss", *options)
    assert (code, errors) == (0, f"replaced {out}\n")
    assert "added loss" in printed
    data = json.loads(out.read_text())
    assert data["measure"] == "loss"
    for lang, language_scores in evaluated.items():
        added = language_scores["added"]["bits_per_byte"]["value"]
        assert data["entries"][0]["damage"][lang]["value"] == pytest.approx(added, rel=1e-3)


def test_a_gate_ends_with_0_or_1(scores, command, tmp_path) -> None:
    code, printed, _ = command("gate", scores, "--max-worst", "10", "--max-gap", "10")
    verdict, meaning = printed.splitlines()
    assert code == 0
    assert verdict.startswith("pass: ")
    assert verdict.endswith("(measured by divergence)")
    assert meaning == Scores.load(scores).meaning.sentence
    code, printed, _ = command("gate", scores, "--max-worst", "10", "--max-gap", "10", "--measure", "loss")
    assert code == 0
    assert printed.splitlines()[0].endswith("(measured by added loss)")
    code, printed, _ = command("gate", scores, "--max-changed", "100")
    assert (code, printed.splitlines()[0].endswith("of 100 next tokens change (measured")) == (0, False)
    assert command("gate", scores, "--max-changed", "101")[0] == 2
    decisions = [json.loads(command("gate", scores, "--max-mean", "0", *more, "--json")[1]) for more in ((), LOSS)]
    assert [decision["measure"] for decision in decisions] == ["divergence", "loss"]
    frames = [Scores.load(scores).frame(measure=decision["measure"]) for decision in decisions]
    assert [decision["checks"][0]["estimate"] for decision in decisions] == [frame.mean().to_dict() for frame in frames]
    code, printed, _ = command("gate", scores, "--max-mean", "0", "--junit", tmp_path / "gate.xml", "--json")
    assert code == 1
    assert json.loads(printed)["passed"] is False
    assert ElementTree.parse(tmp_path / "gate.xml").getroot().get("failures") == "1"
    assert command("gate", scores, "--against", scores)[0] == 0
    assert command("gate", scores, "--against", scores, "--max-worse", "0")[0] == 0
    groups = "high=eng;low=heb"
    code, printed, _ = command("gate", scores, "--max-ratio", "1e6", "--groups", groups, "--json")
    (check,) = json.loads(printed)["checks"]
    assert (code, check["outcome"], check["limit"]) == (0, "pass", 1e6)
    code, printed, errors = command("gate", scores, "--max-ratio", "2")
    assert (code, printed) == (2, "")
    assert "has no groups of languages" in errors


def test_the_printed_summary_is_no_file_of_scores(quantized, command, tmp_path) -> None:
    options = ("--reference", TINY, *LANGUAGES, "--tokens", "256", "--json")
    (tmp_path / "printed.json").write_text(command("evaluate", quantized, *options)[1])
    code, _, errors = command("gate", tmp_path / "printed.json", "--max-worst", "1")
    assert code == 2
    assert "fairbits.summary/2" in errors
    assert "write it with fairbits evaluate --out" in errors


def test_another_reference_than_the_plan_names_is_refused(quantized, command) -> None:
    code, printed, errors = command("evaluate", quantized, "--reference", f"{TINY}?outliers=1:125", *LANGUAGES)
    assert (code, printed) == (2, "")
    assert f"was made from {TINY} (as its plan.json says)" in errors


@pytest.mark.long
def test_sweep(command, tmp_path) -> None:
    options = ("--policy", "rtn", "--group", "channel", *LANGUAGES, "--evaluation-tokens", "256")
    code, printed, errors = command("sweep", TINY, "--bits", "3..4", *options, "--out", tmp_path / "sweep.json")
    assert (code, errors) == (0, "")
    assert fits(printed)
    data = json.loads((tmp_path / "sweep.json").read_text())
    for curve in data["damage"].values():
        assert curve["3"]["value"] > curve["4"]["value"]
    assert data["research_notes"]["critical_width"] == pytest.approx(4.0, abs=0.05)
    assert " ".join(data["verdict"][1].split()) in " ".join(printed.split())
    assert data["measure"] == "divergence"
    assert "Divergence in bits per byte by bits per weight" in printed
    code, printed, errors = command("sweep", TINY, "--bits", "3..4", *options, *LOSS, "--json")
    assert (code, errors) == (0, "")
    other = json.loads(printed)
    assert other["measure"] == "loss"
    assert other["damage"] != data["damage"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("gate", "none.json", "--max-worst", "1"), "none.json cannot be read"),
        (("evaluate", "nowhere", "--reference", TINY), "nowhere"),
        (("evaluate", TINY, "--reference", TINY, "--device", "foo"), "device is 'foo'"),
        (("compare", TINY, "--policies", "rtn", "--device", "cuda:99"), "device is 'cuda:99'"),
        (("sweep", TINY, "--device", "foo"), "device is 'foo'"),
        (("compare", TINY, "--policies", "rtn,mixed", "--bits", "4,8"), "mixed at 8 bits"),
        (("compare", TINY, "--policies", "rtn,best"), "policy"),
        (("compare", TINY, "--policies", "rtn", "--bits", "4-3"), "--bits is '4-3'"),
        (("compare", TINY, "--policies", "rtn", "--seeds", "a"), "--seeds is 'a'"),
        (("compare", TINY, "--policies", "rtn", "--languages", "eng_Latn"), "two or more"),
        (("sweep", TINY, "--bits", "8..2"), "--bits is '8..2'"),
        (("sweep", TINY, "--bits", "4"), "two widths or more"),
        (("gate", "none.json", "--max-worst", "1", "--measure", "kl"), "measure is 'kl'"),
        (("compare", TINY, "--policies", "rtn", "--measure", "kl"), "measure is 'kl'"),
        (("sweep", TINY, "--measure", "kl"), "measure is 'kl'"),
        (("sweep", TINY, "--out", "nowhere/sweep.json"), "is not a directory"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(command, tmp_path, monkeypatch, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, errors = command(*arguments)
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert message in errors


def test_all_text_is_for_text_of_ones_own_that_is_not_split(quantized, command, tmp_path) -> None:
    options = ("evaluate", quantized, "--reference", TINY, "--all-text")
    assert "text of your own" in command(*options, "--text", "help", "--languages", "eng")[2]
    texts = tmp_path / "texts"
    for part in ("calibration", "evaluation"):
        (texts / part).mkdir(parents=True)
        (texts / part / "eng.txt").write_text("\n".join(f"The {part} of document {i} is over." for i in range(12)))
    code, _, errors = command(*options, "--text", texts)
    assert (code, "is split into calibration/ and evaluation/" in errors) == (2, True)
    shutil.rmtree(texts / "calibration")
    (texts / "evaluation" / "eng.txt").rename(texts / "eng.txt")
    (texts / "evaluation").rmdir()
    out = tmp_path / "scores.json"
    code, printed, errors = command(*options, "--text", texts, "--tokens", "64", "--out", out)
    assert code == 0, errors
    assert "12 of 12 documents are for evaluation" in errors
    assert "texts (all of it)" in " ".join(printed.split())
    signature = str(Scores.load(out).signature())
    code, again, errors = command(*options[:-1], "--text", texts, "--repeat", signature)
    assert (code, signature in errors + again) == (0, True), errors
    assert " --all-text" in report(out).markdown()
