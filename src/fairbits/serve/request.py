"""What a client asks for: the fields of a completion, each checked, and nothing passed over in silence."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairbits.serve.problems import RequestError, wrong

STOPS = 4
"""How many stop strings a request may have, as at OpenAI."""
LONGEST_STOP = 256
COOLEST, HOTTEST = 0.01, 2.0
"""The temperatures that are sampled at; below the first, scores divided by it leave the range of float32."""
DEFAULT_TOKENS = 16
"""New tokens where a request does not say how many, as at OpenAI."""
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "logit_bias": (None, {}),
    "logprobs": (None,),
    "presence_penalty": (None, 0),
    "suffix": (None, ""),
}
"""Fields of OpenAI that are not supported, and the values that ask for nothing."""
KNOWN = {
    *("model", "prompt", "language", "max_tokens", "temperature", "top_p", "n", "stop", "seed"),
    *("stream", "stream_options", "user", *NEUTRAL),
}


@dataclass(frozen=True)
class Limits:
    """How much may be asked of the server at once.

    `max_tokens`         new tokens of a choice
    `max_prompt_tokens`  tokens of a prompt, where the model has positions for them
    `max_body`           bytes of a request
    `max_queue`          choices that wait
    `max_batch`          choices that are decoded together
    `timeout`            seconds from a request to the end of its answer
    """

    max_tokens: int = 512
    max_prompt_tokens: int = 4096
    max_body: int = 1 << 20
    max_queue: int = 256
    max_batch: int = 8
    timeout: float = 300.0


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen; a temperature of 0 takes the likeliest."""

    temperature: float
    top_p: float
    seed: int | None


@dataclass(frozen=True)
class Asked:
    """A completion that is asked for."""

    model: str
    prompts: tuple[str, ...]
    language: str | None
    max_tokens: int
    n: int
    stops: tuple[str, ...]
    sampling: Sampling
    stream: bool
    include_usage: bool


def read_json(body: bytes) -> dict[str, Any]:
    """Returns the object in the body of a request."""
    try:
        data = json.loads(body.decode(), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise wrong("the body is not UTF-8; send JSON in UTF-8") from None
    except RecursionError:
        raise wrong("the JSON is nested too deeply; no field has more than two levels") from None
    except ValueError as problem:
        raise wrong(f"the body is not JSON ({problem}); send a JSON object") from None
    if not isinstance(data, dict):
        raise wrong(f"the body is a JSON {_kind(data)}; it must be an object")
    return data


def asked(data: Mapping[str, Any], limits: Limits) -> Asked:
    """Returns what the fields of a request ask for."""
    _only_known(data)
    stream = _flag(data, "stream")
    return Asked(
        model=_text(data, "model"),
        prompts=_prompts(data.get("prompt")),
        language=None if data.get("language") is None else _text(data, "language"),
        max_tokens=_whole(data, "max_tokens", default=min(DEFAULT_TOKENS, limits.max_tokens), most=limits.max_tokens),
        n=_whole(data, "n", default=1, most=limits.max_queue),
        stops=_stops(data.get("stop")),
        sampling=_sampling(data),
        stream=stream,
        include_usage=_include_usage(data, stream),
    )


def _only_known(data: Mapping[str, Any]) -> None:
    for name in data:
        if name not in KNOWN:
            raise wrong(f"there is no field {name!r:.80}; there are {', '.join(sorted(KNOWN - {*NEUTRAL}))}", name[:80])
    for name, neutral in NEUTRAL.items():
        given = data.get(name)
        if not any(given == value and isinstance(given, bool) == isinstance(value, bool) for value in neutral):
            raise wrong(f"{name} is not supported; leave it out", name)


def _prompts(given: Any) -> tuple[str, ...]:
    """Returns the prompts: one text, or a list of them."""
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not texts:
        raise wrong(f"prompt is {_kind(given)}; it must be a string or a list of strings", "prompt")
    for text in texts:
        if not isinstance(text, str):
            what = "tokens are not supported: " if isinstance(text, int | list) else ""
            raise wrong(f"prompt holds a {_kind(text)}; {what}send a string or a list of strings", "prompt")
        if not text:
            raise wrong("a prompt is empty; it must have at least one character", "prompt")
        _whole_characters(text, "prompt")
    return tuple(texts)


def _stops(given: Any) -> tuple[str, ...]:
    """Returns the strings that end a completion."""
    texts = [] if given is None else [given] if isinstance(given, str) else given
    valid = isinstance(texts, list) and all(isinstance(text, str) for text in texts)
    if not valid or len(texts) > STOPS or not all(0 < len(text) <= LONGEST_STOP for text in texts):
        raise wrong(f"stop must be a string, or up to {STOPS}, of 1 to {LONGEST_STOP} characters", "stop")
    for text in texts:
        _whole_characters(text, "stop")
    return tuple(texts)


def _sampling(data: Mapping[str, Any]) -> Sampling:
    temperature, top_p = _number(data, "temperature", default=1.0), _number(data, "top_p", default=1.0)
    if temperature != 0 and not COOLEST <= temperature <= HOTTEST:
        raise wrong(f"temperature is {temperature:g}; it must be 0, or {COOLEST} to {HOTTEST:g}", "temperature")
    if not 0 < top_p <= 1:
        raise wrong(f"top_p is {top_p:g}; it must be above 0, and 1 at most", "top_p")
    seed = data.get("seed")
    if seed is not None and (type(seed) is not int or not -(2**63) <= seed < 2**63):
        raise wrong("seed must be a whole number of 64 bits", "seed")
    return Sampling(temperature, top_p, seed)


def _include_usage(data: Mapping[str, Any], stream: bool) -> bool:
    options = data.get("stream_options")
    if options is None:
        return False
    if not stream:
        raise wrong("stream_options is given without stream; set stream to true, or leave it out", "stream_options")
    if not isinstance(options, dict) or not set(options) <= {"include_usage", "include_obfuscation"}:
        raise wrong("stream_options must be an object with include_usage", "stream_options")
    if _flag(options, "include_obfuscation"):
        raise wrong("include_obfuscation is not supported; leave it out", "stream_options")
    return _flag(options, "include_usage")


def _whole(data: Mapping[str, Any], name: str, *, default: int, most: int) -> int:
    value = data.get(name)
    if value is None:
        return default
    if type(value) is not int:
        raise wrong(f"{name} is a {_kind(value)}; it must be a whole number, 1 to {most}", name)
    if not 1 <= value <= most:
        raise wrong(f"{name} is {_shown(value)}; this server takes 1 to {most}", name)
    return value


def _number(data: Mapping[str, Any], name: str, *, default: float) -> float:
    value = data.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise wrong(f"{name} is a {_kind(value)}; it must be a number", name)
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise wrong(f"{name} is out of range; it must be a finite number", name)
    return number


def _text(data: Mapping[str, Any], name: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise wrong(f"{name} is {_kind(value)}; it must be a string with at least one character", name)
    _whole_characters(value, name)
    return value


def _flag(data: Mapping[str, Any], name: str) -> bool:
    value = data.get(name)
    if value is not None and not isinstance(value, bool):
        raise wrong(f"{name} is a {_kind(value)}; it must be true or false", name)
    return bool(value)


def _whole_characters(text: str, name: str) -> None:
    """Raises for halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise wrong(f"{name} holds half of a surrogate pair; send whole characters", name) from None


def _no_number(name: str) -> float:
    raise wrong(f"the body holds {name}, which JSON has not; send finite numbers")


def _kind(value: Any) -> str:
    kinds = {dict: "object", list: "list", str: "string", bool: "boolean", type(None): "missing or null"}
    return kinds.get(type(value), "number")


def _shown(value: int) -> str:
    return str(value) if abs(value) < 10**12 else "a number of more than 12 digits"


def too_long(tokens: int, most: int) -> RequestError:
    """Returns the problem of a prompt that does not fit."""
    message = f"the prompt has {tokens} tokens; this server takes {most}: shorten it, or ask for fewer new tokens"
    return RequestError(400, message, param="prompt", code="context_length_exceeded")
