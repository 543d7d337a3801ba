"""Items of tasks: the texts of requests, what answers score, and items that cannot be asked."""

import json
import math
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.lm_eval.task_files import AnswerFilter, FilterStep, TaskFile, TaskMetric
from fairbits.evaluation.lm_eval.task_items import filtered, item_scores, read_items, total_score

ROWS = [
    {"question": "Where from?", "answers": ["north", "the south"], "right": 1, "label": "north", "text": "wind"},
    {"question": "And now?", "answers": ["west", "east"], "right": 0, "label": "east", "text": "rain and  wind"},
]


@pytest.fixture
def items(tmp_path):
    """Returns the function that gives the items of a task with some settings, of some rows."""

    def items(rows=ROWS, limit=None, **settings):
        content = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / "rows.jsonl").write_text(content, "utf-8")
        defaults = {"output_type": "multiple_choice", "doc_to_text": "{{question}}", "doc_to_target": "right"}
        defaults |= {"doc_to_choice": "answers"}
        task = TaskFile(
            **{"task": "t", "dataset_path": "json", "dataset_kwargs": None, **defaults, **settings},
            path=Path("t.yaml"),
            config={"generation_kwargs": {"until": ["."]}},
        )
        object.__setattr__(task, "dataset_kwargs", type("Files", (), {"data_files": str(tmp_path / "rows.jsonl")}))
        object.__setattr__(task, "test_split", "train")
        return task, read_items(task, limit)

    return items


def test_templates_fields_and_lists(items) -> None:
    _, (first, second) = items(description="Answer {{label}}: ", doc_to_text="{{question | upper}}\n")
    prompt = "Answer north: WHERE FROM?\n"
    assert first.requests == ((prompt, " north"), (prompt, " the south"))
    assert (first.target, first.right, second.right) == (1, (1,), (0,))
    _, (first, second) = items(doc_to_choice="{{[label, text]}}", doc_to_target="label", target_delimiter="")
    assert [request[1] for request in second.requests] == ["east", "rain and  wind"]
    assert (first.target, first.right) == ("north", (0,))
    _, (first, _) = items(doc_to_choice=("a", "b"), doc_to_target="{{right}}")
    assert (first.choices, first.target, first.right) == (("a", "b"), 1, (1,))
    _, (first, _) = items(doc_to_choice={"x": "a", "y": "b"}, doc_to_target="{{[0, 1]}}")
    assert (first.choices, first.target, first.right) == (("a", "b"), [0, 1], (0, 1))
    _, (first, _) = items(output_type="loglikelihood", doc_to_choice=None, doc_to_target=" {{label}}")
    assert first.requests == (("Where from?", " north"),)
    _, some = items(
        json.dumps(ROWS), limit=1, output_type="loglikelihood_rolling", doc_to_choice=None, doc_to_target="text"
    )
    assert [item.requests for item in some] == [(("wind",),)]
    _, some = items(
        [{"a": "x", "text": "y"}, {"text": "z", "b": 1}], doc_to_text="text", doc_to_choice=("1", "2"), doc_to_target=0
    )
    assert some[1].doc == {"a": None, "text": "z", "b": 1}  # as the tables that lm-eval reads


@pytest.mark.parametrize(
    ("rows", "settings", "message"),
    [
        ("", {}, "has no items"),
        ("{}\n[1]\n", {}, "line 2 holds a JSON list"),
        ('{"a": 1', {}, "is not valid JSON"),
        (ROWS, {"doc_to_text": "{{query}}"}, "t.yaml: item 0: doc_to_text cannot be filled in ('query' is undefined)"),
        (ROWS, {"doc_to_text": "{{ question.__class__.mro() }}"}, "doc_to_text cannot be filled in"),
        (ROWS, {"doc_to_text": "{{ question"}, "doc_to_text cannot be filled in"),
        (ROWS, {"doc_to_text": "right"}, "doc_to_text is 1; it must be a text"),
        (ROWS, {"doc_to_text": "{{right}}"}, "doc_to_text is a number"),
        (ROWS, {"doc_to_choice": "label"}, "doc_to_choice gives 'north'; it must give a list"),
        (ROWS, {"doc_to_choice": "{{open(1)}}"}, "doc_to_choice cannot be filled in"),
        (ROWS, {"doc_to_choice": "__import__('os')"}, "doc_to_choice gives"),
        ([{**ROWS[0], "answers": ["a", ""]}], {}, "a choice is ''; it must be a text that is not empty"),
        ([ROWS[0], {**ROWS[1], "right": 2}], {}, "t.yaml: item 1: the target is 2; it must be one of 2 choices"),
        ([{**ROWS[0], "right": -1}], {}, "the target is -1"),
        ([{**ROWS[0], "right": "up"}], {}, "the target is 'up'"),
        ([{**ROWS[0], "text": ""}], {"output_type": "loglikelihood", "doc_to_target": "text"}, "doc_to_target is ''"),
    ],
)
def test_items_that_cannot_be_asked_are_refused(items, rows, settings, message) -> None:
    with pytest.raises(InputError) as caught:
        items(rows, **settings)
    assert message in str(caught.value)


def test_choices_by_sum_characters_and_bytes(items) -> None:
    metrics = tuple(map(TaskMetric, ("acc", "acc_norm", "acc_bytes", "exact_match")))
    rows = [{"question": "?", "answers": ["ab", "abcdef", "ההה"], "right": 1}]
    task, (item,) = items(rows, metric_list=metrics)
    scores = item_scores(task, item, [(-2.0, False), (-5.0, True), (-3.9, False)])
    assert scores == {"acc": 0.0, "acc_norm": 1.0, "acc_bytes": 0.0, "exact_match": 1}


def test_sizes_of_texts_and_totals(items) -> None:
    metrics = tuple(map(TaskMetric, ("bits_per_byte", "word_perplexity", "byte_perplexity")))
    task, some = items(
        output_type="loglikelihood_rolling", doc_to_choice=None, doc_to_target="text", metric_list=metrics
    )
    scores = item_scores(task, some[1], [-7.0])
    assert scores == {"bits_per_byte": (-7.0, 14), "word_perplexity": (-7.0, 3), "byte_perplexity": (-7.0, 14)}
    assert total_score("bits_per_byte", [(-7.0, 14), (-3.0, 6)]) == pytest.approx(10 / 20 / math.log(2))
    assert total_score("weighted_perplexity", [(-7.0, 3), (-3.0, 2)]) == pytest.approx(math.exp(2))
    assert total_score("perplexity", [-1.0, -2.0]) == pytest.approx(math.exp(1.5))
    task, (first, _) = items(output_type="loglikelihood", doc_to_choice=None, doc_to_target="label")
    assert item_scores(task, first, [(-2.5, True)]) == {"perplexity": -2.5, "acc": 1}


def test_filters_and_comparison_of_answers(items) -> None:
    last = FilterStep("regex", r"(-?[$0-9.,]{2,})|(-?[0-9]+)", group_select=-1)
    first = FilterStep("take_first")
    assert filtered(AnswerFilter("x", (last, first)), "It is 3, or 12 dollars") == "12"
    assert filtered(AnswerFilter("x", (last, first)), "none") == "[invalid]"
    assert filtered(AnswerFilter("x", (FilterStep("remove_whitespace"), first)), " a \n") == "a"
    with pytest.raises(InputError, match="group_select is 5"):
        filtered(AnswerFilter("x", (FilterStep("regex", "[0-9]", group_select=5),)), "1")
    exact = TaskMetric("exact_match", ignore_case=True, ignore_punctuation=True, regexes_to_ignore=(",",))
    task, (item, _) = items(
        output_type="generate_until", doc_to_choice=None, doc_to_target="label", metric_list=(exact,)
    )
    assert [item_scores(task, item, [text])["exact_match"] for text in ("North.", "No,rth", "south")] == [1.0, 1.0, 0.0]
    task, (item, _) = items(output_type="generate_until", doc_to_choice=None, doc_to_target="{{answers}}")
    assert item_scores(task, item, ["the south"]) == {"exact_match": 1.0}
