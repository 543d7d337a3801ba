"""The metrics of the server, in the text format of Prometheus."""

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

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
