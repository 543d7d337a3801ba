"""OutcomeFrame: what languages lose where every item is right or wrong, before and after, and few items change.

Few items change, so that the usual intervals fail: of a language in which none of 100 items has changed, a bootstrap
would say that the loss is exactly 0. Tango's score interval (1998) holds: it asks of every loss D how likely the
observed changes are if D is true, with the share of changed items that fits D best. Exact coverage at 8 or more
expected changes: 94.3 % to 95.9 % for 100 to 900 items (tests/validity/test_outcomes.py); with fewer it is
conservative, because there are few possible results.

All other results, such as the worst language, are those of `LanguageFrame`. Its replicates are drawn here so that the
limits of every language, at every level, are Tango's: a replicate is a loss D that Tango's test rejects at the level of
a normal number z. The z of languages with common items are correlated as their changes are.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy  # its modules are loaded when they are used; scipy.stats alone would take a second
from numpy.typing import ArrayLike, NDArray

from fairbits.core.array_checks import Floats, nonnegative_array
from fairbits.core.checks import in_range, same_shape
from fairbits.core.errors import InputError
from fairbits.stats.draws import Draws, few_documents
from fairbits.stats.frame import Contrast, LanguageFrame
from fairbits.stats.intervals import holm
from fairbits.stats.resample import LEAST_DOCUMENTS, Replicates, replicates_of_none

MOST_ITEMS = 2.0**53
HALVINGS = 50
"""Steps of the bisection for a limit: its error is 2⁻⁴⁹."""
FARTHEST, POINTS = 8.0, 321
"""Limits are computed at this many z up to ± this one, and interpolated between them."""


def score_limit(lost: ArrayLike, gained: ArrayLike, items: ArrayLike, *, z: ArrayLike) -> Floats:
    """Returns the loss D that Tango's score test places z standard errors below the observed one; z < 0 lies above it.

    `lost` items were right and are wrong now, `gained` ones the other way round. D solves
    (lost − gained − nD)/√(n(2q + D(1 − D))) = z, where q is the likeliest share of gained items if D is true.
    The arguments may be arrays that broadcast.

    >>> score_limit(9, 2, 100, z=[1.96, 0.0, -1.96]).round(4).tolist()
    [0.006, 0.07, 0.1459]
    """
    b, c, n, target = np.broadcast_arrays(*(np.asarray(each, dtype=np.float64) for each in (lost, gained, items, z)))
    low, high = np.full(b.shape, -1.0), np.full(b.shape, 1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = _score(b, c, n, middle) > target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    found: Floats = (low + high) / 2
    return found


def mcnemar_p(lost: ArrayLike, gained: ArrayLike) -> Floats:
    """Returns the two-sided p of McNemar's exact test: as many items are lost as gained.

    p = min(1, 2·P(X ≤ min(lost, gained))), X ~ B(lost + gained, ½); 1 where no item has changed.

    >>> mcnemar_p([9, 0], [2, 0]).round(4).tolist()
    [0.0654, 1.0]
    """
    b, c = nonnegative_array("lost", lost, ndim=1), nonnegative_array("gained", gained, ndim=1)
    same_shape("gained", c.shape, "the shape of lost", b.shape)
    changed = np.minimum(b, MOST_ITEMS) + np.minimum(c, MOST_ITEMS)
    if changed.max(initial=0) >= MOST_ITEMS:
        raise InputError(f"lost and gained are {changed.max():g} items and more; they must be counts of items")
    found: Floats = np.minimum(1.0, 2 * scipy.special.bdtr(np.minimum(b, c), changed.astype(np.int64), 0.5))
    return found


@dataclass(frozen=True, eq=False)
class OutcomeFrame(LanguageFrame):
    """The loss of each language, (lost − gained)/n: the share of right items before minus that after.

    The values are 1 for an item that is lost, −1 for one that is gained and 0 for one that has not changed; weights
    are 1. Items with the same id in several languages may be translations of each other: their changes are then
    correlated, as the frame sees from the changes themselves. Ids without a meaning do no harm.

    >>> lost = np.r_[np.ones(9), -np.ones(2), np.zeros(89)]
    >>> frame = OutcomeFrame(np.full(100, "heb"), np.arange(100), values=lost, weights=np.ones(100), unit="per_item")
    >>> print(frame.by_language()["heb"], frame.contrast_with_none().p["heb"].__round__(3))
    0.0700 [0.0060, 0.1459] (n=100) 0.065
    """

    def __post_init__(self) -> None:
        """Checks the records, and that every value is the change of one item."""
        super().__post_init__()
        if not np.isin(self.values, (-1, 0, 1)).all() or (self.weights != 1).any():
            odd = self.values[~np.isin(self.values, (-1, 0, 1))]
            said = f"values hold {odd[0]:g}" if odd.size else "weights differ from 1"
            raise InputError(f"{said}; values must be 1 (lost), 0 (unchanged) or -1 (gained), and weights 1")

    @cached_property
    def changes(self) -> dict[str, tuple[int, int]]:
        """The numbers of lost and gained items of each language."""
        code = np.unique(self.lang, return_inverse=True)[1]
        lost, gained = (np.bincount(code, weights=self.values == each).astype(int).tolist() for each in (1, -1))
        return dict(zip(self.languages, zip(lost, gained, strict=True), strict=True))

    def contrast_with_none(self) -> Contrast:
        """Returns the losses with the p values of McNemar's exact test, as they are and adjusted by Holm."""
        p = mcnemar_p(*np.array(list(self.changes.values())).T)
        adjusted = holm(p)
        return Contrast(
            self.by_language(),
            dict(zip(self.languages, p.tolist(), strict=True)),
            dict(zip(self.languages, adjusted.tolist(), strict=True)),
        )

    @cached_property
    def _draws(self) -> Draws:
        code = np.unique(self.lang, return_inverse=True)[1]
        items = np.bincount(code)
        values = np.bincount(code, weights=self.values) / items
        refused = {
            lang: few_documents(int(n)) for lang, n in zip(self.languages, items, strict=True) if n < LEAST_DOCUMENTS
        }
        kept = np.array([i for i, lang in enumerate(self.languages) if lang not in refused], dtype=np.intp)
        drawn = self._replicates(code, kept, values[kept], items[kept]) if len(kept) else None
        return Draws(
            dict(zip(self.languages, values.tolist(), strict=True)),
            dict(zip(self.languages, items.tolist(), strict=True)),
            replicates_of_none(self.resamples) if drawn is None else drawn,
            refused,
            self.confidence,
        )

    def _replicates(
        self, code: NDArray[np.intp], kept: NDArray[np.intp], values: Floats, items: NDArray[np.intp]
    ) -> Replicates:
        """Returns replicates whose limits are Tango's, see the module.

        The standard error has one lost and one gained item added, as Bonett and Price (2012) do, so that it is not 0
        where nothing has changed. A resample has the same one: only quotients of the two matter.
        """
        languages = tuple(self.languages[i] for i in kept)
        lost, gained = np.array([self.changes[lang] for lang in languages], dtype=np.float64).T
        error = np.sqrt((lost + gained + 2) - (lost - gained) ** 2 / (items + 2)) / (items + 2)
        correlation, clusters = self._correlation(code, kept, error * (items + 2))
        z = _normal_scores(correlation, self.resamples, np.random.default_rng(self.seed))
        grid = np.linspace(-FARTHEST, FARTHEST, POINTS)
        limits = score_limit(lost[:, None], gained[:, None], items[:, None], z=grid)
        deviation = np.stack(
            [value - np.interp(column, grid, own) for value, column, own in zip(values, z.T, limits, strict=True)],
            axis=1,
        )
        spread = np.broadcast_to(error, deviation.shape)
        return Replicates(languages, values, error, deviation, spread, correlation, items, clusters)

    def _correlation(self, code: NDArray[np.intp], kept: NDArray[np.intp], scale: Floats) -> tuple[Floats, int]:
        """Returns the correlation of the estimates, from the changes of common items, and the number of all items."""
        own = np.isin(code, kept)
        column = np.searchsorted(kept, code[own])
        documents, row = np.unique(self.document[own], return_inverse=True)
        mean = np.bincount(column, weights=self.values[own]) / np.bincount(column)
        table = scipy.sparse.coo_array(
            (self.values[own] - mean[column], (row, column)), shape=(len(documents), len(kept))
        ).tocsc()
        cross = (table.T @ table).toarray() / np.outer(scale, scale)
        np.fill_diagonal(cross, 1.0)
        return cross, len(documents)


def _score(b: Floats, c: Floats, n: Floats, loss: Floats) -> Floats:
    """Returns Tango's score of a loss: how many standard errors the observed one lies above it."""
    linear = (2 * n - b + c) * loss - b - c
    q = (np.sqrt(np.maximum(linear**2 + 8 * n * c * loss * (1 - loss), 0.0)) - linear) / (4 * n)
    variance = n * (2 * q + loss * (1 - loss))
    found: Floats = (b - c - n * loss) / np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny))
    return found


def _normal_scores(correlation: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Returns normal numbers (count, language) with these correlations, whose quantiles in each column are exact."""
    spread, vectors = np.linalg.eigh(correlation)
    z = rng.standard_normal((count, len(spread))) @ (vectors * np.sqrt(np.maximum(spread, 0.0))).T
    scores = scipy.special.ndtri(np.arange(1, count + 1) / (count + 1))
    found: Floats = np.empty_like(z)
    np.put_along_axis(found, np.argsort(z, axis=0), scores[:, None], axis=0)
    return found


def noise_floor(frame: LanguageFrame, *, level: float = 0.05, power: float = 0.8) -> dict[str, tuple[float, float]]:
    """Returns, for each language with an interval, the change that is noise, and the loss that would be found.

    A change up to the first number is no evidence in a single language: chance alone exceeds it with probability
    `level`. A loss of the second number is found with probability `power` by Holm's test of all languages.
    """
    in_range("level", level, above=0, below=1)
    in_range("power", power, above=0, below=1)
    drawn = frame.bounded
    levels = (1 - level / 2, 1 - level / 2 / max(len(drawn.languages), 1), power)
    alone, together, reached = (float(scipy.special.ndtri(each)) for each in levels)
    return {
        lang: (alone * error, (together + reached) * error)
        for lang, error in zip(drawn.languages, drawn.error.tolist(), strict=True)
    }


def worst_by_chance(frame: LanguageFrame) -> float:
    """Returns the loss that the worst language would show on average if no language had lost anything."""
    drawn = frame.bounded
    if not drawn.languages:
        return 0.0
    return float((drawn.deviation - drawn.deviation.mean(axis=0)).max(axis=1).mean())
