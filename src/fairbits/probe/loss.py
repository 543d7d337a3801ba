"""The loss of every document under a model, without gradients."""

from typing import TYPE_CHECKING

import torch

from fairbits.checks import Floats
from fairbits.probe.batches import batches
from fairbits.probe.run import Progress, Scores, positions_at_once
from fairbits.probe.text import Text

if TYPE_CHECKING:
    from transformers import PreTrainedModel

LIGHTER = 4
"""How many times more positions fit at once where nothing is kept for a backward pass."""


@torch.no_grad()
def document_losses(model: "PreTrainedModel", text: Text, *, progress: Progress | None = None) -> tuple[Floats, Floats]:
    """Returns the summed loss of every document in nats, and its predicted tokens."""
    scores = Scores(len(text.lang))
    total, done = len(text.windows), 0
    for batch in batches(text, positions=LIGHTER * positions_at_once(model)):
        scores.add(batch, model(**batch.inputs, use_cache=False).logits)
        done += len(batch.document)
        if progress is not None:
            progress(done, total)
    predicted, nll, _ = scores.sums.numpy()
    return nll, predicted
