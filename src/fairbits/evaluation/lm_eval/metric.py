"""The metric that decides: which one, in which direction it is better, and in which unit a loss is given."""

from collections.abc import Sequence
from dataclasses import dataclass

from fairbits.core.errors import InputError
from fairbits.core.units import bits
from fairbits.evaluation.lm_eval.sample_files import RunFiles, TaskSamples, listed

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

    @staticmethod
    def bits(value: tuple[float, float]) -> tuple[float, float]:
        return bits(-value[0]), value[1]


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
