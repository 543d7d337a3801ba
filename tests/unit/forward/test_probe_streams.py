"""Models whose blocks have several states of each position."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from small_models import small_model

from fairbits.forward.statistics import collect_statistics
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.scales.scheme import Scheme
from fairbits.text.reading import open_corpus
from fairbits.text.text_request import TextRequest

EMBEDDED = "embedded:tiny"
STREAMED = {"gemma3n_text": "Gemma3nForCausalLM", "hy_v4": "HYV4ForCausalLM"}
"""One has the states of a position first in shape, the other third."""


@pytest.mark.parametrize("family", STREAMED)
def test_all_states_of_a_position_count(family: str, tmp_path: Path) -> None:
    embedded = Checkpoint(EMBEDDED)
    model = small_model(family, STREAMED[family], vocabulary=embedded.config.vocab_size)
    model.save_pretrained(tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(embedded.directory / name, tmp_path)
    checkpoint = Checkpoint(tmp_path)
    corpus = open_corpus(None, ["eng", "heb"], model=EMBEDDED)
    found = collect_statistics(checkpoint, corpus, request=TextRequest(tokens=96), schemes=(Scheme(4, 16),))
    blocks = [found.channels[f"blocks.{number}"] for number in range(2)]
    for each in blocks:
        assert each.shape[-1] == 4 * model.config.hidden_size
        streams = np.asarray(each).reshape(2, 4, -1).sum(2)
        assert (streams > 0).all()
        assert len(np.unique(streams.round(9))) > 2  # they are not copies
