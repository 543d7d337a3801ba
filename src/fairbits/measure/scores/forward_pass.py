"""One forward pass of a text through a model: the features of every position that predicts a token."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.measure.passes.batches import batches
from fairbits.measure.passes.head import Split, split_head
from fairbits.measure.passes.run import positions_at_once
from fairbits.measure.passes.text import NO_LABEL, Text
from fairbits.memory import EVALUATION_POSITIONS
from fairbits.model.device import move
from fairbits.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class Features:
    """Positions that predict a token: `features` (positions, width), the token as a label, and the document of each."""

    features: Tensor
    labels: Tensor
    documents: Tensor


def split_for(model: "PreTrainedModel", text: Text, *, device: str) -> Split:
    """Returns the model, moved to the device, as body and head."""
    move(model, device)
    return split_head(model, next(batches(text, positions=1)).on(device))  # the shortest window is enough to see


@torch.no_grad()
def features_of(
    model: "PreTrainedModel", split: Split, *, text: Text, device: str, stage: str, progress: Progress | None
) -> Iterator[Features]:
    """Yields all positions that predict, in the same order whatever the model and however large the batches.

    `progress` is called with `stage`, the windows done and the number of windows.
    """
    room = positions_at_once(model, split)
    total, done = len(text.windows), 0
    for batch in batches(text, positions=max(room, EVALUATION_POSITIONS) if split.apart else room):
        rows, columns = (batch.labels != NO_LABEL).nonzero(as_tuple=True)
        features = split.body(batch.on(device))
        yield Features(features[rows, columns], batch.labels[rows, columns], batch.document[rows])
        done += len(batch.document)
        if progress is not None:
            progress(stage, done, total)


def places(text: Text) -> list[range]:
    """Returns the numbers that the predicting positions of every window have, in the order of `features_of`."""
    counts = [sum(label != NO_LABEL for label in window.main.labels) for window in text.windows]
    found = [range(0)] * len(counts)
    begin = 0
    for i in sorted(range(len(counts)), key=lambda i: text.windows[i].length):  # as batches are made
        found[i] = range(begin, begin + counts[i])
        begin += counts[i]
    return found


def predicted_positions(text: Text) -> int:
    """Returns how many positions predict a token."""
    return sum(label != NO_LABEL for window in text.windows for label in window.main.labels)
