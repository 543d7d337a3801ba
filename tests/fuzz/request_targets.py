"""The readers of requests: the parser of a body, and the application with the embedded model behind it."""

import asyncio
import json
import random
from functools import cache
from pathlib import Path
from typing import Any

from harness import Files, Refused, Target
from mutations import broken, mutated_json
from truth import rule

from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.serve.server.app import Service, create_app
from fairbits.serve.server.request import Limits, RequestError, parse_request

LIMITS = Limits(max_tokens=4, max_prompt_tokens=64, max_body=20_000, max_queue=4)
SEEDS = [
    {"model": "tiny", "prompt": "All human beings", "max_tokens": 1, "temperature": 0},
    {"model": "tiny", "prompt": ["a", "שלום"], "max_tokens": 2, "temperature": 0.7, "top_p": 0.9, "seed": 3, "n": 2},
    {
        "model": "tiny",
        "prompt": "a",
        "max_tokens": 1,
        "stop": ["x", "."],
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    {
        "model": "tiny",
        "prompt": "a",
        "language": "heb_Hebr",
        "max_tokens": 1,
        "user": "me",
        "logit_bias": {},
        "suffix": "",
    },
    {"model": "tiny", "prompt": [[5, 6], [7]], "max_tokens": 0, "echo": True, "logprobs": 1, "prompt_logprobs": 2},
]
PATHS = (
    "/v1/completions",
    "/v1/completions",
    "/v1/completions",
    "/v1/models",
    "/v1/models/tiny",
    "/health",
    "/metrics",
)
ODD_PATHS = (
    "/",
    "/v1",
    "/v1/models/../../etc/passwd",
    "/v1/models/%2e%2e",
    "/v1/models/\ud83d\ude00",
    "//",
    "/metrics/",
    "/v1/completions/",
)
STATUSES = {200, 400, 401, 403, 404, 405, 413, 415, 429}


def mutated_body(rng: random.Random) -> bytes:
    """Returns the body of a request."""
    return mutated_json(rng, json.dumps(rng.choice(SEEDS)).encode())


def body_target() -> Target:
    """Returns the target of the parser of a body."""

    def read(place: Path) -> str:
        try:
            request = parse_request((place / "body").read_bytes(), LIMITS)
        except RequestError as problem:
            rule(400 <= problem.status < 500, f"a bad request is answered by {problem.status}")
            json.dumps(problem.as_data()).encode("ascii")
            raise Refused(problem.message) from None
        rule(
            all(isinstance(prompt, str | tuple) and prompt for prompt in request.prompts) and bool(request.prompts),
            "a prompt is empty",
        )
        texts = [prompt for prompt in request.prompts if isinstance(prompt, str)]
        for text in (*texts, *request.stops, request.model, request.language or ""):
            text.encode("utf-8")
        rule(
            (not request.echo and request.prompt_logprobs is None) <= request.max_tokens <= LIMITS.max_tokens
            and 1 <= request.n <= LIMITS.max_queue,
            "more is asked than allowed",
        )
        rule(request.temperature == 0 or 0.01 <= request.temperature <= 2, f"a temperature is {request.temperature}")
        rule(
            0 < request.top_p <= 1 and (request.seed is None or -(2**63) <= request.seed < 2**63), "sampling cannot be"
        )
        return "accepted"

    return Target("request body", lambda rng: {"body": mutated_body(rng)}, read, share=2.0)


class Client:
    """The application in a loop of its own, called without a network."""

    def __init__(self) -> None:
        service = Service(AdaptiveModel("embedded:tiny"), "tiny", LIMITS)
        self.app = create_app(service, key="secret")
        self.loop = asyncio.new_event_loop()
        service.scheduler.start()
        self.service = service

    def call(self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, bytes]:
        """Returns the status of a response and its body."""
        return self.loop.run_until_complete(self._call(method, path, headers, body))

    async def _call(self, method: str, path: str, headers: list[tuple[bytes, bytes]], body: bytes) -> tuple[int, bytes]:
        scope: Any = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode("utf-8", "replace"),
        }
        scope |= {
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "headers": headers,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        status, parts, asked = 0, [], 0

        async def receive() -> dict[str, Any]:
            nonlocal asked
            asked += 1
            if asked == 1:
                return {"type": "http.request", "body": body, "more_body": False}
            await asyncio.sleep(60)
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            else:
                parts.append(message.get("body", b""))

        await self.app(scope, receive, send)
        return status, b"".join(parts)


@cache
def client() -> Client:
    """Returns the application, which is made once."""
    return Client()


def app_target() -> Target:
    """Returns the target of the application: requests with any method, path, headers and body."""

    def make(rng: random.Random) -> Files:
        path = rng.choice(PATHS) if rng.random() < 0.9 else rng.choice(ODD_PATHS)
        method = (
            ("POST" if path == PATHS[0] else "GET")
            if rng.random() < 0.9
            else rng.choice(("PUT", "HEAD", "X", "OPTIONS", "get"))
        )
        headers = {"host": "localhost:8000", "authorization": "Bearer secret", "content-type": "application/json"}
        body = mutated_body(rng)
        headers["content-length"] = str(len(body))
        if rng.random() < 0.3:
            name = rng.choice(sorted(headers))
            odd = (
                "",
                "-1",
                "x",
                "9" * 400,
                "Bearer",
                "Bearer secre",
                "Bearer \xff",
                "evil.com",
                "localhost:x",
                "[::1",
                "\xff",
                "text/plain",
            )
            headers[name] = rng.choice(odd)
        request = json.dumps({"method": method, "path": path, "headers": headers}).encode()
        return {"request.json": request, "body": broken(rng, body) if rng.random() < 0.1 else body}

    def read(place: Path) -> str:
        asked = json.loads((place / "request.json").read_bytes())
        headers = [(name.encode(), value.encode("latin-1")) for name, value in asked["headers"].items()]
        try:
            status, body = client().call(asked["method"], asked["path"], headers, (place / "body").read_bytes())
        except TimeoutError:
            client.cache_clear()  # whatever it was doing, the next case has an application of its own
            raise
        rule(status in STATUSES, f"the status is {status}: {body[:200]!r}")
        if status != 200:
            problem = json.loads(body)["error"]
            rule(problem.keys() == {"message", "type", "param", "code"}, f"the error is {problem}")
            raise Refused(problem["message"])
        if asked["path"] == PATHS[0] and not body.startswith(b"data: "):
            answer = json.loads(body)
            rule(
                bool(answer["choices"]) and all(isinstance(choice["text"], str) for choice in answer["choices"]),
                "there is no text",
            )
        return "accepted"

    return Target("server", make, read, share=0.5)


def request_targets() -> list[Target]:
    """Returns the targets of requests."""
    return [body_target(), app_target()]
