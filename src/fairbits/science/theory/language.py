"""Language-aware clip thresholds: the founding documents' three readings and the correct one.

All four answer "which α suits language λ?". They differ in what they take the language's weights to be:

| function            | reading                                               | where         |
|---------------------|-------------------------------------------------------|---------------|
| `alpha_by_kappa`    | σ·f(κ_eff), κ_eff = Σ ā_l κ_l                          | 000-22        |
| `alpha_by_mixture`  | argmin for the mixture Σ ā_l P_l                       | 003-08        |
| `alpha_by_product`  | argmin for the sample w ⊙ a                           | 004-13        |
| `alpha_by_importance` | argmin of Σ_j h_j(λ)(w_j − Q(w_j))², h_j = E_λ[x_j²] | the error of the layer's output |

Only the last is the error that a language feels. Where every block has its own threshold, the first two give every
language the same one (`separable`).
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from fairbits.checks import (
    Floats,
    finite_array,
    instances,
    nonnegative_array,
    representable,
    same_shape,
    weights_vector,
)
from fairbits.theory.clipping.exact import clip_law, clip_sample
from fairbits.theory.clipping.formulas import SEED_CONSTANTS, kappa_alpha
from fairbits.theory.distributions import Distribution, Mixture
from fairbits.theory.grid import Grid
from fairbits.theory.moments import kappa_weighted
from fairbits.theory.noise import mse


def alpha_by_kappa(
    sigma: float,
    activation: ArrayLike,
    *,
    kappa: ArrayLike,
    constants: tuple[float, float] = SEED_CONSTANTS,
) -> float:
    """Returns σ·f(Σ ā_l κ_l), the founding documents' proposition 1 (000-22).

    >>> round(alpha_by_kappa(1.0, [0.2, 0.8], kappa=[150.0, 8.0]), 3)
    3.587
    """
    return kappa_alpha(sigma, kappa_weighted(activation, kappa), constants=constants)


def alpha_by_mixture(parts: Sequence[Distribution], activation: ArrayLike, *, grid: Grid) -> float:
    """Returns the exact α of the effective distribution Σ ā_l P_l (003-08).

    >>> from fairbits.theory.distributions import Gaussian
    >>> round(alpha_by_mixture([Gaussian(1.0), Gaussian(2.0)], [0.5, 0.5], grid=Grid(4)), 2)
    4.55
    """
    best = clip_law(Mixture(parts, activation), grid)
    return float(grid.alpha(best.step))


def alpha_by_product(w: ArrayLike, activation: ArrayLike, *, grid: Grid) -> float:
    """Returns the exact α of the sample w ⊙ a, as the founding documents' algorithm has it (004-13, 004-19).

    Q(w ⊙ a) is not Q(w) ⊙ a: with a ≡ 0.1 it answers a tenth of the right threshold.

    >>> w = [0.5, -1.0, 0.25, 0.75]
    >>> alpha_by_product(w, [0.5] * 4, grid=Grid(4)) / alpha_by_product(w, [1.0] * 4, grid=Grid(4))
    0.5
    """
    x, a = finite_array("w", w), nonnegative_array("activation", activation)
    same_shape("activation", a.shape, "w", x.shape)
    with np.errstate(over="ignore"):
        product = representable("w ⊙ activation", x * a)
    best = clip_sample(product, grid)
    return float(grid.alpha(best.step))


def alpha_by_importance(w: ArrayLike, importance: ArrayLike, *, grid: Grid) -> float:
    """Returns the exact α under the language's importance h_j = E_λ[x_j²]: the correct reading.

    >>> alpha_by_importance([0.5, -1.0, 9.0], [1.0, 1.0, 0.0], grid=Grid(2))
    0.75
    """
    best = clip_sample(w, grid, importance=importance)
    return float(grid.alpha(best.step))


def separable(parts: Sequence[Distribution], activations: ArrayLike, *, grid: Grid) -> tuple[Floats, Floats]:
    """Returns D_λ = Σ_l ā_l(λ)·f_l with one α per part, and D_λ with one α shared by all parts and chosen for λ.

    With a threshold per part, each part's own optimum is best for every language at once: language-awareness has
    nothing left to choose. Rows of `activations` are languages.

    >>> from fairbits.theory.distributions import Gaussian
    >>> own, shared = separable([Gaussian(1.0), Gaussian(3.0)], [[0.9, 0.1], [0.1, 0.9]], grid=Grid(4))
    >>> bool((own <= shared).all())
    True
    """
    parts = instances("parts", parts, Distribution)
    rows = nonnegative_array("activations", activations, ndim=2)
    patterns = np.stack([weights_vector(f"activations[{i}]", row, size=len(parts)) for i, row in enumerate(rows)])
    own = np.array([clip_law(part, grid).value for part in parts])
    shared = []
    for pattern in patterns:
        step = clip_law(Mixture(parts, pattern), grid).step
        shared.append(pattern @ np.array([float(mse(part, grid, step)) for part in parts]))
    return patterns @ own, np.array(shared)
