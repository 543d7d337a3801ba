"""Workbench: a model in memory whose linear maps are exchanged and put back, and the loss each time."""

from collections.abc import Iterable

import numpy as np
from torch import Tensor

from fairbits.checks import Floats
from fairbits.measure.passes.loss import document_losses
from fairbits.measure.passes.text import Text
from fairbits.measure.scores.in_place import put_weight, restore
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.device import move


class Workbench:
    """One copy of a model in float32; what is put back is read from the checkpoint again."""

    def __init__(self, checkpoint: Checkpoint, text: Text, *, device: str = "cpu") -> None:
        """Loads the model and measures its loss on the text: `before` and `predicted` have one entry per document."""
        self.checkpoint, self.text = checkpoint, text
        self._model = move(checkpoint.load(), device)
        self._changed: set[str] = set()
        self.before, self.predicted = document_losses(self._model, text)

    def put(self, name: str, W: Tensor) -> None:
        """Replaces a linear map or embedding by W (out, in)."""
        self._changed.add(name)
        put_weight(self._model, self.checkpoint.architecture.weights[name], W)

    def put_back(self, names: Iterable[str] | None = None) -> None:
        """Restores the named maps exactly, or all that were replaced."""
        back = set(self._changed if names is None else self._changed.intersection(names))
        restore(self._model, self.checkpoint, sorted(back))
        self._changed -= back

    def added(self) -> Floats:
        """Returns what every document loses by what is replaced now, in nats."""
        return document_losses(self._model, self.text)[0] - self.before

    def damage(self) -> Floats:
        """Returns the same per predicted token of each language."""
        return per_token(self.added(), self.predicted, self.text)


def per_token(nats: Floats, predicted: Floats, text: Text) -> Floats:
    """Returns Σ nats / Σ predicted tokens of each language."""
    languages, count = text.language_of, len(text.languages)
    share: Floats = np.bincount(languages, nats, count) / np.bincount(languages, predicted, count)
    return share
