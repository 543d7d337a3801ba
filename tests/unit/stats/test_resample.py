import numpy as np
import pytest

from fairbits.core.errors import InputError
from fairbits.stats.resample import generator


def test_generator_takes_a_generator_or_a_seed():
    rng = np.random.default_rng(3)
    assert generator(rng) is rng
    assert generator(7).random() == np.random.default_rng(7).random()
    with pytest.raises(InputError, match="rng is -1"):
        generator(-1)
    with pytest.raises(InputError, match="rng is None"):
        generator(None)
