"""Calls of blocks: what a block was called with, and the thread that waits for its output. See `lockstep`."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor, nn

from fairbits.errors import InputError
from fairbits.measure.passes.batches import Batch

Body = Callable[[Batch], Any]


class _EndThread(BaseException):
    """Ends a thread; it is not an Exception, so that no model's code catches it."""


@dataclass(frozen=True, eq=False)
class Call:
    """A call of a block: its path in the model, and its arguments."""

    block: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class RecordedCall:
    """A call of a block without its hidden states: it can be repeated with any, when the walk is over."""

    _module: nn.Module
    _args: tuple[Any, ...]
    _kwargs: Mapping[str, Any]

    def output(self, states: Tensor) -> Tensor:
        """Returns the output of the block with its present weights; hooks of the block are called."""
        args, kwargs = _with_states(self._args, self._kwargs, states)
        return states_of(self._module(*args, **kwargs))


@dataclass(frozen=True, eq=False)
class PausedBatch:
    """A batch that is paused before a block, with the arguments of the block; valid until the walk advances.

    `continues` says whether the incoming hidden states are, unchanged, the output of the block before.
    """

    batch: Batch
    continues: bool
    _call: Call
    _forward: Callable[..., Any]

    def output(self, states: Tensor | None = None) -> Tensor:
        """Returns the output of the block with its present weights, for its own hidden states or for others.

        Gradients are tracked.
        """
        args, kwargs = self._call.args, self._call.kwargs
        if states is not None:
            args, kwargs = _with_states(args, kwargs, states)
        return states_of(self._forward(*args, **kwargs))

    @property
    def states(self) -> Tensor:
        """The incoming hidden states."""
        states: Tensor = next(iter((*self._call.args, *self._call.kwargs.values())))
        return states

    def recorded(self, model: nn.Module) -> RecordedCall:
        """Returns the call without its hidden states, which stays valid when the walk advances."""
        args, kwargs = _with_states(self._call.args, self._call.kwargs, None)
        return RecordedCall(model.get_submodule(self._call.block), args, kwargs)


class BatchThread(threading.Thread):
    """The thread of one batch: the driver waits for its next call (`next_call`) and lets it `resume`, or `stop`."""

    def __init__(self, body: Body, batch: Batch) -> None:
        super().__init__(daemon=True)  # a walk that is never closed must not keep the interpreter from ending
        self.batch = batch
        self.call: Call | None = None
        self.last_output: Tensor | None = None
        self.result: Any = None
        self._body, self._differentiable = body, False
        self._calls: SimpleQueue[Call | BaseException | None] = SimpleQueue()
        self._outputs: SimpleQueue[tuple[Any] | None] = SimpleQueue()

    def run(self) -> None:
        """Runs the model."""
        problem: BaseException | None = None
        try:
            with torch.no_grad():  # grad mode is per thread
                self.result = self._body(self.batch)
        except _EndThread:
            pass
        except BaseException as raised:  # the driver raises it, whatever it is
            problem = raised
        self._calls.put(problem)

    def output_of(self, block: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Returns the output of a block, after waiting for the driver to give it (called in this thread)."""
        self._calls.put(Call(block, args, kwargs))
        output = self._outputs.get()
        if output is None:
            raise _EndThread
        if self._differentiable:
            torch.set_grad_enabled(True)  # until the end of `run`, which restores it
        return output[0]

    def next_call(self) -> Call | None:
        """Returns the call that it is paused at, None if the model has ended (called in the driver's thread)."""
        found = self._calls.get()
        if isinstance(found, BaseException):
            raise found
        self.call = found
        return found

    def resume(self, output: Any, *, differentiable: bool = False) -> None:
        """Gives it the output of its block; the rest of the pass can be differentiated if wanted."""
        self.call, self.last_output, self._differentiable = None, states_of(output), differentiable
        self._outputs.put((output,))

    def stop(self) -> None:
        """Ends it, now or at the next block."""
        self.call = None
        self._outputs.put(None)


def wait_for_output(block: str, *args: Any, **kwargs: Any) -> Any:
    """Returns the output of a block in the thread of a batch, after the driver gave it; replaces its `forward`."""
    thread = threading.current_thread()
    if not isinstance(thread, BatchThread):
        raise InputError(
            f"{block} was called from outside; while batches walk through a model, nothing else can use it"
        )
    return thread.output_of(block, args, kwargs)


def states_of(output: Any) -> Tensor:
    """Returns the hidden states in the output of a block."""
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


def _with_states(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], states: Tensor | None
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Returns the arguments of a block with other hidden states, which come first."""
    if args:
        return (states, *args[1:]), kwargs
    return args, {**kwargs, next(iter(kwargs)): states}
