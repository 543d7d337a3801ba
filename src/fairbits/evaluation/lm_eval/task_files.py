"""Tasks of lm-eval in YAML files, as far as they are data alone: no code of a file is executed.

What would change results and is not computed here, such as `!function` or examples in the prompt, is refused. A file
is only checked if its task is wanted, so that a directory may hold others.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from annotated_types import Ge, Le

from fairbits.core.errors import InputError
from fairbits.core.records import Number, Positive, check_record
from fairbits.evaluation.lm_eval.sample_files import listed

YAML_BYTES = 1_000_000  # bytes of a task file that are read: real ones have a thousandth of it
IGNORED = {
    *("task_alias", "training_split", "fewshot_split", "fewshot_config", "tag", "include", "metadata"),
    *("should_decontaminate", "doc_to_decontamination_query"),
}
"""Keys that change no result without examples in the prompt; tags and versions are read elsewhere."""
REMEDY = "compute this task with lm-eval itself, or rewrite it"
DEFAULTS = {
    "description": "",
    "target_delimiter": " ",
    "fewshot_delimiter": "\n\n",
    "output_type": "generate_until",
    "num_fewshot": 0,
    "repeats": 1,
    "should_decontaminate": False,
}
"""What lm-eval writes of a task whose file does not say it."""
NEW_TOKENS = 256  # of an answer, if a task does not say it
AGGREGATIONS = {
    "loglikelihood": {"perplexity": "perplexity", "acc": "mean"},
    "loglikelihood_rolling": {
        **dict.fromkeys(("word_perplexity", "byte_perplexity"), "weighted_perplexity"),
        "bits_per_byte": "bits_per_byte",
    },
    "multiple_choice": dict.fromkeys(("acc", "acc_norm", "acc_bytes", "exact_match"), "mean"),
    "generate_until": {"exact_match": "mean"},
}
"""The metrics that are computed, by the kind of output, and how the number of all items follows from them."""
BY_DEFAULT = {"multiple_choice": ("acc", "acc_norm")}  # of the others, all metrics


class _Code:
    """What `!function` names: it is not executed."""


class _TaskLoader(yaml.SafeLoader):  # type: ignore[misc]
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):  # a few bytes could stand for gigabytes
            raise yaml.YAMLError("it has a reference to another part (*NAME), which is not read")
        return super().compose_node(parent, index)


_TaskLoader.add_constructor("!function", lambda _loader, _node: _Code())


@dataclass(frozen=True)
class TaskMetric:
    """A metric, and what of a text its comparison ignores."""

    metric: str
    aggregation: str | None = None
    higher_is_better: bool | None = None
    ignore_case: bool = False
    ignore_punctuation: bool = False
    ignore_numbers: bool = False
    regexes_to_ignore: tuple[str, ...] = ()


@dataclass(frozen=True)
class FilterStep:
    """One step from an answer to what is compared with the target."""

    function: Literal["regex", "remove_whitespace", "take_first"]
    regex_pattern: str = r"#### (\-?[0-9\.\,]+)"
    group_select: int = 0
    fallback: str = "[invalid]"


@dataclass(frozen=True)
class AnswerFilter:
    """A way to read answers; a task may have several."""

    name: str
    filter: tuple[FilterStep, ...]


@dataclass(frozen=True)
class DatasetKwargs:
    """The files of a task's items, all or by split."""

    data_files: str | tuple[str, ...] | dict[str, str | tuple[str, ...]]
    trust_remote_code: bool = False


@dataclass(frozen=True)
class GenerationKwargs:
    """Where an answer ends: its most probable tokens up to one of these strings, or so many tokens."""

    until: str | tuple[str, ...] = ()
    max_gen_toks: Positive = NEW_TOKENS
    do_sample: Literal[False] = False
    temperature: Annotated[Number, Ge(0), Le(0)] = 0


@dataclass(frozen=True)
class TaskKeys:
    """The keys of a task that decide its results."""

    task: str
    dataset_path: Literal["json"]
    dataset_kwargs: DatasetKwargs
    doc_to_text: str | None = None
    doc_to_target: int | str | tuple[int | str, ...] | None = None
    doc_to_choice: str | tuple[str, ...] | dict[str, str] | None = None
    output_type: Literal["loglikelihood", "loglikelihood_rolling", "multiple_choice", "generate_until"] = (
        "generate_until"
    )
    test_split: str | None = None
    validation_split: str | None = None
    description: str = ""
    target_delimiter: str = " "
    fewshot_delimiter: str = "\n\n"
    num_fewshot: Literal[0] = 0
    repeats: Literal[1] = 1
    unsafe_code: Literal[False] = False
    metric_list: tuple[TaskMetric, ...] = ()
    generation_kwargs: GenerationKwargs | None = None
    filter_list: tuple[AnswerFilter, ...] = (AnswerFilter("none", (FilterStep("take_first"),)),)

    @property
    def metrics(self) -> tuple[TaskMetric, ...]:
        names = BY_DEFAULT.get(self.output_type, tuple(AGGREGATIONS[self.output_type]))
        return self.metric_list or tuple(map(TaskMetric, names))


@dataclass(frozen=True)
class TaskFile(TaskKeys):
    """A task with its file; `config` is what lm-eval writes of it."""

    path: Path = Path()
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def new_tokens(self) -> int:
        return int(self.config["generation_kwargs"].get("max_gen_toks", NEW_TOKENS))

    @property
    def until(self) -> tuple[str, ...]:
        until = self.config["generation_kwargs"]["until"]
        return (until,) if isinstance(until, str) else tuple(until)

    @property
    def split(self) -> str:
        split = self.test_split or self.validation_split
        if split is None:
            raise InputError(f"{self.path}: test_split is missing; it must be a split of data_files")
        return split

    @property
    def data_files(self) -> tuple[Path, ...]:
        """The files of the split that is evaluated; those that are not absolute are beside the task."""
        named = self.dataset_kwargs.data_files
        by_split = named if isinstance(named, dict) else {"train": named}
        if self.split not in by_split:
            raise InputError(f"{self.path}: data_files has no split {self.split!r:.60}; it has {listed(by_split)}")
        files = by_split[self.split]
        return tuple(self.path.parent / file for file in ([files] if isinstance(files, str) else files))


def read_tasks(directory: str | Path, names: Iterable[str] | None = None) -> tuple[TaskFile, ...]:
    """Returns the tasks in a directory, in the order of their names; `names` are of tasks, groups or tags, or patterns.

    Groups outside the directory, and tasks of a group with other settings than their file, are refused.
    """
    root = Path(directory).absolute()
    if not root.is_dir():
        raise InputError(f"{root} is not a directory; it must contain tasks of lm-eval, as fairbits tasks writes them")
    tasks: dict[str, tuple[Path, dict[str, Any]]] = {}
    groups: dict[str, list[Any]] = {}
    for path in sorted(root.rglob("*.yaml")):
        content = _content(path)
        name = content.get("task")
        if "group" in content:
            groups.setdefault(str(content["group"]), []).extend(name if isinstance(name, list) else [name])
        elif isinstance(name, str):
            if name in tasks:
                raise InputError(f"{path} and {tasks[name][0]} both name their task {name}; each name must be unique")
            tasks[name] = path, content
            tags = content.get("tag") or []
            for tag in [tags] if isinstance(tags, str) else tags:
                groups.setdefault(str(tag), []).append(name)
    if not tasks:
        raise InputError(f"{root} has no task (a .yaml file with the key task); fairbits tasks writes some")
    wanted = set(tasks) if names is None else {task for name in names for task in _named(name, tasks, groups, root)}
    return tuple(_checked(*tasks[name]) for name in sorted(wanted))


def _named(
    pattern: str, tasks: Mapping[str, Any], groups: Mapping[str, list[Any]], root: Path, above: tuple[str, ...] = ()
) -> Iterator[str]:
    """Yields the tasks that a name or pattern stands for."""
    matching = [name for name in (*tasks, *groups) if fnmatchcase(name, pattern)]
    if not matching or pattern in above:
        within = f" (in the group {above[-1]})" if above else ""
        raise InputError(f"{root} has no task {pattern!r:.60}{within}; it has {listed([*groups, *tasks])}")
    for name in matching:
        for member in groups.get(name, ()):
            if not isinstance(member, str):
                raise InputError(f"the group {name} in {root} has more than names of tasks under task; {REMEDY}")
            yield from _named(member, tasks, groups, root, (*above, name))
        if name in tasks:
            yield name


def _content(path: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Returns the keys of a file and of those that it includes."""
    if path in above:
        raise InputError(f"{path} includes itself; remove the include")
    try:
        with path.open("rb") as file:
            text = file.read(YAML_BYTES + 1)
        if len(text) > YAML_BYTES:
            raise InputError(f"{path} is larger than {YAML_BYTES:,} bytes; it must be a task of lm-eval")
        content = yaml.load(text, Loader=_TaskLoader)
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}); check the include of {above[-1:]}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise InputError(f"{path} is not YAML that can be read: {' '.join(str(problem).split()):.200}") from None
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InputError(f"{path} must have keys and values, as a task of lm-eval has")
    included = content.pop("include", None) or []
    merged: dict[str, Any] = {}
    for name in [included] if isinstance(included, str) else included:
        merged |= _content(path.parent / str(name), (*above, path))
    return merged | content


def _checked(path: Path, content: Mapping[str, Any]) -> TaskFile:
    """Returns a task; raises if one of its keys cannot be followed."""
    keys = {key: value for key, value in content.items() if value is not None and key not in IGNORED}
    code = next((key for key, value in keys.items() if _has_code(value)), None)
    if code is not None:
        raise InputError(f"{path}: {code} is a !function, whose Python code is not executed; {REMEDY}")
    if keys.get("dataset_path") != "json":
        raise InputError(
            f"{path}: dataset_path is {keys.get('dataset_path')!r:.60}; it must be json, with dataset_kwargs: "
            f"data_files: {{test: FILE}}; {REMEDY}"
        )
    try:
        task = check_record(TaskKeys, keys)
    except InputError as problem:
        raise InputError(f"{path}: {problem}; {REMEDY}") from None
    _check_metrics(task, path)
    config = DEFAULTS | {key: value for key, value in content.items() if value is not None}
    if task.output_type == "generate_until":
        asked = keys.get("generation_kwargs")
        until = {"until": [task.fewshot_delimiter]}
        default = {"temperature": 0.0, "do_sample": False, "max_gen_toks": NEW_TOKENS} | until
        config["generation_kwargs"] = default if asked is None else until | asked
    return TaskFile(**vars(task), path=path, config=config)


def _check_metrics(task: TaskKeys, path: Path) -> None:
    computed = AGGREGATIONS[task.output_type]
    for entry in task.metrics:
        if entry.metric not in computed:
            raise InputError(
                f"{path}: metric_list has {entry.metric!r:.40}; of {task.output_type}, {listed(computed)} are "
                f"computed; {REMEDY}"
            )
        if entry.aggregation not in (None, computed[entry.metric]):
            raise InputError(f"{path}: aggregation of {entry.metric} must be {computed[entry.metric]}; {REMEDY}")
    for answers in task.filter_list:
        steps = [step.function for step in answers.filter]
        if steps[-1:] != ["take_first"] or (task.output_type != "generate_until" and len(steps) > 1):
            raise InputError(f"{path}: filter_list, {answers.name}: the last step must be take_first; {REMEDY}")
    if task.output_type == "multiple_choice" and task.doc_to_choice is None:
        raise InputError(f"{path}: doc_to_choice is missing; multiple_choice needs it")
    if task.doc_to_target is None or (task.doc_to_text is None and task.output_type != "loglikelihood_rolling"):
        raise InputError(f"{path}: doc_to_text or doc_to_target is missing; {task.output_type} needs them")


def _has_code(value: Any) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return isinstance(value, _Code) or any(map(_has_code, children))
