"""The response to a request: complete, or streamed as it is generated; it ends when the client leaves."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from time import time
from typing import Any
from uuid import uuid4

from fastapi import Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from fairbits.serve.overlays.adaptive_model import Choice
from fairbits.serve.server.decoding import ChoiceEvent, Failure, PendingChoice, TextChunk
from fairbits.serve.server.request import CLIENT_CLOSED_REQUEST, CompletionRequest, RequestError, server_stopping
from fairbits.serve.server.scheduler import Metrics, Scheduler

logger = logging.getLogger(__name__)
SEND_GRACE = 5.0  # seconds beyond the time limit in which a client can still receive what was generated for it
UNKNOWN = "unknown"  # the language in headers and metrics where it is not known


class Responder:
    """The response to one request. Its choices are cancelled when it ends, however it ends."""

    def __init__(
        self,
        model: str,
        request: CompletionRequest,
        choices: Sequence[PendingChoice],
        *,
        events: "asyncio.Queue[ChoiceEvent]",
        scheduler: Scheduler,
        metrics: Metrics,
    ) -> None:
        self.choices, self.scheduler = choices, scheduler
        self._request, self._events, self._metrics = request, events, metrics
        self._frame = {"id": f"cmpl-{uuid4().hex}", "object": "text_completion", "created": int(time()), "model": model}
        # a prompt with several choices counts once
        self._prompt_tokens = sum(len(choice.prompt) for choice in choices[:: request.n])
        metrics.prompt_tokens.inc(self._prompt_tokens)

    async def respond(self, client: Request, *, timeout: float) -> Response:
        if self._request.stream:
            return EventStream(self, timeout)
        try:
            return await self._complete(client, timeout)
        finally:
            self.scheduler.cancel(self.choices)

    @property
    def headers(self) -> dict[str, str]:
        served = [choice.served for choice in self.choices]
        return {
            "X-Fairbits-Language": ", ".join(map(_language_code, served)),
            "X-Fairbits-Overlay": ", ".join(choice.overlay for choice in served),
        }

    async def stream(self, timeout: float) -> AsyncIterator[bytes]:
        usage: dict[str, Any] = {"usage": None} if self._request.stream_options.include_usage else {}
        try:
            async for index, chunk in self._chunks(timeout):
                yield _event({**self._frame, "choices": [self._choice(index, chunk)], **usage})
        except RequestError as problem:
            yield _event(problem.as_data())
            return
        if usage:
            yield _event({**self._frame, "choices": [], "usage": self._usage()})
        yield b"data: [DONE]\n\n"

    async def _complete(self, client: Request, timeout: float) -> Response:
        leaving = asyncio.create_task(_disconnected(client))
        collecting = asyncio.create_task(self._collect(timeout))
        try:
            await asyncio.wait((leaving, collecting), return_when=asyncio.FIRST_COMPLETED)
            if not collecting.done():
                return Response(status_code=CLIENT_CLOSED_REQUEST)
            return JSONResponse(collecting.result(), headers=self.headers)
        finally:
            for task in (leaving, collecting):
                task.cancel()

    async def _collect(self, timeout: float) -> dict[str, Any]:
        choices = {index: self._choice(index, chunk) async for index, chunk in self._chunks(timeout)}
        return {**self._frame, "choices": [choices[index] for index in sorted(choices)], "usage": self._usage()}

    async def _chunks(self, timeout: float) -> AsyncIterator[tuple[int, TextChunk]]:
        left, loop = len(self.choices), asyncio.get_running_loop()
        deadline = loop.time() + timeout
        while left:
            try:
                index, event = await asyncio.wait_for(self._events.get(), deadline - loop.time())
            except TimeoutError:
                message = f"the response was not finished within {timeout:g} seconds; request less, or try later"
                raise RequestError(504, message, code="timeout") from None
            if isinstance(event, Failure):
                if event.stopping:
                    raise server_stopping()
                raise RequestError(500, "the server failed; see its log", code="internal_error")
            if event.finish_reason:
                left -= 1
                served = self.choices[index].served
                self._metrics.completions.labels(_language_code(served), served.overlay, event.finish_reason).inc()
            yield index, event

    def _choice(self, index: int, chunk: TextChunk) -> dict[str, Any]:
        data = {"index": index, "text": chunk.text, "finish_reason": chunk.finish_reason, **chunk.scores}
        return data if chunk.finish_reason is None else {**data, "fairbits": self.choices[index].served.as_data()}

    def _usage(self) -> dict[str, int]:
        read, generated = self._prompt_tokens, sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}


class EventStream(StreamingResponse):
    """A stream of events; its choices are cancelled when the client leaves, or receives nothing for too long."""

    def __init__(self, responder: Responder, timeout: float) -> None:
        headers = {**responder.headers, "Cache-Control": "no-store"}
        super().__init__(responder.stream(timeout), media_type="text/event-stream", headers=headers)
        self._responder, self._timeout = responder, timeout + SEND_GRACE

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await super().__call__(scope, receive, send)
        except TimeoutError:  # the connection is closed after this
            logger.warning("a client did not read its stream within %g seconds", self._timeout)
        finally:
            self._responder.scheduler.cancel(self._responder.choices)


def _language_code(served: Choice) -> str:
    return UNKNOWN if served.language is None else served.language.code


async def _disconnected(client: Request) -> None:
    while (await client.receive())["type"] != "http.disconnect":
        pass


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
