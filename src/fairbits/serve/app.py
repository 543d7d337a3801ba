"""The FastAPI application: the paths of the server and their handlers."""

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from time import time
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from fairbits.serve.metrics import Metrics
from fairbits.serve.middleware import AccessMiddleware, error_response
from fairbits.serve.prompts import ChoiceEvent, PromptReader, read_body
from fairbits.serve.request import CLIENT_CLOSED_REQUEST, Limits, RequestError, parse_request
from fairbits.serve.response import Responder, model_data
from fairbits.serve.scheduler import Scheduler

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from fairbits.overlays.model import AdaptiveModel

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
