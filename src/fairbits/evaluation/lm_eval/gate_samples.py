"""Gate of task scores: what every language lost between two runs of lm-eval, and whether that is within limits."""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fairbits.evaluation.gate import GateResult, check_limits, limit_check, significance_checks
from fairbits.evaluation.lm_eval.paired_samples import PairedSamples, pair_samples
from fairbits.stats.frame import Contrast, interval_notes
from fairbits.stats.intervals import Estimate
from fairbits.stats.outcomes import OutcomeFrame, noise_floor, worst_by_chance

LEVEL = 0.05


@dataclass(frozen=True)
class LanguageLoss:
    """What one language lost, and what chance would give; `p` is McNemar's exact test for right and wrong items."""

    language: str
    items: int
    before: float
    after: float
    loss: Estimate  # positive where the language is worse
    p: float
    p_holm: float  # corrected for the number of languages
    recovery: float | None  # after / before, or before / after if lower is better
    noise: float | None  # the change that chance alone exceeds in one of 20 cases
    detectable: float | None  # the loss that is found in 8 of 10 cases
    lost: int | None = None
    gained: int | None = None


@dataclass(frozen=True)
class SamplesGateResult:
    """The verdict on two runs of lm-eval, and the table behind it, the largest loss first."""

    verdict: GateResult
    metric: str
    test: str
    tasks: Mapping[str, tuple[str, ...]]
    languages: tuple[LanguageLoss, ...]
    worst: tuple[str, Estimate]
    mean: Estimate
    worst_by_chance: float

    def __bool__(self) -> bool:
        return self.verdict.passed

    def as_data(self) -> dict[str, Any]:
        rows = [asdict(row) | {"loss": row.loss.to_dict()} for row in self.languages]
        return self.verdict.as_data() | {
            "metric": self.metric,
            "test": self.test,
            "tasks": {code: list(names) for code, names in self.tasks.items()},
            "languages": rows,
            "worst": {"language": self.worst[0], **self.worst[1].to_dict()},
            "mean": self.mean.to_dict(),
            "worst_by_chance": self.worst_by_chance,
        }


def gate_samples(
    before: str | Path,
    after: str | Path,
    *,
    max_worst: float | None = None,
    max_mean: float | None = None,
    max_gap: float | None = None,
    metric: str | None = None,
    filter_name: str | None = None,
    tasks: str | Collection[str] | None = None,
    language_of: Mapping[str, str] | None = None,
) -> SamplesGateResult:
    """Returns what every language lost between two runs of lm-eval, and a verdict.

    Both are directories that `lm_eval --log_samples --output_path` wrote. Limits are as in `gate`; without one the
    verdict is a failure if a language is significantly worse after Holm's correction, or the mean of the languages is.
    `tasks` is a pattern such as `belebele_*`, or several; `language_of` has the languages of tasks whose names do not
    contain one.
    """
    limits = check_limits(max_worst, max_mean, max_gap)
    paired = pair_samples(before, after, metric=metric, filter_name=filter_name, tasks=tasks, language_of=language_of)
    frame, contrast = paired.frame, paired.frame.contrast_with_zero()
    name = paired.metric.name
    unit = None if paired.metric.weighted else name
    checks = [limit_check(frame, limited, limit, unit=unit) for limited, limit in limits.items()]
    if not limits:
        checks += significance_checks(contrast, {"mean": frame.mean()}, frame, unit=unit)
    verdict = GateResult(
        str(paired.after_run),
        f"loss of {name}",
        paired.metric.unit,
        tuple(checks),
        improved=tuple(sorted(set(contrast.significant(LEVEL)) - set(contrast.worse(LEVEL)))),
        notes=(*paired.notes, *interval_notes(frame)),
    )
    test = "McNemar, exact" if isinstance(frame, OutcomeFrame) else "paired bootstrap"
    totals = frame.worst(), frame.mean(), worst_by_chance(frame)
    return SamplesGateResult(verdict, name, test, paired.tasks, _rows(paired, contrast), *totals)


def _rows(paired: PairedSamples, contrast: Contrast) -> tuple[LanguageLoss, ...]:
    floors, higher = noise_floor(paired.frame), paired.metric.higher_is_better
    changes = paired.frame.changes if isinstance(paired.frame, OutcomeFrame) else {}
    rows = []
    for code, loss in contrast.differences.items():
        before, after = paired.scores[code]
        over, under = (after, before) if higher else (before, after)
        noise, detectable = floors.get(code, (None, None))
        tested = contrast.p[code], contrast.p_holm[code], over / under if under else None
        lost, gained = changes.get(code, (None, None))
        rows.append(LanguageLoss(code, loss.n, before, after, loss, *tested, noise, detectable, lost, gained))
    return tuple(sorted(rows, key=lambda row: -row.loss.value))
