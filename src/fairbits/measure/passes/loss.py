"""The loss of every document under a model, without gradients."""

from typing import TYPE_CHECKING

import torch

from fairbits.checks import Floats
from fairbits.measure.passes.batches import batches
from fairbits.measure.passes.head import split_head
from fairbits.measure.passes.run import Scores, positions_at_once
from fairbits.measure.passes.text import NO_LABEL, Text
from fairbits.memory import GRADIENT_POSITIONS
from fairbits.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def document_losses(model: "PreTrainedModel", text: Text, *, progress: Progress | None = None) -> tuple[Floats, Floats]:
    """Returns the summed loss of every document in nats, and its predicted tokens, computed where the model is."""
    device = str(model.device)
    scores = Scores(len(text.lang))
    total, done = len(text.windows), 0
    split = split_head(model, next(batches(text, positions=1)).on(device))
    for batch in batches(text, positions=positions_at_once(model, split)):
        features = split.body(batch.on(device))
        for at in torch.split((batch.labels != NO_LABEL).nonzero(), GRADIENT_POSITIONS):
            rows, columns = at.T
            scores.add(split.head(features[rows, columns]), batch.labels[rows, columns], batch.document[rows])
        done += len(batch.document)
        if progress is not None:
            progress("evaluating", done, total)
    predicted, nll, _ = scores.sums.numpy()
    return nll, predicted
