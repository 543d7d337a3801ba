"""Batches of windows of similar length, in mixed languages, with padding."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from fairbits.forward.windows import NO_LABEL, Sound, TokenizedText, Window, WindowPart

if TYPE_CHECKING:
    from transformers import PreTrainedModel

T = TypeVar("T")
SAMPLED = 512  # positions of a sample, all of whose logits are computed


@dataclass(frozen=True, eq=False)
class Positions:
    """Which positions of a batch are not padding, and which of those hold text, as float32 (rows, length)."""

    real: Tensor
    text: Tensor

    def on(self, device: str | torch.device) -> "Positions":
        return Positions(self.real.to(device), self.text.to(device))


@dataclass(frozen=True, eq=False)
class Batch:
    """The input of the model; `labels` (rows, length) say what every position of its output must predict."""

    inputs: Mapping[str, Tensor]
    labels: Tensor
    document: Tensor
    main: Positions
    encoder: Positions | None

    def positions(self, stack: str) -> Positions:
        return self.encoder if self.encoder is not None and stack == "encoder" else self.main

    @property
    def size(self) -> int:
        return self.main.real.numel() + (0 if self.encoder is None else self.encoder.real.numel())

    @property
    def ids(self) -> Tensor:
        return torch.cat([ids.flatten() for name, ids in self.inputs.items() if name.endswith("input_ids")])

    def inputs_for(self, model: "PreTrainedModel") -> dict[str, Tensor]:
        """Returns the model's input, sound in the type that the model computes in."""
        return {name: x.to(model.dtype) if x.is_floating_point() else x for name, x in self.inputs.items()}

    def on(self, device: str | torch.device) -> "Batch":
        return replace(self, inputs={name: x.to(device) for name, x in self.inputs.items()})


def batches(text: TokenizedText, *, positions: int) -> Iterator[Batch]:
    """Yields all windows, shortest first, at most `positions` padded positions at a time (and at least one window)."""
    chosen: list[Window] = []
    for window in sorted(text.windows, key=lambda window: window.length):
        if chosen and (len(chosen) + 1) * window.length > positions:
            yield _batch(chosen, text.padding)
            chosen = []
        chosen.append(window)
    if chosen:
        yield _batch(chosen, text.padding)


def sample_batch(text: TokenizedText) -> Batch:
    """Returns the shortest window, cut if it is long: enough to see how a model computes its logits."""
    window = min(text.windows, key=lambda window: window.length)
    if window.encoder is None and window.sound is None:
        main = window.main
        window = replace(window, main=WindowPart(main.ids[:SAMPLED], main.text[:SAMPLED], main.labels[:SAMPLED]))
    return _batch([window], text.padding)


def in_parts(items: Iterable[T], size: Callable[[T], float], *, room: float, most: int) -> Iterator[list[T]]:
    """Yields the items in parts of at most this total size and number, or of one item."""
    part: list[T] = []
    total = 0.0
    for item in items:
        if part and (total + size(item) > room or len(part) == most):
            yield part
            part, total = [], 0.0
        part.append(item)
        total += size(item)
    yield part


def _batch(windows: Sequence[Window], padding: int) -> Batch:
    ids, main = _padded([window.main for window in windows], padding)
    labels = _rows([window.main.labels for window in windows], NO_LABEL)
    document = torch.tensor([window.document for window in windows])
    sounds = [window.sound for window in windows if window.sound is not None]
    if sounds:
        inputs = {
            "input_features": torch.stack([sound.features() for sound in sounds]),
            "decoder_input_ids": ids,
            "decoder_attention_mask": main.real.long(),
        }
        return Batch(inputs, labels, document, main, _sound_positions(sounds))
    encoders = [window.encoder for window in windows if window.encoder is not None]
    if not encoders:
        return Batch({"input_ids": ids, "attention_mask": main.real.long()}, labels, document, main, None)
    encoder_ids, encoder = _padded(encoders, padding)
    inputs = {
        "input_ids": encoder_ids,
        "attention_mask": encoder.real.long(),
        "decoder_input_ids": ids,
        "decoder_attention_mask": main.real.long(),
    }
    return Batch(inputs, labels, document, main, encoder)


def _sound_positions(sounds: Sequence[Sound]) -> Positions:
    """Returns the positions of an encoder that reads sound: it sees the silence after a clip too."""
    sounding = torch.tensor([sound.sounding for sound in sounds])
    text = torch.arange(sounds[0].positions) < sounding[:, None]
    return Positions(torch.ones_like(text).float(), text.float())


def _padded(parts: Sequence[WindowPart], padding: int) -> tuple[Tensor, Positions]:
    real = _rows([[True] * len(part.ids) for part in parts], False)
    text = _rows([part.text for part in parts], False)
    return _rows([part.ids for part in parts], padding), Positions(real.float(), text.float())


def _rows(values: Sequence[Sequence[int]], filling: int) -> Tensor:
    length = max(map(len, values))
    return torch.tensor([[*row, *[filling] * (length - len(row))] for row in values])
