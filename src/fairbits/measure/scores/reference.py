"""Reference: what the model in full precision says to a text, kept on disk until the quantized one is asked."""

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
from fairbits.measure.passes.text import Text
from fairbits.measure.scores.asking import Asked, ask, predicted_positions, split_for
from fairbits.model.checkpoint import Checkpoint
from fairbits.progress import Progress

if TYPE_CHECKING:
    from transformers import PreTrainedModel

WHOLE = "the head of the reference cannot be parted from it: its logits were kept on disk instead of its features"


@dataclass(frozen=True, eq=False)
class Reference:
    """The features of a model at every position that predicts, in a temporary file, and the head that reads them.

    The model itself is not kept: it and the quantized one are never in memory together, and what it said can be had
    again exactly. Close it, or use it in a `with` statement: the file goes with it.

    `target`  the model
    `text`    what it was asked
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
        """Returns what the model says to the text, after one pass through it."""
        return cls.of_model(checkpoint.load(dtype), text, target=checkpoint.target, device=device, progress=progress)

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
        """Returns what a model in memory says to the text."""
        split = split_for(model, text, device=device)
        with ExitStack() as stack:  # a pass that fails leaves no file
            file = stack.enter_context(tempfile.TemporaryFile())
            answers = ask(
                model, split, text=text, device=device, stage="evaluating the reference model", progress=progress
            )
            kept = _written(file, answers, text)
            stack.pop_all()
        return cls(target, text, () if split.apart else (WHOLE,), split.head, kept, file)

    def logits(self, positions: slice | Tensor, *, device: str = "cpu") -> Tensor:
        """Returns the logits of some positions, numbered in the order in which they are asked."""
        if self._file.closed:
            raise InputError(f"the reference {self.target} is closed; ask it before, or make it again")
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


def _written(file: IO[bytes], answers: Iterator[Asked], text: Text) -> Tensor:
    """Returns the features of all positions, written to the file and mapped from there."""
    positions, written = predicted_positions(text), 0
    try:
        for asked in answers:
            features = asked.features.cpu().contiguous()
            if not written:
                _check_room(positions * features[0].nbytes)
            written += file.write(features.view(torch.uint8).numpy().data)
        file.flush()
    except OSError as problem:
        raise _no_room(f"{problem.strerror} after {written:,} bytes") from None
    # copy on write, never written: torch warns of arrays that it may not write to
    return torch.from_numpy(np.memmap(file, dtype=np.uint8, mode="c")).view(features.dtype).reshape(positions, -1)


def _check_room(needed: int) -> None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if needed > free:
        raise _no_room(f"{needed:,} bytes are needed and {free:,} are free")


def _no_room(what: str) -> InputError:
    return InputError(
        f"{tempfile.gettempdir()} has no room for what the reference says ({what}); make room there, name another "
        "directory with TMPDIR, or evaluate on fewer tokens"
    )
