"""LossTrial: what replaced weights add to the loss of a model on a text."""

from collections.abc import Iterable

import numpy as np

from fairbits.checks import Floats
from fairbits.measure.passes.loss import document_losses
from fairbits.measure.passes.text import Text
from fairbits.model.architecture import Weight
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.groups import error_of
from fairbits.model.scheme import Scheme
from fairbits.model.swapped_model import SwappedModel
from fairbits.quantize.rounding.layer import matrix


class LossTrial:
    """A model in memory, and its loss on a text before anything was replaced.

    `reference_nll` and `predicted` have one entry per document: the loss in nats, and the predicted tokens.
    """

    def __init__(self, checkpoint: Checkpoint, text: Text, *, device: str = "cpu") -> None:
        """Loads the model and measures its loss."""
        self.swapped, self.text = SwappedModel.load(checkpoint, device=device), text
        self.reference_nll, self.predicted = document_losses(self.swapped.model, text)

    def replace_rounded(self, weights: Iterable[Weight], scheme: Scheme) -> None:
        """Replaces linear maps by their weights rounded as a scheme says."""
        for weight in weights:
            W = matrix(self.swapped.checkpoint, weight)
            self.swapped.replace({weight.name: error_of(W, scheme).add_(W)})

    def added_nll(self) -> Floats:
        """Returns what the replaced weights add to the loss of every document, in nats."""
        return document_losses(self.swapped.model, self.text)[0] - self.reference_nll

    def damage(self) -> Floats:
        """Returns what they add per predicted token of each language, in nats."""
        return per_token(self.added_nll(), self.predicted, self.text)


def per_token(nats: Floats, predicted: Floats, text: Text) -> Floats:
    """Returns Σ nats / Σ predicted tokens of each language."""
    languages, count = text.language_of, len(text.languages)
    share: Floats = np.bincount(languages, nats, count) / np.bincount(languages, predicted, count)
    return share
