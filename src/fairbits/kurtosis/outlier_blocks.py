"""Which blocks are outlier blocks, judged by excess kurtosis: the research notes' rule and a robust rule."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fairbits.core.array_checks import Floats, finite_array
from fairbits.core.checks import in_range

FOUNDING_THRESHOLD = 100.0
"""κ above which a layer is an outlier layer (001-03), the one number that yields the layers 5, 21, 22 named for BLOOM.

The 50 of the checklist (001-23) would add layer 4. The table of models says that mT5 (45) has outlier layers; by either
threshold it has none.
"""

CUTOFF = 2.5
"""How many scale units above the centre of the bulk a block must lie: the usual cut-off for a shortest-half scale."""

LEAST_FACTOR = 4.0
"""Least ratio of 1 + κ of an outlier block to that of the bulk. It keeps an ordinary block from standing out when the
others are nearly equal: next to a Gaussian bulk, κ must exceed the 3 of a Laplace distribution."""

LEAST_BLOCKS = 5


@dataclass(frozen=True)
class OutlierBlocks:
    """The blocks whose κ exceeds a threshold, and the rule that set it. Both are None if the rule cannot decide."""

    rule: str
    threshold: float | None
    blocks: tuple[int, ...] | None
    remark: str

    def __str__(self) -> str:
        """Returns the blocks and the threshold."""
        if self.blocks is None or self.threshold is None:
            return "unknown (too few blocks)"
        return f"{', '.join(map(str, self.blocks)) or 'none'} (κ > {self.threshold:.3g})"

    def as_data(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        return asdict(self)


def founding_outliers(kappa: ArrayLike, *, threshold: float = FOUNDING_THRESHOLD) -> OutlierBlocks:
    """Returns the blocks with κ_l > 100: the research notes' outlier layers (001-03).

    >>> founding_outliers([8.1, 125.9, 44.8, 164.3]).blocks
    (1, 3)
    """
    values = finite_array("kappa", kappa, ndim=1)
    in_range("threshold", threshold)
    return OutlierBlocks(
        "founders",
        threshold,
        _above(values, threshold),
        "The research notes' threshold (001-03), set by hand; a handful of weights can cause such a κ.",
    )


def robust_outliers(kappa: ArrayLike) -> OutlierBlocks:
    """Returns the blocks whose κ stands out from the model's own bulk of blocks (a heuristic).

    With x = ln(1 + max(κ, 0)), and [a, b] the shortest interval that holds more than half of the blocks, a block stands
    out when x > c + max(2.5·s, ln 4), c = (a + b)/2 and s = 1.4826·(b − a)/2. Outliers lie on one side, where they
    would bias a median and its MAD; the shortest half ignores up to half of the blocks. The logarithm is taken because
    κ of ordinary blocks varies by factors. Fewer than 5 blocks have no bulk, and the rule then cannot decide.

    >>> robust_outliers([0.4, 0.9, 0.3, 60.0, 0.5, 1.1]).blocks
    (3,)
    """
    values = finite_array("kappa", kappa, ndim=1)
    if values.size < LEAST_BLOCKS:
        return OutlierBlocks(
            "robust", None, None, f"Cannot tell: {values.size} block(s) are too few to show which κ is usual."
        )
    x = np.sort(np.log1p(np.maximum(values, 0.0)))  # lighter tails than Gaussian count as Gaussian
    half = values.size // 2 + 1
    widths = x[half - 1 :] - x[: x.size - half + 1]
    first = int(np.argmin(widths))
    centre, scale = (x[first] + x[first + half - 1]) / 2, 1.4826 * widths[first] / 2
    threshold = float(np.expm1(centre + max(CUTOFF * scale, np.log(LEAST_FACTOR))))
    return OutlierBlocks(
        "robust",
        threshold,
        _above(values, threshold),
        f"A heuristic: stands out from the bulk of the blocks, which lies around κ = {np.expm1(centre):.3g}.",
    )


def _above(kappa: Floats, threshold: float) -> tuple[int, ...]:
    return tuple(int(block) for block in np.flatnonzero(kappa > threshold))
