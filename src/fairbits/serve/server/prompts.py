"""From a request to its choices: the body within its limit, the prompts as tokens, the overlay that serves each."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fairbits.core.errors import InputError
from fairbits.forward.tokenize import stated_positions
from fairbits.serve.overlays.adaptive_model import AdaptiveModel, Choice
from fairbits.serve.server.choice import Failure, PendingChoice, TextChunk
from fairbits.serve.server.request import (
    CompletionRequest,
    Limits,
    RequestError,
    Sampling,
    bad_request,
    prompt_too_long,
)

if TYPE_CHECKING:
    from fastapi import Request

BODY_TIMEOUT = 30.0
"""Seconds in which the body of a request must arrive."""
DISCARD_LIMIT = 16 << 20
"""Bytes beyond the limit that are still read, so that the client sees the response and not a broken connection."""

ChoiceEvent = tuple[int, TextChunk | Failure]
"""The index of a choice, and what happened to it."""


async def read_body(request: "Request", limits: Limits) -> bytes:
    """Returns the body; no more of it than the limit is kept in memory."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(
            415, "send JSON, and the header Content-Type: application/json", code="unsupported_media_type"
        )
    most, size, kept = limits.max_body, 0, bytearray()
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > most + DISCARD_LIMIT:
        raise _body_too_large(most)
    try:
        async with asyncio.timeout(BODY_TIMEOUT):
            async for part in request.stream():
                size += len(part)
                kept += part if size <= most else b""
                if size > most + DISCARD_LIMIT:
                    break
    except TimeoutError:
        message = f"the body did not arrive within {BODY_TIMEOUT:g} seconds"
        raise RequestError(408, message, headers={"Connection": "close"}) from None
    if size > most:
        raise _body_too_large(most)
    return bytes(kept)


class PromptReader:
    """Makes the choices of requests. Detection and tokenization take time, so not in the event loop."""

    def __init__(self, model: AdaptiveModel, limits: Limits) -> None:
        self._model, self._limits = model, limits
        self._positions = stated_positions(model.checkpoint)

    def read(self, request: CompletionRequest, emit: Callable[[ChoiceEvent], None]) -> list[PendingChoice]:
        """Returns all choices of a request, those of one prompt next to each other."""
        made: list[PendingChoice] = []
        for prompt in request.prompts:
            served = self._choose(prompt, request.language)
            ids = self._tokenize(prompt, request.max_tokens)
            made += [_choice(request, ids, served, index=len(made) + i, emit=emit) for i in range(request.n)]
        return made

    def _choose(self, prompt: str, language: str | None) -> Choice:
        try:
            return self._model.choose(prompt, language=language)
        except InputError as problem:
            raise bad_request(str(problem), "language" if language else "prompt") from None

    def _tokenize(self, prompt: str, new: int) -> tuple[int, ...]:
        ids = self._model.tokenizer(prompt, verbose=False)["input_ids"]
        if not ids:
            raise bad_request("a prompt has no tokens; send text to continue", "prompt")
        most = min(self._limits.max_prompt_tokens, self._positions - new)
        if len(ids) > most:
            raise prompt_too_long(len(ids), max(most, 0))
        return tuple(ids)


def _choice(
    request: CompletionRequest,
    ids: tuple[int, ...],
    served: Choice,
    *,
    index: int,
    emit: Callable[[ChoiceEvent], None],
) -> PendingChoice:
    sampling = request.sampling
    if sampling.seed is not None:  # the choices of one request differ, and are the same the next time
        sampling = Sampling(sampling.temperature, sampling.top_p, (sampling.seed + index) % 2**63)
    own: Callable[[TextChunk | Failure], None] = partial(_emit_indexed, emit, index)
    return PendingChoice(ids, served, request.max_tokens, request.stops, sampling, request.stream, own)


def _emit_indexed(emit: Callable[[ChoiceEvent], None], index: int, event: TextChunk | Failure) -> None:
    emit((index, event))


def _body_too_large(most: int) -> RequestError:
    message = f"the body is too large; this server takes {most:,} bytes"
    return RequestError(413, message, code="body_too_large", headers={"Connection": "close"})
