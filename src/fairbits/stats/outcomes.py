"""OutcomeFrame: what languages lose where every item is right or wrong, before and after, and few items change.

Few items change, so that the usual intervals fail: of a language in which none of 100 items has changed, a bootstrap
would say that the loss is exactly 0. Tango's score interval (1998) holds: it asks of every loss D how likely the
observed changes are if D is true, with the share of changed items that fits D best. Exact coverage at 8 or more
expected changes: 94.3 % to 95.9 % for 100 to 900 items (tests/validity/test_outcomes.py); with fewer it is
conservative, because there are few possible results.

All other results, such as the worst language, are computed as in `LanguageFrame`, from replicates that are drawn so
that the limits of every language, at every level, are Tango's: a replicate is a loss D that Tango's test rejects at the
level of a normal number z. The z of languages with common items are correlated as their changes are.
"""

from functools import cached_property

import numpy as np
import scipy  # its modules are loaded when they are used; scipy.stats alone would take a second
from numpy.typing import ArrayLike, NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.stats.draws import LanguageDraws
from fairbits.stats.frame import Contrast, LanguageFrame
from fairbits.stats.intervals import Estimate, holm
from fairbits.stats.resample import Replicates

HALVINGS = 50  # steps of the bisection for a limit: its error is 2⁻⁴⁹
FARTHEST, POINTS = 8.0, 321  # limits are computed at this many z up to ± this one, and interpolated between them


def score_limit(lost: ArrayLike, gained: ArrayLike, items: ArrayLike, *, z: ArrayLike) -> Floats:
    """Returns the loss D that Tango's score test places z standard errors below the observed one (above it if z < 0).

    `lost` items were right and are wrong now, `gained` ones the other way round. D solves
    (lost − gained − nD)/√(n(2q + D(1 − D))) = z, where q is the likeliest share of gained items if D is true.
    The arguments may be arrays that broadcast.
    """
    b, c, n, target = np.broadcast_arrays(*(np.asarray(x, dtype=np.float64) for x in (lost, gained, items, z)))
    low, high = np.full(b.shape, -1.0), np.full(b.shape, 1.0)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        below = _score(b, c, n, middle) > target
        low, high = np.where(below, middle, low), np.where(below, high, middle)
    limit: Floats = (low + high) / 2
    return limit


def mcnemar_p(lost: ArrayLike, gained: ArrayLike) -> Floats:
    """Returns the two-sided p of McNemar's exact test: as many items are lost as gained.

    p = min(1, 2·P(X ≤ min(lost, gained))), X ~ B(lost + gained, ½); 1 where no item has changed.
    """
    b, c = np.asarray(lost, dtype=np.float64), np.asarray(gained, dtype=np.float64)
    p: Floats = np.minimum(1.0, 2 * scipy.special.bdtr(np.minimum(b, c), (b + c).astype(np.int64), 0.5))
    return p


def share_estimate(count: int, items: int, confidence: float = 0.95) -> Estimate:
    """Returns the share of items that have something, with Wilson's score interval.

    >>> print(share_estimate(2, 15))
    0.1333 [0.0374, 0.3788] (n=15)
    """
    z, p = float(scipy.special.ndtri(0.5 + confidence / 2)), count / items
    middle, shrunk = (p + z**2 / (2 * items)), 1 + z**2 / items
    reach = z * float(np.sqrt(p * (1 - p) / items + z**2 / (4 * items**2)))
    low, high = (0.0 if not count else middle - reach), (shrunk if count == items else middle + reach)
    return Estimate(p, low / shrunk, high / shrunk, items, confidence)


class OutcomeFrame(LanguageFrame):
    """The loss of each language, (lost − gained)/n: the share of right items before minus the share after.

    The values are 1 for an item that is lost, −1 for one that is gained and 0 for one that has not changed; weights
    are 1. Items with the same id in several languages may be translations: their changes are then correlated.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.isin(self.values, (-1, 0, 1)).all() or (self.weights != 1).any():
            odd = self.values[~np.isin(self.values, (-1, 0, 1))]
            problem = f"values hold {odd[0]:g}" if odd.size else "weights differ from 1"
            raise InputError(f"{problem}; values must be 1 (lost), 0 (unchanged) or -1 (gained), and weights 1")

    @cached_property
    def changes(self) -> dict[str, tuple[int, int]]:
        code = np.unique(self.lang, return_inverse=True)[1]
        lost, gained = (np.bincount(code, weights=self.values == change).astype(int).tolist() for change in (1, -1))
        return dict(zip(self.languages, zip(lost, gained, strict=True), strict=True))

    def contrast_with_zero(self) -> Contrast:
        """Returns the losses with the p values of McNemar's exact test, as they are and adjusted by Holm."""
        p = mcnemar_p(*np.array(list(self.changes.values())).T)
        return Contrast(
            self.by_language(),
            dict(zip(self.languages, p.tolist(), strict=True)),
            dict(zip(self.languages, holm(p).tolist(), strict=True)),
        )

    @cached_property
    def draws(self) -> LanguageDraws:
        code = np.unique(self.lang, return_inverse=True)[1]
        items = np.bincount(code)
        values = np.bincount(code, weights=self.values) / items

        def draw(languages: list[str]) -> Replicates:
            kept = np.array([self.languages.index(lang) for lang in languages], dtype=np.intp)
            return self._score_replicates(code, kept, values[kept], items[kept])

        return self._draw(values, items, draw)

    def _score_replicates(
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
        columns = zip(values, z.T, limits, strict=True)
        deviation = np.stack([value - np.interp(column, grid, row) for value, column, row in columns], axis=1)
        spread = np.broadcast_to(error, deviation.shape)
        return Replicates(languages, values, error, deviation, spread, correlation, items, clusters)

    def _correlation(self, code: NDArray[np.intp], kept: NDArray[np.intp], scale: Floats) -> tuple[Floats, int]:
        """Returns the correlation of the estimates, from the changes of common items, and the number of all items."""
        rows = np.isin(code, kept)
        values, column = self.values[rows], np.searchsorted(kept, code[rows])
        documents, row = np.unique(self.document[rows], return_inverse=True)
        mean = np.bincount(column, weights=values) / np.bincount(column)
        shape = len(documents), len(kept)
        table = scipy.sparse.coo_array((values - mean[column], (row, column)), shape=shape).tocsc()
        cross = (table.T @ table).toarray() / np.outer(scale, scale)
        np.fill_diagonal(cross, 1.0)
        return cross, len(documents)


def _score(b: Floats, c: Floats, n: Floats, loss: Floats) -> Floats:
    """Returns Tango's score of a loss: how many standard errors the observed one is above it."""
    linear = (2 * n - b + c) * loss - b - c
    q = (np.sqrt(np.maximum(linear**2 + 8 * n * c * loss * (1 - loss), 0.0)) - linear) / (4 * n)
    variance = n * (2 * q + loss * (1 - loss))
    score: Floats = (b - c - n * loss) / np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny))
    return score


def _normal_scores(correlation: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Returns normal numbers (count, language) with these correlations, whose quantiles in each column are exact."""
    spread, vectors = np.linalg.eigh(correlation)
    z = rng.standard_normal((count, len(spread))) @ (vectors * np.sqrt(np.maximum(spread, 0.0))).T
    scores = scipy.special.ndtri(np.arange(1, count + 1) / (count + 1))
    exact: Floats = np.empty_like(z)
    np.put_along_axis(exact, np.argsort(z, axis=0), scores[:, None], axis=0)
    return exact


def noise_floor(frame: LanguageFrame, *, level: float = 0.05, power: float = 0.8) -> dict[str, tuple[float, float]]:
    """Returns, for each language with an interval, the change that is noise, and the loss that would be found.

    A change up to the first number is not evidence in a single language: chance alone exceeds it with probability
    `level`. A loss of the second number is found with probability `power` by Holm's test of all languages.
    """
    drawn = frame.bounded
    levels = (1 - level / 2, 1 - level / 2 / max(len(drawn.languages), 1), power)
    alone, together, reached = (float(scipy.special.ndtri(share)) for share in levels)
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
