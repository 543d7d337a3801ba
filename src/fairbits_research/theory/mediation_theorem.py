"""Theorem 4 of the research notes: the chain tokenization → alignment → redundancy → damage, and draws from it."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike
from scipy.integrate import quad
from scipy.special import log_ndtr, ndtr

from fairbits.core.array_checks import Floats
from fairbits.core.errors import InputError


@dataclass(frozen=True)
class CausalEffects:
    """A total effect split into its direct part and the part through the mediators."""

    total: float
    direct: float
    indirect: float
    proportion_mediated: float


@dataclass(frozen=True, eq=False)
class ChainDraws:
    """Draws of tokenization T, alignment A, redundancy R, damage D, and of the unmeasured confounder U."""

    t: Floats
    a: Floats
    r: Floats
    d: Floats
    u: Floats


@dataclass(frozen=True)
class StructuralModel:
    """A = β₁T + ε_A, R = β₂A + ε_R, D = γ/R + ε_D with Gaussian noises (004-27).

    With unbounded Gaussian noise R has density at 0, and E[γ/R] does not exist. The exact results and the draws
    are therefore conditional on R ≥ r_min > 0; the expansions in s²/m² are formal, without that condition.
    Here m = β₁β₂t and s² = β₂²·sd_a² + sd_r². The graph is an assumption.
    """

    beta_ta: float
    beta_ar: float
    gamma: float
    sd_a: float = 0.0
    sd_r: float = 0.0
    sd_d: float = 0.0
    r_min: float = 0.05

    @property
    def slope(self) -> float:
        """dR/dT = β₁β₂: a slope, not the mediated proportion for which the research notes take it (004-32)."""
        return self.beta_ta * self.beta_ar

    @property
    def sd_noise(self) -> float:
        """The standard deviation s of R given T, without the condition R ≥ r_min."""
        return math.hypot(self.beta_ar * self.sd_a, self.sd_r)

    def mean_r(self, t: float) -> float:
        """Returns m = β₁β₂t, which must exceed r_min."""
        m = self.slope * t
        if m <= self.r_min:
            raise InputError(
                f"t = {t:g} gives the redundancy β₁β₂t = {m:g}; it must be above r_min = {self.r_min:g}: "
                "raise t or lower r_min"
            )
        return m

    def expected_damage(self, t: float, *, order: int = 1) -> float:
        """Returns E[D | do(T = t)] ≈ γ/m (first order) or γ/m·(1 + s²/m²) (second) (004-30)."""
        m = self.mean_r(t)
        return self.gamma / m * (1.0 + self._correction(m, order))

    def effect(self, t: float, *, order: int = 1) -> float:
        """Returns ∂E[D | do(T = t)]/∂t ≈ −γβ₁β₂/m², times 1 + 3s²/m² at second order (004-28).

        Negative when γ and β₁β₂ are positive (004-31).
        """
        m = self.mean_r(t)
        return -self.gamma / m * (self.slope / m) * (1.0 + 3.0 * self._correction(m, order))

    def exact_damage(self, t: float) -> float:
        """Returns E[γ/R | R ≥ r_min] under do(T = t) by quadrature, R Gaussian without the condition (004-30)."""
        m, s = self.mean_r(t), self.sd_noise
        if s == 0:
            return self.gamma / m
        return self.gamma * (1.0 / m + self._expect(t, _inverse_excess))

    def exact_effect(self, t: float) -> float:
        """Returns the derivative of `exact_damage`: β₁β₂·Cov(γ/R, R)/s² over R ≥ r_min (004-28).

        The identity is that of exponential families, ∂E[f(R)]/∂m = Cov(f(R), R)/s², and holds under the condition too.
        """
        m, s = self.mean_r(t), self.sd_noise
        if s == 0:
            return self.effect(t)
        start = (self.r_min - m) / s
        mean = s * math.exp(-0.5 * start * start - log_ndtr(-start)) / math.sqrt(2.0 * math.pi)  # E[R] − m
        covariance = self._expect(t, lambda r, centre: _inverse_excess(r, centre) * (r - centre - mean))
        return self.slope * self.gamma * covariance / s / s

    def decompose(self, t: float, *, order: int = 1) -> CausalEffects:
        """Returns the effect of T on D split in direct and indirect: 0 % and 100 % by construction (004-29).

        The equation of D does not contain T, so the split restates the graph. Data can contradict it (where
        T ⊥ D | R fails) but never prove it.
        """
        total = self.effect(t, order=order)
        return CausalEffects(total=total, direct=0.0, indirect=total, proportion_mediated=1.0)

    def simulate(
        self, t: ArrayLike, n: int, *, rng: np.random.Generator, spread: float = 0.0, confounding: float = 0.0
    ) -> ChainDraws:
        """Returns n draws with T = t + spread·(cU + √(1−c²)·V) and D = γ/R − cU + ε_D (004-33).

        c is `confounding`; U and V are standard normal. U, for example the training share, raises T and lowers D.
        With spread 0 this is do(T = t), which U cannot bias; with a spread, the slope of D on T is off by about
        −c²/spread. The noises of A and R are redrawn until R ≥ r_min. `t` is one number or n of them.
        """
        centre, c = np.asarray(t, dtype=np.float64), confounding
        u, v = rng.standard_normal((2, n))
        tokens = centre + spread * (c * u + math.sqrt(1.0 - c**2) * v)
        a, r = self._mediators(tokens, rng)
        d = self.gamma / r - c * u + self.sd_d * rng.standard_normal(n)
        return ChainDraws(t=tokens, a=a, r=r, d=d, u=u)

    def _mediators(self, tokens: Floats, rng: np.random.Generator) -> tuple[Floats, Floats]:
        self._check_reachable(tokens)
        a, r = np.empty_like(tokens), np.empty_like(tokens)
        todo = np.arange(len(tokens))
        while len(todo):
            noise_a, noise_r = rng.standard_normal((2, len(todo)))
            a[todo] = self.beta_ta * tokens[todo] + self.sd_a * noise_a
            r[todo] = self.beta_ar * a[todo] + self.sd_r * noise_r
            todo = todo[r[todo] < self.r_min]
        return a, r

    def _check_reachable(self, tokens: Floats) -> None:
        room = self.slope * tokens - self.r_min
        s = self.sd_noise
        kept = ndtr(room / s) if s > 0 else (room >= 0).astype(np.float64)
        if kept.min() < 0.01:
            raise InputError(
                f"T = {tokens[int(kept.argmin())]:g} leaves R ≥ r_min = {self.r_min:g} "
                f"in {kept.min():.2g} of the draws; "
                "at least 0.01 must be left: raise t, or lower spread or r_min"
            )

    def _correction(self, m: float, order: int) -> float:
        return (self.sd_noise / m) ** 2 if order == 2 else 0.0

    def _expect(self, t: float, function: Callable[[float, float], float]) -> float:
        """Returns E[function(R, m) | R ≥ r_min] by adaptive quadrature over the standardised noise."""
        m, s = self.mean_r(t), self.sd_noise
        start = max((self.r_min - m) / s, -12.0)
        log_kept = float(log_ndtr(-(self.r_min - m) / s)) + 0.5 * math.log(2.0 * math.pi)

        def integrand(z: float) -> float:
            return function(m + s * z, m) * math.exp(-0.5 * z * z - log_kept)

        pieces = [start, *(z for z in (-4.0, 0.0, 4.0) if z > start), 12.0]
        return math.fsum(
            quad(integrand, left, right, epsabs=1e-13, epsrel=1e-11, limit=200)[0] for left, right in pairwise(pieces)
        )


def _inverse_excess(r: float, m: float) -> float:
    """Returns 1/r − 1/m without cancellation."""
    return (m - r) / (r * m)


def fit_coefficients(T: ArrayLike, A: ArrayLike, *, R: ArrayLike, D: ArrayLike) -> StructuralModel:
    """Returns the coefficients of the equations as written, without intercepts, by least squares over languages.

    β₁ = Σ TA/Σ T², β₂ = Σ AR/Σ A², γ = Σ (D/R)/Σ (1/R²). Their units are those of A/T, R/A and DR.
    """
    t, a, r, d = (np.asarray(values, dtype=np.float64) for values in (T, A, R, D))
    return StructuralModel(float(t @ a / (t @ t)), float(a @ r / (a @ a)), float((d / r).sum() / (r**-2.0).sum()))


SEED_MODEL = StructuralModel(beta_ta=0.92, beta_ar=0.85, gamma=1.5)
