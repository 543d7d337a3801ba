"""One forward pass of a text through a model: the features of every position that shall predict a token."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.language.text_request import TextRequest
from fairbits.measure.passes.batches import batches
from fairbits.measure.passes.head import Split, split_head
from fairbits.measure.passes.run import positions_at_once
from fairbits.measure.passes.text import NO_LABEL, Text
from fairbits.memory import EVALUATION_POSITIONS
from fairbits.model.device import move
from fairbits.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel

CLEARLY_LESS = 0.9
"""Share of the tokens that were asked for below which a note says how many there were."""
NAMED = 3
"""Languages that such a note names."""


@dataclass(frozen=True, eq=False)
class Asked:
    """Positions that shall predict: `features` (positions, width), the token each is asked for, its document."""

    features: Tensor
    labels: Tensor
    documents: Tensor


def split_for(model: "PreTrainedModel", text: Text, *, device: str) -> Split:
    """Returns the model, moved to the device, as body and head."""
    move(model, device)
    return split_head(model, next(batches(text, positions=1)).on(device))  # the shortest window is enough to see


@torch.no_grad()
def ask(
    model: "PreTrainedModel", split: Split, *, text: Text, device: str, stage: str, progress: Progress | None
) -> Iterator[Asked]:
    """Yields all positions that shall predict, in the same order whatever the model and however large the batches.

    `stage` is what `progress` is given, with the windows done and the windows there are.
    """
    room = positions_at_once(model, split)
    total, done = len(text.windows), 0
    for batch in batches(text, positions=max(room, EVALUATION_POSITIONS) if split.apart else room):
        rows, columns = (batch.labels != NO_LABEL).nonzero(as_tuple=True)
        features = split.body(batch.on(device))
        yield Asked(features[rows, columns], batch.labels[rows, columns], batch.document[rows])
        done += len(batch.document)
        if progress is not None:
            progress(stage, done, total)


def places(text: Text) -> list[range]:
    """Returns the numbers that the predicting positions of every window have, in the order of `ask`."""
    counts = [sum(label != NO_LABEL for label in window.main.labels) for window in text.windows]
    found = [range(0)] * len(counts)
    begin = 0
    for i in sorted(range(len(counts)), key=lambda i: text.windows[i].length):  # as batches are made
        found[i] = range(begin, begin + counts[i])
        begin += counts[i]
    return found


def predicted_positions(text: Text) -> int:
    """Returns how many positions shall predict a token."""
    return sum(label != NO_LABEL for window in text.windows for label in window.main.labels)


def tokens_of(text: Text) -> dict[str, int]:
    """Returns how many tokens each language has, those that are not asked for included."""
    counts = dict.fromkeys(text.languages, 0)
    for window in text.windows:
        main, encoder = window.main, window.encoder
        # a decoder sees a start token in the place of its last token, and is asked for all
        counts[str(text.lang[window.document])] += (
            sum(main.text) if encoder is None else sum(encoder.text) + len(main.labels)
        )
    return counts


def short_text_notes(text: Text, request: TextRequest, *, parallel: bool) -> tuple[str, ...]:
    """Returns a note if languages have clearly less text than requested.

    For parallel text the mean language counts: others have the same content in more or fewer tokens.
    """
    counts = tokens_of(text)
    least = CLEARLY_LESS * request.tokens
    short = sorted((code for code, count in counts.items() if count < least), key=lambda code: counts[code])
    if not short or (parallel and sum(counts.values()) >= least * len(counts)):
        return ()
    first, *others = (f"{code} {counts[code]:,}" for code in short[:NAMED])
    named = [f"{first} of {request.tokens:,} tokens", *others]
    more = f" and {len(short) - NAMED} more" if len(short) > NAMED else ""
    return (f"{request.split} text is shorter than requested: {', '.join(named)}{more}",)
