"""A real server on a free port, in a thread of this process."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import openai
import pytest

from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.serve.server.app import Service, create_app
from fairbits.serve.server.request import Limits
from fairbits.serve.server.server_process import bind, make_server

PROMPTS = {
    "eng_Latn": "All human beings are born free and equal",
    "heb_Hebr": "כל בני האדם נולדו בני חורין",
    "jpn_Jpan": "すべての人間は、生まれながらにして自由であり",
    "fra_Latn": "Tous les êtres humains naissent libres et égaux",
}
OVERLAYS = {"eng_Latn": "a", "heb_Hebr": "a", "jpn_Jpan": "b", "fra_Latn": "base"}


class Running:
    """A server that runs: its service, its address, and clients for it."""

    def __init__(self, service: Service, url: str, port: int, server: Any) -> None:
        self.service, self.url, self.port, self.server = service, url, port, server
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)

    def complete(self, prompt: Any, **asked: Any) -> Any:
        return self.client.completions.create(model="tiny", prompt=prompt, **{"temperature": 0, **asked})

    @property
    def connections(self) -> int:
        """How many connections are open."""
        return len(self.server.server_state.connections)

    def number(self, name: str, **labels: str) -> float:
        """Returns a counter as /metrics shows it, summed over the labels that are not given."""
        lines = self.service.metrics.text().decode().splitlines()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        samples = [line for line in lines if line.startswith((f"{name}{{", f"{name} "))]
        return sum(float(line.rpartition(" ")[2]) for line in samples if all(label in line for label in wanted))


@pytest.fixture(scope="session")
def model(adaptive: tuple[Path, Path]) -> AdaptiveModel:
    return AdaptiveModel(*adaptive)


@pytest.fixture(scope="session")
def running(model: AdaptiveModel) -> Callable[..., Any]:
    """Returns the context in which a server with some limits runs."""

    @contextmanager
    def running(
        key: str | None = None,
        loopback_only: bool = True,
        send_buffer: int | None = None,
        served: AdaptiveModel = model,
        **limits: Any,
    ) -> Iterator[Running]:
        address = bind("127.0.0.1", 0)
        if send_buffer is not None:  # what the system holds for clients that do not read
            address.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        service = Service(served, "tiny", Limits(**limits))
        server = make_server(service, create_app(service, key=key, loopback_only=loopback_only))
        address.socket.listen(256)
        thread = threading.Thread(target=server.run, args=([address.socket],))
        port = address.socket.getsockname()[1]
        thread.start()
        until(lambda: server.started)
        instance = Running(service, address.url, port, server)
        try:
            yield instance
        finally:
            instance.client.close()
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()

    return running


@pytest.fixture(scope="session")
def server(running: Callable[..., Any]) -> Iterator[Running]:
    """Returns a server with the usual limits."""
    with running() as instance:
        yield instance


def until(condition: Callable[[], Any], seconds: float = 300.0) -> None:
    """Waits until something holds."""
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, "it never came"
        sleep(0.005)
