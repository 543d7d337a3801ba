"""Tasks of lm-eval, computed here: the files of a run, what two models lose, and what is refused."""

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import yaml

import fairbits as fb
from fairbits.api import evaluate_tasks as module
from fairbits.api.evaluate_tasks import compare_on_tasks, evaluate_tasks
from fairbits.core.errors import InputError
from fairbits.evaluation.lm_eval.sample_files import find_run, read_samples
from fairbits.evaluation.lm_eval.task_answers import TaskAnswers

QUESTIONS = {
    "eng": [(f"On day {i} the wind came from the", ["north", "deep blue sea", "top"]) for i in range(12)],
    "fra": [(f"Le jour {i}, le vent venait du", ["nord", "sud", "fond de la mer"]) for i in range(12)],
}
CHOICE = {
    "dataset_path": "json",
    "test_split": "test",
    "output_type": "multiple_choice",
    "doc_to_text": "{{question}}",
    "doc_to_choice": "answers",
    "doc_to_target": "right",
    "metric_list": [{"metric": name, "aggregation": "mean", "higher_is_better": True} for name in ("acc", "acc_norm")],
    "metadata": {"version": 2.0},
}


def write_task(directory: Path, name: str, rows: list[dict], keys: dict) -> None:
    (directory / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    keys = {"task": name, **keys, "dataset_kwargs": {"data_files": {"test": f"{name}.jsonl"}}}
    (directory / f"{name}.yaml").write_text(yaml.safe_dump(keys, sort_keys=False), "utf-8")


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Path:
    """Returns tasks of choices in two languages, one of texts, and one of generated answers."""
    directory = tmp_path_factory.mktemp("tasks")
    for code, questions in QUESTIONS.items():
        rows = [{"question": text, "answers": answers, "right": i % 3} for i, (text, answers) in enumerate(questions)]
        write_task(directory, f"wind_{code}", rows, CHOICE)
    texts = [{"text": f"{text} {answers[0]}."} for text, answers in QUESTIONS["eng"]]
    rolling = {
        "output_type": "loglikelihood_rolling",
        "doc_to_target": "{{text}}",
        "metric_list": [{"metric": "bits_per_byte"}],
    }
    write_task(directory, "texts_eng", texts, {"dataset_path": "json", "validation_split": "test", **rolling})
    numbers = [{"question": text, "answer": str(i)} for i, (text, _) in enumerate(QUESTIONS["fra"])]
    generate = {
        "dataset_path": "json",
        "test_split": "test",
        "doc_to_text": "question",
        "doc_to_target": "answer",
        "generation_kwargs": {"until": ["\n\n"], "max_gen_toks": 6, "do_sample": False},
        "filter_list": [
            {"name": "first", "filter": [{"function": "regex", "regex_pattern": "[0-9]+"}, {"function": "take_first"}]},
            {"name": "as-is", "filter": [{"function": "take_first"}]},
        ],
    }
    write_task(directory, "number_fra", numbers, generate)
    return directory


@pytest.fixture(scope="module")
def rounded(reading_model, tmp_path_factory) -> Path:
    out, model = tmp_path_factory.mktemp("rounded") / "w2", reading_model("llama")
    fb.quantize(model, fb.plan(model, policy="rtn", bits=2, group="channel"), out=out)
    return out


@pytest.fixture(scope="module")
def run(reading_model, tasks, tmp_path_factory):
    """Returns a run of all tasks, and what it gave."""
    out = tmp_path_factory.mktemp("run")
    return out, evaluate_tasks(reading_model("llama"), tasks, out=out)


def rows_of(directory: Path, task: str) -> list[dict]:
    file = find_run(directory).samples[task]
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


def test_choices_are_scored_by_their_likelihoods(run, reading_model) -> None:
    out, scores = run
    checkpoint = reading_model("llama")
    model, tokenizer = checkpoint.load(), checkpoint.tokenizer()
    right = {"acc": 0, "acc_norm": 0}
    for row, (text, answers) in zip(rows_of(out, "wind_eng"), QUESTIONS["eng"], strict=True):
        sums = []
        for answer in answers:
            before, whole = tokenizer(text)["input_ids"], tokenizer(f"{text} {answer}")["input_ids"]
            with torch.no_grad():
                logits = model(torch.tensor([whole])).logits[0].log_softmax(-1)
            sums.append(sum(float(logits[i - 1, whole[i]]) for i in range(len(before), len(whole))))
        assert [float(pair[0][0]) for pair in row["resps"]] == pytest.approx(sums, rel=1e-5)
        best = max(range(3), key=lambda i: sums[i])
        by_length = max(range(3), key=lambda i: sums[i] / len(answers[i]))
        assert (row["acc"], row["acc_norm"]) == (best == int(row["target"]), by_length == int(row["target"]))
        right["acc"] += row["acc"]
        right["acc_norm"] += row["acc_norm"]
        assert row["arguments"]["gen_args_1"] == {"arg_0": text, "arg_1": f" {answers[1]}"}
    assert scores.items["wind_eng"] == 12
    for name, count in right.items():
        assert scores.scores["wind_eng"][f"{name},none"] == pytest.approx(count / 12)


def test_hashes_are_those_of_lm_eval(run) -> None:
    """Computed with lm-eval 0.4.13 of the same item."""
    row = rows_of(run[0], "wind_eng")[0]
    assert list(row)[:8] == ["doc_id", "doc", "target", "arguments", "resps", "filtered_resps", "filter", "metrics"]
    assert row["doc"] == {"question": QUESTIONS["eng"][0][0], "answers": QUESTIONS["eng"][0][1], "right": 0}
    hashes = [row[f"{name}_hash"][:8] for name in ("doc", "prompt", "target")]
    assert hashes == ["f42e47de", "b153706e", "5feceb66"]


def test_texts_are_scored_in_bits_per_byte(run) -> None:
    out, scores = run
    rows = rows_of(out, "texts_eng")
    nats, size = (sum(row["bits_per_byte"][i] for row in rows) for i in (0, 1))
    assert size == sum(len(row["doc"]["text"].encode()) for row in rows)
    assert scores.scores["texts_eng"]["bits_per_byte,none"] == pytest.approx(-nats / size / math.log(2))
    assert nats < 0


def test_answers_are_the_most_probable_tokens(run, reading_model) -> None:
    checkpoint, rows = reading_model("llama"), rows_of(run[0], "number_fra")
    model, tokenizer = checkpoint.load(), checkpoint.tokenizer()
    ids = tokenizer(rows[0]["doc"]["question"])["input_ids"]
    size = len(ids)
    for _ in range(6):
        with torch.no_grad():
            ids.append(int(model(torch.tensor([ids])).logits[0, -1].argmax()))
    written = tokenizer.decode(ids[size:], skip_special_tokens=True).split("\n\n")[0]
    assert rows[0]["resps"] == [[written]]
    assert [row["filter"] for row in rows] == ["first"] * 12 + ["as-is"] * 12
    assert rows[12]["filtered_resps"] == [written]


def test_what_is_there_is_kept_and_what_is_not_is_computed(run, reading_model, tasks, monkeypatch) -> None:
    out, first = run
    assert first.computed == ("number_fra", "texts_eng", "wind_eng", "wind_fra")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    find_run(out).samples["wind_fra"].unlink()
    asked = []
    original = TaskAnswers.of
    monkeypatch.setattr(TaskAnswers, "of", lambda self, items, show: asked.extend(items) or original(self, items, show))
    again = evaluate_tasks(reading_model("llama"), tasks, out=out)
    assert asked == ["wind_fra"]
    assert again.computed == ("wind_fra",)
    assert again.scores == first.scores
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    monkeypatch.setattr(TaskAnswers, "of", None)
    assert evaluate_tasks(reading_model("llama"), tasks, out=out).computed == ()


def test_another_run_in_the_directory_is_refused(run, reading_model, tasks, tmp_path) -> None:
    out = run[0]
    with pytest.raises(InputError, match="has the results of another run or model"):
        evaluate_tasks(reading_model("gpt2"), tasks, out=out)
    with pytest.raises(InputError, match="has the results of another run or model"):
        evaluate_tasks(reading_model("llama"), tasks, out=out, kv_cache="int8")
    with pytest.raises(InputError, match="with other items or settings"):
        evaluate_tasks(reading_model("llama"), tasks, out=out, limit=3)
    with pytest.raises(InputError, match="has number_fra, texts_eng"):
        evaluate_tasks(reading_model("llama"), tasks, out=out, names=["wind_*"])
    copy = shutil.copytree(reading_model("llama").directory, tmp_path / "copy")
    (copy / "generation_config.json").write_text('{"eos_token_id": 5}', "utf-8")
    with pytest.raises(InputError, match="has the results of another run or model"):
        evaluate_tasks(copy, tasks, out=out)  # answers would end elsewhere
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is not empty"):
        evaluate_tasks(reading_model("llama"), tasks, out=tmp_path)
    with pytest.raises(InputError, match="no task is chosen"):
        evaluate_tasks(reading_model("llama"), tasks, out=tmp_path / "new", names=[])


def test_an_interrupted_run_keeps_finished_tasks(reading_model, tasks, tmp_path, monkeypatch) -> None:
    original = TaskAnswers.of

    def fails(self, items, show):
        if "wind_fra" in items:
            raise KeyboardInterrupt
        return original(self, items, show)

    monkeypatch.setattr(TaskAnswers, "of", fails)
    with pytest.raises(KeyboardInterrupt):
        evaluate_tasks(reading_model("llama"), tasks, out=tmp_path, names=["wind_*"], limit=5)
    assert list(find_run(tmp_path).samples) == ["wind_eng"]
    monkeypatch.setattr(TaskAnswers, "of", original)
    assert evaluate_tasks(reading_model("llama"), tasks, out=tmp_path, names="wind_*", limit=5).computed == (
        "wind_fra",
    )
    assert len(read_samples("wind_fra", find_run(tmp_path).samples["wind_fra"]).filters["none"]) == 5


def test_blocks_in_memory_one_at_a_time_give_the_same(run, reading_model, tasks, tmp_path, monkeypatch) -> None:
    passes = []
    original = TaskAnswers.of
    monkeypatch.setattr("fairbits.evaluation.hidden_states.fits_whole", lambda _bytes, _device: False)
    monkeypatch.setattr(
        TaskAnswers, "of", lambda self, items, show: passes.append(list(items)) or original(self, items, show)
    )
    scores = evaluate_tasks(reading_model("llama"), tasks, out=tmp_path, names=["wind_*", "texts_eng"])
    assert passes == [["texts_eng", "wind_eng", "wind_fra"]]  # weights are read once
    for name, values in scores.scores.items():
        assert values == pytest.approx(run[1].scores[name], rel=1e-5)


def test_both_models_and_what_each_language_lost(command, rounded, reading_model, tasks, tmp_path) -> None:
    model, out = reading_model("llama").directory, tmp_path / "runs"
    arguments = (
        "evaluate",
        rounded,
        "--reference",
        model,
        "--tasks",
        tasks,
        "--out",
        out,
        "--task",
        "wind_*,texts_eng",
    )
    code, shown, errors = command(*arguments)
    assert (code, "acc, 2 languages, 2 tasks" in shown, "bits_per_byte, 1 language" in shown) == (0, True, True), errors
    assert "fairbits gate --samples" not in errors  # which takes tasks with a metric in common
    files = {path: path.stat().st_mtime_ns for path in (out / "reference").iterdir()}
    code, again, _ = command(*arguments, "--json")
    assert code == 0
    assert [loss["metric"] for loss in json.loads(again)["losses"]] == ["bits_per_byte", "acc"]
    assert {path: path.stat().st_mtime_ns for path in (out / "reference").iterdir()} == files
    assert [loss["filter"] for loss in json.loads(again)["losses"]] == ["none", "none"]
    code, gated, _ = command("gate", "--samples", out / "reference", out / "quantized", "--tasks", "wind_*", "--json")
    assert json.loads(gated)["languages"] == json.loads(again)["losses"][1]["languages"]


def test_what_the_command_refuses(command, rounded, tasks, tmp_path) -> None:
    start = ("evaluate", rounded, "--reference", "embedded:tiny")
    refused = {
        ("--limit", "3"): "add --tasks DIR",
        ("--tasks", tasks): "--out is missing",
        ("--tasks", tasks, "--out", tmp_path, "--generate", "9"): "--generate does not apply to tasks of lm-eval",
        ("--tasks", tasks, "--out", tmp_path, "--dry-run"): "--dry-run does not apply",
        ("--tasks", tasks, "--out", tmp_path, "--engine", "llama.cpp"): "--engine does not apply",
        ("--tasks", tasks, "--out", tmp_path, "--text", "help"): "--text does not apply",
        ("--tasks", tasks, "--out", tmp_path, "--concurrency", "2"): "--concurrency does not apply",
        ("--tasks", tmp_path / "no", "--out", tmp_path): "is not a directory; it must contain tasks of lm-eval",
    }
    for options, message in refused.items():
        code, _, errors = command(*start, *options)
        assert (code, message in " ".join(errors.split())) == (2, True), errors
    served = command("evaluate", "http://localhost:1/v1", *start[2:], "--tasks", tasks, "--out", tmp_path)
    assert "for a running server use lm-eval" in " ".join(served[2].split())


def test_a_task_whose_files_would_be_elsewhere_is_refused_first(reading_model, tasks, tmp_path) -> None:
    copy = shutil.copytree(tasks, tmp_path / "tasks")
    file = copy / "wind_eng.yaml"
    file.write_text(file.read_text("utf-8").replace("task: wind_eng", "task: x/../../wind_eng"), "utf-8")
    with pytest.raises(InputError, match="its name must have no /"):
        evaluate_tasks(reading_model("llama"), copy, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_language_that_no_name_says_is_asked_for_before_models_are_read(tasks, tmp_path, monkeypatch) -> None:
    for name in ("wind_eng.yaml", "wind_eng.jsonl"):
        (tmp_path / name).write_bytes((tasks / name).read_bytes())
    text = (tmp_path / "wind_eng.yaml").read_text().replace("task: wind_eng", "task: wind")
    (tmp_path / "wind_eng.yaml").write_text(text)
    monkeypatch.setattr(module, "open_checkpoint", None)
    with pytest.raises(InputError, match="the language of wind is not clear"):
        compare_on_tasks("a", "b", tasks=tmp_path, out=tmp_path / "runs")
