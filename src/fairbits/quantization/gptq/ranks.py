"""READ FIRST. Several processes that quantize one model together; torchrun starts them, and a rank is one of them.

Every rank runs the same code on the same plan. It differs from a single process in three places:

- the batches of the text are dealt out in turn: rank r computes batch r, r + N, r + 2N, …
- the inputs of layers travel to all ranks, in the order of the batches, and each rank adds them to its own columns
  of H; then all ranks get all of H
- each linear layer is rounded by one rank, and its codes travel to the others

Why the codes do not depend on N. Each sum is made of the same terms in the same order, by the same calls on tensors of
the same shape, as in a single process. Nothing is added up over ranks. So the codes are equal to the last bit wherever
one process computes the same each time: on GPUs of one kind, and on CPUs with the same number of threads.

All that travels goes through `Ranks.each`. Its first step is an agreement: each rank says whether it has failed. So an
error in one process ends all of them, and none waits for what will not come.
"""

import atexit
import io
import pickle
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import cache
from threading import Thread
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.rendezvous import rendezvous

from fairbits.core.errors import AlreadyReportedError, FairbitsError, InputError
from fairbits.core.torchrun import this_process
from fairbits.models.device import is_gpu

TIMEOUT = timedelta(hours=2)
"""How long a rank waits for another one, which may be making the plan. It notices at once if that one ends."""
CONNECTING = timedelta(minutes=5)  # how long a rank waits for the others to start
LAST_WORDS = 60.0  # seconds that a rank that failed waits for the others to agree; then it ends, which they notice

T = TypeVar("T")


class LostProcessError(FairbitsError):
    """Another process has ended without a message, or does not answer."""


class Ranks:
    """This process and those that do the same work; by default it is alone, and everything stays where it is."""

    def __init__(self, rank: int = 0, count: int = 1, *, store: Any = None) -> None:
        self.rank, self.count = rank, count
        self._store = store
        self._device: str | None = None
        self._gpus: dist.ProcessGroup | None = None  # what carries tensors from GPU to GPU
        self._together = self._exchanging = False

    @staticmethod
    @cache
    def here() -> "Ranks":
        """Returns the ranks that torchrun has started, after connecting with them; a single one without torchrun."""
        process = this_process()
        if not process.several:
            return Ranks()
        try:
            store, rank, count = next(rendezvous("env://", timeout=CONNECTING))
            dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=TIMEOUT)
        except (RuntimeError, ValueError) as problem:
            raise InputError(
                f"process {process.rank} of {process.count} cannot connect to the others ({problem}); they must all "
                "run on this machine, started by one torchrun"
            ) from None
        atexit.register(_disconnect)
        return Ranks(rank, count, store=store)

    @property
    def leads(self) -> bool:
        """Whether this is the one that writes files."""
        return self.rank == 0

    @property
    def alone(self) -> bool:
        return self.count == 1

    def use(self, device: str) -> None:
        """Makes this the device of this rank; if each has a different GPU, tensors travel from GPU to GPU (NCCL)."""
        if self.alone or device == self._device:
            return
        self._device = device
        devices = list(self.each((socket.gethostname(), device)))
        if len({torch.device(place).type for _, place in devices}) > 1:
            raise InputError("some processes have a GPU and some do not; give --device cpu, or start fewer")
        if is_gpu(device):
            torch.cuda.set_device(device)
            self._gpus = dist.new_group(backend="nccl", timeout=TIMEOUT) if len(set(devices)) == self.count else None

    def split(self, items: Sequence[T]) -> Sequence[T]:
        """Returns the items of this rank; they are dealt out in turn."""
        return items[self.rank :: self.count]

    def rounds(self, count: int) -> int:
        """Returns how often each rank has its turn when `count` items are dealt out; 0 if there are no others."""
        return 0 if self.alone else -(-count // self.count)

    def owners(self, costs: Mapping[str, float]) -> dict[str, int]:
        """Returns the rank of each piece of work: the most costly first, each to the rank that has least to do."""
        load, owner = [0.0] * self.count, {}
        for name, cost in sorted(costs.items(), key=lambda item: -item[1]):
            owner[name] = min(range(self.count), key=lambda rank: load[rank])
            load[owner[name]] += cost
        return owner

    def each(self, value: T) -> Iterator[T]:
        """Yields the value of every rank, in their order; all must go through all, and all raise if one has failed."""
        if self.alone:
            yield value
            return
        packer = _Packer(file := io.BytesIO())
        packer.dump(value)
        contents = self._gather(file.getvalue())
        self._exchanging = True
        for source, content in enumerate(contents):
            arrived, tensors = value, packer.tensors
            if source != self.rank:
                unpacker = _Unpacker(io.BytesIO(content), self._device or "cpu")
                arrived, tensors = unpacker.load(), unpacker.tensors
            for tensor in tensors:
                self._broadcast(tensor, source)
            yield arrived
        self._exchanging = False

    def share(self, compute: Callable[[], T]) -> T:
        """Returns what the leading rank computes; the others wait for it."""
        first, *_ = self.each(compute() if self.leads else None)
        return first  # type: ignore[return-value]

    def lead_first(self, compute: Callable[[], T]) -> T:
        """Returns what this rank computes, after the leading one has done so, as both may write the same file."""
        first = compute() if self.leads else None
        list(self.each(None))
        return compute() if first is None else first

    @contextmanager
    def together(self) -> Iterator[None]:
        """Lets an error in one rank end all of them, and only the first of them report it."""
        if self.alone or self._together:
            yield
            return
        self._together = True
        try:
            yield
            list(self.each(None))  # none ends before all have done their work
        except BaseException as problem:
            first = self._is_first_to_report()
            if not self._exchanging and not isinstance(problem, LostProcessError | AlreadyReportedError):
                self._tell(str(problem))
            if not first:
                raise AlreadyReportedError(str(problem)) from problem
            raise
        finally:
            self._together = False

    def _gather(self, content: bytes, problem: str | None = None) -> list[bytes]:
        arrived: list[Any] = [None] * self.count
        with _noticing_loss():
            dist.all_gather_object(arrived, (problem, content))
        for rank, (failure, _) in enumerate(arrived):
            if failure is not None:
                raise AlreadyReportedError(f"process {rank} of {self.count}: {failure}")
        return [content for _, content in arrived]

    def _broadcast(self, tensor: Tensor, source: int) -> None:
        """Fills the tensor with another rank's, byte by byte, so that no type is left out."""
        if tensor.numel() == 0:
            return
        flat = tensor.reshape(-1).view(torch.uint8)
        with _noticing_loss():
            if not tensor.is_cuda or self._gpus is not None:
                dist.broadcast(flat, source, group=self._gpus if tensor.is_cuda else None)
                return
            staged = flat.cpu()  # ranks that share a GPU: NCCL refuses them
            dist.broadcast(staged, source)
        if source != self.rank:
            flat.copy_(staged)

    def _is_first_to_report(self) -> bool:
        """Returns whether no rank has reported an error yet; torchrun keeps the count, whichever rank dies."""
        if self._store is not None:
            with suppress(RuntimeError):
                return bool(self._store.add("fairbits/reports", 1) == 1)
        return True

    def _tell(self, problem: str) -> None:

        def agree() -> None:
            with suppress(FairbitsError):
                self._gather(b"", problem)

        thread = Thread(target=agree, daemon=True)
        thread.start()
        thread.join(LAST_WORDS)


@contextmanager
def _noticing_loss() -> Iterator[None]:
    try:
        yield
    except RuntimeError as problem:
        if isinstance(problem, FairbitsError | torch.OutOfMemoryError):
            raise
        raise LostProcessError(
            "another process of this run has ended or does not answer; see its output or torchrun's, and run the same "
            "command with --resume to continue"
        ) from problem


def _disconnect() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class _Packer(pickle.Pickler):
    """Writes an object without the content of its tensors, which it collects."""

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.tensors: list[Tensor] = []

    def persistent_id(self, value: object) -> Any:
        if not isinstance(value, Tensor):
            return None
        self.tensors.append(value.detach().contiguous())
        return tuple(value.shape), value.dtype, value.is_cuda


class _Unpacker(pickle.Unpickler):
    """Reads what `_Packer` has written by a process of the same run, with tensors whose content is still to come."""

    def __init__(self, file: io.BytesIO, device: str) -> None:
        super().__init__(file)
        self.tensors: list[Tensor] = []
        self._device = device

    def persistent_load(self, identity: Any) -> Tensor:
        shape, dtype, on_gpu = identity
        self.tensors.append(torch.empty(shape, dtype=dtype, device=self._device if on_gpu else "cpu"))
        return self.tensors[-1]


ALONE = Ranks()  # a process without others
