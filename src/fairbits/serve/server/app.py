"""The FastAPI application: the paths of the server, their handlers, and access control."""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from time import perf_counter, time
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fairbits.core.errors import InputError
from fairbits.forward.generation import decode_text
from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.serve.overlays.overlay_files import BASE
from fairbits.serve.server.decoding import ChoiceEvent, PendingChoice
from fairbits.serve.server.request import (
    CLIENT_CLOSED_REQUEST,
    CompletionRequest,
    Limits,
    RequestError,
    parse_request,
    read_body,
)
from fairbits.serve.server.response import Responder
from fairbits.serve.server.scheduler import Metrics, Scheduler

LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""The Host names of a server on this machine; any other may be a web page that uses DNS rebinding."""
PUBLIC_PATHS = ("/health",)  # paths that need no key
COUNTED_PATHS = ("/v1/completions", "/v1/models", "/health", "/metrics")
"""Paths that metrics name; all others are "other"."""
STOP_TIMEOUT = 5.0  # seconds to wait for the decoding thread at shutdown


class Service:
    """An adaptive model that is served, and the handlers of its paths."""

    def __init__(self, model: AdaptiveModel, name: str, limits: Limits) -> None:
        self.limits, self.metrics, self.name = limits, Metrics(), name
        self.scheduler = Scheduler(model, limits, self.metrics)
        self.model = _model_data(model, name)
        self._model, self._positions = model, model.checkpoint.stated_positions
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="fairbits-reading")

    @asynccontextmanager
    async def lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        self.scheduler.start()
        yield
        self._pool.shutdown(wait=False, cancel_futures=True)
        await asyncio.to_thread(self.scheduler.stop, STOP_TIMEOUT)

    async def create_completion(self, client: Request) -> Response:
        request = parse_request(await read_body(client, self.limits), self.limits)
        self._check_model(request.model)
        count = len(request.prompts) * request.n
        loop, events = asyncio.get_running_loop(), asyncio.Queue[ChoiceEvent]()

        def emit(event: ChoiceEvent) -> None:
            if not loop.is_closed():  # a batch may end during shutdown
                loop.call_soon_threadsafe(events.put_nowait, event)

        self.scheduler.reserve(count)
        try:
            choices = await loop.run_in_executor(self._pool, self._read, request, emit)
        except BaseException:  # including cancellation, when the client leaves
            self.scheduler.release(count)
            raise
        self.scheduler.submit(choices)
        responder = Responder(
            self.name, request, choices, events=events, scheduler=self.scheduler, metrics=self.metrics
        )
        return await responder.respond(client, timeout=self.limits.timeout)

    async def list_models(self) -> Any:
        return JSONResponse({"object": "list", "data": [self.model]})

    async def get_model(self, name: str) -> Any:
        self._check_model(name)
        return JSONResponse(self.model)

    async def health(self) -> Any:
        ready = self.scheduler.ready
        return JSONResponse({"status": "ok" if ready else "stopping"}, status_code=200 if ready else 503)

    async def get_metrics(self) -> Any:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    def _read(self, request: CompletionRequest, emit: Callable[[ChoiceEvent], None]) -> list[PendingChoice]:
        # all choices, those of one prompt together; detection and tokenization take time: not in the event loop
        choices: list[PendingChoice] = []
        for prompt in request.prompts:
            try:
                ids = () if isinstance(prompt, str) else self._tokenize(prompt, request.max_tokens)
                text = prompt if isinstance(prompt, str) else decode_text(self._model.tokenizer, ids)
                served = self._model.choose(text, language=request.language)
            except InputError as problem:
                param = "language" if request.language else "prompt"
                raise RequestError(400, str(problem), param=param) from None
            ids = ids or self._tokenize(prompt, request.max_tokens)
            echo, scored = text * request.echo, request if request.scored else None
            for _ in range(request.n):
                sampling = request.sampling
                if sampling.seed is not None:  # the choices of one request differ, and are the same the next time
                    sampling = replace(sampling, seed=(sampling.seed + len(choices)) % 2**63)
                limits, rest = (request.max_tokens, request.stops), (echo, scored)
                choices.append(PendingChoice(len(choices), ids, served, *limits, sampling, request.stream, emit, *rest))
        return choices

    def _tokenize(self, prompt: str | tuple[int, ...], new: int) -> tuple[int, ...]:
        ids = self._model.tokenizer(prompt, verbose=False)["input_ids"] if isinstance(prompt, str) else prompt
        last = self._model.model.config.get_text_config().vocab_size - 1
        if ids and max(ids) > last:
            raise RequestError(400, f"a prompt has the token id {max(ids)}; the last one is {last}", param="prompt")
        if not ids:
            raise RequestError(400, "a prompt has no tokens; send text to continue", param="prompt")
        most = max(min(self.limits.max_prompt_tokens, self._positions - new), 0)
        if len(ids) > most:
            advice = "shorten it, or request fewer new tokens"
            message = f"the prompt has {len(ids)} tokens; this server takes {most}: {advice}"
            raise RequestError(400, message, param="prompt", code="context_length_exceeded")
        return tuple(ids)

    def _check_model(self, name: str) -> None:
        if name != self.name:
            message = f"there is no model {name!r:.120}; this server has {self.name!r}"
            raise RequestError(404, message, param="model", code="model_not_found")


def _model_data(model: AdaptiveModel, name: str) -> dict[str, Any]:
    served = model.overlays.languages if model.overlays else {}
    languages = [
        {"code": language.code, "name": language.name, "overlay": served[language.code]} for language in model.languages
    ]
    details = {"languages": languages, "overlays": [overlay for overlay in model.names if overlay != BASE]}
    return {"id": name, "object": "model", "created": int(time()), "owned_by": "fairbits", "fairbits": details}


@dataclass(frozen=True)
class AccessMiddleware:
    """Checks the Host header and the API key of every request, and counts every response before its end is sent."""

    app: ASGIApp
    metrics: Metrics
    key: str | None
    loopback_only: bool

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, counted = perf_counter(), CLIENT_CLOSED_REQUEST, False

        def count() -> None:
            nonlocal counted
            if not counted:
                counted, path = True, scope["path"] if scope["path"] in COUNTED_PATHS else "other"
                self.metrics.requests.labels(path, str(status)).inc()
                self.metrics.latency.labels(path).observe(perf_counter() - began)

        async def send_counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            elif not message.get("more_body", False):
                count()
            await send(message)

        try:
            problem = self._refusal(scope)
            inner: Any = self.app if problem is None else error_response(problem)
            await inner(scope, receive, send_counted)
        finally:
            count()  # also if the client has gone

    def _refusal(self, scope: Scope) -> RequestError | None:
        headers = Headers(scope=scope)
        if self.loopback_only and _host_name(headers.get("host", "")) not in LOOPBACK_HOSTS:
            return RequestError(403, "this server answers only as localhost; use http://127.0.0.1", code="wrong_host")
        if self.key is None or scope["path"] in PUBLIC_PATHS:
            return None
        if hmac.compare_digest(headers.get("authorization", "").encode(), f"Bearer {self.key}".encode()):
            return None
        message = "the API key is missing or wrong; send the header Authorization: Bearer KEY"
        return RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _host_name(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() and (name.endswith("]") or ":" not in name) else host.lower()


def create_app(service: Service, *, key: str | None = None, loopback_only: bool = True) -> ASGIApp:
    """Returns the application of a service, with its access control."""
    app = FastAPI(
        lifespan=service.lifespan, openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False
    )  # pages that describe the API would load code from elsewhere
    app.add_api_route("/v1/completions", service.create_completion, methods=["POST"], response_model=None)
    app.add_api_route("/v1/models", service.list_models, methods=["GET"])
    app.add_api_route("/v1/models/{name:path}", service.get_model, methods=["GET"])
    app.add_api_route("/health", service.health, methods=["GET"])
    app.add_api_route("/metrics", service.get_metrics, methods=["GET"])
    for problem in (RequestError, ClientDisconnect, 404, 405, Exception):
        app.add_exception_handler(problem, _handle_error)
    return AccessMiddleware(app, service.metrics, key, loopback_only)


def error_response(problem: RequestError) -> JSONResponse:
    """Returns the response for an error."""
    return JSONResponse(problem.as_data(), status_code=problem.status, headers=problem.headers)


async def _handle_error(request: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_CLOSED_REQUEST)
    if isinstance(error, RequestError):
        return error_response(error)
    path = request.url.path
    if isinstance(error, HTTPException) and error.status_code == 404:
        message = f"there is no {path!r:.120}; the paths are /v1/completions, /v1/models, /health and /metrics"
        return error_response(RequestError(404, message, code="not_found"))
    if isinstance(error, HTTPException) and error.status_code == 405:
        message = f"{request.method!r:.20} is not allowed for {path}"
        return error_response(RequestError(405, message, code="method_not_allowed", headers=error.headers))
    return error_response(RequestError(500, "the server failed; see its log", code="internal_error"))
