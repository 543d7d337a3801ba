"""Plans and text for small models."""

import pytest

from fairbits.language import Corpus
from fairbits.language.text_request import TextRequest
from fairbits.measure.passes.prepare import text_for
from fairbits.model.scheme import Scheme
from fairbits.quantization.plan import LayerPlan, Plan

WEATHER = Corpus(
    "weather",
    {
        "eng": [f"On day {i} the wind came from the north and brought rain to the hills." for i in range(6)],
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(5)],
    },
    {},
)


@pytest.fixture(scope="session")
def corpus():
    """Returns a corpus of two languages."""
    return WEATHER


@pytest.fixture(scope="session")
def weather():
    """Returns the function that gives the text of a model."""
    return lambda checkpoint: text_for(checkpoint, WEATHER, request=TextRequest(tokens=64))


@pytest.fixture(scope="session")
def plan_of():
    """Returns the function that plans the same for every linear map of the blocks."""

    def plan_of(checkpoint, *, bits=3, languages=(), roles=None, thresholds=False, outside=False, **how):
        weights = checkpoint.architecture.weights.values()
        rounded = [each for each in weights if (each.linear and each.block is not None and each.stacked is None)]
        rounded += [each for each in weights if outside and each.role in ("embedding", "head")]
        scheme = Scheme(**{"bits": bits, "group": "channel", "clip": "exact", "grid": "twos", **how})
        return Plan(
            policy="test",
            settings={},
            model=checkpoint.target,
            fingerprint="",
            family=checkpoint.architecture.family,
            layers=tuple(
                LayerPlan(each.name, each.block, each.role, scheme)
                for each in rounded
                if roles is None or each.role in roles
            ),
            size_bytes=0,
            languages={code: 1 / len(languages) for code in languages},
            thresholds=thresholds,
        )

    return plan_of
