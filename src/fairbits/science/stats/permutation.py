"""Permutation tests of a correlation and of a partial correlation, within blocks where units are related."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, permutations, product
from math import factorial, prod

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from fairbits.checks import Floats, finite_array, in_range, labels, near_one, one_of, whole
from fairbits.errors import InputError
from fairbits.stats.correlation import fisher_interval, paired
from fairbits.stats.estimate import Estimate
from fairbits.stats.resample import Rng, generator

Integers = NDArray[np.intp]
CHUNK = 2_000_000  # elements held at once
TIE = 1e-10  # two correlations closer than this count as equal, so that rounding never decides


@dataclass(frozen=True)
class PermutationTest:
    """A correlation, its two-sided permutation p, the number of permutations, and whether they are all."""

    r: float
    p: float
    permutations: int
    exact: bool


@dataclass(frozen=True)
class PartialCorrelation:
    """A partial correlation with interval, parametric p on df degrees of freedom, and its permutation p."""

    estimate: Estimate
    p: float
    df: int
    permutation_p: float
    exact: bool


def permutation_test(
    x: ArrayLike,
    y: ArrayLike,
    *,
    method: str = "pearson",
    blocks: ArrayLike | None = None,
    resamples: int = 99_999,
    rng: Rng = 0,
) -> PermutationTest:
    """Returns the two-sided permutation p of the correlation of x and y.

    p = #{π : |r(x, y∘π)| ≥ |r|} / #π over all permutations when there are at most `resamples` of them,
    otherwise (1 + hits)/(1 + resamples) over random ones; the p value is valid at every n.
    With `blocks` (such as language families) only units of one block are exchanged and r is taken after
    the block means are removed, so that the null distribution is centred. Assumes exchangeable units
    within blocks under the null. method "spearman" uses ranks.

    >>> permutation_test([1, 2, 3, 4, 5], [1, 2, 3, 4, 5]).p  # 2 of 120
    0.016666666666666666
    """
    a, b = paired("x", x, other_name="y", other=y, least=4)
    whole("resamples", resamples, least=99)
    if one_of("method", method, ("pearson", "spearman")) == "spearman":
        a, b = stats.rankdata(a), stats.rankdata(b)
    groups = _groups(blocks, len(a))
    u, v = _centred("x", a, groups), _centred("y", b, groups)
    norm = float(np.linalg.norm(u) * np.linalg.norm(v))
    r = float(u @ v) / norm
    hits, count, exact = 0, 0, _is_exact(groups, resamples)
    for order in _orders(groups, len(a), resamples, generator(rng)):
        hits += int(np.count_nonzero(np.abs(v[order] @ u) / norm >= abs(r) - TIE))
        count += len(order)
    p = hits / count if exact else (1 + hits) / (1 + count)
    return PermutationTest(float(np.clip(r, -1, 1)), p, count, exact)


def partial_correlation(
    x: ArrayLike,
    y: ArrayLike,
    *,
    covariates: ArrayLike,
    blocks: ArrayLike | None = None,
    confidence: float = 0.95,
    resamples: int = 99_999,
    rng: Rng = 0,
) -> PartialCorrelation:
    """Returns the correlation of x and y given k covariates, with parametric and Freedman–Lane p.

    r = corr(M x, M y), M = I − Z(ZᵀZ)⁻¹Zᵀ, Z = [1, covariates];  t = r√df/√(1−r²), df = n−2−k;
    interval tanh(artanh r ± z/√(n−k−3)). Freedman and Lane: y* = (I−M)y + π(M y), r* = corr(M x, M y*).
    Assumes that y depends linearly on the covariates and that the residuals are exchangeable (in blocks).

    >>> x, y, z = [1, 2, 3, 4, 5, 7], [2, 1, 4, 3, 6, 9], [0, 1, 0, 1, 0, 1]
    >>> result = partial_correlation(x, y, covariates=z)
    >>> round(result.estimate.value, 3), result.df, round(result.permutation_p, 4)
    (0.965, 3, 0.0083)
    """
    a, b = paired("x", x, other_name="y", other=y, least=5)
    in_range("confidence", confidence, above=0, below=1)
    whole("resamples", resamples, least=99)
    basis, k = _basis(covariates, len(a))
    u, v = _residual("x", a, basis), _residual("y", b, basis)
    r = float(np.clip(u @ v / (np.linalg.norm(u) * np.linalg.norm(v)), -1, 1))
    df = len(a) - 2 - k
    t = np.inf if abs(r) == 1.0 else abs(r) * np.sqrt(df / (1 - r * r))
    groups = _groups(blocks, len(a))
    hits, count, exact = 0, 0, _is_exact(groups, resamples)
    for order in _orders(groups, len(a), resamples, generator(rng)):
        shuffled = v[order]
        explained = ((shuffled @ basis) ** 2).sum(axis=1)
        norms = np.linalg.norm(u) * np.sqrt(np.maximum(v @ v - explained, 0.0))
        hits += int(np.count_nonzero(np.abs(shuffled @ u) >= (abs(r) - TIE) * norms))
        count += len(order)
    permutation_p = hits / count if exact else (1 + hits) / (1 + count)
    low, high = fisher_interval(r, 1 / np.sqrt(len(a) - k - 3), confidence)
    estimate = Estimate(r, low, high, len(a), confidence)
    return PartialCorrelation(estimate, float(2 * stats.t.sf(t, df)), df, permutation_p, exact)


def _groups(blocks: ArrayLike | None, n: int) -> list[Integers]:
    if blocks is None:
        return [np.arange(n)]
    codes = labels("blocks", blocks, n)
    groups = [np.flatnonzero(codes == code) for code in range(int(codes.max()) + 1)]
    if max(len(group) for group in groups) < 2:
        raise InputError("every block holds one unit; at least one block must hold two, or give no blocks")
    return groups


def _is_exact(groups: list[Integers], resamples: int) -> bool:
    return prod(factorial(len(group)) for group in groups) <= resamples


def _orders(groups: list[Integers], n: int, resamples: int, rng: np.random.Generator) -> Iterator[Integers]:
    """Yields chunks of index rows (permutation, unit): all permutations if they are few, else random ones."""
    rows = max(1, CHUNK // n)
    layout = np.concatenate(groups)
    if _is_exact(groups, resamples):
        everything = product(*(permutations(group.tolist()) for group in groups))
        while chunk := list(islice(everything, rows)):
            drawn = np.array([[i for part in parts for i in part] for parts in chunk], dtype=np.intp)
            yield _placed(drawn, layout)
        return
    # a random key plus the block number sorts every row block by block, in random order inside each
    offset = np.repeat(np.arange(len(groups), dtype=np.float64), [len(group) for group in groups])
    for start in range(0, resamples, rows):
        keys = rng.random((min(rows, resamples - start), n)) + offset
        yield _placed(layout[np.argsort(keys, axis=1)], layout)


def _placed(drawn: Integers, layout: Integers) -> Integers:
    order = np.empty_like(drawn)
    order[:, layout] = drawn
    return order


def _centred(name: str, array: Floats, groups: list[Integers]) -> Floats:
    centred = array.copy()
    for group in groups:
        centred[group] -= array[group].mean()
    if np.linalg.norm(centred) <= 1e-12 * np.linalg.norm(array):
        raise InputError(f"{name} is constant inside every block; it must vary inside one, or give no blocks")
    return centred


def _basis(covariates: ArrayLike, n: int) -> tuple[Floats, int]:
    """Returns an orthonormal basis of [1, covariates] and the number of covariates."""
    Z = finite_array("covariates", covariates)
    Z = Z[:, None] if Z.ndim == 1 else Z
    if Z.ndim != 2 or Z.shape[0] != n:
        raise InputError(f"covariates have shape {Z.shape}; they must be (n,) or (n, k) with n = {n}")
    k = Z.shape[1]
    if n - k < 4:
        raise InputError(f"{k} covariate(s) for {n} units; n − k must be at least 4: use fewer covariates")
    if np.any(np.ptp(Z, axis=0) == 0):
        raise InputError("a covariate is constant; drop it (the intercept is always included)")
    Z = np.column_stack([near_one(column)[0] for column in Z.T])
    scaled = (Z - Z.mean(axis=0)) / Z.std(axis=0)
    if np.linalg.matrix_rank(scaled, tol=1e-8 * np.sqrt(n)) < k:
        raise InputError(f"the {k} covariates are collinear; drop those that are combinations of others")
    return np.linalg.qr(np.column_stack([np.ones(n), scaled]))[0], k


def _residual(name: str, array: Floats, basis: Floats) -> Floats:
    residual = array - basis @ (basis.T @ array)
    if np.linalg.norm(residual) <= 1e-10 * np.linalg.norm(array - array.mean()):
        raise InputError(f"{name} is a combination of the covariates; nothing is left to correlate")
    return residual
