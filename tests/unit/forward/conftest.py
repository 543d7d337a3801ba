"""Text for small models."""

import pytest

from fairbits.forward.tokenize import tokenize_corpus
from fairbits.text.corpus import Corpus, TextRequest

WEATHER = Corpus(
    "weather",
    {
        "eng": [f"On day {i} the wind came from the north and brought rain to the hills." for i in range(6)],
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(5)],
    },
    {},
)


@pytest.fixture(scope="session")
def weather():
    """Returns the function that gives the text of a model."""
    return lambda checkpoint: tokenize_corpus(checkpoint, WEATHER, request=TextRequest(tokens=64))
