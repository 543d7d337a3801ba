"""The activation-weighted weight error of each language, and a proved bound on the difference of two languages.

For weights W (out, in) quantized to W + ΔW, Σ_j h_j m_j is the diagonal part of E‖ΔW x‖². Here h_j = E_λ[x_j²] depends
on the language and m_j = Σ_i ΔW_ij² on the scheme. For uncorrelated input channels it is exact.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.spatial.distance import pdist, squareform

from fairbits.core.array_checks import Floats, nonnegative_array, representable
from fairbits.core.checks import same_shape
from fairbits.core.errors import InputError


@dataclass(frozen=True, eq=False)
class WeightedError:
    """Σ_j h_j(λ)·m_j per language, for every linear layer and summed over each block (None: outside all blocks).

    `damage` is D_λ = Σ_kj p_kj(λ)·m_kj with p = h/Σh over the channels of all layers, so that languages with large
    and small activations are comparable.
    """

    languages: tuple[str, ...]
    linears: tuple[str, ...]
    blocks: tuple[int | None, ...]
    by_linear: Floats
    by_block: Floats
    damage: Floats

    def as_data(self) -> dict[str, Any]:
        tables = {"by_block": self.by_block, "by_linear": self.by_linear, "damage": self.damage}
        by_language = {name: dict(zip(self.languages, rows.tolist(), strict=True)) for name, rows in tables.items()}
        return {"blocks": list(self.blocks), "linears": list(self.linears), **by_language}


@dataclass(frozen=True)
class Gap:
    """The difference of the damage of two languages, and its bound. Tightness is actual/bound (1 if both are 0)."""

    worse: str
    better: str
    actual: float
    bound: float
    bound_by_linear: float
    tightness: float


@dataclass(frozen=True, eq=False)
class Certificate:
    """|D_λ − D_λ′| for all pairs of languages and two bounds on it, each (language, language)."""

    languages: tuple[str, ...]
    damage: Floats
    distance: Floats  # TV(p(λ), p(λ′)) over all input channels
    actual: Floats
    bound: Floats
    bound_by_linear: Floats

    @property
    def worst(self) -> Gap:
        """The pair with the largest difference: max_λ D_λ − min_λ D_λ."""
        at = worse, better = int(np.argmax(self.damage)), int(np.argmin(self.damage))
        actual, bound, by_linear = (float(table[at]) for table in (self.actual, self.bound, self.bound_by_linear))
        tightness = actual / bound if bound > 0 else 1.0
        return Gap(self.languages[worse], self.languages[better], actual, bound, by_linear, tightness)

    @property
    def certified(self) -> float:
        """An upper bound on the disparity max_λ D_λ − min_λ D_λ: the largest bound by linear layer of any pair."""
        return float(self.bound_by_linear.max())

    def as_data(self) -> dict[str, Any]:
        names = ("damage", "distance", "actual", "bound", "bound_by_linear")
        tables = {name: getattr(self, name).tolist() for name in names}
        return {"languages": list(self.languages), **tables, "worst": vars(self.worst), "certified": self.certified}


def activation_weighted(
    h: Mapping[str, ArrayLike],
    column_error: Mapping[str, ArrayLike],
    *,
    block_of: Mapping[str, int | None],
    languages: Sequence[str],
) -> WeightedError:
    """Returns Σ_j h_j(λ)·m_j by linear layer and block, and D_λ, for h = E_λ[x_j²] and m = Σ_i ΔW_ij² of each layer."""
    names, linears = tuple(languages), tuple(h)
    pairs = list(_linears(h, column_error, size=len(names)))
    by_linear = representable("the weighted error", np.column_stack([x @ m for x, m in pairs]))
    blocks = tuple(sorted({block_of[name] for name in linears}, key=lambda block: (block is None, block or 0)))
    member = np.array([[block_of[name] == block for block in blocks] for name in linears], dtype=np.float64)
    damage = by_linear.sum(axis=1) / _totals([x for x, _ in pairs], names)
    return WeightedError(names, linears, blocks, by_linear, by_linear @ member, damage)


def certificate(
    h: Mapping[str, ArrayLike], column_error: Mapping[str, ArrayLike], *, languages: Sequence[str]
) -> Certificate:
    """Returns |D_λ − D_λ′| for all pairs of languages, with two bounds that hold for any h without assumptions.

    `bound` = TV(p, p′)·(max m − min m) over all channels of all linear layers (B1; `theory.tv_bound`).
    `bound_by_linear` = min(bound, |Σ_k (P_k − P′_k)c_k| + Σ_k ½‖p_k − p′_k‖₁·r_k), with P_k = Σ_j p_kj the share of
    layer k, c_k the midpoint and r_k the range of its m. Proof: m_kj = c_k + (m_kj − c_k); the first part sums to
    Σ_k (P_k − P′_k)c_k, and |m_kj − c_k| ≤ r_k/2 bounds the second. Both are attained.
    """
    names = tuple(languages)
    pairs = list(_linears(h, column_error, size=len(names)))
    total = _totals([x for x, _ in pairs], names)
    damage, middle = np.zeros(len(names)), np.zeros(len(names))
    distance, within = np.zeros((2, len(names), len(names)))
    for x, m in pairs:
        p = x / total[:, None]
        low, high = float(m.min()), float(m.max())
        half = 0.5 * squareform(pdist(p, "cityblock"))
        damage += p @ m
        middle += p.sum(axis=1) * (low / 2 + high / 2)
        distance += half
        within += half * (high - low)
    spread = max(float(m.max()) for _, m in pairs) - min(float(m.min()) for _, m in pairs)
    bound = distance * spread
    by_linear = np.minimum(bound, np.abs(middle[:, None] - middle) + within)
    return Certificate(names, damage, distance, np.abs(damage[:, None] - damage), bound, by_linear)


def _linears(
    h: Mapping[str, ArrayLike], column_error: Mapping[str, ArrayLike], *, size: int
) -> Iterator[tuple[Floats, Floats]]:
    for name in h:
        x = nonnegative_array(f"h[{name!r}]", h[name], ndim=2)
        m = nonnegative_array(f"column_error[{name!r}]", column_error[name], ndim=1)
        same_shape(f"h[{name!r}]", x.shape, "(languages, input channels)", (size, m.size))
        yield x, m


def _totals(h: Sequence[Floats], names: Sequence[str]) -> Floats:
    with np.errstate(over="ignore"):
        total: Floats = representable("the sum of h", np.sum([x.sum(axis=1) for x in h], axis=0))
    if not (total > 0).all():
        raise InputError(f"h of {names[int(np.argmin(total))]} is 0 in every channel; it must have some activation")
    return total
