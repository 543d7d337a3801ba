"""The server process: its socket, its API key, and uvicorn from start to graceful shutdown."""

import ipaddress
import socket
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from fairbits.core.errors import InputError
from fairbits.serve.server.request import Limits

if TYPE_CHECKING:
    from fairbits.serve.overlays.adaptive_model import AdaptiveModel
    from fairbits.serve.server.app import Service

NEEDED = ("fastapi", "prometheus_client", "uvicorn")
DRAIN_SECONDS = 25.0
"""Seconds after the signal to stop in which accepted requests are finished; others then end with an error."""
SHUTDOWN_TIMEOUT = 30
"""Seconds after the signal to stop until connections are closed, whether or not their clients have read the end."""
BACKLOG = 1024
SHORTEST_KEY = 16
OTHER_FILES = 256  # files that the process has open in addition to its connections


@dataclass(frozen=True)
class Address:
    """The address of a server: a socket that is bound and does not listen yet."""

    socket: socket.socket

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.socket.getsockname()[0].partition("%")[0]).is_loopback

    @property
    def url(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def check_installed() -> None:
    """Raises unless the packages of the extra are installed."""
    for name in NEEDED:
        try:
            import_module(name)
        except ImportError:
            packages = " ".join(NEEDED).replace("_", "-")
            raise InputError(f"fairbits serve needs {name}; install it: pip install {packages}") from None


def bind(host: str, port: int) -> Address:
    """Returns the address, bound before anything that takes time; no connection is accepted yet."""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError, OverflowError):
        raise InputError(f"--host is {host!r:.80}; it must be a name or address of this machine") from None
    bound = socket.socket(family, kind, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port of a killed server is free at once
    try:
        bound.bind(place)
    except OSError as problem:
        bound.close()
        raise _cannot_listen(host, port, problem) from None
    return Address(bound)


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
    """Serves requests until SIGINT or SIGTERM; `ready` is called when clients can connect."""
    from fairbits.serve.server.app import Service, create_app

    service = Service(model, name, limits)
    server = make_server(service, create_app(service, key=key, loopback_only=address.is_loopback))
    try:
        address.socket.listen(BACKLOG)
    except OSError as problem:  # another server may have bound it as well, and listened first
        host, port = address.socket.getsockname()[:2]
        raise _cannot_listen(host, port, problem) from None
    allow_connections(limits)
    ready()
    server.run([address.socket])


def make_server(service: "Service", app: Any) -> Any:
    """Returns the uvicorn server of an application, which shuts down gracefully at a signal."""
    import uvicorn

    from fairbits.serve.server.connection import LimitedProtocol

    class Server(uvicorn.Server):
        """A server that accepts no requests after the signal, and whose end by a signal is not a failure."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
            service.scheduler.close(DRAIN_SECONDS)
            self.force_exit = self.should_exit  # the second signal
            self.should_exit = True

    config = uvicorn.Config(
        app,
        http=type("LimitedProtocol", (LimitedProtocol,), {"most": most_connections(service.limits)}),
        ws="none",
        lifespan="on",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT,
    )
    return Server(config)


def most_connections(limits: Limits) -> int:
    """Returns how many connections may be open at a time; a further one is answered with 503 and closed."""
    return 4 * limits.max_queue + BACKLOG


def allow_connections(limits: Limits) -> None:
    """Raises the number of files that this process may have open, as far as the system lets it, to all connections."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = most_connections(limits) + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))


def _cannot_listen(host: str, port: int, problem: OSError) -> InputError:
    advice = "stop the program that uses it, or give another --port"
    return InputError(f"cannot listen on port {port} of {host} ({problem.strerror}); {advice}")
