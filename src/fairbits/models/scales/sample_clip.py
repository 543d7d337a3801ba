"""The exact certified threshold of one law or one sample, for one language or the worst of several."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, as_array, near_one, nonnegative_array, representable
from fairbits.core.checks import instance, instances, positive
from fairbits.core.errors import InputError
from fairbits.models.scales import clip_kernels as kernels
from fairbits.models.scales.certified import Certified, certified_either_sign, certified_minimum
from fairbits.models.scales.code_sums import CodeSums, LawSums, SampleSums
from fairbits.models.scales.distributions import Distribution
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.noise import mse

_ROUNDING = 1e-28
"""An error below this part of Σhw² is 0 up to rounding."""


@dataclass(frozen=True)
class Shared:
    """One step for several languages, with the proof that no other step is better for the worst of them.

    `values` are the languages' objectives. `multipliers` are their KKT weights: they sum to 1 and at most two are above
    0, the active set. `stationarity` is |Σμ_λf′_λ| on the piece of the step, relative to 2Σμ_λB_λ, the larger of
    the two terms whose difference is f′. `gap` is the proven relative distance to the optimum.
    """

    step: float
    values: tuple[float, ...]
    multipliers: tuple[float, ...]
    stationarity: float
    gap: float

    @property
    def worst(self) -> float:
        """max_λ of the objectives."""
        return max(self.values)

    @property
    def active(self) -> tuple[int, ...]:
        """The languages that determine the step."""
        return tuple(i for i, mu in enumerate(self.multipliers) if mu > 0)


def clip_law(source: Distribution, grid: Grid, *, signed: bool = False, tolerance: float = 1e-9) -> Certified:
    """Returns the step that minimises E(X − Q(X))², certified; α is `grid.alpha(step)`.

    `signed` also tries negative steps, which serve skewed laws on the twos grid.

    >>> from fairbits.models.scales.distributions import Gaussian
    >>> best = clip_law(Gaussian(), Grid(4))
    >>> round(7 * best.step, 3), round(best.value, 5), best.gap < 1e-9
    (2.474, 0.01289, True)
    """
    instance("source", source, Distribution)
    positive("tolerance", tolerance)
    check_signed(grid, signed)
    search = certified_either_sign if signed else certified_minimum
    return search(LawSums([source], grid), tolerance=tolerance)


def clip_sample(
    w: ArrayLike,
    grid: Grid,
    *,
    importance: ArrayLike | None = None,
    signed: bool = False,
    tolerance: float = 1e-9,
) -> Certified:
    """Returns the step that minimises Σ h_j (w_j − Q(w_j))² over a whole sample, certified.

    One sort, suffix sums, branch and bound. `signed` also tries negative steps on the twos grid.

    >>> clip_sample([0.5, 1.0], Grid(3)).value
    0.0
    """
    check_signed(grid, signed)
    positive("tolerance", tolerance)
    x, h, units = _sample(w, None if importance is None else as_array("importance", importance)[None])
    if not x.any():
        return Certified(0.0, 0.0, 0.0, 0)
    search = certified_either_sign if signed else certified_minimum
    with kernels.LAUNCH:
        found = search(SampleSums.of(x, h, grid=grid), tolerance=tolerance)
        value = units.error(_error(x, None if h is None else h[0], grid, found.step))
    return replace(found, step=units.step(found.step), value=value, bound=min(units.error(found.bound), value))


def minimax_law(laws: Sequence[Distribution], grid: Grid, *, relative: bool = False) -> Shared:
    """Returns the step with the lowest max_λ MSE_λ, or with `relative` the lowest max_λ MSE_λ / MSE_λ*.

    >>> from fairbits.models.scales.distributions import Gaussian
    >>> both = minimax_law([Gaussian(1.0), Gaussian(2.0)], Grid(4), relative=True)
    >>> both.active, [round(value, 2) for value in both.values]
    ((0, 1), [1.81, 1.81])
    """
    laws = instances("laws", laws, Distribution)
    check_signed(grid, False)
    own = np.array([clip_law(law, grid).value for law in laws]) if relative else np.ones(len(laws))
    if (own <= 0).any():
        raise InputError("a language can be represented without error; its relative error is not defined")
    sums = LawSums(laws, grid, scale=1 / own)
    found = certified_minimum(sums)
    values = [float(mse(law, grid, found.step) / scale) for law, scale in zip(laws, own, strict=True)]
    return _shared(sums, found, found.step, values)


def minimax_sample(w: ArrayLike, grid: Grid, *, importance: ArrayLike, relative: bool = False) -> Shared:
    """Returns the step of a sample with the lowest max_λ Σ_j h_j(λ)(w_j − Q(w_j))²; `importance` is (languages, size).

    With `relative`, each language's error is divided by its own optimum. For many blocks at once use `minimax_blocks`.

    >>> minimax_sample([0.9, -0.3], Grid(2), importance=[[1.0, 0.1], [0.1, 1.0]]).multipliers
    (0.0, 1.0)
    """
    check_signed(grid, False)
    x, h, units = _sample(w, as_array("importance", importance), alone=relative)
    if h is None or not x.any():
        raise InputError("w is 0 wherever importance is above 0; at least one weight must differ from 0")
    own = np.ones(len(h))
    if relative:
        own = np.array([clip_sample(x, grid, importance=row).value for row in h])
        if (own <= _ROUNDING * kernels.energy(x, h)).any():
            raise InputError("a language can be represented without error; its relative error is not defined")
    with kernels.LAUNCH:
        sums = SampleSums.of(x, np.ascontiguousarray(h / own[:, None]), grid=grid)
        found = certified_minimum(sums)
        values = [_error(x, row, grid, found.step) / scale for row, scale in zip(h, own, strict=True)]
        shared = _shared(sums, found, found.step, values)
    worth = [float(value) if relative else units.error(value) for value in values]
    return replace(shared, step=units.step(found.step), values=tuple(worth))


def check_signed(grid: Grid, signed: bool) -> None:
    """Raises if `grid` is not a Grid, or if signed steps are requested on a grid that gains nothing from them."""
    instance("grid", grid, Grid)
    if signed and grid.kind != "twos":
        raise InputError(f"signed steps were requested on the {grid.kind} grid; only the twos grid gains from a sign")


def _error(x: np.ndarray, h: Floats | None, grid: Grid, step: float) -> float:
    weights = np.empty(0) if h is None else h
    return float(kernels.squared_error(x, weights, step, grid.lowest, grid.highest, grid.offset))


def _shared(sums: CodeSums, found: Certified, step: float, values: Sequence[float]) -> Shared:
    first, second = sums.at(np.array([step]))
    slopes = np.array(found.multipliers) * (step * second[:, 0] - first[:, 0])
    scale = np.array(found.multipliers) @ first[:, 0]
    rest = float(abs(slopes.sum()) / scale) if scale > 0 else 0.0
    return Shared(step, tuple(float(value) for value in values), found.multipliers, rest, found.gap)


@dataclass(frozen=True)
class _Units:
    """The powers of two by which weights and importance were divided, so that their products fit float64."""

    weight: float = 1.0
    importance: float = 1.0

    def step(self, step: float) -> float:
        return representable("the step", step * self.weight)

    def error(self, error: float) -> float:
        return representable("the squared error", float(error) * self.weight * self.importance * self.weight)


def _sample(
    w: ArrayLike, importance: np.ndarray | None, *, alone: bool = False
) -> tuple[np.ndarray, Floats | None, _Units]:
    """Returns the weights and the importance (languages, size), scaled; `alone` scales every language by itself."""
    x = as_array("w", w)
    if x.dtype.kind not in "fiu" or x.size == 0:
        raise InputError(f"w holds {x.size} element(s) of type {x.dtype}; it must be a non-empty array of numbers")
    x = x.ravel() if x.dtype in (np.float32, np.float64) else x.ravel().astype(np.float64)
    if not np.isfinite(x).all():
        raise InputError(f"w holds {(~np.isfinite(x)).sum()} NaN or infinite element(s); every weight must be finite")
    h, unit_h = None, 1.0
    if importance is not None:
        h = _importance(importance, x.size)
        if alone:
            h = np.stack([near_one(row)[0] for row in h])
        h, unit_h = near_one(h)
        x = np.where((h > 0).any(axis=0), x, x.dtype.type(0))
    if x.dtype == np.float32:  # its squares fit float64
        return x, h, _Units(importance=unit_h)
    x, unit = near_one(x)
    return x, h, _Units(unit, unit_h)


def _importance(importance: np.ndarray, size: int) -> Floats:
    h = nonnegative_array("importance", importance)
    if h.ndim == 0 or h[0].size != size:
        raise InputError(f"importance has shape {h.shape}; it must hold one number for each of the {size} weight(s)")
    h = h.reshape(len(h), -1)
    if not h.any(axis=1).all():
        raise InputError("importance is 0 everywhere; it must be above 0 for at least one weight")
    return h
