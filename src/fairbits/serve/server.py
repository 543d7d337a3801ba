"""The server on its port: from the first line it prints to its orderly end."""

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fairbits.errors import InputError
from fairbits.serve.request import Limits

if TYPE_CHECKING:
    from fairbits.overlays.model import AdaptiveModel
    from fairbits.serve.app import Service

NEEDED = ("fastapi", "prometheus_client", "uvicorn")
GRACE = 30
"""Seconds in which requests that were taken are finished when the server is told to stop."""
BACKLOG = 1024
SHORTEST_KEY = 16


@dataclass(frozen=True)
class Address:
    """Where a server listens: a socket that is bound, and listens to nothing yet."""

    socket: socket.socket

    @property
    def at_home(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.socket.getsockname()[0].partition("%")[0]).is_loopback

    @property
    def url(self) -> str:
        """The address as a client writes it."""
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_installed() -> None:
    """Raises unless the packages of the extra are there."""
    for name in NEEDED:
        try:
            import_module(name)
        except ImportError:
            raise InputError(f"fairbits serve needs {name}; install it: pip install 'fairbits[serve]'") from None


def bind(host: str, port: int) -> Address:
    """Returns the address, taken before anything that takes time; nobody is let in yet."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError, OverflowError):
        raise InputError(f"--host is {host!r:.80}; it must be a name or address of this machine") from None
    taken = socket.socket(family, kind, protocol)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a server that was killed leaves its port at once
    try:
        taken.bind(place)
    except OSError as problem:
        taken.close()
        raise _not_there(host, port, problem) from None
    return Address(taken)


def read_key(file: Path | None) -> str | None:
    """Returns the API key in a file."""
    if file is None:
        return None
    try:
        key = file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as problem:
        raise InputError(f"--api-key-file {file} cannot be read ({type(problem).__name__}); give a text file") from None
    if len(key) < SHORTEST_KEY or len(key.split()) != 1:
        raise InputError(f"--api-key-file {file} must hold one key of {SHORTEST_KEY} characters or more, in one line")
    return key


def serve(
    model: "AdaptiveModel",
    address: Address,
    *,
    name: str,
    limits: Limits,
    key: str | None = None,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answers requests until SIGINT or SIGTERM; `ready` is called when clients can come."""
    from fairbits.serve.app import Service, application

    service = Service(model, name, limits)
    server = make_server(service, application(service, key=key, only_at_home=address.at_home))
    try:
        address.socket.listen(BACKLOG)
    except OSError as problem:  # another server may have bound it too, and listened first
        host, port = address.socket.getsockname()[:2]
        raise _not_there(host, port, problem) from None
    ready()
    server.run([address.socket])


def make_server(service: "Service", app: Any) -> Any:
    """Returns the uvicorn server of an application, which ends in order at a signal."""
    import uvicorn

    from fairbits.serve.connection import Connection

    class Server(uvicorn.Server):
        """A server that takes no more requests from the signal on, and whose end by a signal is no failure."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
            service.scheduler.closing = True
            self.force_exit = self.should_exit  # told twice
            self.should_exit = True

    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        limit_concurrency=4 * service.limits.max_queue + BACKLOG,
        timeout_graceful_shutdown=GRACE,
    )
    return Server(config)


def _not_there(host: str, port: int, problem: OSError) -> InputError:
    advice = "stop what listens there, or give another --port"
    return InputError(f"port {port} of {host} cannot be listened at ({problem.strerror}); {advice}")
