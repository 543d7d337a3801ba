"""Many clients, slow ones, those that vanish, and those that mean harm: real sockets, a clean answer to each."""

import asyncio
import json
import socket
from collections import Counter
from typing import Any

import pytest

from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.serve.server import request as reading
from fairbits.serve.server import server_process as serving
from fairbits.serve.server.request import Limits

from .conftest import Running, until

GOOD: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 1, "temperature": 0}


def request(body: Any, *headers: str, path: str = "/v1/completions", host: str = "localhost") -> bytes:
    """Returns the bytes of a request, whose connection is closed after the response."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = (
        *(f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"),
        *(f"Content-Length: {len(data)}", "Connection: close", *headers),
    )
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + data


async def exchange(port: int, sent: bytes) -> bytes:
    """Returns all that the server says to some bytes until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        await writer.drain()
        return await asyncio.wait_for(reader.read(), 60)
    except ConnectionError:
        return b""
    finally:
        writer.close()


def answer(server: Running, sent: bytes) -> tuple[int, bytes]:
    """Returns status and body of the response to some bytes; 0 if the connection was closed without one."""
    response = asyncio.run(exchange(server.port, sent))
    head, _, body = response.partition(b"\r\n\r\n")
    return int(head[9:12] or 0) if head.startswith(b"HTTP/1.1 ") else 0, body


def idle(server: Running) -> bool:
    return server.number("fairbits_running") + server.number("fairbits_queue_length") == 0


def test_five_hundred_clients_at_once(running) -> None:
    async def all_at_once(port: int) -> list[bytes]:
        return await asyncio.gather(*(exchange(port, request(GOOD)) for _ in range(500)))

    with running(max_queue=400, max_batch=64) as server:
        responses = asyncio.run(all_at_once(server.port))
        statuses = Counter(response[9:12] for response in responses)
        assert set(statuses) <= {b"200", b"429"}
        assert statuses.total() == 500
        assert statuses[b"200"] >= 400
        assert all(json.loads(response.partition(b"\r\n\r\n")[2]) for response in responses)
        until(lambda: server.number("fairbits_requests_total") == 500)
        assert idle(server)


def test_clients_that_vanish_leave_nothing_behind(running, model: AdaptiveModel) -> None:
    with running(max_batch=2) as server:
        with model.using("base"):  # nothing is decoded meanwhile
            links = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(60)]
            for number, link in enumerate(links):
                whole = request({**GOOD, "max_tokens": 400, "stream": number % 2 == 0})
                link.sendall(whole if number % 3 else whole[:-20])  # a third of them in the middle of the body
            until(lambda: server.number("fairbits_running") + server.number("fairbits_queue_length") == 40)
            for link in links:
                link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset, not an end
                link.close()
            until(lambda: server.number("fairbits_queue_length") == 0)
        until(lambda: idle(server))
        assert answer(server, request(GOOD))[0] == 200
        until(lambda: server.number("fairbits_requests_total", status="499") >= 20)


HALF = "\ud800"
UNICODE: list[dict[str, Any]] = [
    {"prompt": HALF}, {"prompt": ["a", HALF]}, {"model": HALF}, {"language": HALF}, {"stop": [HALF]}, {HALF: 1},
    {"stream": True, "stream_options": {HALF: 1}}, {"logit_bias": {HALF: 1}}, {"suffix": HALF}, {"seed": HALF},
    {"temperature": {HALF: HALF}}, {"n": [HALF]}, {"echo": HALF}, {"stream": HALF}, {"language": f"x-{HALF}"},
]  # fmt: skip


@pytest.mark.parametrize("entries", UNICODE, ids=ascii)
def test_half_a_character_anywhere_is_a_bad_request(server: Running, entries) -> None:
    status, body = answer(server, request({**GOOD, **entries}))
    assert status in (400, 404)
    assert json.loads(body)["error"]["message"]


def test_half_a_character_that_nobody_reads(server: Running) -> None:
    assert answer(server, request({**GOOD, "user": {HALF: [HALF]}}))[0] == 200


@pytest.mark.parametrize(
    "body",
    [
        b'{"model": "tiny", "prompt": "\xed\xa0\x80"}',  # half a character as bytes
        b'{"model": "tiny", "prompt": "\xc0\x80"}',
        b'{"model": "tiny", "prompt": "\xf8\x88\x80\x80\x80"}',
        b'\xef\xbb\xbf{"model": "tiny", "prompt": "a"}',
        '{"model": "tiny", "prompt": "a"}'.encode("utf-16"),
        b'{"model": "tiny", "prompt": "\\ud800\\u"}',
    ],
)
def test_bytes_that_are_no_text(server: Running, body) -> None:
    assert answer(server, request(body))[0] == 400


@pytest.mark.parametrize("prompt", ["\u202e\u0000\u200d" * 40, "\U0010ffff\ufeff", "e" + "\u0301" * 400, "\x1b[2J\x07"])
def test_odd_characters_are_characters(server: Running, prompt) -> None:
    assert answer(server, request({**GOOD, "prompt": prompt}))[0] == 200


@pytest.mark.parametrize(
    "path", ["/v1/models/%ED%A0%80", "/%ff%fe", "/v1/%00", "/" + "%F0%9F%98%80" * 200, "//", "/?\xff"]
)
def test_odd_paths_are_not_found(server: Running, path) -> None:
    status, body = answer(
        server, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("latin-1")
    )
    assert status in (400, 404)
    assert body


START = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
MALFORMED = {
    "two lengths": START + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
    "a negative length": START + b"Content-Length: -1\r\n\r\n{}",
    "a length in words": START + b"Content-Length: two\r\n\r\n{}",
    "two hosts": b"GET /health HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n",
    "no host": b"GET /health HTTP/1.1\r\n\r\n",
    "a chunk without a size": START + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
    "a chunk that is too large": START + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{}\r\n",
    "an unknown coding": START + b"Transfer-Encoding: gzip\r\n\r\n{}",
    "NUL in a header": b"GET /health HTTP/1.1\r\nHost: local\0host\r\n\r\n",
    "a line end in a header": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
    "a header without a colon": b"GET /health HTTP/1.1\r\nHost localhost\r\n\r\n",
    "a space before the colon": b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n",
    "large headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    "many headers": b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 30_000 + b"\r\n",
    "a long path": b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "another protocol": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_http_is_refused(server: Running, caplog, case, monkeypatch) -> None:
    monkeypatch.setattr(reading, "BODY_TIMEOUT", 0.5)  # a chunk of any size is waited for
    status, _ = answer(server, MALFORMED[case])
    assert status == 0 or 400 <= status < 500
    assert "Traceback" not in caplog.text
    assert answer(server, request(GOOD))[0] == 200


def test_the_body_belongs_to_one_request_only(server: Running) -> None:
    """A second request that hides in the body of the first one is never served."""
    hidden = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    both = START + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n0\r\n\r\n" + hidden
    response = asyncio.run(exchange(server.port, both))
    assert response.count(b"HTTP/1.1 ") == 1
    assert b"fairbits_requests" not in response


@pytest.mark.parametrize("host", ["[", "]", "[::1", "a b", "\xff", "localhost:99999999", "@", "%", "a" * 5000])
def test_a_host_that_is_none_with_a_key(running, host) -> None:
    key = "a-key-of-some-length"
    with running(key=key, loopback_only=False) as server:
        for path in ("/nowhere", "/v1/models"):  # not found, and not allowed with POST
            status, body = answer(server, request(GOOD, f"Authorization: Bearer {key}", path=path, host=host))
            assert status in (400, 404, 405)
            assert status == 400 or json.loads(body)["error"]["message"]
        assert answer(server, request(GOOD, "Authorization: Bearer \xff\xfe", host=host))[0] in (400, 401)


def test_a_stop_that_takes_too_long_ends_every_request_with_an_error(running, model: AdaptiveModel) -> None:
    async def ask(server: Running) -> list[bytes]:
        asked = [request({**GOOD, "max_tokens": 400, "stream": stream}) for stream in (True, False, True, False)]
        tasks = [asyncio.create_task(exchange(server.port, payload)) for payload in asked]
        await asyncio.to_thread(until, lambda: server.number("fairbits_running") + queued(server) == 4)
        server.service.scheduler.close(0.2)
        return await asyncio.gather(*tasks)

    with running(max_batch=1) as server, model.using("base"):  # nothing is decoded meanwhile
        streamed, whole, *others = asyncio.run(ask(server))
        assert streamed.startswith(b"HTTP/1.1 200")
        assert b'"code": "stopping"' in streamed
        assert streamed.endswith(b"0\r\n\r\n")  # a proper end of the stream, and not a broken connection
        assert whole.startswith(b"HTTP/1.1 503")
        assert b"retry-after: 5" in whole.lower()
        assert [response[9:12] for response in others] == [b"200", b"503"]
        assert answer(server, request(GOOD))[0] == 503


def queued(server: Running) -> float:
    return server.number("fairbits_queue_length")


def test_a_server_may_open_as_many_files_as_connections() -> None:
    resource = pytest.importorskip("resource")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = serving.most_connections(Limits()) + serving.OTHER_FILES
    if before[1] not in (resource.RLIM_INFINITY, -1) and before[1] < wanted:
        pytest.skip("the system allows fewer files")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (512, before[1]))
        serving.allow_connections(Limits())
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (wanted, before[1])
        serving.allow_connections(Limits(max_queue=1))  # never fewer
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == wanted
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
