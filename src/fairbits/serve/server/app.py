"""The FastAPI application: the paths of the server and their handlers.

Access control and metrics around the application.

The metrics of the server, in the text format of Prometheus.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fairbits.serve.server.prompts import ChoiceEvent, PromptReader, read_body
from fairbits.serve.server.request import CLIENT_CLOSED_REQUEST, Limits, RequestError, parse_request
from fairbits.serve.server.response import Responder, model_data
from fairbits.serve.server.scheduler import Scheduler

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from fairbits.serve.overlays.adaptive_model import AdaptiveModel


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


SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one server; their names begin with fairbits_."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "fairbits_requests", "Answered requests.", ("path", "status"), registry=registry
        )  # the client library adds _total to counters
        self.completions = Counter(
            "fairbits_completions", "Finished choices.", ("language", "overlay", "finish_reason"), registry=registry
        )
        self.cancelled = Counter("fairbits_cancelled", "Choices whose client went away.", registry=registry)
        self.prompt_tokens = Counter("fairbits_prompt_tokens", "Tokens of prompts.", registry=registry)
        self.tokens = Counter("fairbits_generated_tokens", "Tokens generated.", ("overlay",), registry=registry)
        self.switches = Counter("fairbits_switches", "Changes of the overlay.", registry=registry)
        self.switch_seconds = Counter("fairbits_switch_seconds", "Seconds of changing overlays.", registry=registry)
        self.batch = Histogram("fairbits_batch_size", "Choices per batch.", buckets=SIZES, registry=registry)
        self.first_token = Histogram(
            "fairbits_first_token_seconds", "From arrival to the first token.", buckets=SECONDS, registry=registry
        )
        self.latency = Histogram(
            "fairbits_request_seconds", "From request to end of answer.", ("path",), buckets=SECONDS, registry=registry
        )

    def watch_queue(self, *, waiting: Callable[[], int], running: Callable[[], int]) -> None:
        """Adds how many choices wait and run at the time of each scrape."""
        queue = Gauge("fairbits_queue_length", "Choices that wait.", registry=self._registry)
        queue.set_function(waiting)
        batch = Gauge("fairbits_running", "Choices that are decoded.", registry=self._registry)
        batch.set_function(running)

    def text(self) -> bytes:
        """Returns all metrics as /metrics shows them."""
        return generate_latest(self._registry)


STOP_TIMEOUT = 5.0
"""Seconds to wait for the decoding thread at shutdown."""


class Service:
    """An adaptive model that is served: what its paths have in common."""

    def __init__(self, model: "AdaptiveModel", name: str, limits: Limits) -> None:
        self.limits, self.metrics, self.name = limits, Metrics(), name
        self.scheduler = Scheduler(model, limits, self.metrics)
        self.model = model_data(model, name, int(time()))
        self._reader = PromptReader(model, limits)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fairbits-reading")

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Starts the scheduler, and stops it at shutdown."""
        self.scheduler.start()
        yield
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.scheduler.stop, STOP_TIMEOUT)

    async def create_completion(self, client: Request) -> Response:
        """Handles POST /v1/completions."""
        request = parse_request(await read_body(client, self.limits), self.limits)
        self._check_model(request.model)
        count = len(request.prompts) * request.n
        loop, events = asyncio.get_running_loop(), asyncio.Queue[ChoiceEvent]()

        def emit(event: ChoiceEvent) -> None:
            if not loop.is_closed():  # a batch may end during shutdown
                loop.call_soon_threadsafe(events.put_nowait, event)

        self.scheduler.reserve(count)
        try:
            choices = await loop.run_in_executor(self._pool, self._reader.read, request, emit)
        except BaseException:  # also when the client leaves in the meantime
            self.scheduler.release(count)
            raise
        self.scheduler.submit(choices)
        responder = Responder(
            self.name, request, choices, events=events, scheduler=self.scheduler, metrics=self.metrics
        )
        return await responder.respond(client, timeout=self.limits.timeout)

    async def list_models(self) -> Any:
        """Handles GET /v1/models: there is one model."""
        return JSONResponse({"object": "list", "data": [self.model]})

    async def get_model(self, name: str) -> Any:
        """Handles GET /v1/models/NAME."""
        self._check_model(name)
        return JSONResponse(self.model)

    async def health(self) -> Any:
        """Handles GET /health: whether requests are accepted."""
        ready = self.scheduler.ready
        return JSONResponse({"status": "ok" if ready else "stopping"}, status_code=200 if ready else 503)

    async def get_metrics(self) -> Any:
        """Handles GET /metrics."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _check_model(self, name: str) -> None:
        if name != self.name:
            message = f"there is no model {name!r:.120}; this server has {self.name!r}"
            raise RequestError(404, message, param="model", code="model_not_found")


def create_app(service: Service, *, key: str | None = None, loopback_only: bool = True) -> "ASGIApp":
    """Returns the application of a service, with its access control."""
    app = FastAPI(
        lifespan=service.lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )  # pages that describe the API would load code from elsewhere
    app.add_api_route("/v1/completions", service.create_completion, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", service.list_models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", service.get_model, methods=["GET"])
    app.add_api_route("/health", service.health, methods=["GET"])
    app.add_api_route("/metrics", service.get_metrics, methods=["GET"])
    app.add_exception_handler(RequestError, _request_error)
    app.add_exception_handler(ClientDisconnect, _client_left)
    app.add_exception_handler(404, _not_found)
    app.add_exception_handler(405, _method_not_allowed)
    app.add_exception_handler(Exception, _internal_error)
    return AccessMiddleware(app, service.metrics, key, loopback_only)


async def _request_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error_response(error)


async def _not_found(request: Request, _: Exception) -> Response:
    message = f"there is no {request.url.path!r:.120}; the paths are /v1/completions, /v1/models, /health and /metrics"
    return error_response(RequestError(404, message, code="not_found"))


async def _method_not_allowed(request: Request, error: Exception) -> Response:
    headers = error.headers if isinstance(error, HTTPException) else None
    message = f"{request.method!r:.20} is not allowed for {request.url.path}"
    return error_response(RequestError(405, message, code="method_not_allowed", headers=headers))


async def _client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


async def _internal_error(_: Request, __: Exception) -> Response:
    return error_response(RequestError(500, "the server failed; its log says why", code="internal_error"))
