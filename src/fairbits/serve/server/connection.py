"""Connections: how many there may be, and how long one may take to send its headers or to read what it is sent."""

import asyncio
import json
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from fairbits.serve.server.request import RequestError

HEADER_TIMEOUT = 20.0  # seconds in which the headers of a request must arrive
READ_TIMEOUT = 20.0  # seconds in which a client must read at least a byte of what waits for it
TOO_MANY = RequestError(
    503, "too many clients are connected; try again later", code="too_many_connections", headers={"Retry-After": "1"}
)


class LimitedProtocol(H11Protocol):
    """A connection that ends if headers do not arrive or its client does not read; there are at most `most` of them."""

    most: ClassVar[int]
    _deadline: asyncio.TimerHandle | None = None
    _reading: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=0)  # `pause_writing` is called whenever something waits to be read
        if len(self.connections) > self.most:
            transport.write(_whole_response(TOO_MANY))
            transport.close()
            return
        self._update_deadline()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_deadline()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self.resume_writing()
        super().connection_lost(exc)

    def _watch(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reading = self.loop.call_later(READ_TIMEOUT, self._check_read, unread)

    def _check_read(self, before: int) -> None:
        if self.transport.is_closing() or self.transport.get_write_buffer_size() >= before:
            self.transport.abort()
        else:
            self._watch()

    def _update_deadline(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._clear_deadline()
        elif self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_TIMEOUT, self._close)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            self.transport.close()


def _whole_response(problem: RequestError) -> bytes:
    body = json.dumps(problem.as_data()).encode()
    lines = (
        *(f"HTTP/1.1 {problem.status} Service Unavailable", "Content-Type: application/json", "Connection: close"),
        *(f"Content-Length: {len(body)}", *(f"{name}: {value}" for name, value in problem.headers.items())),
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body
