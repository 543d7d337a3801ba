"""BlockLoader: a model that has the weights of one block at a time; those of the next are read meanwhile."""

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from fairbits.model.architecture import Block
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.files.read_ahead import ReadAhead
from fairbits.model.streaming_model import StreamingModel


class BlockLoader:
    """The model of a checkpoint, or of an unpacked view of one, without weights at first."""

    def __init__(self, checkpoint: Checkpoint, device: str, *, dtype: torch.dtype) -> None:
        self._checkpoint, self._device = checkpoint, device
        self._reader: ReadAhead | None = None
        self.model = StreamingModel(checkpoint, device, dtype=dtype, read=self._read)

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of the model."""
        return self._checkpoint.architecture.blocks

    def loaded(self, indices: Iterable[int]) -> Iterator[int]:
        """Yields the blocks, each with its weights in memory until the next; those of the next are read meanwhile."""
        blocks = [self.blocks[index] for index in indices]
        names = [[part for name in block.weights for part in self._checkpoint.parts(name)] for block in blocks]
        with ReadAhead(self._checkpoint.stored, self._device, names) as self._reader:
            try:
                for block in blocks:
                    self.model.load_block(block, {})
                    try:
                        yield block.index
                    finally:
                        self.model.release_block(block)
            finally:
                self._reader = None

    def _read(self, name: str) -> Tensor:
        return self._checkpoint.unpack(name, (self._reader or self._checkpoint.stored).read)
