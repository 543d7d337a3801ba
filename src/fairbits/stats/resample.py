"""Bootstrap replicates of per-language damage, resampled by document; all intervals are computed from them.

A document is the unit that is drawn. A document that exists in several languages is drawn for all of them at once, so
that contrasts between languages keep their pairing. Languages that share no document are resampled independently.

A resample is a vector of counts, how often each document was drawn, so a sum over a resample is one product of counts
and per-document values. All resamples of a group of languages are therefore one matrix product (`_draw`). Residuals
rather than damages are summed: v* − v = Σ c·e / Σ c·w with e = d − v·w, which loses no digits where v* is close to v,
and gives the standard error inside each resample from the same product.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.core.memory import RESAMPLED_COUNTS

ROUNDING = 1e-12  # relative; less than this is what rounding leaves


class EmptyResampleError(InputError):
    """A resample holds no document of a language, which has too few of the documents it is resampled with."""

    def __init__(self, language: str, documents: int) -> None:
        self.language, self.documents = language, documents
        super().__init__(
            f"a resample of the documents holds nothing of {language}: it covers too few of the {documents} "
            "documents it is resampled with; give it more documents, or its own document ids"
        )


@dataclass(frozen=True, eq=False)
class LinkedLanguages:
    """Languages linked by common documents; values and weights are (document, language), 0 where there is none."""

    columns: NDArray[np.intp]
    values: Floats
    weights: Floats
    present: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Replicates:
    """The estimates of all languages with their bootstrap deviations and standard errors.

    `deviation` (resample, language) is v* − v, `replicate_error` is the standard error inside each resample, and
    `correlation` is between the estimates, 0 between languages without a common document.
    """

    languages: tuple[str, ...]
    value: Floats
    error: Floats
    deviation: Floats
    replicate_error: Floats
    correlation: Floats
    documents: NDArray[np.intp]
    clusters: int

    @property
    def covariance(self) -> Floats:
        return self.correlation * np.outer(self.error, self.error)

    def logarithm(self) -> "Replicates":
        """Returns the replicates of log v by the delta method: deviations and errors divided by v > 0."""
        if (self.value <= 0).any():
            lang = self.languages[int(np.argmin(self.value))]
            raise InputError(f"damage of {lang} is {self.value.min():g}; it must be positive for a logarithm")
        return replace(
            self,
            value=np.log(self.value),
            error=self.error / self.value,
            deviation=self.deviation / self.value,
            replicate_error=self.replicate_error / self.value,
        )

    def select(self, columns: NDArray[np.intp]) -> "Replicates":
        return replace(
            self,
            languages=tuple(self.languages[i] for i in columns),
            **{name: getattr(self, name)[columns] for name in ("value", "error", "documents")},
            **{name: getattr(self, name)[:, columns] for name in ("deviation", "replicate_error")},
            correlation=self.correlation[np.ix_(columns, columns)],
        )


def no_replicates(resamples: int) -> Replicates:
    """Returns replicates without any language."""
    none, columns = np.zeros(0), np.zeros((resamples, 0))
    return Replicates((), none, none, columns, columns, np.zeros((0, 0)), np.zeros(0, dtype=np.intp), 0)


def link_languages(
    lang: NDArray[np.intp], document: NDArray[np.intp], *, values: Floats, weights: Floats
) -> tuple[LinkedLanguages, ...]:
    """Returns the connected components of the graph that links languages by common documents.

    `lang` and `document` are codes 0, 1, … of each record; a (lang, document) pair occurs once.
    """
    size = int(lang.max()) + 1
    total = size + int(document.max()) + 1
    edges = coo_array((np.ones(len(lang)), (lang, document + size)), shape=(total, total))
    _, labels = connected_components(edges, directed=False)
    linked = []
    for label in dict.fromkeys(labels[:size].tolist()):
        here = labels[lang] == label
        columns, column = np.unique(lang[here], return_inverse=True)
        rows, row = np.unique(document[here], return_inverse=True)
        shape = (len(rows), len(columns))
        table, weight, present = np.zeros(shape), np.zeros(shape), np.zeros(shape, dtype=np.bool_)
        table[row, column], weight[row, column], present[row, column] = values[here], weights[here], True
        linked.append(LinkedLanguages(columns, table, weight, present))
    return tuple(linked)


def replicate(
    linked: Sequence[LinkedLanguages], languages: Sequence[str], *, resamples: int, rng: np.random.Generator
) -> Replicates:
    """Returns the bootstrap replicates of v_λ = Σ values / Σ weights for every language λ.

    With residuals e = d − v·w and multinomial counts c of the documents, v* − v = Σ c·e / Σ c·w. The standard error
    is se² = n/(n−1) · Σ e² / (Σ w)², and the same inside each resample. Assumes independent documents.
    """
    size = len(languages)
    value, error = np.zeros(size), np.zeros(size)
    deviation, replicate_error = np.zeros((resamples, size)), np.zeros((resamples, size))
    correlation, documents = np.eye(size), np.zeros(size, dtype=np.intp)
    for group in linked:
        names = [languages[column] for column in group.columns]
        at, count = group.columns, group.present.sum(axis=0)
        total = group.weights.sum(axis=0)
        value[at] = group.values.sum(axis=0) / total
        residual = _residuals(group, value[at])
        inflation = np.sqrt(count / (count - 1))
        cross = (residual / total * inflation).T @ (residual / total * inflation)
        error[at] = np.sqrt(np.diag(cross))
        scale = np.where(error[at] > 0, error[at], 1.0)
        correlation[np.ix_(at, at)] = np.where(np.eye(len(at), dtype=bool), 1.0, cross / np.outer(scale, scale))
        deviation[:, at], spread = _draw(group, residual, names, resamples, rng)
        replicate_error[:, at] = spread * inflation
        documents[at] = count
    clusters = sum(len(group.values) for group in linked)
    return Replicates(tuple(languages), value, error, deviation, replicate_error, correlation, documents, clusters)


def _residuals(group: LinkedLanguages, value: Floats) -> Floats:
    fitted = value * group.weights
    residual = group.values - fitted
    # where damage is exactly proportional to the weight, what rounding leaves must not look like variation
    residual[np.abs(residual) <= ROUNDING * (np.abs(group.values) + np.abs(fitted))] = 0.0
    return residual


def _draw(
    group: LinkedLanguages, residual: Floats, names: Sequence[str], resamples: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Returns the deviation and the standard error, without the factor n/(n−1), of every resample of one group."""
    n, size = residual.shape
    w = group.weights
    moments = np.hstack([residual, w, residual**2, residual * w, w**2])
    deviation, spread = np.empty((resamples, size)), np.empty((resamples, size))
    rows = max(1, RESAMPLED_COUNTS // n)
    for start in range(0, resamples, rows):
        stop = min(start + rows, resamples)
        sums = _counts(n, stop - start, rng) @ moments
        e, total, ee, ew, ww = np.split(sums, 5, axis=1)
        if (total <= 0).any():
            raise EmptyResampleError(names[int(np.argwhere(total <= 0)[0, 1])], n)
        shift = e / total
        deviation[start:stop] = shift
        parts = (ee, 2 * shift * ew, shift**2 * ww)
        square = parts[0] - parts[1] + parts[2]
        square[square <= ROUNDING * sum(map(np.abs, parts))] = (
            0.0  # copies of one document, which must not seem to vary
        )
        spread[start:stop] = np.sqrt(square) / total
    return deviation, spread


def _counts(n: int, resamples: int, rng: np.random.Generator) -> Floats:
    """Returns multinomial counts (resample, document): how often each of n documents is drawn in n draws."""
    drawn = rng.integers(0, n, size=(resamples, n))
    drawn += np.arange(0, resamples * n, n)[:, None]
    counts = np.bincount(drawn.ravel(), minlength=resamples * n)
    return counts.reshape(resamples, n).astype(np.float64)
