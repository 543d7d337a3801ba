"""A checkpoint in any format diverges nowhere from itself, whole and block by block."""

from pathlib import Path
from typing import Any

import pytest
from class_trial import check_itself
from other_tools import FORMATS

from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr


@pytest.mark.parametrize("name", [name for name in FORMATS if "modelopt" not in name])
def test_a_checkpoint_is_like_itself(reading_model: Any, tmp_path: Path, name: str) -> None:
    model = reading_model("wide_llama")
    FORMATS[name](model.directory, tmp_path / "written")
    words = tokenize_corpus(model, udhr(["eng_Latn", "heb_Hebr"]), request=TextRequest("evaluation", 64, 32), least=1)
    check_itself(Checkpoint(tmp_path / "written"), words)
