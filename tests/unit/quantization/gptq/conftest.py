"""Plans and text for small models."""

from dataclasses import replace

import pytest
import torch

from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.plan import LayerPlan, Plan
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.included_texts import udhr

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
    return lambda checkpoint: tokenize_corpus(checkpoint, WEATHER, request=TextRequest(tokens=64))


@pytest.fixture(scope="session")
def plan_of():
    """Returns the function that plans the same for every linear layer of the blocks."""

    def plan_of(checkpoint, *, bits=3, languages=(), roles=None, thresholds=False, outside=False, **how):
        weights = checkpoint.architecture.weights.values()
        rounded = [
            weight for weight in weights if (weight.linear and weight.block is not None and weight.stacked is None)
        ]
        rounded += [weight for weight in weights if outside and weight.role in ("embedding", "head")]
        scheme = Scheme(**{"bits": bits, "group": "channel", "clip": "exact", "grid": "twos", **how})
        return Plan(
            policy="test",
            settings={},
            model=checkpoint.target,
            fingerprint="",
            family=checkpoint.architecture.family,
            layers=tuple(
                LayerPlan(weight.name, weight.block, weight.role, scheme)
                for weight in rounded
                if roles is None or weight.role in roles
            ),
            size_bytes=0,
            languages={code: 1 / len(languages) for code in languages},
            thresholds=thresholds,
        )

    return plan_of


@pytest.fixture(scope="session")
def llama(reading_model):
    """Returns a small random Llama."""
    return reading_model("llama")


@pytest.fixture(scope="session")
def tiny(outer_blocks):
    """Returns three blocks of the embedded model, and text in four languages."""
    checkpoint = outer_blocks(3)
    languages = ("eng_Latn", "fra_Latn", "heb_Hebr", "zho_Hans")
    return checkpoint, tokenize_corpus(checkpoint, udhr(languages), request=TextRequest(tokens=256, sequence=128))


@pytest.fixture(scope="session")
def of_block():
    """Returns the function that gives the part of a plan that is for some blocks."""

    def of_block(plan, *indices):
        return replace(plan, layers=tuple(layer for layer in plan.layers if layer.block in indices))

    return of_block


@pytest.fixture(scope="session")
def same():
    """Returns the function that asserts that two rounded blocks are the same."""

    def same(one, other):
        assert one.index == other.index
        assert list(one.layers) == list(other.layers)
        for name, codes in one.layers.items():
            assert torch.equal(codes.codes, other.layers[name].codes)
            assert torch.equal(codes.scales, other.layers[name].scales)
        assert one.results == other.results

    return same
