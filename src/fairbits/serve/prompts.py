"""From a request to its rows: the body within its limits, the prompts in tokens, the weights that serve each."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from fairbits.errors import InputError
from fairbits.measure.passes.prepare import stated_positions
from fairbits.overlays.model import AdaptiveModel, Choice
from fairbits.serve.choice import Failure, Piece, Row
from fairbits.serve.problems import RequestError, wrong
from fairbits.serve.request import Asked, Limits, Sampling, too_long

if TYPE_CHECKING:
    from fastapi import Request

SLOWEST = 30.0
"""Seconds that the body of a request may take to arrive."""
DISCARDED = 16 << 20
"""Bytes beyond the limit that are still read, so that the client sees the answer and not a broken connection."""

Told = tuple[int, Piece | Failure]
"""The place of a choice, and what there is to say of it."""


async def read_body(request: "Request", limits: Limits) -> bytes:
    """Returns the body; never more of it than the limit is kept."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(
            415, "send JSON, and the header Content-Type: application/json", code="unsupported_media_type"
        )
    most, size, kept = limits.max_body, 0, bytearray()
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal() or int(declared[:20]) > most + DISCARDED:
        raise _too_large(most)
    try:
        async with asyncio.timeout(SLOWEST):
            async for part in request.stream():
                size += len(part)
                kept += part if size <= most else b""
                if size > most + DISCARDED:
                    break
    except TimeoutError:
        message = f"the body did not arrive within {SLOWEST:g} seconds"
        raise RequestError(408, message, headers={"Connection": "close"}) from None
    if size > most:
        raise _too_large(most)
    return bytes(kept)


class Reader:
    """Makes the rows of requests. Takes time: detection and tokens are not for the thread that listens."""

    def __init__(self, model: AdaptiveModel, limits: Limits) -> None:
        self._model, self._limits = model, limits
        self._room = stated_positions(model.checkpoint)

    def rows(self, asked: Asked, tell: Callable[[Told], None]) -> list[Row]:
        """Returns a row for every choice, those of one prompt beside each other."""
        made: list[Row] = []
        for prompt in asked.prompts:
            choice = self._choice(prompt, asked.language)
            ids = self._ids(prompt, asked.max_tokens)
            made += [self._row(asked, ids, choice, place=len(made) + i, tell=tell) for i in range(asked.n)]
        return made

    def _row(
        self, asked: Asked, ids: tuple[int, ...], choice: Choice, *, place: int, tell: Callable[[Told], None]
    ) -> Row:
        sampling = asked.sampling
        if sampling.seed is not None:  # choices of one request differ, and come out the same the next time
            sampling = Sampling(sampling.temperature, sampling.top_p, (sampling.seed + place) % 2**63)
        said: Callable[[Piece | Failure], None] = partial(_placed, tell, place)
        return Row(ids, choice, asked.max_tokens, asked.stops, sampling, asked.stream, said)

    def _choice(self, prompt: str, language: str | None) -> Choice:
        try:
            return self._model.choose(prompt, language=language)
        except InputError as problem:
            raise wrong(str(problem), "language" if language else "prompt") from None

    def _ids(self, prompt: str, new: int) -> tuple[int, ...]:
        ids = self._model.tokenizer(prompt, verbose=False)["input_ids"]
        if not ids:
            raise wrong("a prompt has no token; send text to continue", "prompt")
        most = min(self._limits.max_prompt_tokens, self._room - new)
        if len(ids) > most:
            raise too_long(len(ids), max(most, 0))
        return tuple(ids)


def _placed(tell: Callable[[Told], None], place: int, said: Piece | Failure) -> None:
    tell((place, said))


def _too_large(most: int) -> RequestError:
    message = f"the body is too large; this server takes {most:,} bytes"
    return RequestError(413, message, code="body_too_large", headers={"Connection": "close"})
