"""The door: who may come in, and what is noted when they leave."""

import hmac
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from fairbits.serve.problems import GONE, RequestError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fairbits.serve.metrics import Metrics

AT_HOME = ("localhost", "127.0.0.1", "[::1]")
"""The names of a server on this machine. A page of another name that leads here is turned away."""
OPEN = ("/health",)
"""Paths that need no key."""
PATHS = ("/v1/completions", "/v1/models", "/health", "/metrics")
"""Those that are counted by name."""


@dataclass(frozen=True)
class Door:
    """The application behind checks of the Host header and of the key, with every answer counted."""

    app: "ASGIApp"
    metrics: "Metrics"
    key: str | None
    only_at_home: bool

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Answers one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = perf_counter(), GONE

        async def noted(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            problem = self._problem(scope)
            inner: Any = self.app if problem is None else as_response(problem)
            await inner(scope, receive, noted)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.latency.labels(path).observe(perf_counter() - began)

    def _problem(self, scope: "Scope") -> RequestError | None:
        """Returns why a request is turned away."""
        headers = Headers(scope=scope)
        if self.only_at_home and _name(headers.get("host", "")) not in AT_HOME:
            return RequestError(403, "this server answers as localhost alone; use http://127.0.0.1", code="wrong_host")
        if self.key is None or scope["path"] in OPEN:
            return None
        given = headers.get("authorization", "").encode()
        if hmac.compare_digest(given, f"Bearer {self.key}".encode()):
            return None
        message = "the API key is missing or wrong; send the header Authorization: Bearer KEY"
        return RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def as_response(problem: RequestError) -> JSONResponse:
    """Returns the answer that tells of a problem."""
    return JSONResponse(problem.as_data(), status_code=problem.status, headers=problem.headers)


def _name(host: str) -> str:
    """Returns the name in a Host header, less the port.

    >>> _name("localhost:8000"), _name("[::1]:8000"), _name("[::1]")
    ('localhost', '[::1]', '[::1]')
    """
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() and (name.endswith("]") or ":" not in name) else host.lower()
