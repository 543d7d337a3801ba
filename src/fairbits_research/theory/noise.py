"""The exact mean squared error of a quantizer on a distribution, and its clip/round split."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array, nonnegative_array, representable
from fairbits.core.checks import in_range, instance, positive
from fairbits.core.errors import InputError
from fairbits.models.scales.grid import Grid
from fairbits_research.theory.distributions import Distribution


@dataclass(frozen=True)
class Noise:
    """E(X − Q(X))², split into the parts outside (`clip`) and inside (`round`) of the outermost levels."""

    clip: float
    round: float

    @property
    def total(self) -> float:
        """The mean squared error."""
        return self.clip + self.round


def code_sums(source: Distribution, grid: Grid, steps: Floats) -> tuple[Floats, Floats]:
    """Returns B = E[|X|·|q|] and C = E[q²], q = Q(X)/step, for each step; both fall as |step| grows.

    A magnitude gets its k-th code at the threshold (k − ½ + offset)·step, so B = offset·E|X| + Σ_k E[|X|; beyond] and,
    because k² is the sum of the odd numbers up to 2k − 1, C = offset² + Σ_k (2k − 1 + 2·offset)·P(beyond).
    """
    up, down = grid.caps
    size = np.abs(steps)[..., None]
    k = np.arange(1, max(up, down) + 1)
    thresholds = size * (k - np.float64(0.5 - grid.offset))
    above, below = source.upper(thresholds), source.lower(thresholds)
    # with a negative step the longer side of the twos grid is that of the positive numbers
    turned = steps[..., None] < 0
    use_above = np.where(turned, k <= down, k <= up)
    use_below = np.where(turned, k <= up, k <= down)
    gain = 2 * k - 1 + 2 * grid.offset
    first = use_above * above[1] + use_below * below[1]
    count = gain * (use_above * above[0] + use_below * below[0])
    return grid.offset * source.absolute_moment + first.sum(-1), grid.offset**2 + count.sum(-1)


def mse(source: Distribution, grid: Grid, step: ArrayLike) -> Floats:
    """Returns E(X − Q(X))² = E[X²] − 2·step·B + step²·C, exact for the true quantizer, for each step."""
    instance("source", source, Distribution)
    steps = _usable(grid, step)
    first, second = code_sums(source, grid, steps)
    size = np.abs(steps)
    with np.errstate(over="ignore"):
        value = source.second_moment - 2 * size * first + size * (size * second)
    return np.maximum(representable("the mean squared error", value), 0.0)


def noise(source: Distribution, grid: Grid, step: float) -> Noise:
    """Returns the clip and round parts of the exact mean squared error at one step."""
    step = in_range("step", step)
    total = float(mse(source, grid, step))
    high, low = (abs((code + grid.offset) * step) for code in (grid.highest, grid.lowest))
    if step < 0:
        high, low = low, high
    clip = _beyond_level(source.upper(np.array(high)), high) + _beyond_level(source.lower(np.array(low)), low)
    return Noise(clip=clip, round=total - clip)


def _beyond_level(tails: tuple[Floats, Floats, Floats], level: float) -> float:
    p, first, second = (float(tail) for tail in tails)
    return max(second - 2 * level * first + level * (level * p), 0.0)


def additive_mse(source: Distribution, alpha: ArrayLike, c: float) -> Floats:
    """Returns the additive model E[(|X| − α)²₊] + c·α², strictly convex in α for any finite variance."""
    instance("source", source, Distribution)
    a = nonnegative_array("alpha", alpha)
    p, first, second = source.beyond(a)
    with np.errstate(over="ignore"):
        value = np.maximum(second - 2 * a * first + a * (a * p), 0.0) + positive("c", c) * a * a
    return representable("the error of the additive model", value)


def sample_error(w: ArrayLike, grid: Grid, step: float, *, importance: ArrayLike | None = None) -> float:
    """Returns Σ h_j (w_j − Q(w_j))² of a sample, computed directly from its residuals."""
    instance("grid", grid, Grid)
    x = finite_array("w", w)
    residual = x - grid.quantize(x, in_range("step", step))
    h = np.ones(()) if importance is None else nonnegative_array("importance", importance)
    try:
        h = np.broadcast_to(h, x.shape)
    except ValueError:
        raise InputError(f"importance has shape {h.shape} but w is {x.shape}; they must agree") from None
    with np.errstate(over="ignore"):
        return representable("the squared error", float(np.sum(residual * h * residual)))


def _usable(grid: Grid, step: ArrayLike) -> Floats:
    instance("grid", grid, Grid)
    steps = finite_array("step", step)
    if (np.abs(steps) > 1e300).any():
        raise InputError(f"step reaches {np.abs(steps).max():g}; its size must be at most 1e300")
    if (steps == 0).any() or (grid.kind != "twos" and (steps < 0).any()):
        raise InputError(f"step is {steps.ravel().tolist()[:4]}; it must be above 0 (below 0 only on the twos grid)")
    return steps
