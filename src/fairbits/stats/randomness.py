"""The one door through which randomness enters the statistics."""

import numpy as np

from fairbits.checks import whole

Rng = np.random.Generator | int


def generator(rng: Rng) -> np.random.Generator:
    """Returns the generator itself, or a fresh one seeded by a whole number.

    >>> int(generator(0).integers(100))
    85
    """
    if isinstance(rng, np.random.Generator):
        return rng
    return np.random.default_rng(whole("rng", rng, least=0))
