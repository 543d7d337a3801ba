"""Correlations between traits of languages, with intervals and tests, and what they say about a prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairbits.core.array_checks import Floats
from fairbits.stats.correlation import spearman
from fairbits.stats.intervals import Estimate, holm
from fairbits_research.experiments.result import Answer, Cell, ResultTable, estimate_text, number_text
from fairbits_research.stats.correlation_tests import (
    PartialCorrelation,
    correlation_power,
    partial_correlation,
    permutation_test,
    sample_size_for_power,
)
from fairbits_research.stats.pearson_correlation import pearson

PERMUTATIONS = 9_999
LEAST_RESAMPLED = 10
"""Languages; with fewer, some resamples contain a single one."""
LEAST_DECIDING = 10
LEAST_FREE = 6
"""Languages minus covariates; with fewer the interval of a partial correlation says nothing."""
STRONG = 0.5
"""A correlation of this size would matter; the research notes report 0.83."""
POWER = 0.8
WEAK = 0.05
"""In planning a correlation below this counts as none: showing it would take more languages than exist."""
NONE = "–"


@dataclass(frozen=True, eq=False)
class TraitCorrelation:
    """The correlation of two traits: r with Fisher's and the bootstrap interval, rank ρ, permutation p, r given others.

    `among` says which languages it is over.
    """

    among: str
    x: str
    y: str
    r: Estimate
    bootstrap: Estimate | None
    ranks: Estimate
    p: float
    partial: PartialCorrelation | None
    covariates: tuple[str, ...]

    @property
    def adjusted(self) -> Estimate:
        """r given the covariates; r itself where there are too few languages or no covariate varies."""
        return self.r if self.partial is None else self.partial.estimate


def correlate(
    x: tuple[str, Floats],
    y: tuple[str, Floats],
    *,
    among: str,
    covariates: Mapping[str, Floats] | None = None,
    seed: int = 0,
) -> TraitCorrelation:
    """Returns the correlation of two named traits, and that given others which vary if there are enough languages."""
    a, b = x[1], y[1]
    varied = {name: values for name, values in (covariates or {}).items() if np.ptp(values) > 0}
    partial = None
    if varied and len(a) - len(varied) >= LEAST_FREE:
        fixed = np.column_stack(list(varied.values()))
        partial = partial_correlation(a, b, covariates=fixed, resamples=PERMUTATIONS, rng=seed)
    bootstrap = None
    if len(a) >= LEAST_RESAMPLED:
        bootstrap = pearson(a, b, interval="percentile", rng=seed).estimate
    return TraitCorrelation(
        among=among,
        x=x[0],
        y=y[0],
        r=pearson(a, b).estimate,
        bootstrap=bootstrap,
        ranks=spearman(a, b).estimate,
        p=permutation_test(a, b, resamples=PERMUTATIONS, rng=seed).p,
        partial=partial,
        covariates=tuple(varied) if partial else (),
    )


def correlation_tables(title: str, correlations: Sequence[TraitCorrelation]) -> tuple[ResultTable, ...]:
    """Returns the correlations as tables that fit a terminal; p values are adjusted by Holm for all of them.

    The second, where there is one, has the bootstrap interval and r given other traits.
    """
    adjusted = holm([correlation.p for correlation in correlations]).tolist() if correlations else []
    same = len({c.y for c in correlations}) == 1  # then the title says with what, which leaves room in a terminal
    title = f"{title}, with {correlations[0].y}" if same else title
    pairs = {c: (f"{c.r.n} {c.among}", c.x, *(() if same else (c.y,))) for c in correlations}
    rows: list[tuple[Cell, ...]] = [
        (*pairs[c], r_text(c.r), r_text(c.ranks), number_text(c.p), number_text(p))
        for c, p in zip(correlations, adjusted, strict=True)
    ]
    more: list[tuple[Cell, ...]] = [
        (
            *pairs[c],
            NONE if c.bootstrap is None else r_text(c.bootstrap),
            NONE if c.partial is None else r_text(c.partial.estimate),
            ", ".join(c.covariates) or NONE,
        )
        for c in correlations
        if c.bootstrap is not None or c.partial is not None
    ]
    names = ("among", "of") if same else ("among", "of", "with")
    first = ResultTable(title, (*names, "r", "rank ρ", "p", "p, Holm"), tuple(rows))
    second = ResultTable(f"{title}: checks", (*names, "r, bootstrap", "r given", "given"), tuple(more))
    return tuple(table for table in (first, second) if table.rows)


def r_text(r: Estimate) -> str:
    """Returns a correlation with its interval, to two decimals.

    >>> r_text(Estimate(-0.834, -0.93, -0.65, 14))
    '-0.83 [-0.93, -0.65]'
    """
    return f"{r.value:.2f} [{r.low:.2f}, {r.high:.2f}]"


def has_sign(estimate: Estimate, sign: int) -> Answer:
    """Returns whether a correlation has a sign: supported if its interval lies entirely on that side of 0.

    Not supported if the interval does not reach the size STRONG on that side; undecided otherwise, and with fewer than
    LEAST_DECIDING languages, where ranks may agree by chance and the interval is then a point.
    """
    if estimate.n < LEAST_DECIDING:
        return Answer.UNDECIDED
    low, high = sorted((sign * estimate.low, sign * estimate.high))
    if low > 0:
        return Answer.SUPPORTED
    return Answer.NOT_SUPPORTED if high < STRONG else Answer.UNDECIDED


def languages_needed(estimates: Mapping[str, Estimate]) -> str:
    """Returns how many languages would distinguish each correlation from 0, if it is as large as measured."""
    parts = []
    for name, r in estimates.items():
        if r.n < LEAST_DECIDING and r.excludes(0.0):
            parts.append(
                f"{name} is {estimate_text(r)}, but {r.n} languages are too few: name {LEAST_DECIDING} or more"
            )
        elif not r.excludes(0.0):
            strong = correlation_power(STRONG, r.n)
            n = f"{sample_size_for_power(r.value, POWER)}" if abs(r.value) >= WEAK else "over 3000"
            parts.append(
                f"{name} is {estimate_text(r)} with n = {r.n}: a correlation of {r.value:.2f} needs {n} "
                f"languages to be found in {POWER:.0%} of studies; this many languages find one of {STRONG:g} in "
                f"{strong:.0%}"
            )
    return "; ".join(parts)
