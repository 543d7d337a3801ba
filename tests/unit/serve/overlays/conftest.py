"""A base of 3 bits that is quick to load, and a builder over blocks of the embedded model in 3 bits."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairbits.api.make_plan import plan
from fairbits.api.quantize import quantize
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.serve.overlays.base_model import OverlayBase
from fairbits.serve.overlays.builder import OverlayBuilder
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr


@pytest.fixture(scope="session")
def llama_base(reading_model: Callable[[str], Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """Returns a small random Llama in 3 bits, 16 weights to a scale."""
    model, out = reading_model("llama"), tmp_path_factory.mktemp("llama") / "base"
    quantize(model, plan(model, policy="rtn", bits=3, group=16), out=out)
    return Checkpoint(out)


@pytest.fixture(scope="session")
def tiny_base(outer_blocks: Callable[[int], Checkpoint], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns where four blocks of the embedded model lie in 3 bits."""
    model, out = outer_blocks(4), tmp_path_factory.mktemp("tiny") / "base"
    quantize(model, plan(model, policy="rtn", bits=3, group="channel"), out=out)
    return out


@pytest.fixture(scope="session")
def builder(outer_blocks: Callable[[int], Checkpoint], tiny_base: Path) -> Iterator[OverlayBuilder]:
    """Returns the builder of these four blocks and three languages."""
    model = outer_blocks(4)
    words = tokenize_corpus(model, udhr(["eng", "heb", "jpn"]), request=TextRequest(tokens=400, sequence=128))
    with ReferenceModel.on_text(model, words) as reference:
        yield OverlayBuilder(OverlayBase(model, Checkpoint(tiny_base)), reference)
