"""The claims about gateway layers: which k layers to protect, by enumeration, and the documents' amplification."""

import itertools

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, nonnegative_array
from fairbits.core.checks import same_shape
from fairbits.core.errors import InputError


def best_protected_set(damage: Floats, *, k: int, objective: str) -> tuple[tuple[int, ...], float]:
    """Returns the set S of k layers with the least objective if only the others do damage, and its value (004-22).

    `damage` is (languages, layers); D_λ(S) = Σ_{l∉S} damage[λ, l]. "worst" = max_λ D_λ, "gap" = max − min over λ. The
    gap can be lowered by damaging the best language. All sets are tried.
    """
    sets = np.array(list(itertools.combinations(range(damage.shape[1]), k)))
    totals = np.repeat(damage.sum(axis=1)[:, None], len(sets), axis=1)
    for column in sets.T:
        totals -= damage[:, column]
    spread = 0.0 if objective == "worst" else totals.min(axis=0)
    best = tuple(sets[int((totals.max(axis=0) - spread).argmin())].tolist())
    left = damage.sum(axis=1) - damage[:, best].sum(axis=1)
    return best, float(left.max() if objective == "worst" else np.ptp(left))


def gateway_misses(
    n_cases: int,
    *,
    rng: np.random.Generator,
    objective: str,
    n_languages: int = 2,
    n_blocks: int = 12,
    k: int = 3,
    gateway_factor: float = 2.0,
) -> float:
    """Returns the share of random additive cases whose best set lacks the first or the last block (004-21).

    Sensitivities are Gamma(2) per language and block, those of both gateways multiplied by `gateway_factor`;
    high precision does no damage. This refutes the theorem; it does not show how often it fails in a model.
    """
    gateways = [0, n_blocks - 1]
    misses = 0
    for _ in range(n_cases):
        low = rng.gamma(2.0, size=(n_languages, n_blocks))
        low[:, gateways] *= gateway_factor
        misses += not set(gateways) <= set(best_protected_set(low, k=k, objective=objective)[0])
    return misses / n_cases


def amplification_sensitivity(errors: ArrayLike, norms: ArrayLike) -> Floats:
    """Returns the research notes' terms ε_i·Π_{j>i} ‖W_j‖, one per layer (004-23).

    As written; wrong for pre-LN residual networks, whose blocks add to the residual stream. With equal errors it
    selects the first layers if ‖W‖ > 1 and the last if ‖W‖ < 1, never both ends.
    """
    eps = nonnegative_array("errors", errors, ndim=1)
    norm = nonnegative_array("norms", norms, ndim=1)
    same_shape("norms", norm.shape, "the shape of errors", eps.shape)
    with np.errstate(over="ignore", invalid="ignore"):
        terms: Floats = eps * np.append(norm[:0:-1].cumprod()[::-1], 1.0)
    if not np.isfinite(terms).all():
        raise InputError(f"norms up to {norm.max():g} over {len(norm)} layers overflow; divide them by a constant")
    return terms
