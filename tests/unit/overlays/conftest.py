"""A base of 3 bits that is quick to load, and a builder over the embedded model in 3 bits."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairbits.language import udhr
from fairbits.language.text_request import TextRequest
from fairbits.measure.passes.prepare import text_for
from fairbits.measure.scores.reference import Reference
from fairbits.model import Checkpoint
from fairbits.overlays.base_model import OverlayBase
from fairbits.overlays.builder import OverlayBuilder
from fairbits.verbs.plan import plan
from fairbits.verbs.quantize import quantize

BLOCKS = range(1, 5)


@pytest.fixture(scope="session")
def llama_base(reading_model: Callable[[str], Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Returns a small random Llama in 3 bits, 16 weights to a scale."""
    model, out = reading_model("llama"), tmp_path_factory.mktemp("llama") / "base"
    quantize(model, plan(model, policy="rtn", bits=3, group=16), out=out)
    return Checkpoint(out)


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns where the embedded model lies in 3 bits."""
    model, out = Checkpoint("embedded:tiny"), tmp_path_factory.mktemp("tiny") / "base"
    quantize(model, plan(model, policy="rtn", bits=3, group="channel"), out=out)
    return out


@pytest.fixture(scope="session")
def builder(tiny_base: Path) -> Iterator[OverlayBuilder]:
    """Returns the builder of the embedded model, three languages and a third of its blocks."""
    model = Checkpoint("embedded:tiny")
    words = text_for(model, udhr(["eng", "heb", "jpn"]), request=TextRequest(tokens=400, sequence=128))
    with Reference.of(model, words) as reference:
        overlay_base = OverlayBase(model, Checkpoint(tiny_base))
        # the maps of some blocks are enough, and several times as quick
        overlay_base.schemes = {
            name: each for name, each in overlay_base.schemes.items() if overlay_base.weight(name).block in BLOCKS
        }
        yield OverlayBuilder(overlay_base, reference)
