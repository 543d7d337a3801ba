"""Answers of both models: shares, what quantization adds, their file, their table, and the limit of the gate."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.gate import gate
from fairbits.evaluation.generated_text import GeneratedText
from fairbits.evaluation.scores import Scores

PAGE = (Path(__file__).parents[3] / "docs/guides/evaluate.md").read_text("utf-8")
N = 100


def answers(**wrong: tuple[int, int]) -> GeneratedText:
    """Returns N answers per language, of which so many are English before and after, the first ones of each."""
    lang = np.repeat([f"{code}_Latn" for code in wrong], N)
    number = np.tile(np.arange(N), len(wrong))
    before, after = (
        np.where(number < np.repeat([counts[side] for counts in wrong.values()], N), "eng_Latn", lang)
        for side in (0, 1)
    )
    none = np.zeros(len(lang), dtype=np.int64)
    return GeneratedText(64, 32, lang, number, before, after, lang, none, none, none, none)


def test_what_quantization_adds_is_paired() -> None:
    generated = answers(fin=(5, 5), fra=(5, 25))
    added = generated.added["wrong"].by_language()
    assert (added["fin_Latn"].value, added["fra_Latn"].value) == (0.0, 0.2)
    assert added["fra_Latn"].low > 0 > added["fin_Latn"].low
    assert generated.share("wrong", "quantized", "fra_Latn").value == 0.25
    assert generated.instead("fra_Latn", "quantized") == {"eng_Latn": 25}
    other = replace(answers(fin=(5, 5)), language_quantized=answers(fin=(0, 5)).language_quantized[::-1].copy())
    # as many wrong answers, but to other prompts: the interval is wider
    assert other.added["wrong"].by_language()["fin_Latn"].high > added["fin_Latn"].high


def test_errors_of_the_detector_are_those_on_true_text() -> None:
    generated = answers(fin=(0, 0))
    true = generated.lang.copy()
    true[:3], true[3:10] = "fra_Latn", ""
    assert replace(generated, language_true=true).detector_errors("fin_Latn") == (3, N - 7)


def test_the_table_begins_where_most_is_added() -> None:
    table = answers(fin=(5, 5), fra=(5, 25)).table()
    assert [row[0] for row in table.rows] == ["French", "Finnish"]
    text = table.text()
    assert "5 → 25" in text
    assert "English" in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"loop_quantized": np.zeros(3, dtype=np.int64)}, "loop_quantized has 3 entries and lang has 100"),
        ({"document": np.zeros(N, dtype=np.int64)}, "occurs twice"),
    ],
)
def test_columns_that_do_not_agree_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        replace(answers(fin=(0, 0)), **changes)


def test_a_file_of_scores_keeps_them(draw: Callable[..., Scores], tmp_path: Path) -> None:
    generated = answers(fin=(5, 5), fra=(5, 25))
    scores = replace(draw({"fin_Latn": 1.0, "fra_Latn": 1.0}), generated=generated)
    scores.save(tmp_path / "scores.json")
    again = Scores.load(tmp_path / "scores.json").generated
    assert again is not None
    assert again.as_record() == generated.as_record()
    summary = scores.summary()["generated"]
    assert summary["worst"]["language"] == "fra_Latn"
    assert summary["languages"]["fra_Latn"]["wrong"]["quantized"]["value"] == 0.25
    with pytest.raises(InputError, match=r"generated\.lang"):
        replace(draw({"fin_Latn": 1.0}), generated=generated)


@pytest.mark.parametrize(
    ("wrong", "limit", "outcome"),
    [((5, 5), 10.0, "pass"), ((5, 30), 10.0, "fail"), ((5, 12), 10.0, "undecided"), ((30, 5), 10.0, "pass")],
)
def test_the_gate_limits_what_is_added(
    draw: Callable[..., Scores], wrong: tuple[int, int], limit: float, outcome: str
) -> None:
    scores = replace(draw({"fin_Latn": 1.0, "fra_Latn": 1.0}), generated=answers(fin=(5, 5), fra=wrong))
    result = gate(scores, max_wrong_language=limit)
    assert [check.outcome for check in result.checks] == [outcome]
    assert bool(result) is (outcome == "pass")
    if outcome == "fail":
        assert "fra_Latn" in result.reason
        assert "30 in all" in result.reason


def test_the_gate_needs_generated_text(draw: Callable[..., Scores]) -> None:
    with pytest.raises(InputError, match="have no generated text; measure it with fairbits evaluate --generate 200"):
        gate(draw({"fin_Latn": 1.0, "fra_Latn": 1.0}), max_wrong_language=5)


def test_the_guide_says_what_few_answers_leave_open(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = {}
    for count in (60, 200, 1000):
        monkeypatch.setattr(f"{__name__}.N", count)
        limits[count] = 100 * answers(fin=(0, 0)).added["wrong"].by_language()["fin_Latn"].high
    words = "up to {60:.1f} of 100 with 60 answers, {200:.1f} with 200 and {1000:.1f} with 1,000"
    assert words.format(*[limits.get(i, 0.0) for i in range(1001)]) in PAGE
