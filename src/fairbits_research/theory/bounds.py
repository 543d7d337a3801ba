"""Bounds on disparity, regret, thresholds and error: the formulas of the research notes as written, and rigorous ones.

Disparity is max_λ D_λ − min_λ D_λ with D_λ = Σ_l p_l(λ)·m_l: p(λ) a probability vector over blocks, m_l ≥ 0 the error
of block l under any quantization that is the same for all languages.
"""

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import (
    weights_vector,
)
from fairbits_research.theory.distributions import Distribution
from fairbits_research.theory.threshold_formulas import additive_alpha


def disparity(damage: ArrayLike) -> float:
    """Returns max − min of the languages' damage (000-26)."""
    return float(np.max(damage)) - float(np.min(damage))


def conjecture_bound(kappa_eff: ArrayLike, C: float) -> float:
    """Returns C·sd_λ(κ_eff), the research notes' conjecture 1 (000-27). It is false: see `tv_bound`.

    >>> round(conjecture_bound([43.0, 43.0, 37.5, 38.8], 0.009), 3)
    0.022
    """
    return C * float(np.std(np.asarray(kappa_eff)))


def variance_bound(slope: ArrayLike, activations: ArrayLike, *, variance: ArrayLike) -> float:
    """Returns max_l|g′(κ_l)|·max_l Var_λ[ā_l(λ)]·max_l σ_l² (001-14). False; rows of `activations` are languages."""
    spread = float(np.max(np.var(np.asarray(activations), axis=0)))
    return float(np.max(np.abs(slope))) * spread * float(np.max(variance))


def revised_estimate(r: float, activation_range: float, *, kappa_range: float, C: float = 0.01) -> float:
    """Returns C·|r|·Range[ā]·Range[κ] (001-16). Circular: r is a correlation with the damage it predicts."""
    return C * abs(r) * (activation_range * kappa_range)


def total_variation(p: ArrayLike, q: ArrayLike) -> float:
    """Returns TV(p, q) = ½ Σ|p_l − q_l| of two activation patterns, each normalised."""
    size = np.size(p)
    return 0.5 * float(np.abs(weights_vector("p", p, size=size) - weights_vector("q", q, size=size)).sum())


def tv_bound(p: ArrayLike, q: ArrayLike, *, errors: ArrayLike) -> float:
    """Returns TV(p, q)·(max_l m_l − min_l m_l) ≥ |D_λ − D_λ'|: the rigorous disparity bound.

    Proof: Σ(p − q)m = Σ(p − q)(m − mid-range), and |m − mid-range| ≤ range/2. It is attained.
    """
    return total_variation(p, q) * disparity(errors)


def own_optimum_bound(p: ArrayLike, q: ArrayLike, *, errors_p: ArrayLike, errors_q: ArrayLike) -> float:
    """Returns TV·max(range m(α_p*), range m(α_q*)) ≥ |min_α D_p − min_α D_q|, each language at its own threshold."""
    return max(tv_bound(p, q, errors=errors_p), tv_bound(p, q, errors=errors_q))


def excess_bounds(source: Distribution, alpha: float, *, c: float) -> tuple[float, float]:
    """Returns the limits of f(α) − f(α*) in the additive model: c·(α−α*)² and (c + P(|X| > min(α, α*)))·(α−α*)²."""
    best = additive_alpha(source, c)
    distance = alpha - best
    beyond = float(source.beyond(min(alpha, best))[0])
    return distance * c * distance, distance * (c + beyond) * distance


def alpha_limit(kappa: float, c: float) -> float:
    """Returns (27(κ+3)/(256c))^¼ ≥ α*/σ of the additive model: the limit that κ puts on the threshold.

    It follows from (x − α)₊ ≤ 27x⁴/(256α³).
    """
    return float((27 / 256 * (kappa + 3)) ** 0.25 / c**0.25)
