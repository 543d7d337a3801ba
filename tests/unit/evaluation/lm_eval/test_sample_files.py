import json

import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.lm_eval.sample_files import find_run, read_samples


@pytest.fixture
def read(tmp_path, lm_eval_sample):
    """Returns a function that reads lines: numbers are the scores of good ones."""

    def lines(*entries, end: bytes = b""):
        path = tmp_path / "samples.jsonl"
        encoded = [
            entry
            if isinstance(entry, bytes)
            else json.dumps(entry if isinstance(entry, dict) else lm_eval_sample(i, {"acc": entry})).encode()
            for i, entry in enumerate(entries)
        ]
        path.write_bytes(b"".join(line + b"\n" for line in encoded) + end)
        return read_samples("xnli_de", path)

    return lines


def test_scores_and_hashes_are_read(read) -> None:
    samples = read(1.0, 0.0, True, end=b"\n \n")
    assert samples.metrics == {"none": ["acc"]}
    assert samples.values("none", "acc") == {0: 1.0, 1: 0.0, 2: 1.0}
    assert samples.filters["none"][1][0] == (f"{1:064x}",) * 3


def test_a_line_in_another_order_is_read_as_a_whole(read, lm_eval_sample) -> None:
    line = lm_eval_sample(0, {"acc": 1.0})
    turned = dict(reversed(line.items()))
    assert read(turned).filters == read(line).filters


def test_ends_of_lines_that_were_seen_before_are_read_like_others(read, lm_eval_sample, monkeypatch) -> None:
    scores = [i % 3 / 2 for i in range(60)]
    lines = [lm_eval_sample(i, {"acc": score, "f1": 1 - score}) for i, score in enumerate(scores)]
    samples = read(*lines)
    monkeypatch.setattr("fairbits.evaluation.lm_eval.sample_files.KNOWN", 0)
    assert samples == read(*lines)
    assert samples.values("none", "f1") == {i: 1 - score for i, score in enumerate(scores)}
    assert samples.filters["none"][59][0] == (f"{59:064x}",) * 3


def test_an_end_that_lacks_something_is_not_taken_for_the_whole_line(read, lm_eval_sample) -> None:
    """Here the metrics come before the filter, and only they differ between lines with the same end."""
    lines = []
    for i in range(50):
        line = lm_eval_sample(i, {"acc": 1.0, "f1": 0.0})
        chosen = {"metrics": [("acc", "f1")[i % 2]]}
        lines.append(
            {"doc_id": i, **chosen, **{name: line[name] for name in line if name not in ("doc_id", "metrics")}}
        )
    documents = read(*lines).filters["none"]
    assert [list(scores) for _, scores in documents.values()] == [["acc"], ["f1"]] * 25


def test_answers_may_have_several_filters(read, lm_eval_sample) -> None:
    samples = read(
        *(lm_eval_sample(i, {"exact_match": i}, filter=name) for name in ("strict", "loose") for i in (0, 1))
    )
    assert samples.metrics == {"strict": ["exact_match"], "loose": ["exact_match"]}


@pytest.mark.parametrize(
    ("lines", "end", "message"),
    [
        ((), b"", "is empty"),
        ((1.0,), b'{"doc_id": 1, "doc": {"te', r"line 2 \(the file ends in the middle of it\) is not valid JSON"),
        (
            (1.0,),
            b'{"doc_id": 1, "filter": "none", "metr',
            r"line 2 \(the file ends in the middle of it\) is not valid",
        ),
        ((b"{no}",), b"", "line 1 is not valid JSON"),
        ((b'{"doc_id": 0, "doc": "\xff"}',), b"", "line 1 is not valid JSON .*utf-8"),
        ((b"[1]",), b"", "line 1 holds a JSON list"),
        ((b"[" * 100_000,), b"", "line 1 is not valid JSON"),
        ((b'{"doc_id": 0}',), b"", "line 1: filter is missing"),
    ],
)
def test_damaged_files_are_refused(read, lines, end, message) -> None:
    with pytest.raises(InputError, match=message):
        read(*lines, end=end)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"doc_id": "a"}, "doc_id is 'a'"),
        ({"doc_id": True}, "doc_id is True"),
        ({"doc_id": -1}, "doc_id is -1; it must be greater than or equal to 0"),
        ({"filter": 3}, "filter is 3"),
        ({"filter": "y" * 101}, "filter is 'y{59}; it must"),
        ({"doc_hash": None}, "doc_hash is None"),
        ({"prompt_hash": "f" * 63}, "prompt_hash is 'f{59}; it must be a SHA-256"),
        ({"metrics": "acc"}, "metrics is 'acc'"),
        ({"metrics": ["f1"]}, "metrics names 'f1', which is not in the line"),
        ({"metrics": [["f1"]]}, "metrics.0 is .'f1'.; it must be a valid string"),
        ({"filter": "\ud800"}, "the content holds half of a surrogate pair"),
    ],
)
def test_lines_that_lack_something_are_refused(read, lm_eval_sample, changed, message) -> None:
    with pytest.raises(InputError, match=f"line 2: {message}"):
        read(1.0, lm_eval_sample(1, {"acc": 1.0}, **changed))


def test_an_item_that_occurs_twice_is_refused(read, lm_eval_sample) -> None:
    with pytest.raises(InputError, match=r"line 2: document 0 occurs twice \(filter none\)"):
        read(1.0, lm_eval_sample(0, {"acc": 1.0}))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1.0", None, [1.0, float("nan")], [1, 2, 3]])
def test_a_score_that_is_no_number_is_refused(read, value) -> None:
    samples = read(1.0, value)
    with pytest.raises(InputError, match=r"acc in .*: document 1(\.1)? is .*; it must be .*; choose another --metric"):
        samples.values("none", "acc")


def test_a_key_that_is_there_twice_is_refused(read, lm_eval_sample) -> None:
    line = json.dumps(lm_eval_sample(1, {"acc": 1.0})).encode()
    with pytest.raises(InputError, match=r"line 2 is not valid JSON .the key 'acc' is there twice"):
        read(1.0, line[:-1] + b', "acc": 0.0}')


def test_the_newest_files_of_a_run_are_found(lm_eval_run) -> None:
    lm_eval_run("run", {"xnli_de": [1], "xnli_fr": [1]}, date="05")
    run = find_run(lm_eval_run("run", {"xnli_de": [0]}, date="06"))
    assert list(run.samples) == ["xnli_de", "xnli_fr"]
    assert "T03-04-06" in run.samples["xnli_de"].name
    assert run.results["xnli_de"].versions == {"xnli_de": 1}
    assert run.results["xnli_de"].higher_is_better == {}
    assert run.notes == (f"{run.directory.parent}: 1 older file of samples ignored, the newest of each task is used",)


def test_directories_without_one_run_are_refused(tmp_path, lm_eval_run) -> None:
    with pytest.raises(InputError, match=r"none is not a directory; it must contain .* lm_eval --log_samples"):
        find_run(tmp_path / "none")
    with pytest.raises(InputError, match=r"has no file samples_TASK_DATE.jsonl"):
        find_run(tmp_path)
    lm_eval_run("a", {"xnli_de": [1]})
    lm_eval_run("b", {"xnli_de": [1]})
    with pytest.raises(InputError, match=r"has samples of 2 runs \(a/model, b/model\); give the directory of one"):
        find_run(tmp_path)
    results = next((tmp_path / "a/model").glob("results*"))
    results.write_text('{"configs": {"xnli_de": 1}, "date": 1}')
    with pytest.raises(InputError, match=r"results_.*: configs\.xnli_de is 1; it must be .*: run lm-eval again"):
        find_run(tmp_path / "a")
    results.write_text("{")
    with pytest.raises(InputError, match=r"results_.* is not valid JSON"):
        find_run(tmp_path / "a")
