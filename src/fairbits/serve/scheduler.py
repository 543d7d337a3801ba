"""The scheduler: rows wait in the order in which they came; one thread decodes them, those of one overlay together."""

import logging
import threading
from collections import deque
from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING

from fairbits.overlays.generation import settings_for
from fairbits.serve.choice import Failure, Row
from fairbits.serve.decoding import decode
from fairbits.serve.problems import RequestError
from fairbits.serve.request import Limits

if TYPE_CHECKING:
    from fairbits.overlays.model import AdaptiveModel
    from fairbits.serve.metrics import Metrics

logger = logging.getLogger(__name__)


class Scheduler:
    """Rows that wait, and the thread that decodes them.

    A batch is of the kind of the oldest row, filled with others of its kind. So a row waits for no more batches than
    there are rows before it, whatever comes behind, and many of one language cannot keep another from its turn.
    """

    def __init__(self, model: "AdaptiveModel", limits: Limits, metrics: "Metrics") -> None:
        settings_for(model.model, model.tokenizer, {}, seed=None)  # raises where the model does not continue text
        self._model, self._limits, self._metrics = model, limits, metrics
        self._waiting: deque[Row] = deque()
        self._running: list[Row] = []
        self._reserved = 0
        self._changed = threading.Condition()
        self._halted = False
        self._thread = threading.Thread(target=self._work, name="fairbits-decoding", daemon=True)
        self.closing = False
        metrics.watch(waiting=lambda: len(self._waiting), running=lambda: len(self._running))

    @property
    def ready(self) -> bool:
        """Whether requests are taken."""
        return self._thread.is_alive() and not self.closing

    def start(self) -> None:
        """Begins to decode."""
        self._thread.start()

    def stop(self, seconds: float) -> None:
        """Ends what runs at its next token, and waits that long for the thread."""
        self.closing = True
        with self._changed:
            self._halted = True
            self._changed.notify_all()
        self._thread.join(seconds)

    def reserve(self, count: int) -> None:
        """Keeps room for rows that are being read; `submit` or `release` gives it back."""
        most = self._limits.max_queue
        if count > most:
            raise RequestError(
                400, f"the request asks for {count} choices; this server takes {most} at most", param="n"
            )
        with self._changed:
            if not self.ready:
                raise RequestError(503, "the server is stopping; ask again later", headers={"Retry-After": "5"})
            if len(self._waiting) + self._reserved + count > most:
                message = f"{len(self._waiting)} choices wait already; ask again later"
                raise RequestError(429, message, code="queue_full", headers={"Retry-After": "1"})
            self._reserved += count

    def release(self, count: int) -> None:
        """Gives back the room of rows that were not submitted."""
        with self._changed:
            self._reserved -= count

    def submit(self, rows: Sequence[Row]) -> None:
        """Lines up rows that room was kept for."""
        with self._changed:
            self._reserved -= len(rows)
            self._waiting.extend(rows)
            self._changed.notify()

    def cancel(self, rows: Sequence[Row]) -> None:
        """Lets go of rows that nobody waits for: those in line at once, those that run at their next token."""
        with self._changed:
            for row in rows:
                row.cancelled = True
            self._waiting = deque(row for row in self._waiting if not row.cancelled)

    def _work(self) -> None:
        while batch := self._next():
            try:
                self._decode(batch)
            except Exception:  # whatever it is, the next batch must have its turn
                logger.exception("a batch of %d failed", len(batch))
                for row in batch:
                    row.tell(Failure())
            finally:
                self._running = []

    def _next(self) -> list[Row]:
        """Returns the next batch, when there is one; nothing when the work is over."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._halted)
            if self._halted:
                return []
            kind = self._waiting[0].kind
            batch = [row for row in self._waiting if row.kind == kind][: self._limits.max_batch]
            taken = set(map(id, batch))
            self._waiting = deque(row for row in self._waiting if id(row) not in taken)
            self._running = batch
        return batch

    def _decode(self, batch: list[Row]) -> None:
        metrics, overlay = self._metrics, batch[0].choice.overlay
        metrics.batch.observe(len(batch))
        before, began = self._model.now, perf_counter()
        with self._model.using(overlay) as model:
            if before != overlay:
                metrics.switches.inc()
                metrics.switch_seconds.inc(perf_counter() - began)
            decode(
                model,
                self._model.tokenizer,
                batch,
                halted=lambda: self._halted,
                first=metrics.first_token.observe,
            )
        metrics.tokens.labels(overlay).inc(sum(row.tokens for row in batch))
        metrics.cancelled.inc(sum(row.cancelled for row in batch))
