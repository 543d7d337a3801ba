"""HttpClient: JSON over HTTP, with retries, and without ever showing the key."""

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn, TypeVar
from weakref import WeakSet

import httpx2

from fairbits.core.errors import InputError, printable
from fairbits.core.version import __version__
from fairbits.evaluation.servers.address import ServerAddress
from fairbits.evaluation.servers.answer_errors import MALFORMED, AnswerError, NotOfferedError, refuse

T = TypeVar("T")
RETRIED = (408, 425, 429, 500, 502, 503, 504)
NOT_OFFERED = (400, 404, 405, 415, 422, 501)  # what servers answer to a path or a field that they do not have
LONGEST_WAIT = 30.0  # seconds between two tries
OPTIONAL_PATIENCE = 5.0  # seconds for what not every server has
MOST_BYTES = 1 << 30  # of an answer: 1,000 log-probabilities of each of 10,000 tokens
REMEDIES = {
    401: "put the key of the server into the environment variable that --api-key-env names",
    403: "put the key of the server into the environment variable that --api-key-env names",
    404: "check the address, which ends in /v1, and that the server has /v1/completions",
}


class HttpClient:
    """Requests to one server; usable from several threads.

    A request that fails for a reason that may pass (the connection, a time-out, 429, 5xx) is sent again, later and
    later, for up to `patience` seconds; a server that was never there is refused at once. Redirects are not followed:
    they could carry the text and the key elsewhere.
    """

    def __init__(
        self, address: ServerAddress, *, key: str | None, connections: int, timeout: float, patience: float
    ) -> None:
        self.address, self.patience = address, patience
        self.retries: Counter[str] = Counter()  # how often requests were sent again, by reason
        self._key, self._closed, self._has_answered = key, threading.Event(), False
        self._sockets: WeakSet[socket.socket] = WeakSet()
        self._lock = threading.Lock()  # of sockets and counts
        self._http = httpx2.Client(
            headers={"user-agent": f"fairbits/{__version__}"} | ({"authorization": f"Bearer {key}"} if key else {}),
            timeout=httpx2.Timeout(timeout, connect=min(timeout, 10.0)),
            limits=httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
            follow_redirects=False,
            trust_env=not address.is_local,  # a proxy is not asked for this machine
        )

    def __enter__(self) -> "HttpClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends the requests and waits of other threads too, also of those that wait for an answer."""
        with self._lock:
            self._closed.set()
            for connected in self._sockets:
                _end(connected)
        self._http.close()

    def get(self, url: str, read: Callable[[dict[str, Any]], T]) -> T:
        """Returns what `read` takes from the JSON object at an address of the server."""
        return self._read("GET", url, None, read)

    def get_if_there(self, url: str) -> dict[str, Any]:
        """Returns the JSON object at an address; {} if the server has none there."""
        try:
            return self._request("GET", url, None, patience=min(self.patience, OPTIONAL_PATIENCE))
        except AnswerError:
            return {}

    def post(self, url: str, body: dict[str, Any], read: Callable[[dict[str, Any]], T]) -> T:
        """Returns what `read` takes from the JSON object that a server answers to a JSON object."""
        return self._read("POST", url, body, read)

    def _read(self, method: str, url: str, body: dict[str, Any] | None, read: Callable[[dict[str, Any]], T]) -> T:
        try:
            data = self._request(method, url, body)
            try:
                return read(data)
            except InputError:
                raise
            except MALFORMED as problem:
                words = f"{problem} is missing" if isinstance(problem, KeyError) else self.hide(str(problem))
                refuse(
                    f"gives an answer of another form at {url.removeprefix(self.address.root)} ({words})",
                    f"{self.address.api} must be OpenAI-compatible, as vLLM, SGLang and fairbits serve are",
                )
        except AnswerError as problem:
            raise type(problem)(self.hide(problem.problem), problem.remedy, self.address.root) from None

    def _request(
        self, method: str, url: str, body: dict[str, Any] | None, *, patience: float | None = None
    ) -> dict[str, Any]:
        patience = self.patience if patience is None else patience
        begin, wait = time.monotonic(), 0.5
        while True:
            asked = 0.0
            try:
                response = self._http.request(method, url, json=body, extensions={"trace": self._note_socket})
                self._has_answered = True
                if response.status_code == 200:
                    if len(response.content) > MOST_BYTES:
                        refuse(f"answers with {len(response.content):,} bytes", "ask for fewer with --top-k")
                    if "html" in response.headers.get("content-type", ""):
                        refuse("answers with a web page", "check the address, which ends in /v1")
                    return _object(response.content)
                reason = f"status {response.status_code}"
                if response.status_code not in RETRIED:
                    self._refuse_answer(response)
                reason, asked = f"{reason}: {self._words(response)}", _seconds(response.headers.get("retry-after"))
            except (httpx2.TransportError, httpx2.DecodingError) as problem:
                reason = f"{type(problem).__name__}: {self.hide(str(problem))}"
                if isinstance(problem, httpx2.ConnectError | httpx2.ConnectTimeout) and not self._has_answered:
                    refuse(f"cannot be reached ({reason})", "start it, and check the name of its machine and its port")
            except httpx2.InvalidURL as problem:
                refuse(f"cannot be asked ({self.hide(str(problem))})", "check its address")
            except ValueError as problem:  # half an answer, as of a server that was killed
                if isinstance(problem, InputError):
                    raise
                reason = f"no JSON in its answer: {self.hide(str(problem))}"
            except RuntimeError:  # the client was closed before the request was sent
                if not self._closed.is_set():
                    raise
                reason = "the client was closed"
            wait = max(wait, asked)
            if self._closed.is_set() or time.monotonic() + wait - begin > patience:
                refuse(
                    f"did not answer for {time.monotonic() - begin:.0f} s ({reason})",
                    "see that it runs and is not overloaded, or give it longer with --patience; the same command "
                    "continues where it stopped",
                )
            with self._lock:
                self.retries[reason.partition(":")[0]] += 1
            self._closed.wait(wait * random.uniform(0.5, 1.0) if not asked else wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _note_socket(self, event: str, info: dict[str, Any]) -> None:
        """Keeps the socket of a connection: only its end wakes a thread that waits for an answer."""
        if event in ("connection.connect_tcp.complete", "connection.start_tls.complete"):
            connected = info["return_value"].get_extra_info("socket")
            with self._lock:
                self._sockets.add(connected)
                if self._closed.is_set():
                    _end(connected)

    def _refuse_answer(self, response: httpx2.Response) -> NoReturn:
        status = response.status_code
        if response.is_redirect:
            there = response.headers.get("location", "another path")
            refuse(
                f"redirects to {self.hide(there):.80}",
                "redirects are not followed: give the address of the server itself",
            )
        error = NotOfferedError if status in NOT_OFFERED else AnswerError
        raise error(
            f"answers with status {status}: {self._words(response)}", REMEDIES.get(status, "see the log of the server")
        )

    def _words(self, response: httpx2.Response) -> str:
        """Returns what a server says of an error."""
        try:
            data = json.loads(response.content)
            error = data.get("error", data) if isinstance(data, dict) else data
            words = error.get("message", error) if isinstance(error, dict) else error
        except ValueError:
            words = response.text
        return self.hide(str(words)) or response.reason_phrase

    def hide(self, text: str) -> str:
        """Returns text on one line and without the key, which some servers repeat in their errors."""
        text = text.replace(self._key, "***") if self._key else text
        return printable(" ".join(text.split()))[:400]


def _object(content: bytes) -> dict[str, Any]:
    """Returns a JSON object without NaN and infinity; half a document is a ValueError."""
    try:
        data = json.loads(content, parse_constant=_not_a_number)
    except RecursionError:
        refuse("answers with JSON that is nested too deeply", "check the address, which ends in /v1")
    if not isinstance(data, dict):
        refuse(f"answers with a JSON {type(data).__name__} in place of an object", "check the address")
    return data


def _end(connected: socket.socket) -> None:
    with suppress(OSError):
        connected.shutdown(socket.SHUT_RDWR)


def _not_a_number(name: str) -> NoReturn:
    refuse(f"answers with {name} in place of a number", "its logits are broken: see its log")


def _seconds(header: str | None) -> float:
    """Returns the seconds of a Retry-After header; 0 if there are none."""
    try:
        return min(max(float(header or 0), 0.0), 300.0)
    except ValueError:  # a date
        return 0.0
