"""The verb report: it writes a page, prints the other forms, and refuses what it cannot show."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard


@pytest.fixture
def run(finished_run: Path, tmp_path: Path, monkeypatch) -> Path:
    """Returns a copy of a run, without weights, in the current directory."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(finished_run, "run", ignore=shutil.ignore_patterns("*.safetensors", "tokenizer*"))
    return Path("run")


def files_in(directory: Path) -> set[Path]:
    return set(directory.rglob("*"))


def damage(file: Path, *keys: str | int, by: object) -> None:
    """Puts something else where a number was."""
    data = json.loads(file.read_text())
    place = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = by
    file.write_text(json.dumps(data))


def test_the_page_of_a_run_lies_in_its_directory(command, run) -> None:
    code, printed, _ = command("report", run)
    assert (code, printed) == (0, f"wrote {run / 'report.html'}\n")
    assert (run / "report.html").read_text(encoding="utf-8").lstrip().lower().startswith("<!doctype html>")


def test_the_page_of_scores_lies_in_the_current_directory(command, run) -> None:
    code, printed, _ = command("report", run / "scores.json", "--against", run / "baselines" / "rtn.json")
    assert (code, printed) == (0, "wrote report.html\n")
    assert Path("report.html").stat().st_size < 6_000_000
    assert not (run / "report.html").exists()


def test_other_forms_are_printed(command, run) -> None:
    before = files_in(Path())
    code, printed, _ = command("report", run, "--format", "md")
    assert code == 0
    assert printed.startswith("## What quantization costs every language\n")
    code, printed, _ = command("report", run, "--json")
    assert code == 0
    data = json.loads(printed)
    assert data["schema"] == "fairbits.report/3"
    assert command("report", run, "--format", "json")[1] == printed
    assert files_in(Path()) == before


def test_a_form_is_taken_from_the_name_of_the_file(command, run) -> None:
    assert command("report", run, "--out", "card.md")[:2] == (0, "wrote card.md\n")
    assert Path("card.md").read_text().startswith("## ")
    assert command("report", run, "--format", "json", "--out", "all.json")[:2] == (0, "wrote all.json\n")
    assert json.loads(Path("all.json").read_text())["schema"] == "fairbits.report/3"


def test_files_for_the_hub_lie_with_the_model_of_the_run(command, run) -> None:
    words = ("report", run, "--format", "hub", "--base-model", "org/model", "--license", "mit")
    code, printed, _ = command(*words)
    assert code == 0
    assert printed.endswith(f"upload it: hf upload OWNER/model-W3A16-channel {run / 'model'}\n")
    data = ModelCard.load(run / "model" / "README.md").data
    assert (data.base_model, data.license) == ("org/model", "mit")
    assert {"recipe.yaml", "report.html", "plan.json"} <= {path.name for path in (run / "model").iterdir()}


def test_files_for_the_hub_of_scores_lie_where_they_are_asked_for(command, run) -> None:
    Path("new").mkdir()
    code, _, notes = command("report", run / "scores.json", "--format", "hub", "--out", "new", "--repo", "me/mine")
    assert code == 0
    assert "base_model is left out" in notes
    assert "license is left out" in notes
    assert {path.name for path in Path("new").iterdir()} == {"README.md", "report.html"}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--base-model", "org/model"), "are for the Hub; add --format hub"),
        (("--format", "hub", "--json"), "contradict each other"),
        (("--format", "hub", "--base-model", "model"), "the base model is 'model'; it must be an id on the Hub"),
        (("--format", "hub", "--out", "gone"), "gone is not a directory"),
    ],
)
def test_for_the_hub_nothing_is_written_if_something_is_wrong(command, run, words, problem) -> None:
    before = files_in(Path())
    code, printed, errors = command("report", run, *words)
    assert (code, printed) == (2, "")
    assert problem in errors
    assert files_in(Path()) == before


def test_json_and_a_file_print_nothing_but_json(command, run) -> None:
    code, printed, _ = command("report", run, "--json", "--out", "all.json")
    assert code == 0
    assert printed == Path("all.json").read_text()
    assert json.loads(printed)["schema"] == "fairbits.report/3"


def test_baselines_are_compared_in_the_order_given(command, run) -> None:
    rtn, english = (run / "baselines" / name for name in ("rtn.json", "gptq-mix-english.json"))
    code, printed, _ = command("report", run / "scores.json", "--against", rtn, "--against", english, "--json")
    assert code == 0
    assert [method["target"].rsplit("/", 1)[-1] for method in json.loads(printed)["methods"]] == [
        *("model", "rtn", "gptq-mix-english"),
    ]


HTML = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("file", "keys", "by"),
    [
        ("audit.json", ("blocks", 0, "kappa"), HTML),
        ("audit.json", ("damage", "kronecker", "nats_per_token", "heb_Hebr", "value"), HTML),
        ("audit.json", ("model", "fingerprint"), HTML),
        ("audit.json", ("schema",), "fairbits.sweep/1"),
        ("sweep.json", ("damage", "heb_Hebr", "3", "low"), HTML),
        ("sweep.json", ("threshold",), "0.01"),
        ("model/plan.json", ("layers", 0, "bits"), HTML),
        ("run.json", ("baselines", 0, "scores"), HTML),
        ("scores.json", ("documents", "kl", 0), HTML),
        ("scores.json", ("percentiles", "heb_Hebr", "kl_p99"), HTML),
        ("scores.json", ("percentiles", "heb_Hebr"), HTML),
        ("sweep.json", ("measure",), 5),
        ("scores.json", ("quantized", "size_bytes"), HTML),
        ("scores.json", ("question", "seed"), 5),
        ("scores.json", ("reference", "size_bytes"), 0),
        ("run.json", ("settings",), [HTML]),
        ("baselines/rtn.json", ("reference", "fingerprint"), "0" * 64),
    ],
)
@pytest.mark.parametrize("form", ["html", "json"])
def test_a_damaged_file_ends_with_2_and_nothing_is_written(command, run, file, keys, by, form) -> None:
    damage(run / file, *keys, by=by)
    before = files_in(Path())
    code, printed, errors = command("--quiet", "report", run, "--format", form)
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert errors.startswith("error: ")
    assert files_in(Path()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("none.json",), "none.json cannot be read"),
        (("run/audit.json",), "it must be fairbits.scores/2"),
        (("run/scores.json", "--audit", "none.json"), "none.json cannot be read"),
        (("run/scores.json", "--plan", "none.json"), "none.json"),
        (("run/scores.json", "--sweep", "run/audit.json"), "it must be fairbits.sweep/2"),
        (("run", "--against", "run/scores.json"), "give no other files"),
        (("run/baselines",), "has no run.json"),
        (("run", "--format", "pdf"), "--format is 'pdf'; it must be html, md, json or hub"),
        (("run", "--format", "md", "--json"), "give one of them"),
        (("run", "--out", "nowhere/report.html"), "is not a directory"),
        (("run", "--out", "run.json/run.html"), "is not a directory"),
        (("run", "--out", "run"), "run does not end in .html, .md or .json"),
        (("run", "--out", "page.txt"), "page.txt does not end in .html, .md or .json"),
        (("run", "--json", "--out", "page.html"), "page.html would hold json; the name must end in .json"),
        (("run", "--format", "json", "--out", "page.txt"), "page.txt does not end in .html, .md or .json"),
        (("run", "--format", "html", "--out", "card.md"), "card.md would hold html"),
    ],
)
def test_bad_input_ends_with_2_and_one_line(command, run, arguments, message) -> None:
    before = files_in(Path())
    code, printed, errors = command("--quiet", "report", *arguments)
    assert (code, printed, errors.count("\n")) == (2, "", 1)
    assert message in errors
    assert files_in(run.parent) == before
