"""The lock-step walk: all batches of a text go through a model together, one block at a time.

The idea. GPTQ needs the inputs of block l for all of the text before block l is rounded, and those inputs come from the
quantized blocks before it. So all batches must stop before every block. Calling the blocks directly would need to know
what each architecture passes to them besides the hidden states: masks, rotary embeddings, the output of an encoder.
Instead every batch runs the model's own forward pass, each in its own thread. The `forward` of each block is replaced
by a function that hands its arguments to the driver and waits for the output. The driver may compute the block with
these arguments as often as it likes and with whatever weights, and then returns one output, with which the thread
goes on to the next block.

Why it is right. Whatever the model does between blocks is done by the model's own code. Three invariants hold:

- between two calls of the driver, all batches are paused before the same block, so only that block needs weights
- only one thread runs at a time: the driver waits for a batch to reach its next block before it turns to the next
  batch, so the order of all operations is the same each time, and so are the results
- a block is called once per batch, in the given order; anything else is an error (`_expect`)

What comes after the last block is computed only by a walk that is given a `body`; it is then differentiable
(`Lockstep.ends`).
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.core.memory import (
    BLOCK_ACTIVATIONS_BYTES,
    BLOCK_POSITIONS,
    GPU_BLOCK_ACTIVATIONS_BYTES,
    GPU_BLOCK_POSITIONS,
)
from fairbits.core.progress import Progress, begin
from fairbits.forward.batches import Batch
from fairbits.forward.windows import TokenizedText
from fairbits.models.device import is_gpu

Body = Callable[[Batch], Any]
Before = Callable[[Batch], None]

MOST_BATCHES = 256  # the largest number of batches that pass a model together, each of which has a thread
ACTIVATIONS_PER_POSITION = 16  # about how many numbers per position and hidden unit a block computes


class _EndThread(BaseException):
    """Ends a thread; it is not an Exception, so that no model's code catches it."""


@dataclass(frozen=True, eq=False)
class BlockCall:
    """A call of a block: its path in the model, and its arguments, of which the hidden states are the first."""

    block: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def states(self) -> Any:
        return next(iter((*self.args, *self.kwargs.values())))

    def with_states(self, states: Tensor | None) -> "BlockCall":
        """Returns the call with other hidden states, or with none."""
        if self.args:
            return BlockCall(self.block, (states, *self.args[1:]), self.kwargs)
        return BlockCall(self.block, (), {**self.kwargs, next(iter(self.kwargs)): states})


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """A call of a block without its hidden states: it can be repeated with any, when the walk is over."""

    _module: nn.Module
    _call: BlockCall

    def output(self, states: Tensor) -> Tensor:
        """Returns the output of the block with its present weights; hooks of the block are called."""
        call = self._call.with_states(states)
        return output_states(self._module(*call.args, **call.kwargs))


@dataclass(frozen=True, eq=False)
class PausedBatch:
    """A batch before a block, until the walk advances; `continues` if its states are the output of the block before."""

    batch: Batch
    continues: bool
    _call: BlockCall
    _forward: Callable[..., Any]

    @property
    def states(self) -> Tensor:
        states: Tensor = self._call.states
        return states

    def output(self, states: Tensor | None = None) -> Tensor:
        """Returns the output of the block with its present weights, for its own hidden states or others."""
        call = self._call if states is None else self._call.with_states(states)
        return output_states(self._forward(*call.args, **call.kwargs))

    def recorded(self, model: nn.Module) -> RecordedCall:
        """Returns the call without its hidden states, which stays valid when the walk advances."""
        return RecordedCall(model.get_submodule(self._call.block), self._call.with_states(None))


class BatchThread(threading.Thread):
    """The thread of one batch: the driver waits for its next call (`next_call`) and lets it `resume`, or `stop`."""

    def __init__(self, body: Body, batch: Batch) -> None:
        super().__init__(daemon=True)  # a walk that is never closed must not keep the interpreter from ending
        self.batch = batch
        self.call: BlockCall | None = None
        self.last_output: Tensor | None = None
        self.result: Any = None
        self._body, self._differentiable = body, False
        self._calls: SimpleQueue[BlockCall | BaseException | None] = SimpleQueue()
        self._outputs: SimpleQueue[tuple[Any] | None] = SimpleQueue()

    def run(self) -> None:
        problem: BaseException | None = None
        try:
            with torch.no_grad():  # grad mode is per thread
                self.result = self._body(self.batch)
        except _EndThread:
            pass
        except BaseException as raised:  # the driver raises it, whatever it is
            problem = raised
        self._calls.put(problem)

    def request_output(self, block: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns the output of a block, after waiting for the driver to give it (called in this thread)."""
        self._calls.put(BlockCall(block, args, kwargs))
        output = self._outputs.get()
        if output is None:
            raise _EndThread
        if self._differentiable:
            torch.set_grad_enabled(True)  # until the end of `run`, which restores it
        return output[0]

    def next_call(self) -> BlockCall | None:
        """Returns the call that it is paused at, None if the model has ended (called in the driver's thread)."""
        call = self._calls.get()
        if isinstance(call, BaseException):
            raise call
        self.call = call
        return call

    def resume(self, output: Any, *, differentiable: bool = False) -> None:
        """Gives it the output of its block; the rest of the pass can be differentiated if wanted."""
        self.call, self.last_output, self._differentiable = None, output_states(output), differentiable
        self._outputs.put((output,))

    def stop(self) -> None:
        self.call = None
        self._outputs.put(None)


def wait_for_output(block: str, *args: Any, **kwargs: Any) -> Any:
    """Returns the output of a block in the thread of a batch, after the driver gave it; replaces its `forward`."""
    thread = threading.current_thread()
    if not isinstance(thread, BatchThread):
        raise InputError(
            f"{block} was called from outside; while batches walk through a model, nothing else can use it"
        )
    return thread.request_output(block, args, kwargs)


def output_states(output: Any) -> Tensor:
    """Returns the hidden states in the output of a block."""
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


def positions_at_once(hidden_size: int, text: TokenizedText, *, device: str, dtype: torch.dtype) -> int:
    """Returns how many positions a batch may have: few enough for the caches, enough for the number of threads."""
    room, most = BLOCK_ACTIVATIONS_BYTES, BLOCK_POSITIONS
    if is_gpu(device):
        room, most = GPU_BLOCK_ACTIVATIONS_BYTES, GPU_BLOCK_POSITIONS
    fitting = min(max(room // (ACTIVATIONS_PER_POSITION * hidden_size * dtype.itemsize), 64), most)
    return max(fitting, sum(window.length for window in text.windows) // MOST_BATCHES)


class VisitProgress:
    """Reports how much of a stage is done, from the visits of batches to blocks; `total` may be in another unit."""

    def __init__(self, progress: Progress | None, stage: str, *, visits: int = 0, total: int | None = None) -> None:
        self._progress, self._stage, self._done = progress, stage, 0
        self.visits, self.total = visits, total
        begin(progress, stage)

    def add(self, count: int = 1) -> None:
        self._done += count
        if self._progress is not None:
            total = self.visits if self.total is None else self.total
            self._progress(self._stage, total * self._done / max(self.visits, 1), total)

    def counting(self, start: Before) -> Before:
        """Returns a function that starts a batch and counts its visit."""

        def before(batch: Batch) -> None:
            start(batch)
            self.add()

        return before


class StopBlock(BaseException):
    """Raised by a hook that has observed all it needs: the rest of the block is not computed."""


class Lockstep:
    """All batches, paused before the same block; see `lockstep`."""

    def __init__(
        self,
        forwards: Mapping[str, Callable[..., Any]],
        threads: Sequence[BatchThread],
        *,
        to_the_end: bool,
        device: str | None = None,
    ) -> None:
        self._forwards, self._threads, self._device = forwards, threads, device
        self._remaining, self._last = list(forwards), list[Any]()
        self._to_the_end = to_the_end

    def __len__(self) -> int:
        return len(self._threads)

    def compute(self, before: Before) -> None:
        """Computes the next block for hooks to observe, which may raise StopBlock, and stays before it."""
        for thread in self._threads:
            before(thread.batch)
            call = self._call(thread)
            tensors = [value for value in (*call.args, *call.kwargs.values()) if isinstance(value, Tensor)]
            versions = [tensor._version for tensor in tensors]
            with suppress(StopBlock):
                self._compute(call)
            if versions != [tensor._version for tensor in tensors]:
                raise InputError(
                    f"{call.block} changes its input in place; only blocks that leave it unchanged can be calibrated"
                )

    def advance(self, before: Before) -> None:
        """Computes the next block, and moves all batches to the one after it; `before` is called with each first."""
        for thread in self._threads:
            before(thread.batch)
            output = self._compute(self._call(thread))
            if self._device is not None:
                output = _to_main_memory(output)
            if len(self._remaining) > 1:
                thread.resume(output)
                del output
                _expect(thread, self._remaining[1])
            elif self._to_the_end:
                self._last.append(output)
        del self._remaining[0]

    def ends(self) -> Iterator[tuple[Tensor, Any]]:
        """Yields, per batch, the output of the last block as a leaf and what the body makes of it, to differentiate."""
        outputs, self._last = self._last, []
        if len(outputs) != len(self._threads) or self._remaining:
            raise InputError("a walk has an end only if it has a body and all blocks have been passed")
        for index, thread in enumerate(self._threads):
            output, outputs[index] = outputs[index], None
            leaf = output_states(output).detach().requires_grad_()
            thread.resume((leaf, *output[1:]) if isinstance(output, tuple) else leaf, differentiable=True)
            del output
            if (call := thread.next_call()) is not None:
                raise InputError(f"{call.block} was called after the last block; each block must be called once")
            result, thread.result = thread.result, None
            yield leaf, result
            del leaf, result

    def paused(self) -> tuple[PausedBatch, ...]:
        """Returns all batches as they are paused; the block can then be computed any number of times."""
        paused = []
        for thread in self._threads:
            call = self._call(thread)
            continues = thread.last_output is not None and thread.last_output is call.states
            paused.append(PausedBatch(thread.batch, continues, call, self._forwards[call.block]))
        return tuple(paused)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()
            _expect(thread, self._remaining[0])

    @torch.no_grad()
    def _compute(self, call: BlockCall) -> Any:
        args, kwargs = call.args, call.kwargs
        if self._device is not None:
            moved = partial(torch.Tensor.to, device=self._device, non_blocking=True)
            args, kwargs = _map_tensors(moved, (args, dict(kwargs)))
        return self._forwards[call.block](*args, **kwargs)

    def _call(self, thread: BatchThread) -> BlockCall:
        if not self._remaining or thread.call is None:
            raise InputError("all blocks have been passed; a walk goes through a model once")
        return thread.call


def _map_tensors(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    if isinstance(value, Tensor):
        return function(value)
    if type(value) in (tuple, list):
        return type(value)(_map_tensors(function, item) for item in value)
    return {key: _map_tensors(function, item) for key, item in value.items()} if type(value) is dict else value


def _to_main_memory(output: Any) -> Any:
    """Returns an output with its tensors in main memory, pinned, so that a GPU copies them back without waiting."""

    def copied(tensor: Tensor) -> Tensor:
        if not tensor.is_cuda:
            return tensor
        return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)

    result = _map_tensors(copied, output)
    if output_states(output).is_cuda:
        torch.cuda.current_stream(output_states(output).device).synchronize()
    return result


def _expect(thread: BatchThread, block: str) -> None:
    call = thread.next_call()
    event = "the model ended" if call is None else f"{call.block} was called"
    if call is None or call.block != block:
        raise InputError(f"{event} where {block} was expected; blocks must be called one after the other, each once")


@contextmanager
def lockstep(
    model: PreTrainedModel,
    blocks: Sequence[str],
    batches: Iterable[Batch],
    *,
    body: Body | None = None,
    device: str | None = None,
) -> Iterator[Lockstep]:
    """Gives the walk of all batches through `blocks`, which are paths of modules in the order of the forward pass.

    Everything before the first block must have its weights. Each batch passes `body`; without one, what comes after the
    last block is never computed. With a `device`, blocks are computed there, and all else is in main memory. All
    threads end when the context is left, in whatever way.
    """
    modules = {path: model.get_submodule(path) for path in blocks}

    def whole(batch: Batch) -> Any:
        return model(**batch.inputs_for(model), use_cache=False)

    threads = [BatchThread(body or whole, batch) for batch in batches]
    forwards = {path: module.forward for path, module in modules.items()}
    walk = Lockstep(forwards, threads, to_the_end=body is not None, device=device)
    for path, module in modules.items():
        module.forward = partial(wait_for_output, path)
    try:
        walk.start()
        yield walk
    finally:
        for thread in threads:
            thread.stop()
        for thread in threads:
            if thread.ident is not None:  # was started
                thread.join()
        for module in modules.values():
            del module.forward  # uncovers the method of its class
