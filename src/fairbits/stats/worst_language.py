"""The worst and the best language, the gap between them, and the spread of all, corrected for selection and for noise.

The largest of several noisy estimates is too large on average, because the language that looks worst is partly the
one that was unlucky. With 14 equally damaged languages the range of the estimates is 3.41 standard errors on average,
although the true gap is 0. Two things follow, and they are treated separately:

* Point estimates subtract the expected excess. It is estimated by simulation: centres that spread as much as the true
  damages do (`shrunken`) are given the noise of the bootstrap, and the average rise of their maximum is the bias.
* Intervals must cover the true extreme of all languages, whichever language that is. They are built from limits of
  single languages, or of pairs, so that nothing has to be assumed about which language is the worst.

`random_effects_sd` estimates how far apart the true damages are; the shrinkage needs it.
"""

import math
from dataclasses import replace

import numpy as np
import scipy  # its modules are loaded when they are used
from numpy.typing import NDArray

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError
from fairbits.stats.intervals import Estimate, estimate_within, marginal, order_quantile, reach, studentised
from fairbits.stats.resample import Replicates

ROUNDING = 1e-6  # a standard error of a difference below this share of the errors of its parts is 0 up to rounding


def worst_language(replicates: Replicates, confidence: float = 0.95) -> tuple[str, Estimate]:
    """Returns the language with the largest estimate, and an estimate of the largest true damage.

    The value is max v minus its bias (see `bias_corrected_range`), but never below the mean of the languages: the
    largest of several numbers is at least their mean, and where noise hides all differences the mean is the better
    estimate.

    The interval is [max_λ(v_λ − q·se_λ), max_λ high_λ], where q is the (1+c)/2 quantile of max_λ t*_λ and high_λ are
    the marginal limits. It covers max θ with probability at least c, because either side fails with probability
    (1−c)/2 at most: all lower limits v_λ − q·se_λ hold at once, so the largest of them is below max θ; and the upper
    limit of the one language that is truly the worst is above its θ, so the largest upper limit does too.
    """
    level = 0.5 + confidence / 2
    t = studentised(replicates.deviation, replicates.replicate_error)
    low = float((replicates.value - reach(order_quantile(t.max(axis=1), level), replicates.error)).max())
    high = float(marginal(replicates, confidence)[1].max())
    at = int(np.argmax(replicates.value))
    corrected = float(replicates.value[at]) - _bias(replicates, "shrinkage")[0]
    mean = float(np.full(len(replicates.value), 1 / len(replicates.value)) @ replicates.value)  # as `combination` adds
    value = float(np.clip(max(corrected, mean), low, high))
    n = int(replicates.documents[at])
    return replicates.languages[at], estimate_within(value, low, high, n=n, confidence=confidence)


def best_language(replicates: Replicates, confidence: float = 0.95) -> tuple[str, Estimate]:
    """Returns the language with the smallest estimate, and an estimate of the smallest true damage.

    This is `worst_language` of the negated damages: min θ = −max(−θ).
    """
    negated = replace(replicates, value=-replicates.value, deviation=-replicates.deviation)
    lang, mirrored = worst_language(negated, confidence)
    return lang, mirrored.transform(lambda x: -x)


def bias_corrected_range(replicates: Replicates, confidence: float = 0.95, *, method: str = "shrinkage") -> Estimate:
    """Returns max θ − min θ over languages, corrected for the amount by which noise widens max v − min v.

    The bias is E*[range(θ̃ + δ*)] − range(θ̃), where δ* are the bootstrap deviations and θ̃ stand for the true damages:

    shrinkage: θ̃ = v̄ + τ̂(τ̂²I + Σ)^{−1/2}(v − v̄), which spread as much as the true damages do; nearly unbiased whether
               the gap is absent, small or large;
    bootstrap: θ̃ = v, the textbook correction; it removes only part of the bias where the gap is small, because the
               estimates already spread too much;
    naive:     no correction.

    The value is never below 0. The interval is built from all pairs, [max_{λμ}(v_λ − v_μ − q·se_λμ), max_{λμ} high_λμ],
    and covers for the reason given in `worst_language`.
    """
    above, below = _bias(replicates, method)
    low, high = _range_limits(replicates, confidence)
    value = float(np.clip(np.ptp(replicates.value) - above - below, max(low, 0.0), high))
    least = low if math.isinf(low) else max(low, 0.0)
    return estimate_within(value, least, high, n=replicates.clusters, confidence=confidence)


def worst_difference(joint: Replicates, confidence: float = 0.95) -> Estimate:
    """Returns max θ − max η; the first half of the replicates' columns is θ of each language, the second half is η.

    The value is the difference of both `worst_language`. The interval covers with probability at least c, whichever
    languages are the worst, and is wide where many may be. Let S and R be the sets of languages that may be the worst
    of θ and of η (`_candidates`), and i ∈ S and j ∈ R the true ones. Then two statements hold about θ_i − η_j, the
    number to be bounded. It is between the limits of some pair in S × R. And because θ_j ≤ θ_i and η_i ≤ η_j, it is at
    least θ_j − η_j and at most θ_i − η_i, which are differences of one language each and often much better known. The
    interval is the intersection of the two. Of the allowed error 1 − c, each of S and R may use a tenth, and each of
    the four limits of one pair a fifth.
    """
    doubt, size = 1 - confidence, len(joint.value) // 2
    languages = np.arange(size)
    mine = _candidates(joint, languages, level=1 - doubt / 10)
    theirs = _candidates(joint, languages + size, level=1 - doubt / 10)
    level = 1 - doubt / 5
    over_pairs = [_pair_limits(joint, i, theirs, level=level) for i in mine.tolist()]
    alike = [_pair_limits(joint, i, np.array([i + size]), level=level) for i in range(size)]
    low = max(min(float(lower.min()) for lower, _ in over_pairs), min(float(alike[j - size][0][0]) for j in theirs))
    high = min(max(float(upper.max()) for _, upper in over_pairs), max(float(alike[i][1][0]) for i in mine))
    low, high = min(low, high), max(low, high)  # each bound may fail a little; keep them in order
    halves = languages, languages + size
    values = [worst_language(joint.select(half), confidence)[1].value for half in halves]
    value = float(np.clip(values[0] - values[1], low, high))
    return estimate_within(value, low, high, n=joint.clusters, confidence=confidence)


def random_effects_sd(replicates: Replicates, confidence: float = 0.95) -> Estimate:
    """Returns τ, the standard deviation of true damage between languages, with its Q-profile interval.

    The model is v ~ N(μ1, τ²I + Σ) with Σ known from the bootstrap. Orthonormal contrasts z of v do not depend on μ;
    chosen so that they diagonalise Σ into s_k, they give Q(τ²) = Σ z_k²/(τ² + s_k) ~ χ²_{L−1}. Q falls with τ², so each
    level of Q belongs to one τ². The estimate solves Q(τ̂²) = L−1 (Paule–Mandel) and is 0 if Q(0) is smaller; the
    interval has the τ² whose Q is between the χ² quantiles (Viechtbauer 2007). Assumes normal effects.
    """
    z, s = _diagonal_contrasts(replicates)
    df = len(z)
    upper, lower = (float(scipy.stats.chi2.ppf(tail, df)) for tail in (0.5 + confidence / 2, 0.5 - confidence / 2))
    tau, low, high = (np.sqrt(_tau_squared(z, s, level)) for level in (df, upper, lower))
    return Estimate(tau, low, high, df + 1, confidence)


def _bias(replicates: Replicates, method: str) -> tuple[float, float]:
    """Returns how far noise raises the maximum and lowers the minimum on average."""
    size = len(replicates.value)
    if method == "naive" or size < 2:
        return 0.0, 0.0
    centre = replicates.value if method == "bootstrap" else shrunken(replicates)
    noisy = centre + replicates.deviation - replicates.deviation.mean(axis=0)
    above = float(noisy.max(axis=1).mean() - centre.max())
    below = float(centre.min() - noisy.min(axis=1).mean())
    return above, below


def shrunken(replicates: Replicates) -> Floats:
    """Returns the centres v̄ + τ(τ²I + CΣC)^{−1/2}(v − v̄), which stand for the true damages.

    The estimates spread by τ² + noise. Adding bootstrap noise to them would count the noise twice. Scaling each
    eigendirection of the centred covariance by √(τ²/(τ² + noise)) brings their spread back to τ².
    """
    z, s = _diagonal_contrasts(replicates)
    tau2 = _tau_squared(z, s, len(z))  # the Paule–Mandel variance of true damage
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
    """Returns the columns that may be the largest: those that no other column exceeds with confidence.

    Column i is left out if max_k (v_k − v_i)/se_ki exceeds the quantile of max_k t*_ki. For the column that is truly
    the largest no v_k − v_i has a positive mean, so it is kept with probability at least `level`.
    """
    kept = []
    for i in columns.tolist():
        difference, error, t = _contrasts(replicates, i, columns[columns != i])
        behind = studentised(-difference, error)
        if not len(behind) or behind.max() <= order_quantile((-t).max(axis=1), level):
            kept.append(i)
    return np.array(kept)


def _pair_limits(replicates: Replicates, i: int, j: NDArray[np.intp], *, level: float) -> tuple[Floats, Floats]:
    """Returns the bootstrap-t limits of θ_i − θ_j for each j; each single limit holds with probability `level`."""
    difference, error, t = _contrasts(replicates, i, j)
    return difference - reach(order_quantile(t, level), error), difference + reach(order_quantile(-t, level), error)


def _contrasts(replicates: Replicates, i: int, j: NDArray[np.intp]) -> tuple[Floats, Floats, Floats]:
    """Returns v_i − v_j for each j, its standard error, and t* of every resample as (resample, j).

    Two columns that differ by a constant have an error of 0; what rounding leaves of it must not be divided by.
    """
    rho = replicates.correlation[i, j]
    inner = replicates.replicate_error
    variance = inner[:, [i]] ** 2 + inner[:, j] ** 2 - 2 * rho * inner[:, [i]] * inner[:, j]
    t = studentised(replicates.deviation[:, [i]] - replicates.deviation[:, j], np.sqrt(np.maximum(variance, 0.0)))
    se = replicates.error
    error = np.sqrt(np.maximum(se[i] ** 2 + se[j] ** 2 - 2 * rho * se[i] * se[j], 0.0))
    varies = error > ROUNDING * np.maximum(se[i], se[j])
    return replicates.value[i] - replicates.value[j], np.where(varies, error, 0.0), np.where(varies, t, 0.0)


def _range_limits(replicates: Replicates, confidence: float) -> tuple[float, float]:
    """Returns the limits of the range from all pairs; one first language at a time, to bound the memory."""
    size, level = len(replicates.value), 0.5 + confidence / 2
    if size < 2:
        raise InputError(f"{size} language(s) given; at least 2 are needed to compare languages")
    largest = np.zeros(len(replicates.deviation))
    differences, errors, high = [], [], -np.inf
    for i in range(size - 1):
        difference, error, t = _contrasts(replicates, i, np.arange(i + 1, size))
        largest = np.maximum(largest, np.abs(t).max(axis=1))
        up = difference + reach(order_quantile(-t, level), error)
        down = -difference + reach(order_quantile(t, level), error)
        high = max(high, float(up.max()), float(down.max()))
        differences.append(np.abs(difference))
        errors.append(error)
    low = float((np.concatenate(differences) - reach(order_quantile(largest, level), np.concatenate(errors))).max())
    return low, high


def _diagonal_contrasts(replicates: Replicates) -> tuple[Floats, Floats]:
    """Returns contrasts z of the estimates that are free of their mean and uncorrelated, and their variances s."""
    size = len(replicates.value)
    if size < 2:
        raise InputError(f"{size} language(s) given; at least 2 are needed to compare languages")
    centring = np.eye(size) - 1 / size
    basis = np.linalg.svd(centring)[0][:, : size - 1]
    s, vectors = np.linalg.eigh(basis.T @ replicates.covariance @ basis)
    z: Floats = vectors.T @ basis.T @ replicates.value
    return z, np.maximum(s, 0.0)


def _tau_squared(z: Floats, s: Floats, level: float) -> float:
    """Returns the τ² ≥ 0 at which Q(τ²) falls to `level`, 0 where Q starts below it."""
    squares = z**2
    highest = float(squares.sum()) / level  # Q(τ²) ≤ Σz²/τ², so the root is below this
    if highest == 0:
        return 0.0
    floor = highest * 1e-12

    def excess(tau2: float) -> float:
        return float((squares / (tau2 + s)).sum()) - level

    if excess(floor) <= 0:
        return 0.0
    return float(scipy.optimize.brentq(excess, floor, highest * (1 + 1e-9), xtol=floor))
