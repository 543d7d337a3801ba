"""Power: how much text per language decides a release, from a small evaluation and before any other is paid for."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fairbits.core.checks import in_range, instance, one_of, whole
from fairbits.core.errors import InputError, count_of
from fairbits.core.progress import SIMULATING, Progress, begin
from fairbits.core.table import Cell, Shown, Table, data_frame, dim
from fairbits.core.units import LEAST_DOCUMENTS, MEASURE_LABELS, MEASURES
from fairbits.core.version import __version__
from fairbits.evaluation.gate import Check, changes_check, limit_check
from fairbits.evaluation.meaning import SUGGESTED
from fairbits.evaluation.measurement import BOUND
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.simulated_releases import PilotDocuments, RescaledDocuments
from fairbits.stats.frame import LanguageFrame, estimate_columns
from fairbits.stats.intervals import Estimate
from fairbits.stats.outcomes import share_estimate

if TYPE_CHECKING:
    import pandas

FALSE_PASSES, MISSES = 0.05, 0.20
"""The shares that an amount of text may have to count as enough."""
MOST_TOKENS = 2**20  # per language; more is not tried
REACHED = 0.8  # of the requested tokens: a language with fewer has no more text
BRACKET = 50  # releases of each kind at amounts that are certainly not enough
LEGEND = (
    "False passes: releases exactly at the limit that pass. Misses: releases at the expected value that do not pass. "
    "In parentheses: 95 % intervals over so many simulated releases of each kind."
)


@dataclass(frozen=True)
class AmountTrial:
    """What the gate decides with an amount of text per language; counts of simulated releases."""

    documents: int
    tokens: int
    releases: int = 0
    false_passes: int = 0
    misses: int = 0
    undecided_at_limit: int = 0
    undecided_at_expected: int = 0

    @property
    def false_pass_share(self) -> Estimate:
        return share_estimate(self.false_passes, self.releases)

    @property
    def miss_share(self) -> Estimate:
        return share_estimate(self.misses, self.releases)

    @property
    def enough(self) -> bool:
        return self.false_pass_share.value <= FALSE_PASSES and self.miss_share.value <= MISSES


@dataclass(frozen=True, repr=False)
class Power(Shown):
    """How often the gate decides wrongly with each amount of text; the last one is the answer if it is enough."""

    target: str
    limit: float
    expected: float
    measure: str | None
    languages: int
    pilot_documents: int
    pilot_tokens: int
    short: tuple[str, ...]  # languages whose text ended before that
    trials: tuple[AmountTrial, ...]
    searched: bool
    seed: int

    @property
    def enough(self) -> bool:
        return self.trials[-1].enough

    def __bool__(self) -> bool:
        """The same as `enough`."""
        return self.enough

    @property
    def unit(self) -> str:
        return "of 100" if self.measure is None else "bits per byte"

    @property
    def sentence(self) -> str:
        """Whether the last amount decides, and how often."""
        last = self.trials[-1]
        shares = (
            f"of {last.releases:,} simulated releases at the limit, {percent(last.false_pass_share.value)} pass; of "
            f"{last.releases:,} at {self.expected:g} {self.unit}, {percent(1 - last.miss_share.value)} pass"
        )
        amount = f"{last.tokens:,} tokens per language"
        if last.enough:
            return f"{amount} decide: {shares}."
        if not self.searched:
            return f"{amount} do not decide: {shares}."
        return (
            f"No amount up to {MOST_TOKENS:,} tokens per language decides, because {self.expected:g} is too near to "
            f"the limit, {self.limit:g}. With {amount}, {shares}."
        )

    def tables(self) -> list[Table]:
        what = "changed tokens" if self.measure is None else f"worst language by {MEASURE_LABELS[self.measure]}"
        title = f"{what}: limit {self.limit:g} {self.unit}; a good release has {self.expected:g} (--expected)"
        counts = ("documents\nper language", "tokens\nper language")
        headers = (*counts, "\nfalse passes", "\nmisses", "\nreleases")
        rows = tuple(
            (
                f"{trial.documents:,}",
                f"{trial.tokens:,}",
                share_cell(trial.false_pass_share),
                share_cell(trial.miss_share),
                f"{trial.releases:,}",
            )
            for trial in self.trials
        )
        pilot = (
            f"from {self.target}: {self.languages} languages, at least {self.pilot_documents:,} documents and up to "
            f"{self.pilot_tokens:,} tokens of each"
        )
        if self.short:
            pilot += f"; had less text, so more tokens need more text: {', '.join(self.short)}"
        return [Table(title, headers, rows, (dim(LEGEND), "", self.sentence), (dim(pilot), ""))]

    def to_pandas(self) -> "pandas.DataFrame":
        columns = {name: [getattr(t, name) for t in self.trials] for name in ("tokens", "documents", "releases")}
        columns |= estimate_columns("false_passes", (trial.false_pass_share for trial in self.trials))
        columns |= estimate_columns("misses", (trial.miss_share for trial in self.trials))
        return data_frame(columns, index="tokens")

    def as_data(self) -> dict[str, Any]:
        last = self.trials[-1]
        return {
            "schema": "fairbits.power/1",
            "fairbits": __version__,
            **{name: value for name, value in asdict(self).items() if name != "trials"},
            "unit": self.unit,
            "enough": self.enough,
            "tokens": last.tokens if last.enough else None,
            "documents": last.documents if last.enough else None,
            "sentence": self.sentence,
            "trials": [
                asdict(trial)
                | {"false_pass_share": trial.false_pass_share.to_dict(), "miss_share": trial.miss_share.to_dict()}
                for trial in self.trials
            ],
        }


def percent(share: float) -> str:
    """Returns a share in percent."""
    return f"{100 * share:.3g} %"


def share_cell(share: Estimate) -> Cell:
    """Returns a share with its interval for a table."""
    return [percent(share.value), (f" ({100 * share.low:.1f}–{100 * share.high:.1f})", "dim")]


def power(
    scores: Scores | str | Path,
    *,
    max_changed: float | None = None,
    max_worst: float | None = None,
    expected: float | None = None,
    tokens: int | None = None,
    measure: str = MEASURES[0],
    releases: int = 400,
    seed: int = 0,
    progress: Progress | None = None,
) -> Power:
    """Returns how often a gate decides wrongly with how much text, and the smallest amount that is enough.

    `scores` are those of a small evaluation, the pilot, in the same languages and on the same kind of text; a file or
    the result of `evaluate`. The limit is `max_changed` or `max_worst`, as for `gate`. Releases are simulated whose
    worst language is truly at the limit, of which at most 5 % may pass, and others where it is truly at `expected`, by
    default half of the limit, of which at least 80 % must pass. `tokens` asks about one amount per language only.
    """
    pilot = Scores.load(scores) if isinstance(scores, str | Path) else instance("scores", scores, Scores)
    frame, limit, judge = _question(pilot, max_changed, max_worst, one_of("measure", measure, MEASURES))
    expected = in_range("the expected value", limit / 2 if expected is None else expected, above=0)
    if expected >= limit:
        raise InputError(
            f"the expected value is {expected:g} and the limit is {limit:g}; no amount of text shows that a value is "
            "within a limit that it does not keep: expect less, or raise the limit"
        )
    whole("releases", releases, least=BRACKET)
    if frame.without_interval:
        code, reason = next(iter(frame.without_interval.items()))
        raise InputError(
            f"{pilot.quantized.name} has no interval for {code} ({reason}), so it does not say how much documents "
            "differ; evaluate more text"
        )
    documents = PilotDocuments(frame, counts=max_changed is not None)
    scale = 100 if max_changed is not None else 1
    at_limit, at_expected = (documents.rescaled(value / scale) for value in (limit, expected))
    least = min(estimate.n for estimate in frame.by_language().values())
    simulation = _Simulation(
        at_limit, at_expected, judge, least, _tokens(pilot), whole("seed", seed, least=0), progress
    )
    if tokens is None:
        trials = simulation.search(releases)
    else:
        times = whole("tokens", tokens, least=1, most=MOST_TOKENS) / simulation.tokens
        if round(times * least) < LEAST_DOCUMENTS:
            raise InputError(
                f"{tokens:,} tokens are {count_of(round(times * least), 'document')} of this kind; an interval needs "
                f"at least {LEAST_DOCUMENTS}: ask about more tokens"
            )
        trials = [simulation.run(times, releases)]
    return Power(
        target=pilot.quantized.name,
        limit=limit,
        expected=expected,
        measure=None if max_changed is not None else measure,
        languages=len(frame.languages),
        pilot_documents=least,
        pilot_tokens=simulation.tokens,
        short=_short(pilot),
        trials=tuple(trials),
        searched=tokens is None,
        seed=seed,
    )


def _question(
    pilot: Scores, max_changed: float | None, max_worst: float | None, measure: str
) -> tuple[LanguageFrame, float, Callable[[LanguageFrame], Check]]:
    """Returns what is measured, the limit, and the gate's decision on a release."""
    if (max_changed is None) is (max_worst is None):
        raise InputError(
            f"there is {'no limit' if max_changed is None else 'more than one limit'}; give either --max-changed, such "
            f"as {SUGGESTED:g}, or --max-worst (in Python max_changed or max_worst), as for gate"
        )
    if max_changed is not None:
        limit = in_range("max_changed", max_changed, above=0, below=100)
        uncertain = {} if pilot.measurement is None else pilot.measurement.undecided
        return pilot.changed_frame, limit, partial(changes_check, limit=limit, what="tokens", uncertain=uncertain)
    if measure == "divergence" and pilot.kl_kind == BOUND:
        raise InputError(
            f"the KL divergence of {pilot.quantized.target} is a lower bound, and no amount of text lets a gate pass "
            'on it: use --measure loss (in Python measure="loss") or --max-changed'
        )
    limit = in_range("the limit of the worst language", max_worst or 0.0, above=0)
    return pilot.frame(measure=measure), limit, partial(limit_check, name="worst language", limit=limit)


def _tokens(pilot: Scores) -> int:
    """Returns the tokens per language that give a pilot: what was requested, unless all languages had less text."""
    most = max(_counts(pilot).values())
    return pilot.setting.tokens if most >= REACHED * pilot.setting.tokens else round(most)


def _short(pilot: Scores) -> tuple[str, ...]:
    """Returns the languages whose text was shorter than that of others."""
    return tuple(code for code, count in _counts(pilot).items() if count < REACHED * _tokens(pilot))


def _counts(pilot: Scores) -> dict[str, float]:
    docs = pilot.documents
    return {code: float(docs.tokens[docs.lang == code].sum()) for code in pilot.languages}


@dataclass(frozen=True, eq=False)
class _Simulation:
    """Releases at the limit and at the expected value; `documents` and `tokens` are the pilot's, per language."""

    at_limit: RescaledDocuments
    at_expected: RescaledDocuments
    judge: Callable[[LanguageFrame], Check]
    documents: int
    tokens: int
    seed: int
    progress: Progress | None

    def search(self, releases: int) -> list[AmountTrial]:
        """Returns what was tried, with the smallest amount that is enough last, if there is one."""
        trials, times = [self._try(1.0, releases)], 1.0
        while not trials[-1].enough and 2 * times * self.tokens <= MOST_TOKENS:
            times *= 2
            trials.append(self._try(times, releases))
        if trials[-1].enough and times > 1:
            between = self._try(0.75 * times, releases)
            trials[-1:] = [between] if between.enough else [between, trials[-1]]
        return trials

    def _try(self, times: float, releases: int) -> AmountTrial:
        """Returns the decisions of few releases, and of all where these may be enough."""
        few = self.run(times, BRACKET)
        hopeless = few.miss_share.low > MISSES or few.false_pass_share.low > FALSE_PASSES
        return few if hopeless else self.run(times, releases, few)

    def run(self, times: float, releases: int, before: AmountTrial | None = None) -> AmountTrial:
        """Returns the decisions of so many releases with `times` as much text as the pilot, some known from before."""
        tokens, first = round(times * self.tokens), 0 if before is None else before.releases
        stage = f"{SIMULATING}, {tokens:,} tokens per language"
        trial = before or AmountTrial(round(times * self.documents), tokens)
        begin(self.progress, stage)
        for i in range(first, releases):
            rng = np.random.default_rng([self.seed, tokens, i])
            bad, good = (self.judge(kind.draw(times, rng)).outcome for kind in (self.at_limit, self.at_expected))
            trial = replace(
                trial,
                releases=i + 1,
                false_passes=trial.false_passes + (bad == "pass"),
                misses=trial.misses + (good != "pass"),
                undecided_at_limit=trial.undecided_at_limit + (bad == "undecided"),
                undecided_at_expected=trial.undecided_at_expected + (good == "undecided"),
            )
            if self.progress is not None:
                self.progress(stage, i + 1 - first, releases - first)
        return trial
