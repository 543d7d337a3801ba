"""Checkpoints of other tools: their divergence on a GPU is that on a CPU."""

from pathlib import Path
from typing import Any

import pytest
import torch
from other_tools import FORMATS

from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.parametrize("name", [name for name in FORMATS if "modelopt" not in name])
def test_divergence_is_that_on_a_cpu(reading_model: Any, tmp_path: Path, name: str) -> None:
    model = reading_model("wide_llama")
    FORMATS[name](model.directory, tmp_path / "written")
    text = tokenize_corpus(model, udhr(["eng_Latn", "heb_Hebr"]), request=TextRequest("evaluation", 256, 64), least=1)
    kl = []
    for device in ("cpu", "cuda"):
        with ReferenceModel.on_text(model, text, device=device) as reference:
            comparison = reference.compare(Checkpoint(tmp_path / "written"), device=device)
        kl.append(comparison.kl.sum() / comparison.predicted.sum())
    assert kl[1] == pytest.approx(kl[0], rel=0.02)
