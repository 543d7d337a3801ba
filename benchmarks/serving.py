"""What a server gives when many ask at once: the static base beside the same base with overlays, in one run.

python benchmarks/serving.py                                      the embedded model in 4 bits, synthetic overlays
python benchmarks/serving.py --base ./w4 --overlays ./overlays    a model of yours

Both servers run in this process and are asked in turn, `--rounds` times each, by the client of OpenAI: `--requests` at
once, greedy, in the languages that are served, mixed. Latency is from request to answer. Synthetic overlays are those
of benchmarks/switching.py.
"""

import argparse
import asyncio
import os
import platform
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import openai
import torch

from fairbits.models.checkpoint import Checkpoint
from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.serve.overlays.overlay_files import Overlays
from fairbits.serve.server.app import Service, create_app
from fairbits.serve.server.request import Limits
from fairbits.serve.server.server_process import bind, make_server
from fairbits.text.included_texts import udhr
from switching import made

CHARACTERS = 60  # of a prompt


@dataclass(frozen=True)
class Round:
    """What one load of requests took, and what the server counted meanwhile."""

    seconds: float
    latencies: list[float]
    tokens: int
    batches: float
    switches: float
    switching: float
    texts: list[str]


class Subject:
    """A server under load."""

    def __init__(self, service: Service, url: str) -> None:
        self._service, self._url = service, url

    def round(self, prompts: list[str], *, tokens: int) -> Round:
        """Returns what it takes to answer all prompts, asked at once."""
        before, start = self._counters(), time.perf_counter()
        answers, latencies = asyncio.run(self._ask(prompts, tokens))
        seconds = time.perf_counter() - start
        counted = [after - earlier for after, earlier in zip(self._counters(), before, strict=True)]
        made_tokens = sum(answer.usage.completion_tokens for answer in answers)
        texts = [answer.choices[0].text for answer in answers]
        return Round(seconds, latencies, made_tokens, *counted, texts=texts)

    async def _ask(self, prompts: list[str], tokens: int) -> tuple[list[Any], list[float]]:
        latencies: list[float] = []

        async def one(client: openai.AsyncOpenAI, prompt: str) -> Any:
            start = time.perf_counter()
            answer = await client.completions.create(model="m", prompt=prompt, max_tokens=tokens, temperature=0)
            latencies.append(time.perf_counter() - start)
            return answer

        async with openai.AsyncOpenAI(base_url=f"{self._url}/v1", api_key="none", max_retries=0, timeout=600) as client:
            return await asyncio.gather(*(one(client, prompt) for prompt in prompts)), latencies

    def _counters(self) -> list[float]:
        names = ("batch_size_count", "switches_total", "switch_seconds_total")
        lines = self._service.metrics.text().decode().splitlines()
        found = dict(line.split(" ") for line in lines if line.startswith("fairbits_") and "{" not in line)
        return [float(found[f"fairbits_{name}"]) for name in names]


@contextmanager
def served(model: AdaptiveModel, limits: Limits) -> Iterator[Subject]:
    """Gives a server of the model on a free port."""
    address, service = bind("127.0.0.1", 0), Service(model, "m", limits)
    server = make_server(service, create_app(service))
    address.socket.listen(1024)
    thread = threading.Thread(target=server.run, args=([address.socket],))
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Subject(service, address.url)
    finally:
        server.should_exit = True
        thread.join()


def load(languages: list[str], count: int) -> list[str]:
    """Returns prompts in all languages, mixed: beginnings of articles of the declaration."""
    texts = udhr(languages).evaluation
    return [
        texts[code][(i // len(languages)) % len(texts[code])][:CHARACTERS]
        for i in range(count)
        for code in [languages[i % len(languages)]]
    ]


def table(rounds: dict[str, list[Round]]) -> str:
    """Returns a Markdown table: medians over the rounds."""
    columns = ("wall s", "requests/s", "tokens/s", "latency p50 s", "p95 s", "batches", "switches", "ms switching")
    lines = [f"| server | {' | '.join(columns)} |", f"|---|{'---|' * len(columns)}"]
    for name, found in rounds.items():
        numbers = [
            [
                each.seconds,
                len(each.latencies) / each.seconds,
                each.tokens / each.seconds,
                *np.quantile(each.latencies, (0.5, 0.95)),
                each.batches,
                each.switches,
                1e3 * each.switching,
            ]
            for each in found
        ]
        lines.append(f"| {name} | {' | '.join(f'{value:.3g}' for value in np.median(numbers, axis=0))} |")
    return "\n".join(lines)


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path)
    parser.add_argument("--overlays", type=Path)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-batch", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    if (given.base is None) != (given.overlays is None):
        parser.error("--base and --overlays go together")
    with tempfile.TemporaryDirectory() as directory:
        if given.base is None:
            base, overlays = made(Path(directory) / "base")
        else:
            base = Checkpoint(given.base)
            overlays = Overlays.load(given.overlays, base)
        limits = Limits(max_queue=max(256, given.requests), max_batch=given.max_batch, timeout=3600)
        prompts = load(list(overlays.languages), given.requests)
        static, adaptive = (AdaptiveModel(base, each, device=given.device) for each in (None, overlays))
        rounds: dict[str, list[Round]] = {"static base": [], "with overlays": []}
        with served(static, limits) as one, served(adaptive, limits) as other:
            for subject in (one, other):
                subject.round(prompts[: 2 * given.max_batch], tokens=2)  # warms up
            for _ in range(given.rounds):
                for found, subject in zip(rounds.values(), (one, other), strict=True):
                    found.append(subject.round(prompts, tokens=given.tokens))
    print(
        f"{given.requests} requests at once in {len(overlays.languages)} languages, {given.tokens} tokens each, "
        f"batches of {given.max_batch}, medians of {given.rounds} rounds; {platform.machine()}, "
        f"{os.cpu_count()} cores, {torch.get_num_threads()} threads, load {os.getloadavg()[0]:.1f}, {given.device}"
    )
    print(f"\n{table(rounds)}")
    ratios = [a.seconds / b.seconds for a, b in zip(rounds["with overlays"], rounds["static base"], strict=True)]
    print(f"\nWall time with overlays over that of the static base, by round: {', '.join(f'{r:.2f}' for r in ratios)}")


if __name__ == "__main__":
    main()
