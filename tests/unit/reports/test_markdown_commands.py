"""The commands in the section for a model card make and measure the same model again."""

import copy
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from markdown_it import MarkdownIt

from fairbits.api.evaluate import evaluate
from fairbits.api.make_plan import plan
from fairbits.api.quantize import quantize
from fairbits.cli import app
from fairbits.evaluation.scores import Scores
from fairbits.quantization.plan import Plan
from fairbits.reports.content import content
from fairbits.reports.markdown import card
from fairbits.reports.sources import Method, RunFile, Sources
from fairbits.text.included_texts import udhr
from fairbits.text.reading import open_corpus, read_corpus

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
RUN_RECORD: dict[str, Any] = {
    "fairbits": "0",
    "versions": {},
    "fingerprint": "",
    "policy": "gptq",
    "settings": {"bits": 4, "group": 16, "widths": []},
    "hashes": {},
    "baselines": (),
    "notes": (),
}


def commands(section: str) -> list[list[str]]:
    """Returns the words of every command; each must be one line that its verb takes."""
    fences = [token.content for token in PARSER.parse(section) if token.type == "fence"]
    assert all(fence.count("\n") == 1 for fence in fences)
    found = [shlex.split(fence) for fence in fences]
    for _, verb, *words in found:
        typer.main.get_command(app).commands[verb].load().make_context(verb, list(words))
    return found


def options(words: list[str]) -> dict[str, str]:
    """Returns the options of a command, after its name, its verb and its target."""
    return dict(zip(words[3::2], words[4::2], strict=True))


def test_the_run_is_done_again_by_its_command(found) -> None:
    own = copy.deepcopy(found)
    asked = {"bits": 3, "group": "channel", "embeddings": "keep", "tokens": 64, "evaluation_tokens": 96}
    asked |= {"sequence": 64, "seed": 5}
    own["provenance"]["run"] = asked | {"widths": [2, 4], "device": "cpu", "text": "udhr"}
    run, _ = commands(card(own))
    assert run[:3] == ["fairbits", "run", found["model"]]
    assert options(run) == {
        "--policy": "gptq",
        "--baselines": "gptq:mix=english,rtn",
        "--languages": "eng_Latn,heb_Hebr,jpn_Jpan,swh_Latn",
        "--widths": "2,4",
        **{f"--{name.replace('_', '-')}": str(value) for name, value in asked.items()},
    }
    own["methods"] = own["methods"][:1]
    own["provenance"]["run"]["widths"] = []
    own["languages"] = [row | {"methods": row["methods"][:1]} for row in own["languages"]]
    again = options(commands(card(own))[0])
    assert (again["--baselines"], again["--widths"]) == ("none", "none")


def test_without_a_run_the_plan_makes_the_model_again(found) -> None:
    own = copy.deepcopy(found)
    own["provenance"]["run"] = None
    first, second = commands(card(own))
    assert first == ["fairbits", "quantize", found["model"], "--plan", "plan.json", "--out", "quantized"]
    assert second[1] == "evaluate"
    own["provenance"]["calibration"]["hashes"]["heb_Hebr"] = "0" * 64
    assert options(commands(card(own))[0])["--text"] == "udhr"


def test_scores_alone_have_the_command_of_the_measurement(sources) -> None:
    own = content(Sources(sources.methods[:1]))
    assert [words[1] for words in commands(card(own))] == ["evaluate"]


def test_the_command_measures_the_same_again(found) -> None:
    *_, words = commands(card(found))
    assert words[:3] == ["fairbits", "evaluate", found["methods"][0]["target"]]
    assert options(words) == {
        "--reference": found["model"],
        "--languages": "eng_Latn,heb_Hebr,jpn_Jpan,swh_Latn",
        "--tokens": "64",
        "--sequence": "64",
        "--seed": "0",
    }


def test_text_of_a_user_is_named_whatever_it_is_called(found) -> None:
    own = copy.deepcopy(found)
    assert own["provenance"]["evaluation"]["text"] == "udhr"
    own["provenance"]["evaluation"]["hashes"]["heb_Hebr"] = "0" * 64
    assert [options(words)["--text"] for words in commands(card(own))] == ["udhr", "udhr"]


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_the_commands_read_the_same_text_from_the_same_place(reading_model, tmp_path, monkeypatch, kind) -> None:
    """As they are pasted, from the directory in which the model was made; parsed as the command line parses them."""
    monkeypatch.chdir(tmp_path)
    lines = {code: [f"{code} {number}: one two three four five" for number in range(40)] for code in ("eng", "heb")}
    place = Path("corpora") / "my texts"
    place.mkdir(parents=True)
    if kind == "directory":
        given = "./corpora/my texts"
        for code, documents in lines.items():
            (place / f"{code}.txt").write_text("\n".join(documents))
    else:
        given = str(place / "all.jsonl")
        rows = (json.dumps({"lang": code, "text": each}) for code, documents in lines.items() for each in documents)
        Path(given).write_text("\n".join(rows))
    text = {"text": given, "languages": ["eng", "heb"], "tokens": 64, "sequence": 64}
    model = reading_model("llama")
    quantize(model, plan(model, policy="gptq", bits=4, group=16, **text), out="w4", text=given)
    scores = evaluate("w4", reference=model, **text)
    scores.save("scores.json")
    section = card(content(Sources((Method("gptq", Scores.load("scores.json")),), plan=Plan.load("w4/plan.json"))))
    made, measured = commands(section)
    for words, split in ((made, "calibration"), (measured, "evaluation")):
        _, verb, *rest = words
        parsed = typer.main.get_command(app).commands[verb].load().make_context(verb, list(rest)).params
        assert parsed["text"] == given
        corpus = open_corpus(parsed["text"], ["eng", "heb"])
        assert corpus.hashes[split] == open_corpus(given, ["eng", "heb"]).hashes[split]
    parsed = typer.main.get_command(app).commands["evaluate"].load().make_context("evaluate", measured[2:]).params
    names = ("tokens", "sequence", "seed", "text", "reference")
    asked = {name: parsed[name] for name in names} | {"languages": parsed["languages"].split(",")}
    assert evaluate(parsed["quantized"], **asked).as_bytes() == scores.as_bytes()
    run = content(Sources((Method("gptq", scores),), run=RunFile(**RUN_RECORD | {"model": model.target})))
    assert options(commands(card(run))[0])["--text"] == given


def test_a_text_named_like_one_that_comes_with_fairbits_is_told_apart(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("help").mkdir()
    Path("help/eng.txt").write_text("one\ntwo\n")
    assert read_corpus(Path("help")).source == "./help"
    assert open_corpus("./help", None).source == "./help"
    assert udhr(["eng"]).source is None
