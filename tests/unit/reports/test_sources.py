"""What a report is made from is read whole, or refused with a word on what is wrong."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest

from fairbits.errors import InputError
from fairbits.measure.scores.scores import Scores
from fairbits.quantize.plan import Plan
from fairbits.reports import Method, Sources
from fairbits.reports.sources import AUDIT, RUN, digest, entries, number, part, read_json, table

DATA = {"schema": "s/1", "list": [1, 2.5, True, "7", 10**400], "names": {"a": None}}


@pytest.fixture(scope="module")
def scores(finished_run: Path) -> Scores:
    return Scores.load(finished_run / "scores.json")


def test_parts_are_found_and_what_is_not_there_is_named() -> None:
    assert part(DATA, "list", 1) == 2.5
    assert entries(DATA, "list")[3] == "7"
    assert table(DATA, "names") == {"a": None}
    assert number(DATA, "list", 0) == 1.0
    for keys in (("list", 9), ("names", "b"), ("schema", "x"), ("names", "a", "deeper")):
        with pytest.raises(InputError, match=rf"{keys[-1]} of a file of s/1 is missing.*damaged"):
            part(DATA, *keys)


@pytest.mark.parametrize("at", [2, 3, 4])
def test_what_is_no_number_is_refused(at: int) -> None:
    with pytest.raises(InputError, match=rf"list\.{at} of a file of s/1 is .*no number"):
        number(DATA, "list", at)


def test_what_is_no_list_and_no_object_is_refused() -> None:
    with pytest.raises(InputError, match="no list"):
        entries(DATA, "names")
    with pytest.raises(InputError, match="no object"):
        table(DATA, "list")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("{", "cannot be read"),
        ("[1]", "the schema 'list'"),
        ('{"schema": "fairbits.run/1"}', "the schema 'fairbits.run/1'; it must be fairbits.audit/1"),
        ('{"schema": ["fairbits.audit/1"]}', "the schema"),
        ('{"schema": "fairbits.audit/1", "x": NaN}', "NaN is no finite number"),
        ('{"schema": "fairbits.audit/1", "x": -1e999}', "-1e999 is no finite number"),
        ("[" * 100_000, "cannot be read"),
        ('"\udc80"', "cannot be read"),
    ],
)
def test_files_that_are_no_audit_are_refused(tmp_path: Path, content: str, problem: str) -> None:
    file = tmp_path / "audit.json"
    file.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(InputError, match=problem) as refused:
        read_json(file, AUDIT)
    assert "write it with fairbits audit --out" in str(refused.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json cannot be read"):
        read_json(tmp_path / "none.json", RUN)


def test_the_digest_is_that_of_the_bytes(finished_run: Path) -> None:
    file = finished_run / "sweep.json"
    assert digest(file) == hashlib.sha256(file.read_bytes()).hexdigest()


def test_the_first_method_is_after_and_the_second_before(scores: Scores) -> None:
    alone = Sources((Method("gptq", scores),))
    assert (alone.after, alone.before, alone.contrast) == (scores, None, None)
    other = replace(scores, notes=("other",))
    both = Sources((Method("gptq", scores), Method("rtn", other)))
    assert both.before is other
    assert both.contrast is both.contrast  # drawn once
    assert all(each.value == 0 for each in both.contrast.differences.values())


def test_parts_of_another_model_are_refused(scores: Scores, finished_run: Path) -> None:
    stranger = replace(scores, reference=replace(scores.reference, fingerprint="0" * 64))
    planned = replace(Plan.load(finished_run / "model" / "plan.json"), fingerprint="0" * 64)
    audit = {"schema": AUDIT, "model": {"fingerprint": "0" * 64}}
    own = Method("gptq", scores)
    for said, given in (
        ("rtn", {"methods": (own, Method("rtn", stranger))}),
        ("the plan", {"methods": (own,), "plan": planned}),
        ("the audit", {"methods": (own,), "audit": audit}),
        ("the sweep", {"methods": (own,), "sweep": {"schema": "fairbits.sweep/1", "fingerprint": None}}),
    ):
        with pytest.raises(InputError, match=f"^{said} is about another model"):
            Sources(**given)


def test_scores_of_another_text_are_refused(scores: Scores) -> None:
    other = replace(scores, question=replace(scores.question, seed=1))
    with pytest.raises(InputError, match=r"different text \(seed differs\)"):
        Sources((Method("gptq", scores), Method("rtn", other)))


def test_a_file_without_a_fingerprint_is_damaged(scores: Scores) -> None:
    with pytest.raises(InputError, match=r"model\.fingerprint of a file of fairbits\.audit/1 is missing"):
        Sources((Method("gptq", scores),), audit=json.loads('{"schema": "fairbits.audit/1", "model": 3}'))
