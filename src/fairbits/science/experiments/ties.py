"""Ties: correlations across languages in full, and what they say of a prediction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fairbits.checks import Floats
from fairbits.science.experiments.result import Answer, Cell, Table, brief, written
from fairbits.science.stats import (
    PartialCorrelation,
    correlation_power,
    partial_correlation,
    permutation_test,
    sample_size_for_power,
)
from fairbits.stats import Estimate, holm, pearson, spearman

PERMUTATIONS = 9_999
LEAST_RESAMPLED = 10
"""Languages; of fewer, some resample holds one of them alone."""
LEAST_DECIDING = 10
LEAST_FREE = 6
"""Languages less covariates; with fewer a partial correlation has no interval to speak of."""
STRONG = 0.5
"""A correlation of this size would matter; the founding documents found 0.83."""
POWER = 0.8
WEAK = 0.05
"""A correlation below this is taken for none in planning: more languages than there are could not show it."""
NONE = "–"


@dataclass(frozen=True, eq=False)
class Tie:
    """How two traits go together: r with Fisher's and the bootstrap interval, ranks, permutation p, and r given others.

    `among` says in which languages; `p_holm` is adjusted for all ties of the same table.
    """

    among: str
    x: str
    y: str
    r: Estimate
    bootstrap: Estimate | None
    ranks: Estimate
    p: float
    partial: PartialCorrelation | None
    given: tuple[str, ...]


def tie(
    x: tuple[str, Floats],
    y: tuple[str, Floats],
    *,
    among: str,
    given: Mapping[str, Floats] | None = None,
    seed: int = 0,
) -> Tie:
    """Returns how two named traits go together, and given others as far as they vary and there are languages enough."""
    a, b = x[1], y[1]
    varied = {name: values for name, values in (given or {}).items() if np.ptp(values) > 0}
    partial = None
    if varied and len(a) - len(varied) >= LEAST_FREE:
        held = np.column_stack(list(varied.values()))
        partial = partial_correlation(a, b, covariates=held, resamples=PERMUTATIONS, rng=seed)
    bootstrap = None
    if len(a) >= LEAST_RESAMPLED:
        bootstrap = pearson(a, b, interval="percentile", rng=seed).estimate
    return Tie(
        among=among,
        x=x[0],
        y=y[0],
        r=pearson(a, b).estimate,
        bootstrap=bootstrap,
        ranks=spearman(a, b).estimate,
        p=permutation_test(a, b, resamples=PERMUTATIONS, rng=seed).p,
        partial=partial,
        given=tuple(varied) if partial else (),
    )


def ties_table(title: str, ties: Sequence[Tie]) -> Table:
    """Returns the ties as a table, with p values adjusted by Holm for all of them."""
    adjusted = holm([each.p for each in ties]).tolist()
    columns = ("languages", "n", "of", "with", "r", "r, bootstrap", "rank ρ", "p", "p, Holm", "r given", "given")
    rows = tuple(_row(each, p) for each, p in zip(ties, adjusted, strict=True))
    return Table(title, columns, rows)


def of_sign(estimate: Estimate, sign: int) -> Answer:
    """Returns whether a correlation has a sign: supported if its interval lies beyond 0 on that side.

    Not supported if the interval does not reach the size STRONG on that side; else undecided, as it is with fewer
    than LEAST_DECIDING languages, where ranks may agree by luck and then leave no interval.

    >>> [of_sign(Estimate(r, r - 0.2, r + 0.2, 80), -1).value for r in (-0.6, -0.1, 0.4)]
    ['supported', 'not supported', 'not supported']
    """
    if estimate.n < LEAST_DECIDING:
        return Answer.UNDECIDED
    low, high = sorted((sign * estimate.low, sign * estimate.high))
    if low > 0:
        return Answer.SUPPORTED
    return Answer.NOT_SUPPORTED if high < STRONG else Answer.UNDECIDED


def needed(estimates: Mapping[str, Estimate]) -> str:
    """Returns how many languages would tell each correlation from 0, if it is as large as it was found."""
    parts = []
    for name, each in estimates.items():
        if not each.excludes(0.0):
            strong = correlation_power(STRONG, each.n)
            n = f"{sample_size_for_power(each.value, POWER)}" if abs(each.value) >= WEAK else "over 3000"
            parts.append(
                f"{name} is {written(each)} with n = {each.n}: for a correlation of {each.value:.2f} it takes {n} "
                f"languages to be told from 0 in {POWER:.0%} of studies; one of {STRONG:g} is found here in "
                f"{strong:.0%}"
            )
    return "; ".join(parts)


def _row(each: Tie, adjusted: float) -> tuple[Cell, ...]:
    return (
        each.among,
        each.r.n,
        each.x,
        each.y,
        written(each.r),
        NONE if each.bootstrap is None else written(each.bootstrap),
        written(each.ranks),
        brief(each.p),
        brief(adjusted),
        NONE if each.partial is None else written(each.partial.estimate),
        ", ".join(each.given) or NONE,
    )
