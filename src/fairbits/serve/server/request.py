"""The request for a completion: its body, its fields, of which none is ignored, and the errors for bad requests."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from fairbits.core.errors import printable

if TYPE_CHECKING:
    from fastapi import Request

BODY_TIMEOUT = 30.0  # seconds in which the body of a request must arrive
DISCARD_LIMIT = 16 << 20
"""Bytes beyond the limit that are still read, so that the client sees the response and not a broken connection."""
TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
"""The type of an error by its status; any other is an invalid request or an error of the server."""
CLIENT_CLOSED_REQUEST = 499  # the status of a request whose client left before the response; only the metrics see it
DEFAULT_TOKENS = 16  # new tokens where a request does not give a number, as at OpenAI
COOLEST, HOTTEST = 0.01, 2.0
"""The temperatures for sampling; below the first, scores divided by it leave the range of float32."""
UNSUPPORTED = "left out: it is not supported"

Text = Annotated[str, Field(min_length=1)]
Tokens = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]
Stop = Annotated[str, Field(min_length=1, max_length=256)]
Zero = Annotated[float, Field(ge=0, le=0)]
One = Annotated[float, Field(ge=1, le=1)]  # Literal[1] would accept true


def _check_off(value: bool) -> bool:
    if value:
        raise ValueError
    return value


Off = Annotated[bool, AfterValidator(_check_off)]  # Literal[False] would accept 0


class RequestError(Exception):
    """A request that is answered by an error: its HTTP status, message, the field it is about, and a short name."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def as_data(self) -> dict[str, Any]:
        kind = TYPES.get(self.status) or ("invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}


@dataclass(frozen=True)
class Limits:
    """The limits of the server; `max_body` is in bytes, `timeout` in seconds until the end of the response."""

    max_tokens: int = 512
    max_prompt_tokens: int = 4096
    max_body: int = 1 << 20
    max_queue: int = 256
    max_batch: int = 8
    timeout: float = 300.0
    max_logprobs: int = 20

    @property
    def words(self) -> dict[str, Any]:
        most = self.max_logprobs
        counts = f"from 0 to {most}" if most >= 0 else "of at least -1, which stands for all"
        return {**asdict(self), "counts": counts}


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; a temperature of 0 takes the most likely one."""

    temperature: float
    top_p: float
    seed: int | None


class Body(BaseModel):
    """An object of a request: no field is unknown, nothing is converted, and null stands for the default."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def without_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        # an unknown field stays, to be refused
        return {name: value for name, value in data.items() if value is not None or name not in cls.model_fields}


class StreamOptions(Body):
    """The options of a stream."""

    include_usage: bool = False
    include_obfuscation: Off = False


class CompletionRequest(Body):
    """A request for completions. The description of a field completes the sentence "it must be …"."""

    model: Text = Field(description="a string with at least one character")
    prompt: (
        Text | Annotated[list[Text], Field(min_length=1)] | Tokens | Annotated[list[Tokens], Field(min_length=1)]
    ) = Field(description="a string, a list of token ids, or a list of either, none of them empty")
    language: Text | None = Field(None, description="the name or code of a language")
    echo: bool = Field(False, description="true or false")
    stream: bool = Field(False, description="true or false")
    logprobs: int | None = Field(None, ge=-1, description="a whole number {counts}; not together with stream")
    prompt_logprobs: int | None = Field(None, ge=-1, description="a whole number {counts}; not together with stream")
    max_tokens: int = Field(
        ge=0, description="a whole number from 1 to {max_tokens}; or 0, together with echo or prompt_logprobs"
    )
    temperature: Zero | Annotated[float, Field(ge=COOLEST, le=HOTTEST)] = Field(
        1.0, description=f"0, or a number from {COOLEST} to {HOTTEST:g}"
    )
    top_p: float = Field(1.0, gt=0, le=1, description="a number above 0 and at most 1")
    n: int = Field(1, ge=1, description="a whole number from 1 to {max_queue}")
    stop: Stop | Annotated[list[Stop], Field(max_length=4)] = Field(
        [], description="a string, or a list of at most 4 strings, each of 1 to 256 characters"
    )
    seed: int | None = Field(None, ge=-(2**63), lt=2**63, description="a whole number of 64 bits")
    stream_options: StreamOptions = Field(
        StreamOptions(), description="an object with include_usage, given only together with stream"
    )
    user: Any = None
    best_of: One = Field(1.0, description=UNSUPPORTED)
    frequency_penalty: Zero = Field(0.0, description=UNSUPPORTED)
    logit_bias: dict[str, Any] = Field({}, max_length=0, description=UNSUPPORTED)
    presence_penalty: Zero = Field(0.0, description=UNSUPPORTED)
    suffix: Literal[""] = Field("", description=UNSUPPORTED)

    @field_validator("max_tokens", "n", "logprobs", "prompt_logprobs")
    @classmethod
    def within_limits(cls, value: int, info: ValidationInfo) -> int:
        limits, before = info.context, info.data  # type: Any, Any
        most: int = {"max_tokens": limits.max_tokens, "n": limits.max_queue}.get(
            str(info.field_name), limits.max_logprobs
        )
        scores = info.field_name in ("logprobs", "prompt_logprobs")
        useful = value or scores or before.get("echo") or before.get("prompt_logprobs") is not None
        if not useful or (most >= 0 and not 0 <= value <= most) or (scores and before.get("stream")):
            raise ValueError
        return value

    @field_validator("stream_options")
    @classmethod
    def only_with_stream(cls, value: StreamOptions, info: ValidationInfo) -> StreamOptions:
        if not info.data.get("stream"):
            raise ValueError
        return value

    @property
    def prompts(self) -> tuple[str | tuple[int, ...], ...]:
        """Texts or token ids."""
        single = isinstance(self.prompt, str) or isinstance(self.prompt[0], int)
        prompts: Any = [self.prompt] if single else self.prompt
        return tuple(prompt if isinstance(prompt, str) else tuple(prompt) for prompt in prompts)

    @property
    def scored(self) -> bool:
        return self.logprobs is not None or self.prompt_logprobs is not None

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.temperature, self.top_p, self.seed)


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


def parse_request(body: bytes, limits: Limits) -> CompletionRequest:
    """Returns the request in a body, if the server can serve it within its limits."""
    data = _parse_json(body)
    unknown = next((name for name in data if name not in CompletionRequest.model_fields), None)
    if unknown is not None:
        fields = [name for name, info in CompletionRequest.model_fields.items() if info.description != UNSUPPORTED]
        message = f"there is no field {unknown!r:.80}; the fields are {', '.join(sorted(fields))}"
        raise RequestError(400, message, param=printable(unknown[:80]))
    if data.get("max_tokens") is None:
        data["max_tokens"] = min(DEFAULT_TOKENS, limits.max_tokens)
    try:
        return CompletionRequest.model_validate(data, context=limits)
    except ValidationError as problem:
        name = str(problem.errors(include_url=False, include_context=False)[0]["loc"][0])
        value = "missing" if data.get(name) is None else f"{data[name]!r:.60}"
        rule = str(CompletionRequest.model_fields[name].description).format(**limits.words)
        raise RequestError(400, f"{name} is {value}; it must be {rule}", param=name) from None


def _parse_json(body: bytes) -> dict[str, Any]:
    try:
        data = json.loads(body.decode(), parse_constant=_not_json)
    except UnicodeDecodeError:
        raise RequestError(400, "the body is not UTF-8; send JSON in UTF-8") from None
    except RecursionError:
        raise RequestError(400, "the JSON is nested too deeply; no field has more than two levels") from None
    except ValueError as problem:
        raise RequestError(400, f"the body is not JSON ({problem}); send a JSON object") from None
    if not isinstance(data, dict):
        raise RequestError(400, f"the body is {data!r:.40}; it must be a JSON object")
    return data


def server_stopping() -> RequestError:
    """Returns the error for a request that a server which stops cannot take or finish."""
    message = "the server is stopping; try again later"
    return RequestError(503, message, code="stopping", headers={"Retry-After": "5"})


def _body_too_large(most: int) -> RequestError:
    message = f"the body is too large; this server takes {most:,} bytes"
    return RequestError(413, message, code="body_too_large", headers={"Connection": "close"})


def _not_json(name: str) -> float:
    raise RequestError(400, f"the body contains {name}, which is not JSON; send finite numbers")
