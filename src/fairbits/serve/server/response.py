"""The response to a request: complete, or streamed as it is made; it ends when the client leaves.

The text of tokens as they come: only complete characters, and nothing that may begin a stop string.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fastapi.responses import JSONResponse, Response, StreamingResponse

from fairbits.serve.overlays.adaptive_model import Choice
from fairbits.serve.overlays.overlay_rows import BASE
from fairbits.serve.server.choice import Failure, PendingChoice, TextChunk
from fairbits.serve.server.prompts import ChoiceEvent
from fairbits.serve.server.request import CLIENT_CLOSED_REQUEST, CompletionRequest, RequestError, server_stopping

if TYPE_CHECKING:
    from fastapi import Request
    from starlette.types import Receive, Scope, Send
    from transformers import PreTrainedTokenizerBase

    from fairbits.serve.overlays.adaptive_model import AdaptiveModel
    from fairbits.serve.server.app import Metrics
    from fairbits.serve.server.scheduler import Scheduler


logger = logging.getLogger(__name__)
SEND_GRACE = 5.0
"""Seconds beyond the time limit in which a client can still receive what was generated for it."""
UNKNOWN = "unknown"
"""The language in headers and metrics where it is not known."""


@dataclass(frozen=True)
class CompletionData:
    """The JSON of one response: its id, and the choices whose text it holds."""

    model: str
    choices: Sequence[PendingChoice]
    id: str
    created: int

    @classmethod
    def of(cls, model: str, choices: Sequence[PendingChoice]) -> "CompletionData":
        """Returns the data of a new response."""
        return cls(model, choices, f"cmpl-{uuid4().hex}", int(time()))

    @property
    def headers(self) -> dict[str, str]:
        """The language and overlay that serve each choice, in the order of the choices."""
        served = [choice.served for choice in self.choices]
        return {
            "X-Fairbits-Language": ", ".join(map(language_code, served)),
            "X-Fairbits-Overlay": ", ".join(each.overlay for each in served),
        }

    def body(self, choices: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
        """Returns the completion object with some choices."""
        frame = {"id": self.id, "object": "text_completion", "created": self.created, "model": self.model}
        return {**frame, "choices": list(choices), **more}

    def choice(self, index: int, text: str, reason: str | None) -> dict[str, Any]:
        """Returns one choice, or a part of it; the last part also says what served it."""
        data = {"index": index, "text": text, "finish_reason": reason, "logprobs": None}
        return data if reason is None else {**data, "fairbits": _served_data(self.choices[index].served)}

    def usage(self, n: int) -> dict[str, int]:
        """Returns the tokens that were read and generated; a prompt with several choices counts once."""
        read = sum(len(choice.prompt) for choice in self.choices[::n])
        generated = sum(choice.tokens for choice in self.choices)
        return {"prompt_tokens": read, "completion_tokens": generated, "total_tokens": read + generated}


def language_code(served: Choice) -> str:
    """Returns the code of the language of a choice."""
    return UNKNOWN if served.language is None else served.language.code


def model_data(model: "AdaptiveModel", name: str, created: int) -> dict[str, Any]:
    """Returns the model object of the API."""
    served = model.overlays.languages if model.overlays else {}
    languages = [{"code": each.code, "name": each.name, "overlay": served[each.code]} for each in model.languages]
    own = {"languages": languages, "overlays": [each for each in model.names if each != BASE]}
    return {"id": name, "object": "model", "created": created, "owned_by": "fairbits", "fairbits": own}


def _served_data(served: Choice) -> dict[str, Any]:
    return {
        "language": None if served.language is None else served.language.code,
        "confidence": served.confidence,
        "overlay": served.overlay,
        "reason": served.reason,
    }


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
                if event.stopping:
                    raise server_stopping()
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
        except TimeoutError:  # the connection is closed after this
            logger.warning("a client did not read its stream within %g seconds", self._timeout)
        finally:
            self._responder.scheduler.cancel(self._responder.choices)


async def _disconnected(client: "Request") -> None:
    """Returns when the client has left."""
    while (await client.receive())["type"] != "http.disconnect":
        pass


def _event(data: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(data, ensure_ascii=False)}\n\n".encode()


CONTEXT = 6
"""Tokens of the prompt that are decoded as well: whether a word begins with a space depends on what precedes it."""
INCOMPLETE = "\ufffd"
"""What a decoder writes for bytes that are not, or not yet, a character."""


class Detokenizer:
    """Returns the text that each token adds. All pieces together are the text of all tokens."""

    def __init__(self, tokenizer: "PreTrainedTokenizerBase", prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._ids = list(prompt[-CONTEXT:])
        self._start, self._emitted = 0, len(self._ids)

    def add(self, token: int) -> str:
        """Returns the text that the token adds; nothing while a character is incomplete."""
        self._ids.append(token)
        text = self._new_text()
        if text.endswith(INCOMPLETE):
            return ""
        if text:
            self._start, self._emitted = self._emitted, len(self._ids)
        return text

    def flush(self) -> str:
        """Returns the text that was held back, after the last token."""
        text = self._new_text()
        self._start, self._emitted = self._emitted, len(self._ids)
        return text

    def _new_text(self) -> str:
        return self._decode(self._ids[self._start :])[len(self._decode(self._ids[self._start : self._emitted])) :]

    def _decode(self, ids: list[int]) -> str:
        if not ids:
            return ""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


class StopFilter:
    """Passes text on until a stop string comes; neither the stop string nor what follows is passed on.

    >>> stop = StopFilter(["\\n\\n"])
    >>> stop.add("one\\n"), stop.add("two\\n"), stop.add("\\nthree"), stop.stopped
    ('one', '\\ntwo', '', True)
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.stopped = False

    def add(self, text: str) -> str:
        """Returns the text that can be passed on now."""
        if self.stopped:
            return ""
        text = self._held + text
        found = [place for stop in self._stops if (place := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Returns the text that was held back, after the last text."""
        text, self._held = self._held, ""
        return text


def _overlap(text: str, stop: str) -> int:
    """Returns how many characters at the end of the text begin the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
