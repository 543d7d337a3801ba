"""Languages that the catalog does not hold, from text of the user to the report."""

import json
from pathlib import Path

import pytest

from fairbits.text.included_texts import udhr
from fairbits.text.reading import read_corpus

CODES = ["bar_Latn", "eng_Latn", "frr_Latn", "my-dialect", "qaa"]
SOURCES = {"frr": "deu", "bar": "nld", "qaa": "fin", "my-dialect": "fra", "eng": "eng"}
"""Files, and the declarations whose sentences they hold."""
NOTES = (
    "not in the catalog, named as in the IANA registry: Bavarian (bar_Latn), Northern Frisian (frr_Latn)",
    "private codes, kept as given: my-dialect, qaa",
)
SMALL = ("--sequence", "32", "--tokens", "128")


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    directory = tmp_path_factory.mktemp("texts")
    for name, source in SOURCES.items():
        corpus = udhr([source])
        (code,) = corpus.calibration
        lines = [" ".join(text.split()) for split in (corpus.calibration, corpus.evaluation) for text in split[code]]
        (directory / f"{name}.txt").write_text("\n".join(lines), encoding="utf-8")
    return directory


def test_a_directory_of_any_languages_is_a_corpus(texts) -> None:
    corpus = read_corpus(texts)
    assert sorted(corpus.calibration) == CODES
    assert corpus.notes[:2] == NOTES
    assert list(read_corpus(texts, languages=["QAA", "frr", "my-dialect"]).calibration) == [
        "qaa",
        "frr_Latn",
        "my-dialect",
    ]


def test_a_mix_of_any_languages(texts, command, tmp_path) -> None:
    out = tmp_path / "calib.jsonl"
    weights = "frr=1,bar=1,qaa=1,my-dialect=2,eng=1"
    options = ("--text", texts, "--weights", weights, "--sequence", "32", "--tokens", "1920", "--out", out)
    code, printed, errors = command("mix", "embedded:tiny", *options)
    assert code == 0, errors
    assert all(note in errors.replace("\n", " ") for note in NOTES)
    assert "Northern Frisian" in printed
    manifest = json.loads((tmp_path / "calib.jsonl.manifest.json").read_text())
    assert {lang: part["samples"] for lang, part in manifest["languages"].items()} == {
        **dict.fromkeys(CODES, 10),
        "my-dialect": 20,
    }


def test_from_the_audit_to_the_report(texts, command, reading_model, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = reading_model("llama").target
    width = ("--bits", "3", "--group", "channel")
    code, printed, errors = command("audit", model, "--text", texts, *width, *SMALL, "--out", "audit.json", "--details")
    assert code == 0, errors
    assert NOTES[1] in " ".join(printed.split())
    assert "Bavarian" in printed
    options = (*width, "--text", texts, "--languages", "frr,qaa,my-dialect,eng", *SMALL)
    code, printed, errors = command("quantize", model, *options, "--mix", "frr=1,my-dialect=2", "--out", "w3")
    assert code == 0, errors
    evaluated = ("--reference", model, "--text", texts, *SMALL, "--out", "scores.json")
    code, printed, errors = command("evaluate", "w3", *evaluated)
    assert code == 0, errors
    assert sorted(json.loads(Path("scores.json").read_text())["languages"]) == CODES
    assert "my-dialect" in printed
    assert command("gate", "scores.json", "--max-worst", "100")[0] == 0
    code, printed, errors = command("report", "scores.json", "--json")
    assert code == 0, errors
    rows = {row["code"]: row for row in json.loads(printed)["languages"]}
    assert (rows["bar_Latn"]["name"], rows["bar_Latn"]["script"], rows["bar_Latn"]["family"]) == (
        "Bavarian",
        "Latn",
        "unknown",
    )
    assert (rows["qaa"]["name"], rows["qaa"]["script"]) == ("qaa", "unknown")
    assert command("report", "scores.json")[0] == 0
    assert "my-dialect" in command("report", "scores.json", "--format", "md")[1]


@pytest.mark.usefixtures("four_block_embedded")
@pytest.mark.long
def test_overlays_serve_a_language_that_is_named_and_never_detected(texts, command, adaptive, tmp_path) -> None:
    base, _ = adaptive
    options = ("--text", texts, "--languages", "eng,my-dialect,bar", "--clusters", "1", *SMALL, "--out", tmp_path / "o")
    code, _, errors = command("overlay", "embedded:tiny", "--base", base, *options)
    assert code == 0, errors
    note = "never detected, as py3langid does not know them: my-dialect, Bavarian (bar_Latn); name the language"
    assert note in " ".join(errors.split())
    generated = ("--overlays", tmp_path / "o", "--max-tokens", "2")
    code, _, errors = command("generate", base, "Tous les", *generated)
    assert code == 0, errors
    assert note in " ".join(errors.split())
    code, _, errors = command("generate", base, "Tous les", *generated, "--language", "my-dialect")
    assert code == 0, errors
    assert "my-dialect, asked" in errors
    assert note not in " ".join(errors.split())


@pytest.mark.parametrize("arguments", [("audit", "embedded:tiny"), ("mix", "embedded:tiny", "--out", "calib.jsonl")])
def test_what_has_no_text_is_refused(arguments, command, texts) -> None:
    code, _, errors = command(*arguments, "--languages", "foo-bar,eng")
    assert code == 2
    assert "'foo-bar' is unknown" in errors
    code, _, errors = command(*arguments, "--languages", "frr,eng")
    assert code == 2
    assert "no declaration in Northern Frisian (frr_Latn)" in errors
    code, _, errors = command(*arguments, "--languages", "frech,eng", "--text", texts)
    assert code == 2
    assert "holds no text in frech (found: bar.txt" in errors
    assert "did you mean French (fra_Latn)" in errors


def test_the_list_of_languages_takes_any_tag(command) -> None:
    code, printed, errors = command("languages", "frr", "qaa", "he")
    assert code == 0
    assert "Northern Frisian" in printed
    assert "he → Hebrew, heb_Hebr" in errors
    assert "not in the catalog, named as in the IANA registry: Northern Frisian (frr_Latn)" in errors
    assert "private codes, kept as given: qaa" in errors
