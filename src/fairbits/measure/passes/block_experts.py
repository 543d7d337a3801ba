"""BlockExperts: how often the router of a block chose each expert, by language."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class BlockExperts:
    """How many positions of text the router of a block sends to each expert.

    `per_position`  the experts that it chooses for every position
    `counts`        (languages, experts)
    """

    block: int
    per_position: int
    counts: Counts
