"""The scheduler of choices, and the metrics of the server in the text format of Prometheus."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from time import perf_counter

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from fairbits.forward.generation import settings_for
from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.serve.server.decoding import Failure, PendingChoice, decode
from fairbits.serve.server.request import Limits, RequestError, server_stopping

logger = logging.getLogger(__name__)
SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
SIZES = (1, 2, 4, 8, 16, 32, 64)


class Metrics:
    """The metrics of one server; their names begin with fairbits_. The client library adds _total to counters."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = self._counter("requests", "Answered requests.", "path", "status")
        self.completions = self._counter("completions", "Finished choices.", "language", "overlay", "finish_reason")
        self.cancelled = self._counter("cancelled", "Choices whose client went away.")
        self.prompt_tokens = self._counter("prompt_tokens", "Tokens of prompts.")
        self.tokens = self._counter("generated_tokens", "Tokens generated.", "overlay")
        self.switches = self._counter("switches", "Changes of the overlay.")
        self.switch_seconds = self._counter("switch_seconds", "Seconds of changing overlays.")
        self.batch = self._histogram("batch_size", "Choices per batch.", buckets=SIZES)
        self.first_token = self._histogram("first_token_seconds", "From arrival to the first token.")
        self.latency = self._histogram("request_seconds", "From request to end of answer.", "path")

    def watch_queue(self, *, waiting: Callable[[], int], running: Callable[[], int]) -> None:
        Gauge("fairbits_queue_length", "Choices that wait.", registry=self._registry).set_function(waiting)
        Gauge("fairbits_running", "Choices that are decoded.", registry=self._registry).set_function(running)

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        return Counter(f"fairbits_{name}", meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str, *labels: str, buckets: Sequence[float] = SECONDS) -> Histogram:
        return Histogram(f"fairbits_{name}", meaning, labels, buckets=buckets, registry=self._registry)


class Scheduler:
    """The queue of choices, and the thread that decodes them.

    A batch starts with the oldest choice and is filled with others of the same batch key: no language waits for long.
    """

    def __init__(self, model: AdaptiveModel, limits: Limits, metrics: Metrics) -> None:
        settings_for(model.model, model.tokenizer, {}, seed=None)  # raises if the model does not generate text
        self._model, self._limits, self._metrics = model, limits, metrics
        self._waiting: deque[PendingChoice] = deque()
        self._running: list[PendingChoice] = []
        self._reserved = 0
        self._changed = threading.Condition()
        self._halted = False
        self._thread = threading.Thread(target=self._run, name="fairbits-decoding", daemon=True)
        self.closing = False
        self._last_call: threading.Timer | None = None
        metrics.watch_queue(waiting=lambda: len(self._waiting), running=lambda: len(self._running))

    @property
    def ready(self) -> bool:
        return self._thread.is_alive() and not self.closing

    def start(self) -> None:
        self._thread.start()

    def close(self, seconds: float) -> None:
        """Accepts no more requests, and ends all after `seconds`; a signal handler calls this: no lock is taken."""
        if not self.closing:
            self.closing = True
            self._last_call = threading.Timer(seconds, self._end_all)
            self._last_call.daemon = True
            self._last_call.start()

    def _end_all(self) -> None:
        with self._changed:
            left = [*self._running, *self._waiting]
            self._waiting.clear()
        for choice in left:
            choice.emit((choice.index, Failure(stopping=True)))
            choice.cancelled = True

    def stop(self, seconds: float) -> None:
        """Ends running choices at their next token, and waits up to `seconds` for the thread."""
        self.closing = True
        if self._last_call is not None:
            self._last_call.cancel()
        with self._changed:
            self._halted = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def reserve(self, count: int) -> None:
        """Reserves room in the queue for choices that are being read; `submit` or `release` returns it."""
        most = self._limits.max_queue
        if count > most:
            raise RequestError(400, f"the request has {count} choices; this server takes at most {most}", param="n")
        with self._changed:
            if not self.ready:
                raise server_stopping()
            if len(self._waiting) + self._reserved + count > most:
                message = f"{len(self._waiting)} choices are waiting; try again later"
                raise RequestError(429, message, code="queue_full", headers={"Retry-After": "1"})
            self._reserved += count

    def release(self, count: int) -> None:
        with self._changed:
            self._reserved -= count

    def submit(self, choices: Sequence[PendingChoice]) -> None:
        with self._changed:
            self._reserved -= len(choices)
            self._waiting.extend(choices)
            self._changed.notify()

    def cancel(self, choices: Sequence[PendingChoice]) -> None:
        """Cancels choices: waiting ones at once, running ones at their next token."""
        with self._changed:
            for choice in choices:
                choice.cancelled = True
            self._waiting = deque(choice for choice in self._waiting if not choice.cancelled)

    def _run(self) -> None:
        while batch := self._next_batch():
            try:
                self._decode(batch)
            except Exception:  # whatever it is, the next batch must be decoded
                logger.exception("a batch of %d failed", len(batch))
                for choice in batch:
                    choice.emit((choice.index, Failure()))
            finally:
                self._running = []

    def _next_batch(self) -> list[PendingChoice]:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._halted)
            if self._halted:
                return []
            key = self._waiting[0].batch_key
            batch = [choice for choice in self._waiting if choice.batch_key == key][: self._limits.max_batch]
            taken = set(map(id, batch))
            self._waiting = deque(choice for choice in self._waiting if id(choice) not in taken)
            self._running = batch
        return batch

    def _decode(self, batch: list[PendingChoice]) -> None:
        metrics, overlay = self._metrics, batch[0].served.overlay
        metrics.batch.observe(len(batch))
        before, began = self._model.now, perf_counter()
        with self._model.using(overlay) as model:
            if before != overlay:
                metrics.switches.inc()
                metrics.switch_seconds.inc(perf_counter() - began)
            decode(model, self._model.tokenizer, batch, halted=lambda: self._halted, on_token=self._count_token)
        metrics.cancelled.inc(sum(choice.cancelled for choice in batch))

    def _count_token(self, choice: PendingChoice) -> None:
        if choice.tokens == 0:
            self._metrics.first_token.observe(perf_counter() - choice.arrived_at)
        self._metrics.tokens.labels(choice.served.overlay).inc()
