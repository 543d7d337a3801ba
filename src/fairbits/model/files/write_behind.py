"""WriteBehind: blocks are packed, hashed and written by threads while the next ones are computed.

At most a few blocks wait, so memory stays bounded. A problem in a thread, such as a full disk, is raised in the caller
at the next block or at the end, and nothing after it is written. If the caller itself is interrupted, blocks that are
complete are still written, so that a resumed run need not compute them again.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

from fairbits.memory import WAITING_BLOCKS

WRITERS = 2
"""Threads that write: one hashes while the other waits for the disk."""


class WriteBehind:
    """Calls functions in threads, in the order in which they are given; to be used in a `with` statement."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(WRITERS, "fairbits-write")
        self._given: deque[Future[None]] = deque()

    def __enter__(self) -> "WriteBehind":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if problem is None:
                self._wait(0)
        finally:
            self._threads.shutdown()

    def add(self, write: Callable[[], None]) -> None:
        """Has `write` called soon; waits while too many others are not done yet, and raises what one of them raised."""
        self._wait(WAITING_BLOCKS - 1)
        self._given.append(self._threads.submit(write))

    def _wait(self, most: int) -> None:
        """Waits until at most so many are not done; if one failed, none that has not begun is begun."""
        while self._given and (len(self._given) > most or self._given[0].done()):
            try:
                self._given.popleft().result()
            except BaseException:
                for each in self._given:
                    each.cancel()
                raise
