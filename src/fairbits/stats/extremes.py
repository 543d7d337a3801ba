"""The worst and best language and the gap between them, with the luck of selection taken out.

The largest of noisy numbers is too large on average: the range of 14 equal languages is 3.41 standard errors.
Point estimates subtract that bias; intervals hold for the true extreme, whichever language it is.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fairbits.checks import Floats, in_range, instance, one_of
from fairbits.errors import InputError
from fairbits.stats.estimate import Estimate
from fairbits.stats.heterogeneity import between_variance
from fairbits.stats.intervals import marginal, order_quantile, studentised
from fairbits.stats.resample import Replicates

METHODS = ("shrinkage", "bootstrap", "naive")
ROUNDING = 1e-6
"""Errors of a difference below this share of those of its parts are what rounding leaves of 0."""


def worst_of(replicates: Replicates, *, confidence: float = 0.95) -> tuple[str, Estimate]:
    """Returns the language with the largest estimate, and an estimate of the largest true damage.

    Value: max v − bias (see `bias_corrected_range`). Interval: [max_λ(v_λ − q se_λ), max_λ high_λ] with q the
    (1+c)/2 quantile of max_λ t*_λ and high_λ the marginal limits: all θ_λ exceed their lower limits at once,
    and the one true maximum lies below its own upper limit, so the interval covers max θ with at least c.
    """
    instance("replicates", replicates, Replicates)
    level = 0.5 + in_range("confidence", confidence, above=0, below=1) / 2
    t = studentised(replicates.deviation, replicates.replicate_error)
    low = float((replicates.value - order_quantile(t.max(axis=1), level) * replicates.error).max())
    high = float(marginal(replicates, confidence)[1].max())
    at = int(np.argmax(replicates.value))
    corrected = float(replicates.value[at]) - _bias(replicates, "shrinkage")[0]
    value = float(np.clip(corrected, low, high))
    return replicates.languages[at], Estimate(value, low, high, int(replicates.documents[at]), confidence)


def best_of(replicates: Replicates, *, confidence: float = 0.95) -> tuple[str, Estimate]:
    """Returns the language with the smallest estimate, and an estimate of the smallest true damage.

    The mirror image of `worst_of`: min θ = −max(−θ).
    """
    instance("replicates", replicates, Replicates)
    lang, mirrored = worst_of(_negated(replicates), confidence=confidence)
    return lang, Estimate(-mirrored.value, -mirrored.high, -mirrored.low, mirrored.n, confidence)


def bias_corrected_range(replicates: Replicates, *, confidence: float = 0.95, method: str = "shrinkage") -> Estimate:
    """Returns max θ − min θ over languages, less the upward bias that noise gives max v − min v.

    shrinkage: bias = E*[range(θ̃ + δ*)] − range(θ̃) at θ̃ = v̄ + τ̂(τ̂²I + Σ)^{−1/2}(v − v̄), centres that spread
               as much as the true damages do; nearly unbiased with no, a small or a large gap;
    bootstrap: θ̃ = v, the textbook correction, removes only part of the bias when the gap is small;
    naive:     no correction.
    Never below 0. Interval, over pairs: [max_{λμ}(v_λ − v_μ − q se_λμ), max_{λμ} high_λμ] as in `worst_of`.
    """
    instance("replicates", replicates, Replicates)
    in_range("confidence", confidence, above=0, below=1)
    above, below = _bias(replicates, one_of("method", method, METHODS))
    low, high = _range_limits(replicates, confidence)
    value = float(np.ptp(replicates.value)) - above - below
    return Estimate(float(np.clip(value, max(low, 0), high)), max(low, 0.0), high, replicates.clusters, confidence)


def worst_difference(joint: Replicates, *, confidence: float = 0.95) -> Estimate:
    """Returns max θ − max η: the first half of the replicates' columns are θ of each language, the second half η.

    Value: the difference of both `worst_of`. Interval: with S and R the languages that may be the worst of θ and η
    (`_candidates`), i and j those that are, θ_i − η_j is what is asked for, so it lies between the limits of some pair
    of S × R; and it is at most θ_i − η_i, which lies below the largest upper limit of these over S, and at least
    θ_j − η_j. The doubt 1 − c is spent on S and R, a tenth each, and on four limits of one pair, a fifth each. It
    covers with at least c, whichever languages are the worst, and is wide where many may be.
    """
    instance("joint", joint, Replicates)
    doubt = 1 - in_range("confidence", confidence, above=0, below=1)
    size = len(joint.value) // 2
    if size < 1 or len(joint.value) % 2:
        raise InputError(f"there are {len(joint.value)} columns; the languages must come twice, once per method")
    own = np.arange(size)
    mine = _candidates(joint, own, level=1 - doubt / 10)
    theirs = _candidates(joint, own + size, level=1 - doubt / 10)
    level = 1 - doubt / 5
    over_pairs = [_pair_limits(joint, i, theirs, level=level) for i in mine.tolist()]
    alike = [_pair_limits(joint, i, np.array([i + size]), level=level) for i in range(size)]
    low = max(min(float(lower.min()) for lower, _ in over_pairs), min(float(alike[j - size][0][0]) for j in theirs))
    high = min(max(float(upper.max()) for _, upper in over_pairs), max(float(alike[i][1][0]) for i in mine))
    low, high = min(low, high), max(low, high)  # two bounds that part by the doubt left in each
    values = [worst_of(_columns(joint, half), confidence=confidence)[1].value for half in (own, own + size)]
    return Estimate(float(np.clip(values[0] - values[1], low, high)), low, high, joint.clusters, confidence)


def _bias(replicates: Replicates, method: str) -> tuple[float, float]:
    """How far, on average, noise lifts the maximum and lowers the minimum."""
    size = len(replicates.value)
    if method == "naive" or size < 2:
        return 0.0, 0.0
    centre = replicates.value if method == "bootstrap" else _shrunken(replicates)
    noisy = centre + replicates.deviation - replicates.deviation.mean(axis=0)
    above = float(noisy.max(axis=1).mean() - centre.max())
    below = float(centre.min() - noisy.min(axis=1).mean())
    return above, below


def _shrunken(replicates: Replicates) -> Floats:
    """Centres v̄ + τ(τ²I + CΣC)^{−1/2}(v − v̄): their spread is τ, so noise is not counted twice."""
    tau2 = between_variance(replicates)
    mean = replicates.value.mean()
    if tau2 == 0:
        return np.full_like(replicates.value, mean)
    size = len(replicates.value)
    centring = np.eye(size) - 1 / size
    noise, vectors = np.linalg.eigh(centring @ replicates.covariance @ centring)
    shrink = np.sqrt(tau2 / (tau2 + np.maximum(noise, 0.0)))
    centre: Floats = mean + vectors @ (shrink * (vectors.T @ (replicates.value - mean)))
    return centre


def _candidates(replicates: Replicates, columns: NDArray[np.intp], *, level: float) -> NDArray[np.intp]:
    """Returns the columns that may be the largest: of each, no other is larger beyond doubt.

    Column i is left out if max_k (v_k − v_i)/se_ki exceeds the quantile of max_k t*_ki. The true largest stays in with
    at least the level, as then no v_k − v_i has a positive mean.
    """
    kept = []
    for i in columns.tolist():
        difference, error, t = _contrasts(replicates, i, columns[columns != i])
        behind = studentised(-difference, error)
        if not len(behind) or behind.max() <= order_quantile((-t).max(axis=1), level):
            kept.append(i)
    return np.array(kept)


def _pair_limits(replicates: Replicates, i: int, j: NDArray[np.intp], *, level: float) -> tuple[Floats, Floats]:
    """Returns bootstrap-t limits of θ_i − θ_j for each j, each of them holding at the level."""
    difference, error, t = _contrasts(replicates, i, j)
    return difference - order_quantile(t, level) * error, difference + order_quantile(-t, level) * error


def _contrasts(replicates: Replicates, i: int, j: NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
    """Returns v_i − v_j for each j, its standard error, and t* of every resample, (resample, j).

    Two columns that differ by a constant have an error of 0, and so all their t*.
    """
    rho = replicates.correlation[i, j]
    inner = replicates.replicate_error
    variance = inner[:, [i]] ** 2 + inner[:, j] ** 2 - 2 * rho * inner[:, [i]] * inner[:, j]
    t = studentised(replicates.deviation[:, [i]] - replicates.deviation[:, j], np.sqrt(np.maximum(variance, 0.0)))
    own = replicates.error
    error = np.sqrt(np.maximum(own[i] ** 2 + own[j] ** 2 - 2 * rho * own[i] * own[j], 0.0))
    known = error > ROUNDING * np.maximum(own[i], own[j])
    return replicates.value[i] - replicates.value[j], np.where(known, error, 0.0), np.where(known, t, 0.0)


def _range_limits(replicates: Replicates, confidence: float) -> tuple[float, float]:
    """Limits of the range from all pairwise contrasts, one first language at a time to bound memory."""
    size, level = len(replicates.value), 0.5 + confidence / 2
    if size < 2:
        raise InputError(f"{size} language(s) given; at least 2 must be given to compare languages")
    largest = np.zeros(len(replicates.deviation))
    differences, errors, high = [], [], -np.inf
    for i in range(size - 1):
        difference, error, t = _contrasts(replicates, i, np.arange(i + 1, size))
        largest = np.maximum(largest, np.abs(t).max(axis=1))
        up = difference + order_quantile(-t, level) * error
        down = -difference + order_quantile(t, level) * error
        high = max(high, float(up.max()), float(down.max()))
        differences.append(np.abs(difference))
        errors.append(error)
    reach = float(order_quantile(largest, level))
    low = float((np.concatenate(differences) - reach * np.concatenate(errors)).max())
    return low, high


def _columns(replicates: Replicates, which: NDArray[np.intp]) -> Replicates:
    """Returns the replicates of some columns."""
    return replace(
        replicates,
        languages=tuple(replicates.languages[i] for i in which),
        **{name: getattr(replicates, name)[which] for name in ("value", "error", "documents")},
        **{name: getattr(replicates, name)[:, which] for name in ("deviation", "replicate_error")},
        correlation=replicates.correlation[np.ix_(which, which)],
    )


def _negated(replicates: Replicates) -> Replicates:
    return replace(replicates, value=-replicates.value, deviation=-replicates.deviation)
