"""Requests that cannot be served: a clean answer to each, and a server that goes on."""

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.serve.server import connection
from fairbits.serve.server import request as reading
from fairbits.serve.server.request import Limits, RequestError, parse_request

from .conftest import PROMPTS, Running, until

JSON = {"Content-Type": "application/json"}


def send(
    server: Running, body: Any, *, path: str = "/v1/completions", method: str = "POST", **headers: str
) -> tuple[int, Any, Any]:
    """Returns status, error and headers of the answer to bytes, or to an object."""
    all_headers = {**JSON, **{name.replace("_", "-"): value for name, value in headers.items()}}
    data = body if isinstance(body, bytes | type(None)) or hasattr(body, "__next__") else json.dumps(body).encode()
    link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        link.request(method, path, data, all_headers, encode_chunked=hasattr(body, "__next__"))
        answer = link.getresponse()
        text = answer.read()
        return answer.status, json.loads(text)["error"] if answer.status >= 400 else text, answer.headers
    finally:
        link.close()


GOOD: dict[str, Any] = {"model": "tiny", "prompt": "Hello", "max_tokens": 2, "temperature": 0}
FIELDS = [
    ("prompt", None), ("prompt", 7), ("prompt", {}), ("prompt", []), ("prompt", ""), ("prompt", ["a", ""]),
    ("prompt", [1, -2]), ("prompt", [[1], []]), ("prompt", [[1], "a"]), ("prompt", [True]), ("prompt", [1.5]),
    ("prompt", [10**9]), ("prompt", [[1], [16_384]]), ("prompt", ["a", None]), ("prompt", "half \ud800 of a pair"),
    ("model", None), ("model", 3), ("model", ""),
    ("max_tokens", -1), ("max_tokens", 0), ("max_tokens", 1.5), ("max_tokens", "9"), ("max_tokens", True),
    ("max_tokens", 513), ("max_tokens", 10**400),
    ("temperature", -0.1), ("temperature", 2.1), ("temperature", 1e-9), ("temperature", "hot"), ("temperature", False),
    ("temperature", 10**400),
    ("top_p", 0), ("top_p", 1.1), ("top_p", []),
    ("n", 0), ("n", 257), ("n", "2"),
    ("stop", ["a"] * 5), ("stop", ""), ("stop", [1]), ("stop", {}), ("stop", "x" * 300), ("stop", "\udfff"),
    ("seed", 1.5), ("seed", 2**63), ("seed", "one"),
    ("stream", "yes"), ("stream_options", {"include_usage": True}),
    ("echo", 1), ("logprobs", 21), ("logprobs", -1), ("logprobs", True),
    ("prompt_logprobs", -1), ("prompt_logprobs", 1.0),
    ("best_of", 2), ("best_of", True), ("suffix", "end"),
    ("logit_bias", {"5": 1}), ("frequency_penalty", 0.5), ("presence_penalty", -1),
    ("language", "klingon"), ("language", 4), ("language", "\ud800"),
    ("unheard_of", 1), ("unheard_of", None), ("echo", 0), ("echo", ""), ("suffix", 0), ("stream", 0), ("seed", True),
    ("max_tokens", 2.0), ("temperature", "0"), ("logit_bias", []), ("prompt", ("a" * 90, 3)), ("stop", ["a", None]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), FIELDS)
def test_a_field_that_is_wrong_is_named(server: Running, name, value) -> None:
    status, error, _ = send(server, {**GOOD, name: value})
    assert (status, error["type"], error["param"]) == (400, "invalid_request_error", name)
    assert 10 < len(error["message"]) < 400
    assert set(error) == {"message", "type", "param", "code"}


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 0, "logprobs": 1}, "max_tokens"),
        ({"logprobs": 1, "stream": True}, "logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
    ],
)
def test_fields_that_do_not_go_together(server: Running, asked, name) -> None:
    status, error, _ = send(server, {**GOOD, **asked})
    assert (status, error["param"]) == (400, name)
    assert "together with" in error["message"]


@pytest.mark.parametrize(
    "options", [7, {"include_usage": 1}, {"other": True}, {"include_obfuscation": True}], ids=lambda value: str(value)
)
def test_stream_options_that_are_wrong(server: Running, options) -> None:
    status, error, _ = send(server, {**GOOD, "stream": True, "stream_options": options})
    assert status == 400
    assert error["message"]


def test_what_asks_for_nothing_is_taken(server: Running) -> None:
    neutral = {"echo": False, "logprobs": None, "best_of": 1, "suffix": None, "logit_bias": {}, "n": 1, "stop": None}
    more = {"frequency_penalty": 0.0, "presence_penalty": 0, "user": "someone", "seed": None, "top_p": None}
    assert send(server, {**GOOD, **neutral, **more, "stream": False})[0] == 200
    assert send(server, {**GOOD, "prompt": "a \u0000 b"})[0] == 200  # a character as any other
    assert send(server, {**GOOD, "best_of": 1.0, "temperature": 1, "top_p": 1, "stop": [], "suffix": ""})[0] == 200
    streamed = {"stream": True, "stream_options": {"include_usage": None, "include_obfuscation": False}}
    assert send(server, {**GOOD, **streamed})[0] == 200
    defaults = parse_request(b'{"model": "tiny", "prompt": "a"}', Limits())
    assert (defaults.max_tokens, defaults.sampling.temperature, defaults.sampling.top_p) == (16, 1.0, 1.0)
    small = Limits(max_tokens=8)
    assert parse_request(b'{"model": "tiny", "prompt": "a", "max_tokens": null}', small).max_tokens == 8
    with pytest.raises(RequestError, match="max_tokens is 16; it must be a whole number from 1 to 8"):
        parse_request(b'{"model": "tiny", "prompt": "a", "max_tokens": 16}', small)


def test_a_name_that_is_half_a_character_is_answered(server: Running) -> None:
    status, error, _ = send(server, {**GOOD, "half \ud800": 1})
    assert (status, error["param"]) == (400, r"half \ud800")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"null", "must be a JSON object"),
        (b"[]", "must be a JSON object"),
        (b'"a"', "must be a JSON object"),
        (b'{"prompt": "a"} {}', "not JSON"),
        (b'{"model": "tiny", "prompt": "\xff\xfe"}', "not UTF-8"),
        (b'\x00{"model": "tiny"}', "not JSON"),
        (b'{"model": "tiny", "prompt": "a\x00b"}', "not JSON"),
        (b'{"temperature": NaN}', "NaN"),
        (b'{"temperature": -Infinity}', "Infinity"),
        (b'{"model": "tiny", "prompt": "a", "temperature": 1e999}', "temperature is inf"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "not JSON"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ],
    ids=range(15),
)
def test_a_body_that_is_wrong(server: Running, body, message) -> None:
    status, error, _ = send(server, body)
    assert status == 400
    assert message in error["message"]
    assert send(server, GOOD)[0] == 200


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/completions", 405),
        ("PUT", "/v1/completions", 405),
        ("POST", "/v1/models", 405),
        ("DELETE", "/health", 405),
        ("GET", "/", 404),
        ("GET", "/docs", 404),
        ("GET", "/openapi.json", 404),
        ("POST", "/v1/chat/completions", 404),
        ("GET", "/v1/models/", 404),
        ("GET", "/v1/models/../../etc/passwd", 404),
        ("GET", "/%00%ff", 404),
    ],
)
def test_paths_and_methods(server: Running, method, path, status) -> None:
    actual_status, error, headers = send(server, None, method=method, path=path)
    assert (actual_status, error["type"]) == (status, "not_found_error" if status == 404 else "invalid_request_error")
    assert ("allow" in headers) == (status == 405)


def test_only_json_by_its_name(server: Running) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "", "multipart/form-data"):
        status, error, _ = send(server, GOOD, Content_Type=kind)
        assert (status, error["code"]) == (415, "unsupported_media_type")
    assert send(server, GOOD, Content_Type="Application/JSON; charset=utf-8")[0] == 200


def test_a_body_that_is_too_large_with_and_without_its_length(server: Running) -> None:
    large = json.dumps({**GOOD, "user": "x" * (1 << 20)}).encode()
    assert send(server, large)[0] == 413

    def parts() -> Iterator[bytes]:
        for at in range(0, len(large), 65536):
            yield large[at : at + 65536]

    status, error, headers = send(server, parts(), Transfer_Encoding="chunked")
    assert (status, error["code"], headers["connection"]) == (413, "body_too_large", "close")
    assert send(server, None, Content_Length=str(10**12))[0] == 413
    assert send(server, None, Content_Length=str(10**19))[0] == 413
    fits = json.dumps({**GOOD, "user": "x" * ((1 << 20) - 200)}).encode()
    assert send(server, fits)[0] == 200


def test_a_prompt_that_is_too_long(running) -> None:
    with running(max_prompt_tokens=8) as server:
        status, error, _ = send(server, {**GOOD, "prompt": "many words " * 50})
        assert (status, error["code"], error["param"]) == (400, "context_length_exceeded", "prompt")
        assert send(server, GOOD)[0] == 200


def test_another_host_and_the_key(server: Running, running) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost:80:80", "[::1", "", "localhost@evil.example"):
        status, error, _ = send(server, GOOD, Host=host)
        assert (status, error["code"]) == (403, "wrong_host")
    for host in ("localhost", "LOCALHOST:9", "127.0.0.1:8000", "[::1]:8000", "[::1]"):
        assert send(server, GOOD, Host=host)[0] == 200
    with running(key="a-key-of-some-length", loopback_only=False) as guarded:
        for header in ({}, {"Authorization": "Bearer other"}, {"Authorization": "a-key-of-some-length"}):
            status, error, headers = send(guarded, GOOD, **header)
            assert (status, error["type"], headers["www-authenticate"]) == (401, "authentication_error", "Bearer")
            assert send(guarded, None, method="GET", path="/metrics", **header)[0] == 401
        assert send(guarded, GOOD, Host="name.example", Authorization="Bearer a-key-of-some-length")[0] == 200
        assert send(guarded, None, method="GET", path="/health")[0] == 200


def test_what_is_no_http(server: Running) -> None:
    for junk in (b"\x16\x03\x01\x02\x00\x01\x00", b"GET / HTTP/9.9\r\n\r\n", b"A" * 200_000, b"\r\n\r\n\x00\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", server.port), timeout=30) as link:
            try:
                link.sendall(junk + b"\r\n\r\n")
                answer = link.recv(1000)
            except ConnectionError:
                answer = b""
            assert answer == b"" or answer.startswith(b"HTTP/1.1 40")
    assert send(server, GOOD)[0] == 200


def test_clients_that_are_slow_are_let_go(server: Running, monkeypatch) -> None:
    monkeypatch.setattr(connection, "HEADER_TIMEOUT", 0.3)
    monkeypatch.setattr(reading, "BODY_TIMEOUT", 0.3)
    for beginning in (b"", b"POST /v1/comp", b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nX-Slow: "):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
            link.sendall(beginning)
            assert link.recv(1000) == b""  # closed
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        head = (
            "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 99"
        )
        link.sendall(head.encode() + b"\r\n\r\n{")
        assert link.recv(1000).startswith(b"HTTP/1.1 408")
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as link:
        link.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert link.recv(1000).startswith(b"HTTP/1.1 200")
        link.sendall(b"GET /heal")  # the second request of a connection is waited for no longer
        while received := link.recv(1000):
            assert not received.startswith(b"HTTP/1.1")


def test_a_client_that_leaves_in_the_middle_of_its_body(server: Running, caplog) -> None:
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", server.port)) as link:
            head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            link.sendall(head.encode() + b"Content-Length: 99\r\n\r\n{")
    assert send(server, GOOD)[0] == 200
    assert "Traceback" not in caplog.text


def test_a_full_queue_and_one_that_closes(running, model: AdaptiveModel) -> None:
    with running(max_queue=2, max_batch=1) as server:
        answers: list[int] = []
        threads = [threading.Thread(target=lambda: answers.append(send(server, GOOD)[0])) for _ in range(3)]
        with model.using("base"):  # nothing is decoded meanwhile
            for count, thread in enumerate(threads):
                thread.start()
                done = (lambda n: lambda: server.number("fairbits_running") + queue(server) == n)(count + 1)
                until(done)
            status, error, headers = send(server, GOOD)
            assert (status, error["code"], headers["retry-after"]) == (429, "queue_full", "1")
            with pytest.raises(openai.RateLimitError):
                server.complete("Hello")
            assert send(server, None, method="GET", path="/health")[0] == 200
            assert send(server, {**GOOD, "n": 3})[0] == 400  # never fits
        for thread in threads:
            thread.join()
        assert answers == [200, 200, 200]
        for status, path, count in (("429", "", 2), ("200", "/v1/completions", 3)):  # counted once a response is sent
            labels = {"status": status} | ({"path": path} if path else {})
            until(lambda labels=labels, n=count: server.number("fairbits_requests_total", **labels) == n)
        server.service.scheduler.closing = True
        assert send(server, GOOD)[0] == 503
        link = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
        link.request("GET", "/health")
        assert link.getresponse().status == 503
        link.close()


def queue(server: Running) -> float:
    return server.number("fairbits_queue_length")


def test_an_answer_that_takes_too_long(running, model: AdaptiveModel) -> None:
    with running(timeout=0.3) as server:
        with model.using("base"):
            status, error, _ = send(server, GOOD)
            assert (status, error["code"]) == (504, "timeout")
            status, text, _ = send(server, {**GOOD, "stream": True})
            assert status == 200
            assert b'"code": "timeout"' in text
            assert b"[DONE]" not in text
        until(lambda: server.number("fairbits_running") + queue(server) == 0)
        server.service.limits = replace(server.service.limits, timeout=300.0)
        assert send(server, GOOD)[0] == 200


def test_metrics_count(server: Running) -> None:
    before = {name: server.number(f"fairbits_{name}") for name in NUMBERS}
    answer = server.complete(PROMPTS["jpn_Jpan"], max_tokens=3)
    status, text, headers = send(server, None, method="GET", path="/metrics")
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert b'fairbits_completions_total{finish_reason="length",language="jpn_Jpan",overlay="b"}' in text
    after = {name: server.number(f"fairbits_{name}") - value for name, value in before.items()}
    assert after["generated_tokens_total"] == answer.usage.completion_tokens == 3
    assert after["prompt_tokens_total"] == answer.usage.prompt_tokens
    assert after["completions_total"] == after["first_token_seconds_count"] == after["batch_size_count"] == 1
    assert after["request_seconds_count"] == after["requests_total"] == 2
    server.complete(PROMPTS["fra_Latn"], max_tokens=1)
    assert server.number("fairbits_switches_total") > before["switches_total"]
    assert server.number("fairbits_switch_seconds_total") > before["switch_seconds_total"]


NUMBERS = (
    *("generated_tokens_total", "prompt_tokens_total", "completions_total", "first_token_seconds_count"),
    *("batch_size_count", "request_seconds_count", "requests_total", "switches_total", "switch_seconds_total"),
)


def test_a_body_must_be_an_object() -> None:
    body = '{"model": "tiny", "prompt": "שלום"}'.encode()
    assert parse_request(body, Limits()).prompts == ("שלום",)
    with pytest.raises(RequestError, match="object"):
        parse_request(b"1", Limits())
