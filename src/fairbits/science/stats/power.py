"""Power of the test that a correlation is zero, and the number of units it needs."""

import math
from collections.abc import Callable

import numpy as np
from scipy import integrate, special, stats

from fairbits.checks import in_range, one_of, positive, whole
from fairbits.errors import InputError

MOST = 10**8


def correlation_power(rho: float, n: int, *, alpha: float = 0.05, method: str = "exact") -> float:
    """Returns the probability that the two-sided t test of ρ = 0 at level α rejects, given ρ and n.

    exact:  1 − ∫_{−c}^{c} f(r; ρ, n) dr,  c = t/√(n−2+t²),  t = t_{1−α/2, n−2},
            f the exact density of r for bivariate normal data (Hotelling 1953);
    fisher: Φ(ζ√(n−3) − z) + Φ(−ζ√(n−3) − z),  ζ = artanh ρ,  z = z_{1−α/2}: below the exact power at small n.

    >>> round(correlation_power(0.7, 14), 2)
    0.85
    """
    in_range("rho", rho, above=-1, below=1)
    whole("n", n, least=4)
    in_range("alpha", alpha, above=0, below=1)
    return _POWER[one_of("method", method, tuple(_POWER))](float(rho), int(n), float(alpha))


def sample_size_for_power(rho: float, power: float, *, alpha: float = 0.05, method: str = "fisher") -> int:
    """Returns the least n at which the two-sided test of ρ = 0 has at least the given power.

    min {n : correlation_power(ρ, n) ≥ power}. The default, Fisher's planning formula, is the textbook
    number and conservative: the exact one is the same or one to two units smaller.

    >>> [sample_size_for_power(rho, 0.8) for rho in (0.3, 0.4, 0.5, 0.6, 0.7)]
    [85, 47, 30, 20, 14]
    """
    in_range("|rho|", abs(in_range("rho", rho)), least=0.001, below=1)
    in_range("alpha", alpha, above=0, below=1)
    in_range("power", power, above=alpha, below=1)
    reach = _POWER[one_of("method", method, tuple(_POWER))]
    low, high = 3, 4
    while reach(float(rho), high, float(alpha)) < power:
        low, high = high, 2 * high
        if high > MOST:
            raise InputError(f"power {power:g} at rho {rho:g} needs more than {MOST} units; ask for less power")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reach(float(rho), middle, float(alpha)) >= power else (middle, high)
    return high


def _fisher(rho: float, n: int, alpha: float) -> float:
    shift = np.arctanh(rho) * np.sqrt(n - 3)
    critical = stats.norm.isf(alpha / 2)
    return float(stats.norm.cdf(shift - critical) + stats.norm.cdf(-shift - critical))


def _exact(rho: float, n: int, alpha: float) -> float:
    t = stats.t.isf(alpha / 2, n - 2)
    critical = float(np.arcsinh(t / np.sqrt(n - 2)))  # artanh of the critical r
    centre, reach = float(np.arctanh(rho)), 15.0 / float(np.sqrt(n - 3))
    low, high = max(-critical, centre - reach), min(critical, centre + reach)
    if low >= high:
        return 1.0
    accepted, _ = integrate.quad(_density, low, high, args=(rho, n), epsabs=1e-11, limit=200)
    return float(np.clip(1.0 - accepted, 0.0, 1.0))


def _density(z: float, rho: float, n: int) -> float:
    """Exact density of z = artanh r; the Jacobian 1 − r² is folded into the exponent of (1 − r²)."""
    r = np.tanh(z)
    log_one_minus_r2 = -2.0 * np.log(np.cosh(z))
    log_density = (
        np.log(n - 2.0)
        + special.gammaln(n - 1.0)
        - special.gammaln(n - 0.5)
        - 0.5 * np.log(2 * np.pi)
        + 0.5 * (n - 1.0) * np.log1p(-rho * rho)
        + 0.5 * (n - 2.0) * log_one_minus_r2
        - (n - 1.5) * np.log1p(-rho * r)
    )
    return float(np.exp(log_density) * special.hyp2f1(0.5, 0.5, n - 0.5, 0.5 * (rho * r + 1.0)))


_POWER: dict[str, Callable[[float, int, float], float]] = {"exact": _exact, "fisher": _fisher}


def e_value(effect: float, sd: float) -> float:
    """Returns the E-value of an effect on a continuous outcome with standard deviation `sd`.

    RR ≈ exp(0.91·|effect|/sd), E = RR + √(RR(RR−1)) (VanderWeele and Ding 2017): the risk ratio with which an
    unmeasured cause would have to be tied to both sides to explain the effect away; 1 means none is needed.

    >>> round(e_value(0.5, 1.0), 2)
    2.53
    """
    size = 0.91 * abs(in_range("effect", effect)) / positive("sd", sd)
    ratio = float(np.exp(in_range("|effect|/sd", size, most=300)))
    return float(ratio + np.sqrt(ratio * (ratio - 1)))


def robustness_value(t: float, df: int) -> float:
    """Returns the share of residual variance an unmeasured cause must explain, on both sides, to void a link.

    RV = ½(√(f⁴ + 4f²) − f²) = 2/(1 + √(1 + 4/f²)), f = |t|/√df (Cinelli and Hazlett 2020); 0 fragile, towards 1 robust.

    >>> round(robustness_value(4.18, 783), 3)
    0.139
    """
    f = abs(in_range("t", t)) / math.sqrt(whole("df", df, least=1))
    return 2 / (1 + math.hypot(1, 2 / f)) if f > 0 else 0.0
