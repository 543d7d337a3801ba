"""Access control and metrics around the application."""

import hmac
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

from fairbits.serve.request import CLIENT_CLOSED_REQUEST, RequestError

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fairbits.serve.metrics import Metrics

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""The Host names of a server on this machine; any other may be a web page that uses DNS rebinding."""
PUBLIC_PATHS = ("/health",)
"""Paths that need no key."""
COUNTED_PATHS = ("/v1/completions", "/v1/models", "/health", "/metrics")
"""Paths that metrics name; all others are "other"."""


@dataclass(frozen=True)
class AccessMiddleware:
    """Checks the Host header and the API key of every request, and counts every response."""

    app: "ASGIApp"
    metrics: "Metrics"
    key: str | None
    loopback_only: bool

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = perf_counter(), CLIENT_CLOSED_REQUEST

        async def send_counted(message: "Message") -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            problem = self._refusal(scope)
            inner: Any = self.app if problem is None else error_response(problem)
            await inner(scope, receive, send_counted)
        finally:
            path = scope["path"] if scope["path"] in COUNTED_PATHS else "other"
            self.metrics.requests.labels(path, str(status)).inc()
            self.metrics.latency.labels(path).observe(perf_counter() - began)

    def _refusal(self, scope: "Scope") -> RequestError | None:
        """Returns why a request is refused; None if it is not."""
        headers = Headers(scope=scope)
        if self.loopback_only and _host_name(headers.get("host", "")) not in LOOPBACK_HOSTS:
            return RequestError(403, "this server answers only as localhost; use http://127.0.0.1", code="wrong_host")
        if self.key is None or scope["path"] in PUBLIC_PATHS:
            return None
        given = headers.get("authorization", "").encode()
        if hmac.compare_digest(given, f"Bearer {self.key}".encode()):
            return None
        message = "the API key is missing or wrong; send the header Authorization: Bearer KEY"
        return RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def error_response(problem: RequestError) -> JSONResponse:
    """Returns the response for an error."""
    return JSONResponse(problem.as_data(), status_code=problem.status, headers=problem.headers)


def _host_name(host: str) -> str:
    """Returns the name in a Host header, without the port.

    >>> _host_name("localhost:8000"), _host_name("[::1]:8000"), _host_name("[::1]")
    ('localhost', '[::1]', '[::1]')
    """
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() and (name.endswith("]") or ":" not in name) else host.lower()
