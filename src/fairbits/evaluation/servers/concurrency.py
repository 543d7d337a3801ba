"""Many requests to a server at a time."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from queue import SimpleQueue
from threading import Thread
from typing import Generic, TypeVar

from fairbits.evaluation.servers.http_client import HttpClient

T = TypeVar("T")
AHEAD = 2  # requests that wait or run, for every thread
END_SECONDS = 1.0  # in which threads end after an error; later they end by themselves


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """What came of one request: an answer, or a problem."""

    number: int
    answer: T | None = None
    problem: BaseException | None = None


def all_answers(
    client: HttpClient, ask: Callable[[int], T], numbers: Sequence[int], concurrency: int, *, in_order: bool = False
) -> Iterator[tuple[int, T]]:
    """Yields every number with its answer, as they come or `in_order`; up to `concurrency` requests run at a time.

    An error of one request, or Ctrl-C, ends all others. Their threads do not keep the process from ending.
    """
    asked: SimpleQueue[int | None] = SimpleQueue()
    outcomes: SimpleQueue[Outcome[T]] = SimpleQueue()
    threads = [
        Thread(target=_work, args=(ask, asked, outcomes), daemon=True) for _ in range(min(concurrency, len(numbers)))
    ]
    for thread in threads:
        thread.start()
    waiting, ready = iter(numbers), dict[int, T]()
    done = False
    try:
        for number in islice(waiting, AHEAD * len(threads)):
            asked.put(number)
        for turn in numbers:
            while not ready or (in_order and turn not in ready):
                outcome = outcomes.get()
                if outcome.problem is not None:
                    raise outcome.problem
                ready[outcome.number] = outcome.answer  # type: ignore[assignment]  # None may be an answer
            for number in islice(waiting, 1):
                asked.put(number)
            number = turn if in_order else next(iter(ready))
            yield number, ready.pop(number)
        done = True
    finally:
        if not done:
            client.close()  # ends the requests of other threads
        for _ in threads:
            asked.put(None)
        end = time.monotonic() + END_SECONDS
        for thread in threads:
            thread.join(max(end - time.monotonic(), 0))


def _work(ask: Callable[[int], T], asked: "SimpleQueue[int | None]", outcomes: "SimpleQueue[Outcome[T]]") -> None:
    while (number := asked.get()) is not None:
        try:
            outcomes.put(Outcome(number, answer=ask(number)))
        except BaseException as problem:
            outcomes.put(Outcome(number, problem=problem))
