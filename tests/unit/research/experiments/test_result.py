"""A result keeps what it says through its file, and answers follow intervals."""

from dataclasses import replace
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.stats.intervals import Estimate
from fairbits_research.experiments.result import (
    Answer,
    ExperimentSubject,
    Judgement,
    Result,
    ResultFigure,
    ResultTable,
    Series,
    common_answer,
    is_above,
    is_below,
)

RESULT = Result(
    name="bounds",
    title="Bounds",
    question="Do they hold?",
    predicted="Yes.",
    design="One run.",
    subject=ExperimentSubject("embedded:tiny", "f" * 64, "udhr", languages=2, documents=12, tokens=345, seeds=(0, 1)),
    answer=Answer.NOT_SUPPORTED,
    verdict="They do not: 0.123456789.",
    meaning="Do not rely on them.",
    tables=(ResultTable("Bounds", ("bound", "value"), (("first", 0.123456789), ("second", 3))),),
    figure=ResultFigure(
        "x", "a", "b", (Series("all", (1.0, 2.0), (3.0, 4.0), labels=("eng_Latn", "heb_Hebr")),), log="x"
    ),
    judgements=(Judgement("000-27", Answer.UNDECIDED, "one is", {"n": 2.0}),),
    power="Ten would do.",
    notes=("short",),
)


def test_a_file_gives_the_result_back(tmp_path: Path) -> None:
    RESULT.save(tmp_path / "r.json")
    back = Result.load(tmp_path / "r.json")
    assert back.tables[0].rows[0][1] == 0.1235, "four significant digits"
    assert replace(back, tables=RESULT.tables) == RESULT
    back.save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "r.json").read_bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON .*; it must be a result: write one with fairbits research --out"),
        ("[]", "holds a JSON list"),
        ('{"schema": "fairbits.research/2"}', "has the schema 'fairbits.research/2'"),
        ('{"schema": "fairbits.research/1", "fairbits": "0"}', "is damaged: name is missing"),
    ],
)
def test_what_is_no_result_is_refused(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "r.json").write_text(content)
    with pytest.raises(InputError, match=message):
        Result.load(tmp_path / "r.json")


def test_an_unknown_answer_is_refused(tmp_path: Path) -> None:
    data = RESULT.as_bytes().decode().replace('"answer": "not supported"', '"answer": "perhaps"')
    (tmp_path / "r.json").write_text(data)
    with pytest.raises(InputError, match="perhaps"):
        Result.load(tmp_path / "r.json")


def test_answers_follow_intervals() -> None:
    sure, unsure = Estimate(0.6, 0.5, 0.7, 9), Estimate(0.6, 0.3, 0.9, 9)
    assert is_above(sure, 0.4) is Answer.SUPPORTED
    assert is_above(sure, 0.8) is Answer.NOT_SUPPORTED
    assert is_above(unsure, 0.4) is Answer.UNDECIDED
    assert is_below(sure, 0.8) is Answer.SUPPORTED
    assert is_below(unsure, 0.8) is Answer.UNDECIDED
    assert common_answer([Answer.SUPPORTED, Answer.SUPPORTED]) is Answer.SUPPORTED
    assert common_answer([Answer.SUPPORTED, Answer.NOT_SUPPORTED]) is Answer.UNDECIDED
