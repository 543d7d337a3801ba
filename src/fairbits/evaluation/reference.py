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
from numpy.typing import NDArray
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.progress import Progress
from fairbits.evaluation.hidden_states import EvaluatedModel, HiddenStates, evaluated_model, predicted_positions
from fairbits.forward.windows import Text
from fairbits.models.checkpoint import Checkpoint

if TYPE_CHECKING:
    from transformers import PreTrainedModel

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
    _features: NDArray[np.uint8] = field(repr=False)
    _dtype: torch.dtype = field(repr=False)
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
        model = evaluated_model(checkpoint, text, device=device, dtype=dtype)
        return cls._of(model, text, target=checkpoint.target, progress=progress)

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
        """Returns the reference of a loaded model on the text; its head must stay as it is."""
        return cls._of(evaluated_model(model, text, device=device), text, target=target, progress=progress)

    @classmethod
    def _of(cls, model: EvaluatedModel, text: Text, *, target: str, progress: Progress | None) -> "Reference":
        with ExitStack() as stack:  # a failed pass leaves no file
            file = stack.enter_context(tempfile.TemporaryFile())
            features = model.features("evaluating the reference model", progress)
            kept, dtype = _write_features(file, features, text)
            stack.pop_all()
        notes = (*model.notes, *(() if model.apart else (WHOLE,)))
        return cls(target, text, notes, model.head, kept, dtype, file)

    def logits(self, positions: slice | Tensor, *, device: str = "cpu") -> Tensor:
        """Returns the logits of some positions, numbered in the order of the features, in memory of their own."""
        if self._file.closed:
            raise InputError(f"the reference {self.target} is closed; use it before closing it, or create it again")
        if isinstance(self._head, torch.nn.Module):
            self._head.to(device)
        # a copy, as the features may themselves be the logits
        rows = np.array(self._features[positions if isinstance(positions, slice) else positions.numpy()])
        with torch.no_grad():
            return self._head(torch.from_numpy(rows).view(self._dtype).to(device))

    def close(self) -> None:
        """Removes the file."""
        self._file.close()

    def __enter__(self) -> "Reference":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _write_features(
    file: IO[bytes], answers: Iterator[HiddenStates], text: Text
) -> tuple[NDArray[np.uint8], torch.dtype]:
    """Returns the bytes of the features of all positions, written to the file and mapped read-only, and their type."""
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
    return np.memmap(file, dtype=np.uint8, mode="r").reshape(positions, -1), features.dtype


def _check_room(needed: int) -> None:
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if needed > free:
        raise _no_room(f"{needed:,} bytes are needed and {free:,} are free")


def _no_room(what: str) -> InputError:
    return InputError(
        f"{tempfile.gettempdir()} has no room for the answers of the reference model ({what}); free some space, "
        "set TMPDIR to another directory, or evaluate on fewer tokens"
    )
