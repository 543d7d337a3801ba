"""One function opens models wherever they are, and says what it cannot open."""

from collections.abc import Callable

import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.loaded_checkpoint import LoadedCheckpoint, open_checkpoint, open_checkpoints


def test_every_kind_of_model(reading_model: Callable[[str], Checkpoint]) -> None:
    stored = reading_model("llama")
    assert open_checkpoint(stored) is stored
    assert open_checkpoint(stored.directory).fingerprint == stored.fingerprint
    model, tokenizer = stored.load(), stored.tokenizer()
    found = open_checkpoint(model, tokenizer)
    assert isinstance(found, LoadedCheckpoint)
    assert [each.kind for each in open_checkpoints([model, stored.directory], tokenizer)] == ["memory", "directory"]


def test_other_modules_and_spare_tokenizers_are_refused(reading_model: Callable[[str], Checkpoint]) -> None:
    stored = reading_model("llama")
    with pytest.raises(InputError, match="leave it out"):
        open_checkpoint(stored, stored.tokenizer())
    with pytest.raises(InputError, match="leave it out"):
        open_checkpoints([stored], stored.tokenizer())
    with pytest.raises(InputError, match=r"the model is a Linear; it must be a PreTrainedModel of transformers$"):
        open_checkpoint(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    adapted = torch.nn.Module()
    adapted.merge_and_unload = lambda: None  # type: ignore[assignment]
    with pytest.raises(InputError, match="merge its adapter first"):
        open_checkpoint(adapted)  # type: ignore[arg-type]
    compiled = torch.nn.Module()
    compiled._orig_mod = torch.nn.Linear(2, 2)
    with pytest.raises(InputError, match="compiled from"):
        open_checkpoint(compiled)  # type: ignore[arg-type]
