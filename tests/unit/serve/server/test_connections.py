"""Connections: a limit on their number, and clients that do not read what they asked for."""

import json
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic, sleep

import pytest

from fairbits.serve.server import connection
from fairbits.serve.server import server_process as serving

from .conftest import Running, until
from .test_hostile_clients import GOOD, answer, idle, request

SMALL = 4096
LONG = {**GOOD, "max_tokens": 150, "stream": True}


@contextmanager
def client(server: Running, sent: bytes = b"") -> Iterator[socket.socket]:
    """Yields a connection that has little room for what it does not read."""
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL)
        link.settimeout(60)
        link.connect(("127.0.0.1", server.port))
        link.sendall(sent)
        yield link


def rest(link: socket.socket, *, pause: float = 0.0) -> bytes:
    """Returns all that can still be read, up to 1,000 bytes at a time."""
    received = b""
    try:
        while part := link.recv(1000):
            received += part
            sleep(pause)
    except ConnectionError:
        pass
    return received


def test_more_connections_than_the_limit_are_refused(running, monkeypatch) -> None:
    monkeypatch.setattr(serving, "BACKLOG", 4)
    with running(max_queue=1) as server:
        links = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(8)]
        until(lambda: server.connections == 8)
        with client(server) as link:
            head, _, body = rest(link).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 ")
        assert b"Retry-After: 1" in head
        assert json.loads(body)["error"]["code"] == "too_many_connections"
        until(lambda: server.connections == 8)
        links[0].sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # those within the limit are served
        assert links[0].recv(1000).startswith(b"HTTP/1.1 200")
        links.pop().close()
        until(lambda: server.connections == 7)
        assert answer(server, request(GOOD))[0] == 200
        for link in links:
            link.close()


def test_a_stream_that_nobody_reads_ends(running, monkeypatch, caplog) -> None:
    monkeypatch.setattr(connection, "READ_TIMEOUT", 0.5)
    with running(send_buffer=SMALL) as server, client(server, request(LONG)) as link:
        until(lambda: server.number("fairbits_running") == 1)
        began = monotonic()
        until(lambda: server.connections == 0)
        assert monotonic() - began < 60  # and not the 300 seconds of the request
        until(lambda: idle(server))
        assert b"[DONE]" not in rest(link)
        assert server.number("fairbits_requests_total", status="200") == 1
        assert "Traceback" not in caplog.text
        assert answer(server, request(GOOD))[0] == 200


def test_a_stream_that_is_not_read_is_not_taken_from_the_queue(running, monkeypatch) -> None:
    """Little of it is held for the client beyond its text: the rest of the events are made when it reads."""
    sizes = []
    watch = connection.LimitedProtocol._watch

    def watched(self: connection.LimitedProtocol) -> None:
        sizes.append(self.transport.get_write_buffer_size())
        watch(self)

    monkeypatch.setattr(connection.LimitedProtocol, "_watch", watched)
    with running(send_buffer=SMALL) as server, client(server, request(LONG)) as link:
        until(lambda: server.number("fairbits_running") == 1)
        until(lambda: idle(server))  # all of it is generated
        assert server.connections == 1
        received = rest(link)
    assert b"[DONE]" in received
    assert len(received) > 5 * SMALL
    assert 0 < max(sizes) < SMALL


def test_a_slow_client_is_served_to_the_end(running, monkeypatch) -> None:
    monkeypatch.setattr(connection, "READ_TIMEOUT", 0.5)
    with running(send_buffer=SMALL) as server, client(server, request({**LONG, "max_tokens": 60})) as link:
        assert b"[DONE]" in rest(link, pause=0.02)


def test_an_answer_that_nobody_reads_ends(running, monkeypatch) -> None:
    monkeypatch.setattr(connection, "READ_TIMEOUT", 0.5)
    with running(send_buffer=SMALL) as server:
        for i in range(200):  # so that the metrics are long
            server.service.metrics.requests.labels(f"/{i}", "200").inc()
        asked = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        with client(server, asked):
            until(lambda: server.connections == 1)
            until(lambda: server.connections == 0, 60)


@pytest.mark.parametrize("stream", [True, False])
def test_a_request_that_takes_too_long_leaves_no_trace_in_the_log(running, monkeypatch, caplog, stream) -> None:
    monkeypatch.setattr("fairbits.serve.server.response.SEND_GRACE", 0.0)
    with running(send_buffer=SMALL, timeout=0.5) as server, client(server, request({**LONG, "stream": stream})):
        until(lambda: server.number("fairbits_requests_total") == 1, 60)
        until(lambda: idle(server))
    assert "Traceback" not in caplog.text
