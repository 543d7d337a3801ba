"""The section for a model card is valid Markdown that shows the numbers, and text of others as text."""

import copy
import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from fairbits.api.evaluate import evaluate
from fairbits.api.make_plan import plan
from fairbits.api.quantize import quantize
from fairbits.cli import app
from fairbits.core.errors import printable
from fairbits.core.table import escape_markdown
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.signature import Signature
from fairbits.quantization.plan import Plan
from fairbits.reports.content import content
from fairbits.reports.markdown import ROUNDED, card
from fairbits.reports.page import group_notes
from fairbits.reports.sources import Method, RunFile, Sources
from fairbits.text.included_texts import udhr
from fairbits.text.reading import open_corpus, read_corpus

PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
HOSTILE = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(1)</script>",
    "[x](javascript:alert(1)) ![y](https://e.example/y.png) <https://e.example>",
    "a | b || c \\| d\\",
    "`code` ``` *em* _em_ __b__ ~~s~~ $m$ &lt; &#60;",
    "two\nlines\r\n\n# three\u2028four\x00\u202e",
    "- item",
    "1. item",
    "## heading",
    "---",
    "===",
    "```",
    "    indented",
    "> quote",
    "see www.x.example, WWW.X.example or https://x.example/y and a@b.co, @name",
)
JOINER = "\u2060"


def tables(section: str) -> list[list[list[str]]]:
    """Returns the cells of every table as they are shown."""
    shown: list[list[list[str]]] = []
    for token in PARSER.parse(section):
        if token.type == "table_open":
            shown.append([])
        elif token.type == "tr_open":
            shown[-1].append([])
        elif token.type == "inline" and token.level > 3 and shown:
            shown[-1][-1].append(visible_text(token))
    return shown


def visible_text(token: Token) -> str:
    """Returns what a reader sees of a line, who does not see a joiner; anything but text in it is a defect."""
    assert {child.type for child in token.children or []} <= {"text", "text_special"}
    return "".join(child.content for child in token.children or []).replace(JOINER, "")


def worst_numbers(report_content: dict[str, Any]) -> list[dict[str, Any]]:
    """Returns every estimate in the headline that names a language."""
    headline = report_content["headline"]
    return [scale["worst"][side] for scale in (headline, headline["changed"]) for side in ("baseline", "quantized")]


def test_the_second_table_has_worst_gap_mean_and_size(report_content) -> None:
    _, first = tables(card(report_content))
    assert first[0] == ["over all languages", "gptq:mix=english", "gptq"]
    changed = report_content["headline"]["changed"]
    worst = report_content["headline"]["worst"]
    names = {row["code"]: row["name"] for row in report_content["languages"]}
    for column, side in ((1, "baseline"), (2, "quantized")):
        for row, name in enumerate(("worst", "gap", "mean"), start=1):
            assert first[row][column].startswith(f"{changed[name][side]['value']:.1f} (")
            assert first[row + 3][column].startswith(f"{report_content['headline'][name][side]['value']:.4f} (")
        assert first[4][column].startswith(f"{worst[side]['value']:.4f} ({worst[side]['low']:.4f} to ")
        assert first[4][column].endswith(f", {names[worst[side]['language']]}")
    assert first[7][0] == "size"


def test_the_first_table_has_every_language_under_every_method(report_content) -> None:
    second, _ = tables(card(report_content))
    assert second[0] == [
        *("language", "code", *(f"changed, of 100 tokens, {name}" for name in ("gptq:mix=english", "gptq", "rtn"))),
        *("perplexity", "divergence, bits per byte", "against gptq:mix=english", "added loss, bits per byte"),
    ]
    assert [row[1] for row in second[1:]] == [row["code"] for row in report_content["languages"]]
    for shown, row in zip(second[1:], report_content["languages"], strict=True):
        for cell, method in zip(shown[2:5], (1, 0, 2), strict=True):
            changed = row["methods"][method]["damage"]["changed_of_100"]
            assert cell.startswith(f"{100 * row['methods'][method]['flips']['value']:.1f} (")
            assert cell == f"{changed['value']:.1f} ({changed['low']:.1f} to {changed['high']:.1f})"
        assert shown[5] == f"× {1 + row['methods'][0]['relative_perplexity']['value']:.2f}"
        for cell, scale in ((shown[6], "divergence_bits_per_byte"), (shown[8], "loss_bits_per_byte")):
            damage = row["methods"][0]["damage"][scale]
            assert cell == f"{damage['value']:.4f} ({damage['low']:.4f} to {damage['high']:.4f})"


def test_it_says_what_the_scores_mean(report_content) -> None:
    meaning = report_content["headline"]["meaning"]
    assert f"\n{escape_markdown(meaning['sentence'])} " in card(report_content)
    assert "next tokens" in meaning["sentence"]


def test_the_signature_can_be_copied_from_what_is_shown(report_content) -> None:
    shown = [visible_text(token) for token in PARSER.parse(card(report_content)) if token.type == "inline"]
    assert str(Signature.parse(shown[-1].split(": ", 1)[1])) == report_content["provenance"]["signature"]


def test_verdicts_are_words(report_content) -> None:
    modified = copy.deepcopy(report_content)
    modified["headline"] |= {"better": ["heb_Hebr"], "worse": ["eng_Latn"]}
    verdicts = {row[1]: row[7] for row in tables(card(modified))[0][1:]}
    assert verdicts["heb_Hebr"] == "closer"
    assert verdicts["eng_Latn"] == "further away"
    assert verdicts["swh_Latn"] == "no significant difference"


def test_without_a_baseline_there_is_one_column_and_no_verdict(sources) -> None:
    first, second = tables(card(content(Sources(sources.methods[:1]))))
    assert {len(row) for row in first} == {6}
    assert {len(row) for row in second} == {2}


def test_text_n_seed_and_every_note_are_said(report_content) -> None:
    section = card(report_content)
    asked = report_content["provenance"]["evaluation"]
    assert f"4 languages, {asked['documents']} documents (at least 5 per language)" in section
    assert f"seed {asked['seed']}" in section
    shown = [visible_text(token) for token in PARSER.parse(section) if token.type == "inline" and token.level > 2]
    rounded = [note for note in report_content["notes"] if ROUNDED in note["text"]]
    assert len(rounded) > 1
    assert [line for line in shown if ROUNDED in line] == [
        f"nearest rounding was better in some rows, and is kept there ({len(rounded)} such notes)"
    ]
    for first, *rest in group_notes(note for note in report_content["notes"] if note not in rounded):
        assert printable(first["text"]) + (f" (and {len(rest)} more like it)" if rest else "") in shown


def test_notes_that_are_alike_are_one_line_and_a_single_one_is_whole(report_content) -> None:
    notes = [{"from": "plan", "text": text} for text in ("3 of 9 rows", "2 of 9 rows", f"{ROUNDED}1 of 9 rows")]
    section = card(report_content | {"notes": notes})
    assert "- 3 of 9 rows (and 1 more like it)\n- nearest rounding was better in 1 of 9 rows\n" in section


def opening(section: str) -> str:
    return visible_text([token for token in PARSER.parse(section) if token.type == "inline"][1])


def test_it_begins_with_what_the_model_is(report_content) -> None:
    modified = copy.deepcopy(report_content)
    modified["model"] = "org/model"
    assert opening(card(modified)) == (
        "org/model, quantized by fairbits: 3 bits per weight, one scale per channel, gptq on an equal mix, "
        "embedding not quantized, head not quantized; calibration text udhr, up to 64 tokens per language, 4 languages."
    )
    modified["allocation"]["bits"][0][0] = 8
    modified["allocation"]["outside"][0]["bits"] = 8
    modified["provenance"]["policy"]["settings"]["group"] = 128
    modified["provenance"]["weights"] = {"eng_Latn": 1.0}
    shown = opening(card(modified))
    expected = "3 to 8 bits per weight, groups of 128, gptq on an equal mix, embedding in 8 bits, head not quantized;"
    assert expected in shown
    assert shown.endswith(" 1 language.")
    modified["provenance"]["calibration"] = None
    assert opening(card(modified)).endswith("; no calibration text.")


def test_scores_alone_do_not_say_how_the_model_was_made(sources) -> None:
    report_content = content(Sources(sources.methods[:1]))
    assert opening(card(report_content)).endswith("not quantized by fairbits.")
    report_content["stored"] = {"bits": [4], "group": 128, "method": "gptq", "floats": False, "inputs": 16}
    assert opening(card(report_content)).endswith(": 4 bits per weight, groups of 128, format gptq.")


def test_one_is_not_many(report_content) -> None:
    modified = copy.deepcopy(report_content)
    modified["languages"] = modified["languages"][:1]
    modified["provenance"]["evaluation"] |= {"documents": 1, "tokens": 1}
    for worst in worst_numbers(modified):
        worst["language"] = modified["languages"][0]["code"]
    assert ": 1 language, 1 document (at least 5 per language), 1 predicted token; up to" in card(modified)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("www.x.example", f"www{JOINER}.x.example"),
        ("(WWW.x.example)", f"(WWW{JOINER}.x.example)"),
        ("https://x.example", f"https:{JOINER}//x.example"),
        ("a@b.co", f"a@{JOINER}b.co"),
        ("@name", f"@{JOINER}name"),
        ("a @ b, awww, c: d", "a @ b, awww, c: d"),
    ],
)
def test_no_address_becomes_a_link(address: str, shown: str) -> None:
    """Some readers look for addresses after escapes and entities are gone: there must be something in between."""
    (token,) = (token for token in PARSER.parse(escape_markdown(address)) if token.type == "inline")
    assert "".join(child.content for child in token.children or []) == shown


@pytest.mark.parametrize("odd", HOSTILE)
def test_text_of_others_stays_text_wherever_it_stands(report_content, odd: str) -> None:
    modified = copy.deepcopy(report_content)
    modified["model"] = modified["fairbits"] = modified["provenance"]["evaluation"]["text"] = odd
    modified["headline"]["sentences"][0] = odd
    modified["notes"] = [{"from": odd, "text": odd}]
    modified["provenance"]["policy"] = {"name": odd, "settings": {"mix": odd, "group": odd}}
    modified["provenance"]["calibration"]["text"] = modified["allocation"]["outside"][0]["role"] = odd
    modified["provenance"]["run"] |= {"more_bits": [odd], "group": odd, "embeddings": odd}
    for method in modified["methods"]:
        method |= {"name": odd, "target": odd}
    modified["languages"][0] |= {"name": odd, "code": odd}
    for worst in worst_numbers(modified):
        worst["language"] = odd
    section = card(modified)
    tokens = PARSER.parse(section)
    assert {token.type.removesuffix("_open").removesuffix("_close") for token in tokens} == {
        *("heading", "paragraph", "inline", "fence"),
        *("table", "thead", "tbody", "tr", "th", "td", "bullet_list", "list_item"),
    }
    assert sum(token.type == "heading_open" for token in tokens) == 1
    assert sum(token.type == "list_item_open" for token in tokens) == 1
    for token in tokens:
        if token.type == "inline":
            visible_text(token)
    second, first = tables(section)
    assert first[0][1] == second[1][0] == second[1][1] == printable(odd.strip())
    run, evaluate = (token.content for token in tokens if token.type == "fence")
    assert run.count("\n") == evaluate.count("\n") == 1
    assert shlex.split(run)[2] == shlex.split(run)[4] == shlex.split(evaluate)[2] == printable(odd)


@given(st.text(max_size=40))
def test_any_text_is_shown_as_it_is_in_a_cell(odd: str) -> None:
    shown = tables(f"| a | b |\n| --- | --- |\n| {escape_markdown(odd)} | x |")
    assert len(shown) == 1
    assert shown[0][1] == [printable(odd.strip()), "x"]


PARSER = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
RUN_RECORD: dict[str, Any] = {
    "fairbits": "0",
    "versions": {},
    "fingerprint": "",
    "policy": "gptq",
    "settings": {"bits": 4, "group": 16, "more_bits": []},
    "hashes": {},
    "baselines": (),
    "notes": (),
}


def commands(section: str) -> list[list[str]]:
    """Returns the words of every command; each must be one line that its verb takes."""
    fences = [token.content for token in PARSER.parse(section) if token.type == "fence"]
    assert all(fence.count("\n") == 1 for fence in fences)
    command_words = [shlex.split(fence) for fence in fences]
    for _, verb, *words in command_words:
        typer.main.get_command(app).commands[verb].make_context(verb, list(words))
    return command_words


def options(words: list[str]) -> dict[str, str]:
    """Returns the options of a command, after its name, its verb and its target; the report has an audit."""
    words = [word for word in words if word != "--audit"]
    return dict(zip(words[3::2], words[4::2], strict=True))


def test_the_run_is_done_again_by_its_command(report_content) -> None:
    modified = copy.deepcopy(report_content)
    asked = {"bits": 3, "group": "channel", "embeddings": "keep", "tokens": 64, "evaluation_tokens": 96}
    asked |= {"sequence": 64, "seed": 5}
    modified["provenance"]["run"] = asked | {"more_bits": [2, 4], "device": "cpu", "text": "udhr"}
    run, _ = commands(card(modified))
    assert "--audit" in run
    assert run[:3] == ["fairbits", "run", report_content["model"]]
    assert options(run) == {
        "--policy": "gptq",
        "--baselines": "gptq:mix=english,rtn",
        "--languages": "eng_Latn,heb_Hebr,jpn_Jpan,swh_Latn",
        "--more-bits": "2,4",
        **{f"--{name.replace('_', '-')}": str(value) for name, value in asked.items()},
    }
    modified["methods"] = modified["methods"][:1]
    modified["provenance"]["run"]["more_bits"] = []
    modified["languages"] = [row | {"methods": row["methods"][:1]} for row in modified["languages"]]
    again = options(commands(card(modified))[0])
    assert again["--baselines"] == "none"
    assert "--more-bits" not in again


def test_without_a_run_the_plan_makes_the_model_again(report_content) -> None:
    modified = copy.deepcopy(report_content)
    modified["provenance"]["run"] = None
    first, second = commands(card(modified))
    assert first == ["fairbits", "quantize", report_content["model"], "--plan", "plan.json", "--out", "quantized"]
    assert second[1] == "evaluate"
    modified["provenance"]["calibration"]["hashes"]["heb_Hebr"] = "0" * 64
    assert options(commands(card(modified))[0])["--text"] == "udhr"


def test_scores_alone_have_the_command_of_the_measurement(sources) -> None:
    report_content = content(Sources(sources.methods[:1]))
    assert [words[1] for words in commands(card(report_content))] == ["evaluate"]


def test_the_command_measures_the_same_again(report_content) -> None:
    *_, words = commands(card(report_content))
    assert words[:3] == ["fairbits", "evaluate", report_content["methods"][0]["target"]]
    assert options(words) == {
        "--reference": report_content["model"],
        "--languages": "eng_Latn,heb_Hebr,jpn_Jpan,swh_Latn",
        "--tokens": "64",
        "--sequence": "64",
        "--seed": "0",
    }


def test_text_of_a_user_is_named_whatever_it_is_called(report_content) -> None:
    modified = copy.deepcopy(report_content)
    assert modified["provenance"]["evaluation"]["text"] == "udhr"
    modified["provenance"]["evaluation"]["hashes"]["heb_Hebr"] = "0" * 64
    assert [options(words)["--text"] for words in commands(card(modified))] == ["udhr", "udhr"]


@pytest.mark.parametrize("kind", ["directory", "file"])
def test_the_commands_read_the_same_text_from_the_same_place(reading_model, tmp_path, monkeypatch, kind) -> None:
    """As they are pasted, from the directory in which the model was made; parsed as the command line parses them."""
    monkeypatch.chdir(tmp_path)
    lines = {code: [f"{code} {number}: one two three four five" for number in range(40)] for code in ("eng", "heb")}
    place = Path("corpora") / "my texts"
    place.mkdir(parents=True)
    if kind == "directory":
        text_path = "./corpora/my texts"
        for code, documents in lines.items():
            (place / f"{code}.txt").write_text("\n".join(documents))
    else:
        text_path = str(place / "all.jsonl")
        rows = (
            json.dumps({"lang": code, "text": document}) for code, documents in lines.items() for document in documents
        )
        Path(text_path).write_text("\n".join(rows))
    text = {"text": text_path, "languages": ["eng", "heb"], "tokens": 64, "sequence": 64}
    model = reading_model("llama")
    quantize(model, plan(model, policy="gptq", bits=4, group=16, **text), out="w4", text=text_path)
    scores = evaluate("w4", reference=model, **text)
    scores.save("scores.json")
    section = card(content(Sources((Method("gptq", Scores.load("scores.json")),), plan=Plan.load("w4/plan.json"))))
    quantize_command, measured = commands(section)
    for words, split in ((quantize_command, "calibration"), (measured, "evaluation")):
        _, verb, *rest = words
        parsed = typer.main.get_command(app).commands[verb].make_context(verb, list(rest)).params
        assert parsed["text"] == text_path
        corpus = open_corpus(parsed["text"], ["eng", "heb"])
        assert corpus.hashes[split] == open_corpus(text_path, ["eng", "heb"]).hashes[split]
    parsed = typer.main.get_command(app).commands["evaluate"].make_context("evaluate", measured[2:]).params
    names = ("tokens", "sequence", "seed", "text", "reference")
    asked = {name: parsed[name] for name in names} | {"languages": parsed["languages"].split(",")}
    assert evaluate(parsed["quantized"], **asked).as_bytes() == scores.as_bytes()
    run = content(Sources((Method("gptq", scores),), run=RunFile(**RUN_RECORD | {"model": model.target})))
    assert options(commands(card(run))[0])["--text"] == text_path


def test_a_text_named_like_one_that_comes_with_fairbits_is_told_apart(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("help").mkdir()
    Path("help/eng.txt").write_text("one\ntwo\n")
    assert read_corpus(Path("help")).source == "./help"
    assert open_corpus("./help", None).source == "./help"
    assert udhr(["eng"]).source is None
