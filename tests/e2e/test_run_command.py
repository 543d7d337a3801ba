"""`fairbits run` as a user runs it."""

import json
from pathlib import Path

import pytest
from rich.cells import cell_len

from fairbits.api.run import run
from fairbits.evaluation.scores import Scores

SMALL = ("--languages", "eng,heb", "--tokens", "64", "--evaluation-tokens", "128", "--sequence", "64")
QUICK = (*SMALL, "--group", "16")


@pytest.fixture(scope="module")
def model(reading_model) -> Path:
    return reading_model("llama").directory


def test_run_ends_with_a_table_and_the_report(command, model, tmp_path) -> None:
    code, printed, errors = command("run", model, *QUICK, "--out", tmp_path / "run")
    assert code == 0, errors
    assert "eng → English" in errors
    for stage in ("model", "scores.json", "baselines/rtn.json", "report.html"):
        assert any(line.startswith(f"{stage} ") and line.endswith(" s") for line in errors.splitlines()), stage
    *table, meaning, page, following = printed.splitlines()
    assert max(map(cell_len, table)) <= 80
    assert "f 100 next tokens, " in meaning
    assert page == f"report: {tmp_path / 'run' / 'report.html'}"
    assert (tmp_path / "run" / "report.html").is_file()
    for language in ("eng_Latn", "heb_Hebr"):
        assert language in printed
    gate = following.removeprefix("next:   fairbits ").split()
    assert gate[-2:] == ["--max-changed", "10"]  # the limit of all examples, whatever the model lost
    assert command(*gate)[0] == 1
    assert command(*gate[:-1], "99")[0] == 0

    code, printed, errors = command("run", model, *QUICK, "--out", tmp_path / "run", "--json")
    assert code == 0
    assert "scores.json already exists" in errors
    summary = json.loads(printed)
    assert (summary["directory"], summary["report"]) == (str(tmp_path / "run"), str(tmp_path / "run" / "report.html"))
    scores = Scores.load(tmp_path / "run" / "scores.json")
    assert summary["headline"]["size"]["quantized"] == scores.quantized.size_bytes
    assert summary["baselines"] == ["rtn"]  # only what was asked for, and what costs one evaluation
    assert not (tmp_path / "run" / "audit.json").exists()
    assert command("run", model, *QUICK, "--out", tmp_path / "run", "--audit")[0] == 0
    assert (tmp_path / "run" / "audit.json").exists()  # which is added to the finished run

    code, printed, errors = command("run", model, *QUICK, "--out", tmp_path / "run", "--bits", "3")
    assert (code, printed) == (2, "")
    assert "bits 4 there, 3 now" in errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--baselines", "best"), "best"),
        (("--more-bits", "1-3"), "--more-bits is '1-3'"),
        (("--group", "row"), "--group is 'row'"),
        (("--embeddings", "2"), "--embeddings is '2'"),
        (("--policy", "rtn", "--baselines", "rtn"), "rtn is the policy"),
    ],
)
def test_bad_input_ends_with_2_and_nothing_is_written(command, tmp_path, monkeypatch, options, message) -> None:
    monkeypatch.chdir(tmp_path)
    code, printed, errors = command("run", *options)
    assert (code, printed) == (2, "")
    assert message in errors
    assert not list(tmp_path.iterdir())


@pytest.mark.long
def test_without_a_model_it_is_the_embedded_one_with_few_tokens(model, tmp_path, monkeypatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fairbits.api.run._Stages.quantize", stop)  # the settings are written before it

    def settings(name: str, *models: Path, **options: object) -> dict:
        with pytest.raises(KeyboardInterrupt):
            run(*models, out=tmp_path / name, **options)
        record = json.loads((tmp_path / name / "run.json").read_text())
        return record["settings"] | {key: record[key] for key in ("model", "baselines")}

    embedded = settings("embedded")
    assert (embedded["model"], embedded["text"], len(embedded["languages"])) == ("embedded:tiny", "help", 12)
    assert (embedded["tokens"], embedded["evaluation_tokens"], embedded["more_bits"]) == (512, 1536, [])
    assert [baseline["name"] for baseline in embedded["baselines"]] == ["gptq:mix=english"]
    chosen = settings("chosen", languages=["eng", "heb"])  # the help has no Hebrew
    assert (chosen["model"], chosen["text"], chosen["tokens"]) == ("embedded:tiny", "udhr", 512)
    other = settings("other", model, group="channel", languages=["eng", "heb"])
    assert (other["model"], other["tokens"], other["baselines"]) == (str(model), 4096, chosen["baselines"])
