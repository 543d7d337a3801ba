"""The response to a request: complete, or streamed as it is made; it ends when the client leaves."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from fastapi.responses import JSONResponse, Response, StreamingResponse

from fairbits.serve.answers import CompletionData, language_code
from fairbits.serve.choice import Failure, PendingChoice, TextChunk
from fairbits.serve.problems import CLIENT_CLOSED_REQUEST, RequestError
from fairbits.serve.prompts import ChoiceEvent
from fairbits.serve.request import CompletionRequest

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.types import Receive, Scope, Send

    from fairbits.serve.metrics import Metrics
    from fairbits.serve.scheduler import Scheduler

SEND_GRACE = 5.0
"""Seconds beyond the time limit in which a client can still receive what was generated for it."""


class Responder:
    """The response to one request. Its choices are cancelled when it ends, however it ends."""

    def __init__(
        self,
        model: str,
        request: CompletionRequest,
        choices: Sequence[PendingChoice],
        *,
        events: "asyncio.Queue[ChoiceEvent]",
        scheduler: "Scheduler",
        metrics: "Metrics",
    ) -> None:
        self.choices, self.scheduler = choices, scheduler
        self._request, self._events, self._metrics = request, events, metrics
        self._data = CompletionData.of(model, choices)
        metrics.prompt_tokens.inc(sum(len(choice.prompt) for choice in choices[:: request.n]))

    async def respond(self, client: "Request", *, timeout: float) -> Response:
        """Returns the response, complete or as a stream that starts at once."""
        if self._request.stream:
            return EventStream(self, timeout)
        try:
            return await self._complete(client, timeout)
        finally:
            self.scheduler.cancel(self.choices)

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the response."""
        return self._data.headers

    async def stream(self, timeout: float) -> AsyncIterator[bytes]:
        """Yields the chunks as server-sent events, and [DONE] at the end."""
        usage: dict[str, Any] = {"usage": None} if self._request.stream_options.include_usage else {}
        try:
            async for index, chunk in self._chunks(timeout):
                choice = self._data.choice(index, chunk.text, chunk.finish_reason)
                yield _event(self._data.body([choice], **usage))
        except RequestError as problem:
            yield _event(problem.as_data())
            return
        if usage:
            yield _event(self._data.body([], usage=self._data.usage(self._request.n)))
        yield b"data: [DONE]\n\n"

    async def _complete(self, client: "Request", timeout: float) -> Response:
        leaving = asyncio.create_task(_disconnected(client))
        making = asyncio.create_task(self._collect(timeout))
        try:
            await asyncio.wait((leaving, making), return_when=asyncio.FIRST_COMPLETED)
            if not making.done():
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            return JSONResponse(making.result(), headers=self.headers)
        finally:
            for task in (leaving, making):
                task.cancel()

    async def _collect(self, timeout: float) -> dict[str, Any]:
        choices = {
            index: self._data.choice(index, chunk.text, chunk.finish_reason)
            async for index, chunk in self._chunks(timeout)
        }
        ordered = [choices[index] for index in sorted(choices)]
        return self._data.body(ordered, usage=self._data.usage(self._request.n))

    async def _chunks(self, timeout: float) -> AsyncIterator[tuple[int, TextChunk]]:
        """Yields chunks until all choices have ended."""
        left, loop = len(self.choices), asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while left:
            try:
                index, event = await asyncio.wait_for(self._events.get(), deadline - loop.time())
            except TimeoutError:
                message = f"the response was not finished within {timeout:g} seconds; request less, or try later"
                raise RequestError(504, message, code="timeout") from None
            if isinstance(event, Failure):
                raise RequestError(500, "the server failed; its log says why", code="internal_error")
            if event.finish_reason:
                left -= 1
                served = self.choices[index].served
                self._metrics.completions.labels(language_code(served), served.overlay, event.finish_reason).inc()
            yield index, event


class EventStream(StreamingResponse):
    """A stream of events; its choices are cancelled when the client leaves, or receives nothing for too long."""

    def __init__(self, responder: Responder, timeout: float) -> None:
        headers = {**responder.headers, "Cache-Control": "no-store"}
        super().__init__(responder.stream(timeout), media_type="text/event-stream", headers=headers)
        self._responder, self._timeout = responder, timeout + SEND_GRACE

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Sends the stream."""
        try:
            async with asyncio.timeout(self._timeout):
                await super().__call__(scope, receive, send)
        finally:
            self._responder.scheduler.cancel(self._responder.choices)


async def _disconnected(client: "Request") -> None:
    """Returns when the client has left."""
    while (await client.receive())["type"] != "http.disconnect":
        pass


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
