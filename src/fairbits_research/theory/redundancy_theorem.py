"""Theorem 1 of the research notes as written, where it holds, and its redundancy computed from exact tables."""

import math

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats


def rate_distortion(rate: float, sigma: float = 1.0) -> float:
    """Returns the least MSE σ²·2^(−2·rate) of any code of a Gaussian at `rate` bits (004-03).

    A lower bound for every code: no scalar quantizer reaches it, so it bounds no quantizer from above.
    """
    root = sigma * math.exp2(-rate)
    return root * root


def clipping_constant(bits: int, sigma: float = 1.0) -> float:
    """Returns C_b = 3σ²·2^(−2b) = Δ²/12 with Δ = 6σ/2^b (004-05).

    As written: the granular noise of a clip at 3σ without its clipping noise.
    """
    root = sigma * 2.0**-bits
    return 3.0 * root * root


def redundancy_bound(redundancy: float, bits: int, *, delta: float, sigma: float = 1.0) -> float:
    """Returns the research notes' bound C_b/(R + δ) on the MSE of a weight for one language (004-02).

    False in general: the MSE does not depend on the language and the bound falls to 0 as R grows. See
    `holds_up_to` for where it is true.
    """
    return clipping_constant(bits, sigma) / (redundancy + delta)


def holds_up_to(bits: int, mse: float, *, sigma: float = 1.0) -> float:
    """Returns the largest R + δ for which mse ≤ C_b/(R + δ) is true: C_b/mse (004-02).

    The optimal 16-level Gaussian grid has MSE 0.01154σ², so at 4 bits the theorem needs R + δ ≤ 1.015.
    """
    return clipping_constant(bits, sigma) / mse


def effective_distortion(redundancy: float, bits: int, *, sigma: float = 1.0) -> float:
    """Returns D(b)/(1 + R/b) with D(b) = σ²·2^(−2b): step 3 of the proof, asserted there (004-06)."""
    return rate_distortion(bits, sigma) / (1.0 + redundancy / bits)


def taylor_step_holds(redundancy: float, bits: int, *, delta: float, sigma: float = 1.0) -> bool:
    """Returns whether step 4 of the proof, D(b)·b/(b + R) ≤ C_b/(R + δ), is true (004-07).

    It reads b/(b + R) ≤ 3/(R + δ): with δ = b it needs b ≤ 3. The proof itself drops D(b) and so compares a
    pure number with a variance; here it is restored.
    """
    right = redundancy_bound(redundancy, bits, delta=delta, sigma=sigma)
    return effective_distortion(redundancy, bits, sigma=sigma) <= right * (1.0 + 1e-12)


def taylor_step_limit(bits: int, *, delta: float) -> float:
    """Returns the largest R at which step 4 holds with D(b) restored: b(3 − δ)/(b − 3) for b > 3 (004-07).

    Negative where it holds for no R ≥ 0; infinite for b ≤ 3, where nothing limits R from above.
    """
    return math.inf if bits <= 3 else bits / (bits - 3) * (3.0 - delta)


def disparity_ratio(r_high: float, r_low: float, *, delta: float) -> float:
    """Returns the corollary's ratio (R_high + δ)/(R_low + δ) (004-08, 004-09).

    A non sequitur as a lower bound on a ratio of errors: it divides two upper bounds.
    """
    return (r_high + delta) / (r_low + delta)


def delta_needed(ratio: float, r_high: float, *, r_low: float) -> float:
    """Returns the δ at which the corollary gives `ratio`: (R_high − ratio·R_low)/(ratio − 1) (004-09).

    A negative δ means that no stability constant explains the ratio.
    """
    return (r_high - ratio * r_low) / (ratio - 1.0)


def redundancy(joint: ArrayLike) -> float:
    """Returns R = I(X;Y) − H(Y|X) in bits of a table of probabilities p[x, y] (004-01).

    R = H(Y) − 2H(Y|X) is negative when Y is mostly noise, and equals H(Y) when Y is a function of X. It measures
    determinism, not how much is stored twice.
    """
    table = np.asarray(joint, dtype=np.float64)
    conditional = _entropy(table) - _entropy(table.sum(axis=1))
    return _entropy(table.sum(axis=0)) - 2.0 * conditional


def unique_information(joint: ArrayLike) -> float:
    """Returns I(outlier; y | generic)/I(outlier, generic; y) from p[outlier, generic, y] (000-18).

    Exactly 0 whenever the outlier layer is a function of the generic one, as a later layer of a network is.
    """
    table = np.asarray(joint, dtype=np.float64)
    both = table.sum(axis=2, keepdims=True)
    generic_y = table.sum(axis=0, keepdims=True)
    conditional = _expected_log(table, table * both.sum(axis=0, keepdims=True), both * generic_y)
    return conditional / _expected_log(table, table, both * table.sum(axis=(0, 1), keepdims=True))


def _entropy(table: Floats) -> float:
    p = table[table > 0]
    return float(-(p * np.log2(p)).sum())


def _expected_log(table: Floats, numerator: Floats, denominator: Floats) -> float:
    """Returns E[log₂(numerator/denominator)] over the cells with probability."""
    cells = table > 0
    above, below = (np.broadcast_to(numerator, table.shape)[cells], np.broadcast_to(denominator, table.shape)[cells])
    return float((table[cells] * np.log2(above / below)).sum())
