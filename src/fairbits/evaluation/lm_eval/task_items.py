"""The items of a task of lm-eval: the text of every request to a model, and what its answers score."""

import ast
import json
import math
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import BaseLoader, StrictUndefined, Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

from fairbits.core.errors import InputError, printable
from fairbits.core.memory import LINE_BYTES
from fairbits.core.records import parse_object
from fairbits.evaluation.lm_eval.sample_files import listed
from fairbits.evaluation.lm_eval.task_files import AnswerFilter, TaskFile, TaskMetric

LARGEST_EXPONENT = 700.0  # beyond it a perplexity is no float
Answer = Any
"""Of a pair of texts its log-likelihood and whether it is the most probable continuation; of one text its
log-likelihood; of a prompt the text that follows."""


TaskItems = dict[str, tuple[TaskFile, list["TaskItem"]]]
"""Tasks by name, with their items."""


@dataclass(frozen=True)
class TaskItem:
    """An item: what the model is asked, and what is right: indices of choices, or texts."""

    number: int
    doc: dict[str, Any]
    target: Any  # as the template gives it
    requests: tuple[tuple[Any, ...], ...]
    choices: tuple[str, ...]
    right: tuple[Any, ...]


@cache
def _template(text: str) -> Template:
    environment = ImmutableSandboxedEnvironment(
        loader=BaseLoader(), undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False
    )
    environment.filters["regex_replace"] = lambda text, pattern, new, count=0: re.sub(pattern, new, text, count=count)
    return environment.from_string(text)


def read_items(task: TaskFile, limit: int | None = None) -> list[TaskItem]:
    """Returns the items of a task, the first `limit` of them; raises if one of them cannot be asked."""
    rows = [row for path in task.data_files for row in _rows(path)]
    if not rows:
        raise InputError(f"{listed(map(str, task.data_files))} has no items; {task.path} needs some")
    fields = {key: None for row in rows for key in row}
    items = []
    for number, row in enumerate(rows[:limit]):
        try:
            items.append(_item(task, number, fields | row))
        except InputError as problem:
            raise InputError(f"{task.path}: item {number}: {problem}") from None
    return items


def _rows(path: Path) -> list[dict[str, Any]]:
    """Returns the objects in a file, one in each line or all in one list."""
    try:
        with path.open("rb") as file:
            if file.read(1) == b"[":
                file.seek(0)
                return [parse_object(json.dumps(row).encode(), str(path)) for row in json.loads(file.read())]
            file.seek(0)
            rows: list[dict[str, Any]] = []
            while line := file.readline(LINE_BYTES + 1):
                if len(line) > LINE_BYTES:
                    raise InputError(f"{path} has a line of more than {LINE_BYTES:,} bytes; each must be an item")
                if not line.isspace():
                    rows.append(parse_object(line, f"{path}, line {len(rows) + 1}"))
            return rows
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}); data_files of the task names it") from None
    except ValueError as problem:
        raise problem if isinstance(problem, InputError) else InputError(f"{path} is not JSON ({problem})") from None


def _render(source: str, doc: Mapping[str, Any], key: str) -> Any:
    """Returns the field of a document that is named, or a template filled in with its fields."""
    if source in doc:
        return doc[source]
    try:
        return _template(source).render(doc)
    except Exception as problem:  # whatever the expressions of a template can raise
        raise InputError(f"{key} cannot be filled in ({printable(str(problem)):.200})") from None


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return text


def _item(task: TaskFile, number: int, doc: dict[str, Any]) -> TaskItem:
    choices = _choices(task, doc)
    target: Any = task.doc_to_target
    if isinstance(target, str):
        field, target = target in doc, _render(target, doc, "doc_to_target")
        if not field and task.doc_to_choice is not None and target.isdigit():
            target = int(target)
        elif not field and target[:1] == "[" and target[-1:] == "]":
            target = _literal(target)
    target = list(target) if isinstance(target, tuple) else target
    right = tuple(target) if isinstance(target, list) else (target,)
    if task.output_type == "loglikelihood_rolling":
        return TaskItem(number, doc, target, ((_text(target, "doc_to_target"),),), choices, right)
    description = _render(task.description, doc, "description") if task.description else ""
    prompt = _text(_render(task.doc_to_text or "", doc, "doc_to_text"), "doc_to_text", empty=True)
    if task.doc_to_choice is not None and prompt.isdigit():
        raise InputError("doc_to_text is a number, as in tasks whose choices are prompts; these are not computed")
    prompt = f"{description}{prompt}"
    if task.output_type == "loglikelihood":
        return TaskItem(number, doc, target, ((prompt, _text(target, "doc_to_target")),), choices, right)
    if task.doc_to_choice is not None:
        right = tuple(_index(one, choices) for one in right)
    if task.output_type == "generate_until":
        right = tuple(choices[one] if choices else str(one) for one in right)
        return TaskItem(number, doc, target, ((prompt, task.config["generation_kwargs"]),), choices, right)
    requests = tuple((prompt, f"{task.target_delimiter}{choice}") for choice in choices)
    return TaskItem(number, doc, target, requests, choices, right)


def _choices(task: TaskFile, doc: Mapping[str, Any]) -> tuple[str, ...]:
    source = task.doc_to_choice
    if source is None:
        return ()
    if isinstance(source, str):
        value = _render(source, doc, "doc_to_choice")
        value = value if source in doc else _literal(value)
    else:
        value = list(source.values() if isinstance(source, dict) else source)
    if not isinstance(value, list) or not value:
        raise InputError(f"doc_to_choice gives {value!r:.60}; it must give a list of texts")
    return tuple(_text(choice, "a choice") for choice in value)


def _text(value: Any, key: str, *, empty: bool = False) -> str:
    if not isinstance(value, str) or not (value or empty):
        raise InputError(f"{key} is {value!r:.60}; it must be a text{'' if empty else ' that is not empty'}")
    return value


def _index(target: Any, choices: Sequence[str]) -> int:
    index = choices.index(target) if isinstance(target, str) and target in choices else target
    if not isinstance(index, int) or not 0 <= index < len(choices):
        raise InputError(f"the target is {target!r:.60}; it must be one of {len(choices)} choices or its index from 0")
    return int(index)


def filtered(answers: AnswerFilter, text: str) -> str:
    """Returns the part of a generated text that is compared with the target."""
    for step in answers.filter:
        if step.function == "remove_whitespace":
            text = text.strip()
        elif step.function == "regex":
            matches = re.findall(step.regex_pattern, text)
            try:
                match = matches[step.group_select] if matches else step.fallback
            except IndexError:
                raise InputError(f"group_select is {step.group_select}, and an answer has fewer matches") from None
            if isinstance(match, tuple):
                match = next((part for part in match if part), step.fallback)
            text = match.strip() if matches else match
    return text


def item_scores(task: TaskFile, item: TaskItem, answers: Sequence[Answer]) -> dict[str, Any]:
    """Returns the value of every metric of an item; a pair is a log-likelihood and the size of its text."""
    if task.output_type == "loglikelihood_rolling":
        text = item.requests[0][0]
        sizes = dict.fromkeys(("bits_per_byte", "byte_perplexity"), len(text.encode()))
        sizes["word_perplexity"] = len(re.split(r"\s+", text))
        return {entry.metric: (answers[0], sizes[entry.metric]) for entry in task.metrics}
    if task.output_type == "loglikelihood":
        values = {"perplexity": answers[0][0], "acc": int(answers[0][1])}
    elif task.output_type == "generate_until":
        values = {
            entry.metric: float(_plain(answers[0], entry) in {_plain(text, entry) for text in item.right})
            for entry in task.metrics
        }
    else:
        likelihoods = np.array([value for value, _ in answers])
        sizes_of = {
            "acc": np.ones(len(answers)),
            "acc_norm": np.array([len(choice) for choice in item.choices]),
            "acc_bytes": np.array([len(choice.encode()) for choice in item.choices]),
        }
        values = {name: float(int((likelihoods / size).argmax()) in item.right) for name, size in sizes_of.items()}
        values["exact_match"] = int(any(answers[index][1] for index in item.right))
    return {entry.metric: values[entry.metric] for entry in task.metrics}


def _plain(text: str, entry: TaskMetric) -> str:
    """Returns a text without what its comparison ignores."""
    for pattern in entry.regexes_to_ignore:
        text = re.sub(pattern, "", text)
    text = text.lower() if entry.ignore_case else text
    ignored = string.punctuation * entry.ignore_punctuation + string.digits * entry.ignore_numbers
    return text.translate(str.maketrans("", "", ignored))


def total_score(aggregation: str, values: Sequence[Any]) -> float:
    """Returns the number of all items: a mean, or what follows from the sum of log-likelihoods."""
    if aggregation == "mean":
        return float(sum(values) / len(values))
    pairs = [(value, 1) for value in values] if aggregation == "perplexity" else values
    per_unit = -sum(value for value, _ in pairs) / sum(size for _, size in pairs)
    return per_unit / math.log(2) if aggregation == "bits_per_byte" else math.exp(min(per_unit, LARGEST_EXPONENT))
