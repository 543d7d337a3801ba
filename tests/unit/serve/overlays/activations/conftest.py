"""Models with text in two languages, and what they show."""

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import torch
from torch import Tensor

from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import Text
from fairbits.models.checkpoint import Checkpoint
from fairbits.serve.overlays.activations import ActivationRecord, ActivationTable, record_activations
from fairbits.text.included_texts import udhr
from fairbits.text.text_request import TextRequest

LANGUAGES = ["eng_Latn", "heb_Hebr"]


class Case:
    """A model with text in two languages, and what it shows."""

    def __init__(self, checkpoint: Checkpoint, *, sequence: int = 64) -> None:
        self.checkpoint, self.model = checkpoint, checkpoint.load()
        self.text: Text = tokenize_corpus(
            checkpoint, udhr(LANGUAGES), request=TextRequest(tokens=200, sequence=sequence)
        )
        self.record: ActivationRecord = record_activations(self.model, checkpoint.architecture, self.text)

    @cache  # noqa: B019 - a case lives as long as the module
    def table(self, bits: int) -> ActivationTable:
        return self.record.table(bits)

    def logits(self) -> Tensor:
        ids = torch.tensor([self.text.windows[0].main.ids])
        asked = {"decoder_input_ids": ids} if self.model.config.is_encoder_decoder else {}
        with torch.no_grad():
            found: Tensor = self.model(input_ids=ids, **asked).logits
        return found

    def inputs(self, module: str, text: Text) -> np.ndarray:
        """Returns what a module of a causal model sees of a text, one window at a time: nothing is padded."""
        seen: list[Tensor] = []
        handle = self.model.get_submodule(module).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
        with torch.no_grad():
            for window in text.windows:
                self.model(input_ids=torch.tensor([window.main.ids]))
        handle.remove()
        return torch.cat([each.flatten() for each in seen]).numpy()


@pytest.fixture(scope="module")
def tiny(outer_blocks: Callable[[int], Checkpoint]) -> Case:
    """Returns four blocks of the embedded model: trained weights, a third of the work."""
    return Case(outer_blocks(4))


@pytest.fixture(scope="module")
def case(reading_model: Callable[[str], Checkpoint]) -> Callable[[str], Case]:
    """Returns the function that gives a small random model of a family with text."""
    made: dict[str, Case] = {}

    def case(family: str) -> Case:
        if family not in made:
            made[family] = Case(reading_model(family), sequence=32)
        return made[family]

    return case
