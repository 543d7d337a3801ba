"""Bounds on disparity, regret, thresholds and error: those of the research notes as written, and rigorous ones.

Disparity is max_λ D_λ − min_λ D_λ with D_λ = Σ_l p_l(λ)·m_l: p(λ) a probability vector over blocks, m_l ≥ 0 the error
of block l under any quantization that is the same for all languages.
"""

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import (
    Floats,
    as_array,
    finite_array,
    near_one,
    nonnegative_array,
    representable,
    weights_vector,
)
from fairbits.core.checks import in_range, positive, same_shape
from fairbits.core.errors import InputError
from fairbits_research.theory.distributions import Distribution
from fairbits_research.theory.threshold_formulas import additive_alpha


def disparity(damage: ArrayLike) -> float:
    """Returns max − min of the languages' damage (000-26).

    >>> disparity([0.005, 0.025])
    0.02
    """
    values = finite_array("damage", damage, ndim=1)
    return _range("the disparity", values)


def conjecture_bound(kappa_eff: ArrayLike, C: float) -> float:
    """Returns C·sd_λ(κ_eff), the research notes' conjecture 1 (000-27). It is false: see `tv_bound`.

    >>> round(conjecture_bound([43.0, 43.0, 37.5, 38.8], 0.009), 3)
    0.022
    """
    values, unit = near_one(finite_array("kappa_eff", kappa_eff, ndim=1))
    return representable("the bound", positive("C", C) * float(np.std(values)) * unit)


def variance_bound(slope: ArrayLike, activations: ArrayLike, *, variance: ArrayLike) -> float:
    """Returns max_l|g′(κ_l)|·max_l Var_λ[ā_l(λ)]·max_l σ_l² (001-14). It is false; rows of `activations` are languages.

    >>> variance_bound([0.1], [[0.2], [0.3]], variance=[0.01])
    2.499...e-06
    """
    patterns = finite_array("activations", activations, ndim=2)
    slopes, variances = finite_array("slope", slope), nonnegative_array("variance", variance)
    for name, array in (("slope", slopes), ("variance", variances)):
        if array.shape not in ((), (1,), patterns.shape[1:]):
            raise InputError(
                f"{name} has shape {array.shape}; it must be one number or one for each of {patterns.shape[1]} blocks"
            )
    patterns, unit = near_one(patterns)
    spread = float(np.max(np.var(patterns, axis=0)))
    steepest, widest = float(np.max(np.abs(slopes))), float(np.max(variances))
    return representable("the bound", steepest * unit * spread * unit * widest)


def revised_estimate(r: float, activation_range: float, *, kappa_range: float, C: float = 0.01) -> float:
    """Returns C·|r|·Range[ā]·Range[κ] (001-16). Circular: r is a correlation with the damage it predicts.

    >>> round(revised_estimate(-0.834, 0.03, kappa_range=160.0), 4)
    0.04
    """
    in_range("r", r, least=-1.0, most=1.0)
    ranges = positive("activation_range", activation_range) * positive("kappa_range", kappa_range)
    return representable("the estimate", positive("C", C) * abs(r) * ranges)


def total_variation(p: ArrayLike, q: ArrayLike) -> float:
    """Returns TV(p, q) = ½ Σ|p_l − q_l| of two activation patterns, each normalised.

    >>> round(total_variation([0.9, 0.1], [0.1, 0.9]), 3)
    0.8
    """
    first, second = nonnegative_array("p", p, ndim=1), nonnegative_array("q", q, ndim=1)
    same_shape("p", first.shape, "q", second.shape)
    return 0.5 * float(
        np.abs(weights_vector("p", first, size=first.size) - weights_vector("q", second, size=first.size)).sum()
    )


def tv_bound(p: ArrayLike, q: ArrayLike, *, errors: ArrayLike) -> float:
    """Returns TV(p, q)·(max_l m_l − min_l m_l) ≥ |D_λ − D_λ'|: the rigorous disparity bound.

    Proof: Σ(p − q)m = Σ(p − q)(m − mid-range), and |m − mid-range| ≤ range/2. It is attained.

    >>> round(tv_bound([0.9, 0.1], [0.1, 0.9], errors=[1.0, 3.0]), 3)
    1.6
    """
    m = nonnegative_array("errors", errors, ndim=1)
    same_shape("errors", m.shape, "p", as_array("p", p).shape)
    return total_variation(p, q) * _range("the range of errors", m)


def own_optimum_bound(p: ArrayLike, q: ArrayLike, *, errors_p: ArrayLike, errors_q: ArrayLike) -> float:
    """Returns TV·max(range m(α_p*), range m(α_q*)) ≥ |min_α D_p − min_α D_q|, each language at its own threshold.

    >>> round(own_optimum_bound([0.9, 0.1], [0.1, 0.9], errors_p=[1, 3], errors_q=[2, 3]), 3)
    1.6
    """
    return max(tv_bound(p, q, errors=errors_p), tv_bound(p, q, errors=errors_q))


def excess_bounds(source: Distribution, alpha: float, *, c: float) -> tuple[float, float]:
    """Returns the limits of f(α) − f(α*) in the additive model: c·(α−α*)² and (c + P(|X| > min(α, α*)))·(α−α*)².

    >>> from fairbits_research.theory.distributions import Gaussian
    >>> low, high = excess_bounds(Gaussian(), 3.0, c=1 / 768)
    >>> from fairbits_research.theory.noise import additive_mse
    >>> low < float(additive_mse(Gaussian(), 3.0, 1 / 768) - additive_mse(Gaussian(), 2.559, 1 / 768)) < high
    True
    """
    best = additive_alpha(source, c)
    distance = positive("alpha", alpha) - best
    beyond = float(source.beyond(min(alpha, best))[0])
    low, high = (representable("the limit", distance * factor * distance) for factor in (c, c + beyond))
    return low, high


def alpha_limit(kappa: float, c: float) -> float:
    """Returns (27(κ+3)/(256c))^¼ ≥ α*/σ of the additive model: the limit that κ puts on the threshold.

    It follows from (x − α)₊ ≤ 27x⁴/(256α³).

    >>> round(alpha_limit(0.0, 1 / 768), 2)
    3.95
    """
    return float((27 / 256 * _raw_kurtosis(kappa)) ** 0.25 / positive("c", c) ** 0.25)


def _range(name: str, values: Floats) -> float:
    return representable(name, float(values.max()) - float(values.min()))


def _raw_kurtosis(kappa: float) -> float:
    return in_range("kappa", kappa, least=-2.0) + 3
