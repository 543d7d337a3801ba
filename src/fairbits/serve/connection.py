"""A connection of uvicorn that waits for the headers of a request for a limited time."""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE = 20.0
"""Seconds in which the headers of a request must have come."""


class Connection(H11Protocol):
    """Closes when headers do not come to their end; uvicorn itself would wait for ever."""

    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Takes what has come; it may be a part of the headers."""
        super().data_received(data)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits for nothing more."""
        self._forget()
        super().connection_lost(exc)

    def _wait(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._forget()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(PATIENCE, self._give_up)

    def _forget(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _give_up(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()
