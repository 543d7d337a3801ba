"""A release: one verdict from likelihood, answers and tasks, and the files that show it."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

import fairbits as fb
from fairbits.api import release as release_module
from fairbits.api.release import ANSWERS, CARD, JUNIT, PAGE, SCORES, VERDICT, expert_notes, release
from fairbits.auditing.audit_file import AUDIT
from fairbits.core.errors import InputError
from fairbits.evaluation.profiles import PROFILES

TEXT = {"languages": ["eng", "heb"], "tokens": 256, "sequence": 64}
RECORDS = Path(__file__).parents[2] / "data/records"


@pytest.fixture(scope="module")
def rounded(reading_model, tmp_path_factory) -> Path:
    out, model = tmp_path_factory.mktemp("rounded") / "w2", reading_model("llama")
    fb.quantize(model, fb.plan(model, policy="rtn", bits=2, group="channel"), out=out)
    return out


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("made") / "tasks"
    fb.write_tasks(out, languages=["eng", "heb"], kinds=["cloze"], items=6)
    return out


def test_a_release_is_decided_by_scores_answers_and_tasks(reading_model, rounded, tasks, tmp_path) -> None:
    model, out = reading_model("llama"), tmp_path / "release"
    decided = release(rounded, reference=model, out=out, generate=8, tasks=tasks, **TEXT)
    assert not decided
    assert {path.name for path in out.iterdir()} == {SCORES, VERDICT, JUNIT, PAGE, CARD, ANSWERS}
    names = [check.name for check in decided.verdict.checks]
    assert names[0] == "at most 10 of 100 next tokens change in any language"
    assert names[1].startswith("at most 5 more of 100 answers are in another language")
    assert names[2:] == [
        f"tasks: acc, {name}" for name in ("no language significantly worse", "mean not significantly worse")
    ]
    assert decided.verdict.checks[0].outcome == "fail"  # nearly all tokens change in two bits
    assert "measured by" not in decided.verdict.reason
    assert fb.gate(out / SCORES, profile="standard").checks == decided.verdict.checks[:2]
    assert [*decided.tasks] == [("acc", "none")]
    saved = json.loads((out / VERDICT).read_text())
    assert (saved["passed"], saved["profile"]) == (False, "standard")
    assert ElementTree.parse(out / JUNIT).getroot().get("tests") == "4"
    page, card = ((out / name).read_text("utf-8") for name in (PAGE, CARD))
    assert "Does not pass: standard" in page
    assert "Release, standard: not passed." in card
    for check in decided.verdict.checks:
        assert f"<b>{check.outcome}</b><div>{check.name[0].upper()}{check.name[1:]}<small>" in page
        assert f"- {check.outcome}: " in card
    assert decided.scores.meaning.sentence in card.replace("\\", "")
    assert len(list((out / ANSWERS).glob("*/**/samples_*.jsonl"))) == 4


def test_a_model_that_is_the_reference_passes(reading_model, tmp_path) -> None:
    model = reading_model("llama")
    decided = fb.release(model, reference=model, out=tmp_path / "release", generate=None, profile="strict", **TEXT)
    assert decided
    assert [check.limit for check in decided.verdict.checks] == [PROFILES["strict"].changed]


def test_a_release_that_fails_leaves_the_files_of_the_last_one(reading_model, rounded, tmp_path, monkeypatch) -> None:
    model, out = reading_model("llama"), tmp_path / "release"
    assert release(model, reference=model, out=out, generate=None, **TEXT)
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    monkeypatch.setattr(release_module, "report", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        release(rounded, reference=model, out=out, generate=None, **TEXT)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before


def test_an_audit_of_another_model_is_refused_first(reading_model, tmp_path) -> None:
    model = reading_model("llama")
    with pytest.raises(InputError, match="is of another model than the reference"):
        release(model, reference=model, out=tmp_path / "new", audit=RECORDS / "audit.json", **TEXT)


def test_what_would_be_wrong_is_refused_before_anything_is_computed(reading_model, tmp_path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        release(reading_model("llama"), reference=reading_model("llama"), out=tmp_path)
    with pytest.raises(InputError, match="profile is 'lax'"):
        release(reading_model("llama"), reference=reading_model("llama"), out=tmp_path / "new", profile="lax")


def test_experts_that_get_too_little_text_are_named_once_per_language() -> None:
    content = json.loads((RECORDS / "audit.json").read_text())
    assert expert_notes(AUDIT.parse(content, source="audit")) == expert_notes(None) == []
    block = {"experts": 8, "per_position": 2, "unreached": 0, "routed": {}, "empty": {}}
    first, second = {"eng_Latn": 1, "heb_Hebr": 5}, {"eng_Latn": 0, "heb_Hebr": 6}
    blocks = [block | {"block": i, "few": few} for i, few in enumerate((first, second))]
    languages = content["languages"]
    for part in blocks:
        part["few"] = {code: part["few"].get(code, 0) for code in languages}
        part["routed"] = part["empty"] = dict.fromkeys(languages, 0)
    content["experts"] = {"least": 32, "blocks": blocks}
    audited = AUDIT.parse(content, source="audit")
    assert expert_notes(audited)[0] == "experts: 6 of 8 of a block get too little calibration text in Hebrew"
    assert len(expert_notes(audited)) == 2
