"""Reference: the full-precision model's predictions on a text, kept on disk until the quantized model is evaluated."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import IO, TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fairbits.errors import InputError
from fairbits.measure.passes.batches import batches
from fairbits.measure.passes.forward import Split, split_head
from fairbits.measure.passes.run import positions_at_once
from fairbits.measure.passes.text import NO_LABEL, Text
from fairbits.memory import EVALUATION_POSITIONS, GPU_EVALUATION_POSITIONS
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.device import is_gpu, move
from fairbits.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True, eq=False)
class Features:
    """Positions that predict a token: `features` (positions, width), and the label and document of each."""

    features: Tensor
    labels: Tensor
    documents: Tensor


def split_for(model: "PreTrainedModel", text: Text, *, device: str) -> Split:
    """Returns the model, moved to the device and split into body and head."""
    move(model, device)
    return split_head(model, next(batches(text, positions=1)).on(device))  # the shortest window is enough to decide


@torch.no_grad()
def features_of(
    model: "PreTrainedModel", split: Split, *, text: Text, device: str, stage: str, progress: Progress | None
) -> Iterator[Features]:
    """Yields all predicting positions, in an order that depends neither on the model nor on the batch size.

    `progress` is called with `stage`, the windows done and the number of windows.
    """
    room = positions_at_once(model, split)
    total, done = len(text.windows), 0
    least = GPU_EVALUATION_POSITIONS if is_gpu(device) else EVALUATION_POSITIONS
    for batch in batches(text, positions=max(room, least) if split.apart else room):
        rows, columns = (batch.labels != NO_LABEL).nonzero(as_tuple=True)
        features = split.body(batch.on(device))
        yield Features(features[rows, columns], batch.labels[rows, columns], batch.document[rows])
        done += len(batch.document)
        if progress is not None:
            progress(stage, done, total)


def positions_by_window(text: Text) -> list[range]:
    """Returns, for every window, the numbers of its predicting positions in the order of `features_of`."""
    counts = [sum(label != NO_LABEL for label in window.main.labels) for window in text.windows]
    found = [range(0)] * len(counts)
    begin = 0
    for i in sorted(range(len(counts)), key=lambda i: text.windows[i].length):  # the order of `batches`
        found[i] = range(begin, begin + counts[i])
        begin += counts[i]
    return found


def predicted_positions(text: Text) -> int:
    """Returns the number of positions that predict a token."""
    return sum(label != NO_LABEL for window in text.windows for label in window.main.labels)


WHOLE = "the head of the reference cannot be separated from it: its logits were kept on disk instead of its features"


@dataclass(frozen=True, eq=False)
class Reference:
    """The features of a model at every predicting position, in a temporary file, and the head that reads them.

    The model itself is not kept, so it and the quantized model are never in memory together, and its logits can be
    recomputed exactly. Close it, or use it in a `with` statement, to remove the file.

    `target`  the model
    `text`    what it was evaluated on
    `notes`   what a reader of any result must know
    """

    target: str
    text: Text
    notes: tuple[str, ...]
    _head: Callable[[Tensor], Tensor] = field(repr=False)
    _features: Tensor = field(repr=False)
    _file: IO[bytes] = field(repr=False)

    @classmethod
    def of(
        cls,
        checkpoint: Checkpoint,
        text: Text,
        *,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        progress: Progress | None = None,
    ) -> "Reference":
        """Returns the reference of a model on the text, after one pass over it."""
        model = checkpoint.load(dtype, device=device)
        return cls.of_model(model, text, target=checkpoint.target, device=device, progress=progress)

    @classmethod
    def of_model(
        cls,
        model: "PreTrainedModel",
        text: Text,
        *,
        target: str,
        device: str = "cpu",
        progress: Progress | None = None,
    ) -> "Reference":
        """Returns the reference of a loaded model on the text."""
        split = split_for(model, text, device=device)
        with ExitStack() as stack:  # a failed pass leaves no file
            file = stack.enter_context(tempfile.TemporaryFile())
            answers = features_of(
                model, split, text=text, device=device, stage="evaluating the reference model", progress=progress
            )
            kept = _write_features(file, answers, text)
            stack.pop_all()
        return cls(target, text, () if split.apart else (WHOLE,), split.head, kept, file)

    def logits(self, positions: slice | Tensor, *, device: str = "cpu") -> Tensor:
        """Returns the logits of some positions, numbered in the order of `features_of`."""
        if self._file.closed:
            raise InputError(f"the reference {self.target} is closed; use it before closing it, or create it again")
        if isinstance(self._head, torch.nn.Module):
            self._head.to(device)
        with torch.no_grad():
            return self._head(self._features[positions].to(device))

    def close(self) -> None:
        """Removes the file."""
        self._file.close()

    def __enter__(self) -> "Reference":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write_features(file: IO[bytes], answers: Iterator[Features], text: Text) -> Tensor:
    """Returns the features of all positions, written to the file and mapped from there."""
    positions, written = predicted_positions(text), 0
    try:
        for each in answers:
            features = each.features.cpu().contiguous()
            if not written:
                _check_room(positions * features[0].nbytes)
            written += file.write(features.view(torch.uint8).numpy().data)
        file.flush()
    except OSError as problem:
        raise _no_room(f"{problem.strerror} after {written:,} bytes") from None
    # copy on write, though never written: torch warns about read-only arrays
    return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="c")).view(features.dtype).reshape(positions, -1)


def _check_room(needed: int) -> None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if needed > free:
        raise _no_room(f"{needed:,} bytes are needed and {free:,} are free")


def _no_room(what: str) -> InputError:
    return InputError(
        f"{tempfile.gettempdir()} has no room for the answers of the reference model ({what}); free some space, "
        "set TMPDIR to another directory, or evaluate on fewer tokens"
    )
