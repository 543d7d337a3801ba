"""Telling a client what comes: the whole answer, or each piece as it is made; and noticing when the client leaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse, Response, StreamingResponse

from fairbits.serve.answers import Answer, code_of
from fairbits.serve.choice import Failure, Piece, Row
from fairbits.serve.problems import GONE, RequestError
from fairbits.serve.prompts import Told
from fairbits.serve.request import Asked

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.types import Receive, Scope, Send

    from fairbits.serve.metrics import Metrics
    from fairbits.serve.scheduler import Scheduler

SLACK = 5.0
"""Seconds beyond the time limit in which a client can still take what was made for it."""


class Telling:
    """The answer to one request in the making. Its rows are let go of when it ends, however it ends."""

    def __init__(
        self,
        model: str,
        asked: Asked,
        rows: Sequence[Row],
        *,
        told: "asyncio.Queue[Told]",
        scheduler: "Scheduler",
        metrics: "Metrics",
    ) -> None:
        self.rows, self.scheduler = rows, scheduler
        self._answer, self._asked, self._told, self._metrics = Answer.of(model, rows), asked, told, metrics
        metrics.prompt_tokens.inc(sum(len(row.prompt) for row in rows[:: asked.n]))

    async def answer(self, request: "Request", *, timeout: float) -> Response:
        """Returns the answer, whole or as a stream that begins at once."""
        if self._asked.stream:
            return Stream(self, timeout)
        try:
            return await self._whole(request, timeout)
        finally:
            self.scheduler.cancel(self.rows)

    @property
    def headers(self) -> dict[str, str]:
        """What the headers say of it."""
        return self._answer.headers

    async def events(self, timeout: float) -> AsyncIterator[bytes]:
        """Yields the pieces as server-sent events, and at the end [DONE]."""
        usage: dict[str, Any] = {"usage": None} if self._asked.include_usage else {}
        try:
            async for place, piece in self._pieces(timeout):
                choice = self._answer.choice(place, piece.text, piece.finish_reason)
                yield _event(self._answer.data([choice], **usage))
        except RequestError as problem:
            yield _event(problem.as_data())
            return
        if usage:
            yield _event(self._answer.data([], usage=self._answer.usage(self._asked.n)))
        yield b"data: [DONE]\n\n"

    async def _whole(self, request: "Request", timeout: float) -> Response:
        leaving = asyncio.create_task(_left(request))
        making = asyncio.create_task(self._collected(timeout))
        try:
            await asyncio.wait((leaving, making), return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                return Response(status_code=GONE)
            return JSONResponse(making.result(), headers=self.headers)
        finally:
            for task in (leaving, making):
                task.cancel()

    async def _collected(self, timeout: float) -> dict[str, Any]:
        choices = {
            place: self._answer.choice(place, piece.text, piece.finish_reason)
            async for place, piece in self._pieces(timeout)
        }
        ordered = [choices[place] for place in sorted(choices)]
        return self._answer.data(ordered, usage=self._answer.usage(self._asked.n))

    async def _pieces(self, timeout: float) -> AsyncIterator[tuple[int, Piece]]:
        """Yields what comes until all rows are at their end."""
        left, loop = len(self.rows), asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while left:
            try:
                place, said = await asyncio.wait_for(self._told.get(), deadline - loop.time())
            except TimeoutError:
                message = f"the answer was not finished within {timeout:g} seconds; ask for less, or later"
                raise RequestError(504, message, code="timeout") from None
            if isinstance(said, Failure):
                raise RequestError(500, "the server failed; its log says why", code="internal_error")
            if said.finish_reason:
                left -= 1
                choice = self.rows[place].choice
                self._metrics.completions.labels(code_of(choice), choice.overlay, said.finish_reason).inc()
            yield place, said


class Stream(StreamingResponse):
    """A stream of events whose rows are let go of when the client leaves, or takes nothing for too long."""

    def __init__(self, telling: Telling, timeout: float) -> None:
        headers = {**telling.headers, "Cache-Control": "no-store"}
        super().__init__(telling.events(timeout), media_type="text/event-stream", headers=headers)
        self._telling, self._most = telling, timeout + SLACK

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Sends the stream."""
        try:
            async with asyncio.timeout(self._most):
                await super().__call__(scope, receive, send)
        finally:
            self._telling.scheduler.cancel(self._telling.rows)


async def _left(request: "Request") -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
