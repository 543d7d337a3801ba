"""PairedSamples: the same items before and after, by language, the metric that decides, and what each language lost."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError, count_of
from fairbits.core.units import bits
from fairbits.evaluation.lm_eval.sample_files import (
    HASHES,
    RunFiles,
    TaskSamples,
    Value,
    find_run,
    listed,
    read_samples,
)
from fairbits.evaluation.lm_eval.task_language import task_family, task_languages
from fairbits.stats.frame import LanguageFrame
from fairbits.stats.outcomes import OutcomeFrame

CONFIGURED = (
    *("output_type", "num_fewshot", "repeats", "generation_kwargs", "filter_list", "description"),
    *("doc_to_text", "doc_to_target", "doc_to_choice", "target_delimiter", "fewshot_delimiter"),
)
"""What the configurations of a task must have in common; functions and paths are ignored."""
RESAMPLES_PER_LANGUAGE = 100  # resamples that a p value needs to be significant after Holm's correction
PREFERRED = ("acc", "exact_match", "bits_per_byte")  # the metrics that are used by default, in this order
HIGHER = {
    **dict.fromkeys(("acc", "acc_norm", "acc_bytes", "exact_match", "em", "f1", "mcc", "bleu", "chrf"), True),
    **dict.fromkeys(("bits_per_byte", "ter", "brier_score"), False),
}
"""Whether higher is better, where no results file says so."""
CHOICES = 12  # filters or metrics that an error offers
KINDS = 3  # tasks with other metrics than the others that an error shows
NOT_PER_ITEM = {"perplexity": "acc", "word_perplexity": "bits_per_byte", "byte_perplexity": "bits_per_byte"}
"""Metrics whose samples are log-likelihoods, which are not a score of an item, and what to use instead."""


@dataclass(frozen=True)
class Metric:
    """A metric: its name, whether higher is better, and whether an item is a log-likelihood of so many bytes."""

    name: str
    higher_is_better: bool
    weighted: bool

    @property
    def unit(self) -> str:
        return "bits_per_byte" if self.weighted else "per_item"


def choose_filter(samples: Sequence[TaskSamples], wanted: str | None) -> str:
    """Returns the filter of answers that decides: the one given, or the only one that there is."""
    common = [name for name in samples[0].filters if all(name in task.filters for task in samples)]
    if wanted is not None and wanted in common:
        return wanted
    if wanted is None and len(common) == 1:
        return common[0]
    problem = f"--filter is {wanted!r:.40}" if wanted else f"the tasks have {len(common)} filters of answers in common"
    offered = listed(common, CHOICES) or "none: choose fewer tasks with --tasks"
    raise InputError(f"{problem}; it must be one that all tasks have ({offered}): give --filter NAME")


def choose_metric(samples: Sequence[TaskSamples], filter_name: str, wanted: str | None, run: RunFiles) -> Metric:
    """Returns the metric that decides: the one given, or the first of acc, exact_match and bits_per_byte that all have.

    If the tasks have none of these in common, it is the only one that they have in common.
    """
    metrics = [task.metrics[filter_name] for task in samples]
    common = [name for name in metrics[0] if all(name in names for names in metrics)]
    by_default = [name for name in PREFERRED if name in common] or (common if len(common) == 1 else [])
    name = wanted or (by_default[0] if by_default else "")
    if name not in common:
        problem = f"--metric is {wanted!r:.40}" if wanted else "no metric is the usual one of all tasks"
        if not common:
            kinds = {listed(names): task.task for task, names in zip(samples, metrics, strict=True)}
            shown = "; ".join(f"{task} has {names}" for names, task in list(kinds.items())[:KINDS])
            raise InputError(f"the tasks have no metric in common ({shown}); choose tasks with --tasks 'PATTERN'")
        raise InputError(
            f"{problem}; it must be one that all tasks have ({listed(common, CHOICES)}): give --metric NAME"
        )
    if name in NOT_PER_ITEM:
        raise InputError(f"{name} is a number of the whole text, not of an item; use --metric {NOT_PER_ITEM[name]}")
    return Metric(name, _higher_is_better(samples, name, run), _weighted(samples, filter_name, name))


def _higher_is_better(samples: Sequence[TaskSamples], name: str, run: RunFiles) -> bool:
    results = {task.task: run.results[task.task] for task in samples}
    stated = {result.higher_is_better.get(task, {}).get(name) for task, result in results.items() if result is not None}
    directions = {direction for direction in stated if direction is not None}
    if len(directions) > 1:
        raise InputError(f"{name} is better if higher in some tasks and if lower in others; choose fewer with --tasks")
    if directions:
        return directions.pop()
    if name not in HIGHER:
        raise InputError(
            f"it is not known whether a higher {name} is better, because results_*.json is missing or does not say so; "
            "put it next to the samples, or choose another --metric"
        )
    return HIGHER[name]


def _weighted(samples: Sequence[TaskSamples], filter_name: str, name: str) -> bool:
    _, scores = next(iter(samples[0].filters[filter_name].values()))
    pair = isinstance(scores[name], list)
    if pair and name != "bits_per_byte":
        raise InputError(
            f"an item's {name} is {scores[name]!r:.60}, from which lm-eval computes one number for all items; choose "
            "a --metric that every item has"
        )
    return pair


@dataclass(frozen=True, eq=False)
class PairedSamples:
    """Every item of two runs; translations share an id. Scores are sums where weights are not 1."""

    before_run: Path
    after_run: Path
    metric: Metric
    filter: str
    tasks: dict[str, tuple[str, ...]]
    lang: NDArray[np.str_]
    item: NDArray[np.str_]
    before: Floats
    after: Floats
    weights: Floats
    notes: tuple[str, ...] = ()

    @cached_property
    def frame(self) -> LanguageFrame:
        """The frame of the loss of every language: positive is worse, whatever the metric."""
        loss = (self.before - self.after) if self.metric.higher_is_better else (self.after - self.before)
        languages = len(np.unique(self.lang))
        return (OutcomeFrame if self.right_or_wrong else LanguageFrame)(
            self.lang,
            self.item,
            values=loss,
            weights=self.weights,
            unit=self.metric.unit,
            resamples=max(10_000, RESAMPLES_PER_LANGUAGE * languages),
        )

    @cached_property
    def right_or_wrong(self) -> bool:
        """Whether every item is right (1) or wrong (0) in both runs."""
        binary = all(bool(np.isin(scores, (0, 1)).all()) for scores in (self.before, self.after))
        return binary and bool((self.weights == 1).all())

    @cached_property
    def scores(self) -> dict[str, tuple[float, float]]:
        languages, code = np.unique(self.lang, return_inverse=True)
        total = np.bincount(code, weights=self.weights)
        both = [(np.bincount(code, weights=scores) / total).tolist() for scores in (self.before, self.after)]
        return dict(zip(languages.tolist(), zip(*both, strict=True), strict=True))


def pair_samples(
    before: str | Path,
    after: str | Path,
    *,
    metric: str | None = None,
    filter_name: str | None = None,
    tasks: str | Collection[str] | None = None,
    language_of: Mapping[str, str] | None = None,
) -> PairedSamples:
    """Returns the items of two runs of lm-eval, paired; refuses runs with different tasks, items or prompts."""
    runs = find_run(before), find_run(after)
    names = _common_tasks(*runs, pattern=tasks)
    codes = task_languages(names, language_of or {})
    for task in names:
        _check_configuration(task, *runs)
    both = {task: _read(task, *runs) for task in names}
    firsts = [before_samples for before_samples, _ in both.values()]
    chosen_filter = choose_filter(firsts, filter_name)
    chosen = choose_metric(firsts, chosen_filter, metric, runs[0])
    lang: list[str] = []
    item: list[str] = []
    columns: list[list[tuple[float, float]]] = [[], []]
    seen: set[tuple[str, str]] = set()
    for task, pair in both.items():
        documents = sorted(pair[0].filters[chosen_filter])
        lang += [codes[task]] * len(documents)
        family = task_family(task) if (codes[task], task_family(task)) not in seen else task
        seen.add((codes[task], family))
        item += [f"{family}:{document}" for document in documents]
        for column, samples in zip(columns, pair, strict=True):
            values = samples.values(chosen_filter, chosen.name)
            column += [_score(chosen, values[document], samples) for document in documents]
    (scores, weights), (later, later_weights) = (np.array(column).T for column in columns)
    if not np.array_equal(weights, later_weights):
        raise InputError(f"{chosen.name} counts other bytes before and after; both runs must read the same text")
    by_language: dict[str, tuple[str, ...]] = {}
    for task in names:
        by_language[codes[task]] = (*by_language.get(codes[task], ()), task)
    notes = (*runs[0].notes, *runs[1].notes, *_version_notes(*runs), *_pooled_notes(by_language))
    directories = runs[0].directory, runs[1].directory
    items = np.array(lang), np.array(item), scores, later, weights
    return PairedSamples(*directories, chosen, chosen_filter, by_language, *items, notes)


def _common_tasks(before: RunFiles, after: RunFiles, *, pattern: str | Collection[str] | None) -> list[str]:
    """Returns the tasks that match a pattern, or one of several; both runs must have the same."""
    patterns = ["*"] if pattern is None else [pattern] if isinstance(pattern, str) else pattern
    mine, theirs = (
        {task for task in run.samples if any(fnmatchcase(task, one) for one in patterns)} for run in (before, after)
    )
    if not mine | theirs:
        raise InputError(f"--tasks is {pattern!r:.60} and matches none of {listed(before.samples)}")
    if mine != theirs:
        alone = listed(sorted(mine ^ theirs))
        raise InputError(
            f"the runs have different tasks ({len(mine - theirs)} only before, {len(theirs - mine)} only after: "
            f"{alone}); run the same tasks, or choose common ones with --tasks"
        )
    return sorted(mine)


def _check_configuration(task: str, before: RunFiles, after: RunFiles) -> None:
    results = before.results[task], after.results[task]
    if results[0] is None or results[1] is None:
        return
    first, second = (
        {"versions": result.versions.get(task), "n-shot": result.n_shot.get(task)}
        | {key: result.configs.get(task, {}).get(key) for key in CONFIGURED}
        | {key: getattr(result, key) for key in ("chat_template_sha", "system_instruction_sha")}
        for result in (results[0], results[1])
    )
    for name, value in first.items():
        is_function = " at 0x" in f"{value} {second[name]}"  # which has another address in every run
        if value != second[name] and not is_function:
            raise InputError(
                f"{task} was not the same task: {name} was {value!r:.60} before and is {second[name]!r:.60} after; run "
                "both with the same version of lm-eval and the same settings"
            )


def _read(task: str, before: RunFiles, after: RunFiles) -> tuple[TaskSamples, TaskSamples]:
    """Returns the samples of a task in both runs; their items must be the same."""
    first, second = (read_samples(task, run.samples[task]) for run in (before, after))
    if list(first.filters) != list(second.filters):
        raise InputError(
            f"{task} has the filters {listed(first.filters)} before and {listed(second.filters)} after; run the "
            "same version of the task"
        )
    for name, mine in first.filters.items():
        theirs = second.filters[name]
        if mine.keys() != theirs.keys():
            alone = sorted(mine.keys() ^ theirs.keys())
            raise InputError(
                f"{task} has {count_of(len(mine), 'item')} before and {count_of(len(theirs), 'item')} after, "
                f"and document {alone[0]} is in one of them only; run both with the same --limit and --samples"
            )
        for document, (hashes, _) in mine.items():
            if hashes != theirs[document][0]:
                pairs = zip(HASHES, hashes, theirs[document][0], strict=True)
                kind = next(name for name, hash_before, hash_after in pairs if hash_before != hash_after)
                what = {"doc_hash": "text", "prompt_hash": "prompt", "target_hash": "target"}[kind]
                raise InputError(
                    f"{task}: document {document} has another {what} after than before ({kind}); both runs must ask "
                    "the same: same data, --num_fewshot, seed and chat template"
                )
    return first, second


def _score(metric: Metric, value: Value, samples: TaskSamples) -> tuple[float, float]:
    if metric.weighted != isinstance(value, tuple):
        raise InputError(
            f"{metric.name} in {samples.path} is sometimes a pair and sometimes a number; run lm-eval again"
        )
    return (bits(-value[0]), value[1]) if isinstance(value, tuple) else (value, 1.0)  # bits of a text and its bytes


def _version_notes(before: RunFiles, after: RunFiles) -> tuple[str, ...]:
    notes = []
    for name in ("lm_eval_version", "transformers_version"):
        versions = [
            sorted({getattr(results, name) for results in run.results.values() if results} - {None})
            for run in (before, after)
        ]
        if versions[0] != versions[1] and all(versions):
            notes.append(f"{name}: {', '.join(versions[0])} before, {', '.join(versions[1])} after")
    return tuple(notes)


def _pooled_notes(tasks: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    several = {code: names for code, names in tasks.items() if len(names) > 1}
    if not several:
        return ()
    code, names = next(iter(several.items()))
    return (
        f"{count_of(len(several), 'language')} with several tasks: their items are pooled with equal weight ({code}: "
        f"{listed(names)}); --tasks shows one alone",
    )
