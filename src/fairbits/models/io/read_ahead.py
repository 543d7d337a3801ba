"""ReadAhead: the tensors of a checkpoint on a device, block by block, with the next block read ahead.

On a GPU, threads read the next block into pinned memory in the type of the file, and the GPU copies it from there
while the program goes on. On the CPU tensors are memory-mapped, and the system is asked to read the next block.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor

from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu

READERS = 4  # threads that read: one copies a few GB a second out of the system's cache, less than a GPU rounds


class ReadAhead:
    """Reads tensors onto a device, in the type of the file.

    `parts` are the names of tensors in the order in which they will be needed, such as one block after the other. When
    the first tensor of a part is requested, the part before it is forgotten and the one after it is read ahead. Any
    other order, and a tensor of no part, is right but slower.
    """

    def __init__(self, checkpoint: Checkpoint, device: torch.device | str, parts: Sequence[Sequence[str]]) -> None:
        self._checkpoint, self._device, self._parts = checkpoint, torch.device(device), parts
        self._numbers = {name: number for number, names in enumerate(parts) for name in names}
        self._current: int | None = None
        self._reading: dict[int, dict[str, Future[Tensor]]] = {}
        self._placed: dict[str, Tensor] = {}
        self._threads = None if not is_gpu(self._device) else ThreadPoolExecutor(READERS, initializer=self._use_device)

    def __enter__(self) -> "ReadAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._placed.clear()
        self._reading.clear()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def read(self, name: str) -> Tensor:
        part = self._numbers.get(name)
        if part is not None and part != self._current:
            self._enter(part)
        if self._threads is None:
            return self._checkpoint.read(name)
        if name not in self._placed:
            waiting = {} if part is None else self._reading.get(part, {})
            stored = waiting.pop(name).result() if name in waiting else self._checkpoint.read(name)
            placed = stored.to(self._device, non_blocking=True)
            if part is None:
                return placed
            self._placed[name] = placed
        return self._placed[name]

    def _enter(self, part: int) -> None:
        self._current = part
        self._placed.clear()
        for number in [number for number in self._reading if number not in (part, part + 1)]:
            for future in self._reading.pop(number).values():
                future.cancel()
        for number in (part, part + 1):
            if number < len(self._parts) and number not in self._reading:
                self._reading[number] = self._begin(number)

    def _use_device(self) -> None:
        """Pins memory for the device in a thread, rather than for the first GPU."""
        if self._device.index is not None:
            torch.cuda.set_device(self._device.index)

    def _begin(self, part: int) -> dict[str, Future[Tensor]]:
        if self._threads is None:
            if part != self._current:
                for name in self._parts[part]:
                    self._checkpoint.announce(name)
            return {}
        return {name: self._threads.submit(self._checkpoint.read_pinned, name) for name in self._parts[part]}
