"""All batches of a text go through a model side by side, from block to block, whatever its blocks take as arguments.

Each batch runs the model's own forward in a thread of its own. At a block the thread hands over what it would call the
block with, and waits. The driver computes the block as often as it likes, with whatever weights, and hands the
output back; so one block at a time needs weights. Only one thread works at any time: the order is always the same.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.errors import InputError
from fairbits.measure.passes.batches import Batch

Before = Callable[[Batch], None]


class Enough(BaseException):
    """Raised by whoever watches a rehearsal and has seen it all: the rest of the block is not computed."""


class _Stopped(BaseException):
    """Ends a thread; no model's code catches it as an error of its own."""


@dataclass(frozen=True, eq=False)
class _Call:
    block: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class Turn:
    """What one batch calls a block with, for as long as the walk stands before it.

    `goes_on` says whether the hidden states that come in are, unchanged, those that the block before gave.
    """

    batch: Batch
    goes_on: bool
    _call: _Call
    _forward: Callable[..., Any]

    def output(self, states: Tensor | None = None) -> Tensor:
        """Returns what the block makes of its hidden states, or of others, with the weights that it has now.

        Gradients are kept track of.
        """
        args, kwargs = self._call.args, self._call.kwargs
        if states is not None and args:
            args = (states, *args[1:])
        elif states is not None:
            kwargs = {**kwargs, next(iter(kwargs)): states}
        return _states(self._forward(*args, **kwargs))


class _Traveller(threading.Thread):
    """The thread of one batch: the driver asks where it stands (`report`) and lets it `go_on`, or `stop`."""

    def __init__(self, model: PreTrainedModel, batch: Batch) -> None:
        super().__init__(daemon=True)  # a walk that nobody ends must not keep the interpreter from ending
        self.batch = batch
        self.call: _Call | None = None
        self.given: Tensor | None = None
        self._model = model
        self._reports: SimpleQueue[_Call | BaseException | None] = SimpleQueue()
        self._answers: SimpleQueue[tuple[Any] | None] = SimpleQueue()

    def run(self) -> None:
        """Runs the model."""
        problem: BaseException | None = None
        try:
            with torch.no_grad():  # which holds for one thread only
                self._model(**self.batch.inputs, use_cache=False)
        except _Stopped:
            pass
        except BaseException as raised:  # whatever it is, the driver raises it
            problem = raised
        self._reports.put(problem)

    def reach(self, block: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Waits at a block for its output (in this thread)."""
        self._reports.put(_Call(block, args, kwargs))
        answer = self._answers.get()
        if answer is None:
            raise _Stopped
        return answer[0]

    def report(self) -> _Call | None:
        """Returns the call that it stands at, None if it is through (in the driver's thread)."""
        found = self._reports.get()
        if isinstance(found, BaseException):
            raise found
        self.call = found
        return found

    def go_on(self, output: Any) -> None:
        """Hands it the output of its block."""
        self.call, self.given = None, _states(output)
        self._answers.put((output,))

    def stop(self) -> None:
        """Ends it, at once or at the next block."""
        self.call = None
        self._answers.put(None)


class Lockstep:
    """The batches, all before the same block; see `lockstep`."""

    def __init__(self, forwards: Mapping[str, Callable[..., Any]], travellers: Sequence[_Traveller]) -> None:
        self._forwards, self._travellers = forwards, travellers
        self._left = list(forwards)

    def __len__(self) -> int:
        return len(self._travellers)

    def rehearse(self, before: Before) -> None:
        """Computes the next block, and goes nowhere; `before` is called with every batch before its turn.

        Hooks may end a turn by raising Enough.
        """
        for traveller in self._travellers:
            before(traveller.batch)
            call = self._call(traveller)
            tensors = [each for each in (*call.args, *call.kwargs.values()) if isinstance(each, Tensor)]
            versions = [each._version for each in tensors]
            with suppress(Enough):
                self._compute(call)
            if versions != [each._version for each in tensors]:
                raise InputError(
                    f"{call.block} changes its input in place; only blocks that leave it can be calibrated"
                )

    def advance(self, before: Before) -> None:
        """Computes the next block, and brings all batches before the one after it."""
        for traveller in self._travellers:
            before(traveller.batch)
            output = self._compute(self._call(traveller))
            if len(self._left) > 1:
                traveller.go_on(output)
                del output
                _expect(traveller, self._left[1])
        del self._left[0]

    def turns(self) -> tuple[Turn, ...]:
        """Returns the calls of the next block, which can be computed as often as one likes; the walk goes nowhere."""
        found = []
        for traveller in self._travellers:
            call = self._call(traveller)
            goes_on = traveller.given is not None and traveller.given is next(iter((*call.args, *call.kwargs.values())))
            found.append(Turn(traveller.batch, goes_on, call, self._forwards[call.block]))
        return tuple(found)

    def start(self) -> None:
        """Brings all batches before the first block."""
        for traveller in self._travellers:
            traveller.start()
            _expect(traveller, self._left[0])

    @torch.no_grad()
    def _compute(self, call: _Call) -> Any:
        return self._forwards[call.block](*call.args, **call.kwargs)

    def _call(self, traveller: _Traveller) -> _Call:
        if not self._left or traveller.call is None:
            raise InputError("all blocks are behind; a walk goes through a model once")
        return traveller.call


def _states(output: Any) -> Tensor:
    """Returns the hidden states in what a block gives."""
    states: Tensor = output[0] if isinstance(output, tuple) else output
    return states


def _expect(traveller: _Traveller, block: str) -> None:
    call = traveller.report()
    found = "the model came to its end" if call is None else f"{call.block} was called"
    if call is None or call.block != block:
        raise InputError(f"{found} where {block} was to come; blocks must be called one after the other, each once")


@contextmanager
def lockstep(model: PreTrainedModel, blocks: Sequence[str], batches: Iterable[Batch]) -> Iterator[Lockstep]:
    """Gives the walk of all batches through the `blocks`, paths of modules in the order of the forward pass.

    Everything before the first block must have its weights. What comes after the last one is never computed. However
    the walk is left, all threads end.
    """
    modules = {path: model.get_submodule(path) for path in blocks}
    travellers = [_Traveller(model, batch) for batch in batches]
    walk = Lockstep({path: module.forward for path, module in modules.items()}, travellers)
    for path, module in modules.items():
        module.forward = partial(_handed_over, path)
    try:
        walk.start()
        yield walk
    finally:
        for traveller in travellers:
            traveller.stop()
        for traveller in travellers:
            if traveller.ident is not None:  # it was started
                traveller.join()
        for module in modules.values():
            del module.forward  # the one of its class appears again


def _handed_over(block: str, *args: Any, **kwargs: Any) -> Any:
    traveller = threading.current_thread()
    if not isinstance(traveller, _Traveller):
        raise InputError(f"{block} was called from outside; while its batches walk, a model serves nobody else")
    return traveller.reach(block, args, kwargs)
