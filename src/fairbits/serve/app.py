"""The application: the paths of the server, and what each answers."""

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

from fairbits.serve.answers import model_data
from fairbits.serve.metrics import Metrics
from fairbits.serve.middleware import Door, as_response
from fairbits.serve.problems import GONE, RequestError
from fairbits.serve.prompts import Reader, Told, read_body
from fairbits.serve.request import Limits, asked, read_json
from fairbits.serve.response import Telling
from fairbits.serve.scheduler import Scheduler

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from fairbits.overlays.model import AdaptiveModel

LAST_SECONDS = 5.0
"""How long the thread that decodes is waited for at the end."""


class Service:
    """An adaptive model that is served: what its paths share."""

    def __init__(self, model: "AdaptiveModel", name: str, limits: Limits) -> None:
        self.limits, self.metrics, self.name = limits, Metrics(), name
        self.scheduler = Scheduler(model, limits, self.metrics)
        self.model = model_data(model, name, int(time()))
        self._reader = Reader(model, limits)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fairbits-reading")

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        """Begins to decode, and ends it."""
        self.scheduler.start()
        yield
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.scheduler.stop, LAST_SECONDS)

    async def completions(self, request: Request) -> Response:
        """Answers what is asked for, as a whole or as a stream."""
        wanted = asked(read_json(await read_body(request, self.limits)), self.limits)
        self._check_model(wanted.model)
        count = len(wanted.prompts) * wanted.n
        loop, told = asyncio.get_running_loop(), asyncio.Queue[Told]()

        def tell(said: Told) -> None:
            if not loop.is_closed():  # a batch may end while the server does
                loop.call_soon_threadsafe(told.put_nowait, said)

        self.scheduler.reserve(count)
        try:
            rows = await loop.run_in_executor(self._pool, self._reader.rows, wanted, tell)
        except BaseException:  # also where the client leaves meanwhile
            self.scheduler.release(count)
            raise
        self.scheduler.submit(rows)
        telling = Telling(self.name, wanted, rows, told=told, scheduler=self.scheduler, metrics=self.metrics)
        return await telling.answer(request, timeout=self.limits.timeout)

    async def models(self) -> Any:
        """Answers with the one model there is."""
        return JSONResponse({"object": "list", "data": [self.model]})

    async def one_model(self, name: str) -> Any:
        """Answers with the model of that name."""
        self._check_model(name)
        return JSONResponse(self.model)

    async def health(self) -> Any:
        """Answers whether requests are taken."""
        ready = self.scheduler.ready
        return JSONResponse({"status": "ok" if ready else "stopping"}, status_code=200 if ready else 503)

    async def numbers(self) -> Any:
        """Answers with the counters."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _check_model(self, name: str) -> None:
        if name != self.name:
            message = f"there is no model {name!r:.120}; this server has {self.name!r}"
            raise RequestError(404, message, param="model", code="model_not_found")


def application(service: Service, *, key: str | None = None, only_at_home: bool = True) -> "ASGIApp":
    """Returns the application of a service, behind its door."""
    app = FastAPI(
        lifespan=service.lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )  # pages that describe the API would load code from elsewhere
    app.add_api_route("/v1/completions", service.completions, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", service.models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", service.one_model, methods=["GET"])
    app.add_api_route("/health", service.health, methods=["GET"])
    app.add_api_route("/metrics", service.numbers, methods=["GET"])
    app.add_exception_handler(RequestError, _problem)
    app.add_exception_handler(ClientDisconnect, _gone)
    app.add_exception_handler(404, _no_such_path)
    app.add_exception_handler(405, _other_method)
    app.add_exception_handler(Exception, _defect)
    return Door(app, service.metrics, key, only_at_home)


async def _problem(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return as_response(error)


async def _no_such_path(request: Request, _: Exception) -> Response:
    message = f"there is no {request.url.path!r:.120}; there are /v1/completions, /v1/models, /health and /metrics"
    return as_response(RequestError(404, message, code="not_found"))


async def _other_method(request: Request, error: Exception) -> Response:
    headers = error.headers if isinstance(error, HTTPException) else None
    message = f"{request.method!r:.20} is not for {request.url.path}"
    return as_response(RequestError(405, message, code="method_not_allowed", headers=headers))


async def _gone(_: Request, __: Exception) -> Response:
    return Response(status_code=GONE)


async def _defect(_: Request, __: Exception) -> Response:
    return as_response(RequestError(500, "the server failed; its log says why", code="internal_error"))
