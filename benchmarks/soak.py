"""A server under a mixed load for a long time: does it lose a request, and does its memory grow?

python benchmarks/soak.py --minutes 30                     the embedded model in 4 bits
python benchmarks/soak.py --minutes 30 --base ./w4         a model of yours

`fairbits serve` runs as a process of its own. Clients arrive at random, `--rate` per second on average. Most want a
short completion. Some stream it, some send their body slowly, some vanish in the middle, some send what is no request.
Every client that stays must get its whole response, or a 429 that says when to come back; every bad request a 4xx. At
the end the server gets SIGTERM while streams run, must finish them, and exit with 0. The memory of the process is its
resident size; it is called flat if it grew by at most `--growth` MiB after the first fifth of the time.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import fairbits as fb
from fairbits.core.units import MIB

PROMPTS = ("All human beings", "כל בני האדם", "すべての人間は", "Tous les êtres humains", "Alle Menschen", "Все люди")
BAD = (
    b"GET / HTTP/9.9\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
    b"GET /%ED%A0%80 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
)
"""What is no request that the server can serve: each is answered with a 4xx, or the connection is closed."""
PATIENCE = 120.0
"""Seconds after which a client that has no response counts its request as lost."""
LAST_STREAMS = 3


@dataclass
class Tally:
    """What came of the requests, how long whole ones took, and the memory of the server."""

    ended: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    memory: list[tuple[float, float]] = field(default_factory=list)


class Load:
    """The clients of one server."""

    def __init__(self, port: int, model: str, *, tokens: int, seed: int) -> None:
        self._port, self._model, self._tokens = port, model, tokens
        self._random = random.Random(seed)
        self.tally = Tally()

    async def one(self) -> None:
        """Is one client of a kind that is drawn, and notes how it ended."""
        kinds: dict[Callable[[], Awaitable[str]], int] = {
            self._whole: 70, self._stream: 12, self._slow: 6, self._vanish: 6, self._bad: 6,
        }  # fmt: skip
        [kind] = self._random.choices(list(kinds), list(kinds.values()))
        name = kind.__name__.strip("_")
        try:
            outcome = await asyncio.wait_for(kind(), PATIENCE)
        except (TimeoutError, OSError, ValueError, asyncio.IncompleteReadError) as problem:
            self.tally.lost.append(f"{name}: {type(problem).__name__}: {problem!s:.100}")
            return
        self.tally.ended[f"{name}: {outcome}"] += 1

    async def last_streams(self, stop: Callable[[], None]) -> None:
        """Starts streams, stops the server while they run, and notes how they ended."""
        started = [asyncio.create_task(self._stream(tokens=64)) for _ in range(LAST_STREAMS)]
        await asyncio.sleep(0.5)
        stop()
        for outcome in await asyncio.gather(*started, return_exceptions=True):
            if isinstance(outcome, BaseException):
                self.tally.lost.append(f"last stream: {type(outcome).__name__}: {outcome!s:.100}")
            else:
                self.tally.ended[f"last stream: {outcome}"] += 1

    async def _whole(self) -> str:
        began = time.perf_counter()
        status, body = _parsed(await self._exchange(self._request()))
        if status == 200:
            json.loads(body)["choices"][0]["text"]
            self.tally.seconds.append(time.perf_counter() - began)
        return _expected(status, (200, 429))

    async def _stream(self, tokens: int | None = None) -> str:
        status, body = _parsed(await self._exchange(self._request(stream=True, tokens=tokens)))
        if status == 200 and b"data: [DONE]" not in body and b'"code": "stopping"' not in body:
            raise ValueError("the stream has no end")
        return _expected(status, (200, 429))

    async def _slow(self) -> str:
        sent = self._request()
        return _expected(_parsed(await self._exchange(sent[:-20], sent[-20:-9], sent[-9:]))[0], (200, 429))

    async def _vanish(self) -> str:
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        sent = self._request(stream=True)
        writer.write(sent[: self._random.randrange(1, len(sent) + 1)])
        await writer.drain()
        await asyncio.sleep(self._random.random() / 4)
        writer.transport.abort()
        return "gone"

    async def _bad(self) -> str:
        half = self._request(prompt="half \ud800 of a pair")
        said = await self._exchange(self._random.choice((*BAD, half)))
        return "closed" if not said else _expected(_parsed(said)[0], range(400, 500))

    async def _exchange(self, *parts: bytes) -> bytes:
        """Returns all that the server says until it closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
        try:
            for number, part in enumerate(parts):
                await asyncio.sleep(0.5 * bool(number))
                writer.write(part)
                await writer.drain()
            return await reader.read()
        finally:
            writer.close()

    def _request(self, *, prompt: str | None = None, stream: bool = False, tokens: int | None = None) -> bytes:
        text = self._random.choice(PROMPTS) if prompt is None else prompt
        wanted: dict[str, Any] = {"model": self._model, "prompt": text, "max_tokens": tokens or self._tokens}
        body = json.dumps({**wanted, "stream": stream, "temperature": self._random.choice((0, 1))}).encode()
        head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body


def _parsed(said: bytes) -> tuple[int, bytes]:
    head, _, body = said.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        raise ValueError(f"no response, but {said[:40]!r}")
    return int(head[9:12]), body


def _expected(status: int, allowed: Any) -> str:
    if status not in allowed:
        raise ValueError(f"status {status}")
    return str(status)


async def run(load: Load, process: "subprocess.Popen[str]", *, seconds: float, rate: float, seed: int) -> None:
    """Sends clients at random times, and reads the memory of the server every few seconds."""
    arrivals, waiting, began = random.Random(seed), set[asyncio.Task[None]](), time.monotonic()
    next_reading = 0.0
    while (now := time.monotonic() - began) < seconds and process.poll() is None:
        if now >= next_reading:
            load.tally.memory.append((now, _resident(process.pid)))
            next_reading += max(seconds / 200, 1.0)
        task = asyncio.create_task(load.one())
        waiting.add(task)
        task.add_done_callback(waiting.discard)
        await asyncio.sleep(arrivals.expovariate(rate))
    await asyncio.gather(*waiting)
    if process.poll() is None:
        await load.last_streams(lambda: process.send_signal(signal.SIGTERM))


def _resident(pid: int) -> float:
    """Returns the resident size of a process in MiB."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


def growth(memory: list[tuple[float, float]]) -> float:
    """Returns by how many MiB the memory grew after the first fifth of the time, on its least-squares line."""
    times, sizes = np.array(memory).T
    late = times >= times[-1] / 5
    if late.sum() < 3:
        return 0.0
    slope = np.polyfit(times[late], sizes[late], 1)[0]
    return float(slope * (times[late][-1] - times[late][0]))


def report(tally: Tally, *, code: int, most: float) -> bool:
    """Prints what happened and the verdict; returns whether it is a good one."""
    print("memory of the server:")
    for at in np.linspace(0, len(tally.memory) - 1, min(len(tally.memory), 11)).astype(int):
        print(f"  {tally.memory[at][0] / 60:6.1f} min  {tally.memory[at][1]:8.1f} MiB")
    print("requests:")
    for name, count in sorted(tally.ended.items()):
        print(f"  {name:24s} {count:7,}")
    if tally.seconds:
        p50, p95, p99 = np.quantile(tally.seconds, (0.5, 0.95, 0.99))
        print(f"latency of {len(tally.seconds):,} whole completions: p50 {p50:.2f} s, p95 {p95:.2f} s, p99 {p99:.2f} s")
    grown = growth(tally.memory)
    print(f"memory grew by {grown:+.1f} MiB after the first fifth of the time; exit code {code}")
    problems = [f"lost {each}" for each in tally.lost[:10]]
    problems += [f"{len(tally.lost):,} requests lost"] if tally.lost else []
    problems += [f"memory grew by more than {most:g} MiB"] if grown > most else []
    problems += [f"the server ended with {code}"] if code else []
    total = tally.ended.total() + len(tally.lost)
    print(f"verdict: {'FAILED: ' + '; '.join(problems) if problems else f'passed, {total:,} requests, none lost'}")
    return not problems


def main() -> int:
    """Returns 0 if nothing was lost, memory stayed flat and the server ended in order."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--rate", type=float, default=2.0, help="clients per second")
    parser.add_argument("--tokens", type=int, default=4, help="new tokens of a completion")
    parser.add_argument("--growth", type=float, default=32.0, help="MiB that memory may grow")
    parser.add_argument("--base", type=Path, help="a quantized model")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        base = options.base or Path(directory) / "tiny-w4"
        if options.base is None:
            fb.quantize("embedded:tiny", fb.plan("embedded:tiny", policy="rtn", bits=4), out=base)
        command = [sys.executable, "-m", "fairbits", "serve", str(base), "--port", "0", "--name", "soak", "--json"]
        environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
            try:
                port = int(_listening(process)["url"].rpartition(":")[2])
                load = Load(port, "soak", tokens=options.tokens, seed=options.seed)
                asyncio.run(run(load, process, seconds=options.minutes * 60, rate=options.rate, seed=options.seed))
                code = process.wait(timeout=60)
            finally:
                process.kill()
        return int(not report(load.tally, code=code, most=options.growth))


def _listening(process: "subprocess.Popen[str]") -> dict[str, Any]:
    """Returns what the server says when it listens."""
    said = ""
    assert process.stdout is not None
    for line in process.stdout:
        said += line
        if line == "}\n":
            found: dict[str, Any] = json.loads(said)
            return found
    raise SystemExit(f"the server did not start: {said}")


if __name__ == "__main__":
    sys.exit(main())
