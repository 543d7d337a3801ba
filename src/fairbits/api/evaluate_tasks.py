"""Tasks of lm-eval, computed here: one model on the tasks of a directory, and two models compared on them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from fairbits.api.evaluate import (
    COMPARED,
    check_made_from,
    check_not_swapped,
    check_readable,
    check_same_tokens,
    plain_reference,
)
from fairbits.core.checks import whole
from fairbits.core.errors import InputError, count_of
from fairbits.core.files import check_directory
from fairbits.core.locks import lock_directory
from fairbits.core.progress import Progress, within
from fairbits.evaluation.lm_eval.gate_samples import SamplesGateResult, gate_samples
from fairbits.evaluation.lm_eval.paired_samples import NOT_PER_ITEM, PREFERRED
from fairbits.evaluation.lm_eval.run_writer import RunWriter
from fairbits.evaluation.lm_eval.task_answers import TaskAnswers
from fairbits.evaluation.lm_eval.task_files import read_tasks
from fairbits.evaluation.lm_eval.task_items import TaskItems, read_items
from fairbits.evaluation.lm_eval.task_language import task_languages
from fairbits.evaluation.request_likelihoods import RequestTokenizer
from fairbits.evaluation.setting import Identity
from fairbits.evaluation.writer import end_tokens
from fairbits.models.cached_checkpoint import with_kv_cache
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import AUTO, resolve_device
from fairbits.models.loaded_checkpoint import Model, open_checkpoint


@dataclass(frozen=True)
class TaskScores:
    """What lm-eval's results file has of every task, by metric and filter; `computed` are the tasks of this call."""

    directory: Path
    model: str
    scores: dict[str, dict[str, float]]
    items: dict[str, int]
    computed: tuple[str, ...]
    notes: tuple[str, ...] = ()

    def as_data(self) -> dict[str, Any]:
        return vars(self) | {"directory": str(self.directory)}


def evaluate_tasks(
    model: Model,
    tasks: str | Path,
    *,
    out: str | Path,
    names: Iterable[str] | None = None,
    limit: int | None = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    kv_cache: str | None = None,
    device: str = AUTO,
    progress: Progress | None = None,
) -> TaskScores:
    """Returns the scores of a model on the tasks in a directory, after writing into `out` what lm-eval would write.

    `names` are tasks, groups or tags, or patterns of them; by default all. Of every task, the first `limit` items are
    computed. A task that `out` has of the same model and items is kept, so that an interrupted run can be continued.
    The model computes in float32; one that takes more than half of the free memory passes block by block.
    """
    items = _open_tasks(tasks, names, limit)
    checkpoint = open_checkpoint(model, tokenizer, quantized=True)
    check_readable(checkpoint)
    checkpoint = checkpoint if kv_cache is None else with_kv_cache(checkpoint, kv_cache)
    return _evaluate(checkpoint, items, out, checkpoint, device=resolve_device(device), progress=progress)


def compare_on_tasks(
    quantized: Model,
    reference: Model,
    *,
    tasks: str | Path,
    out: str | Path,
    names: Iterable[str] | None = None,
    limit: int | None = None,
    kv_cache: str | None = None,
    language_of: Mapping[str, str] | None = None,
    device: str = AUTO,
    progress: Progress | None = None,
) -> dict[tuple[str, str], SamplesGateResult]:
    """Returns what each language lost in the items of tasks, by metric and filter of answers.

    Both models read the tokens of the reference. The samples are in the directories reference and quantized of `out`;
    those of the same models and items are kept.
    """
    items = _open_tasks(tasks, names, limit)
    task_languages(items, language_of or {})  # raises before anything that takes time
    after, before = (open_checkpoint(model, quantized=True) for model in (quantized, reference))
    check_not_swapped(after, before)
    check_readable(after)
    prompts = {
        name: tuple(text for item in some[:COMPARED] for text in item.requests[0] if isinstance(text, str))
        for name, (_, some) in items.items()
    }
    check_same_tokens(after, before, prompts)
    check_made_from(after, before)
    after, before = after if kv_cache is None else with_kv_cache(after, kv_cache), plain_reference(before)
    root, device = check_directory(out, holding=("reference", "quantized")), resolve_device(device)
    kinds = _by_metric(items)
    for name, model in (("reference", before), ("quantized", after)):
        show = within(progress, f"{name} model")
        _evaluate(model, items, root / name, before, device=device, progress=show)
    runs = root / "reference", root / "quantized"
    return {
        (metric, reading): gate_samples(
            *runs, metric=metric, filter_name=reading, tasks=chosen, language_of=language_of or {}
        )
        for (metric, reading), chosen in kinds.items()
    }


def _by_metric(items: TaskItems) -> dict[tuple[str, str], list[str]]:
    """Returns the tasks whose scores are of one kind: the usual metric, and a way to read answers."""
    kinds: dict[tuple[str, str], list[str]] = {}
    for name, (task, _) in items.items():
        metrics = [entry.metric for entry in task.metrics]
        metric = next((usual for usual in PREFERRED if usual in metrics), metrics[0])
        if metric in NOT_PER_ITEM:
            raise InputError(f"{task.path}: {metric} is a number of the whole text, which has no losses by item")
        for reading in task.filter_list:
            kinds.setdefault((metric, reading.name), []).append(name)
    return kinds


def _open_tasks(tasks: str | Path, names: Iterable[str] | None, limit: int | None) -> TaskItems:
    if limit is not None:
        whole("limit", limit, least=1)
    if isinstance(names, str):
        names = [names]
    chosen = read_tasks(tasks, names)
    if not chosen:
        raise InputError("no task is chosen; name one, or none for all")
    for task in chosen:
        if Path(task.task).name != task.task:
            raise InputError(
                f"{task.path}: the task {task.task!r:.60} would be files elsewhere; its name must have no /"
            )
    return {task.task: (task, read_items(task, limit)) for task in chosen}


def _evaluate(
    checkpoint: Checkpoint,
    items: TaskItems,
    out: str | Path,
    reader: Checkpoint,
    *,
    device: str,
    progress: Progress | None,
) -> TaskScores:
    """Returns the scores of a model on items, after computing those that are not in `out`.

    The files of the `reader` say how texts become tokens, and which tokens end an answer.
    """
    tokens, ends = RequestTokenizer(checkpoint, reader.tokenizer()), end_tokens(reader)
    run = RunWriter.open(out, Identity.of(checkpoint), tokenizer=reader.tokenizer_hash, ends=ends)
    with lock_directory(run.directory) as note:
        missing = run.missing(items)
        asked, done = TaskAnswers(checkpoint, tokens, ends=ends, device=device), 0
        for names in asked.parts({name: items[name] for name in missing}):
            show = within(progress, f"{done} of {count_of(len(missing), 'task')} done")
            for name, answers in asked.of({name: items[name] for name in names}, show).items():
                run.add(*items[name], answers)
            done += len(names)
    scores = {
        name: {key: value for key, value in totals.items() if isinstance(value, float)}
        for name, totals in run.content["results"].items()
    }
    counts = {name: len(some) for name, (_, some) in items.items()}
    notes = (*asked.notes, *(() if note is None else (note,)))
    return TaskScores(run.directory, checkpoint.target, scores, counts, tuple(missing), notes)
