"""PairedSamples: the same items before and after, by language, and the frame of what each language lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError, count_of
from fairbits.evaluation.lm_eval.metric import Metric, choose_filter, choose_metric
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


@dataclass(frozen=True, eq=False)
class PairedSamples:
    """Every item of two runs: its language, its id, its scores before and after, and its weight.

    Items are ids of `family:document`, so that translations share an id. Scores are sums where weights are not 1, as
    bits of a text and its bytes.
    """

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
        return all(bool(np.isin(scores, (0, 1)).all()) for scores in (self.before, self.after)) and bool(
            (self.weights == 1).all()
        )

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
    tasks: str | None = None,
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
    return PairedSamples(
        runs[0].directory,
        runs[1].directory,
        chosen,
        chosen_filter,
        by_language,
        np.array(lang),
        np.array(item),
        scores,
        later,
        weights,
        notes,
    )


def _common_tasks(before: RunFiles, after: RunFiles, *, pattern: str | None) -> list[str]:
    """Returns the tasks that match the pattern; both runs must have the same."""
    mine, theirs = (
        {task for task in run.samples if pattern is None or fnmatchcase(task, pattern)} for run in (before, after)
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
    return metric.bits(value) if isinstance(value, tuple) else (value, 1.0)


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
