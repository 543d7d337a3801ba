"""Servers and clients that are killed with SIGKILL during `fairbits evaluate`: nothing is lost, or counted twice."""

import random
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
from fake_server import FakeServer, Scorer
from recorded_server import record

from fairbits.api.evaluate import evaluate
from fairbits.api.make_plan import plan
from fairbits.api.quantize import quantize
from fairbits.evaluation.saved_reference import open_reference
from fairbits.evaluation.scores import Scores
from fairbits.evaluation.servers.address import ServerAddress, ServerOptions
from fairbits.evaluation.servers.http_client import HttpClient
from fairbits.evaluation.servers.running_server import RunningServer, identify
from fairbits.evaluation.servers.served_scores import prompts_of
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.reading import read_corpus

SCRIPT = Path(__file__).with_name("recorded_server.py")
COMMAND = Path(sys.executable).with_name("fairbits")
TOP = 3
DEAD_SECONDS = 0.3


class KilledServer:
    """A server in a process of its own, which is killed and started again."""

    def __init__(self, recorded: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.recorded, self.kills = recorded, 0
        self.url = f"http://127.0.0.1:{self.port}/v1"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([sys.executable, "-S", SCRIPT, str(self.port), self.recorded])

    def wait_until_ready(self) -> None:
        end = time.monotonic() + 60
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < end
            time.sleep(0.02)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self.kills += 1

    def kill_and_start(self) -> None:
        self.kill()
        threading.Timer(DEAD_SECONDS, self.start).start()


@contextmanager
def server_that_dies(recorded: Path) -> Iterator[KilledServer]:
    server = KilledServer(recorded)
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.kill()


def write_texts(directory: Path, documents: int) -> Path:
    """Writes short documents in two languages, all different."""
    directory.mkdir()
    rng = random.Random(0)
    words = {"eng": ["the", "wind", "came", "from", "north", "and", "day", "was", "cold", "in", "every", "house"]}
    words["fra"] = ["le", "vent", "venait", "du", "nord", "et", "jour", "froid", "dans", "chaque", "maison"]
    for code, of in words.items():
        lines = [f"{i} {' '.join(rng.choices(of, k=4))}" for i in range(documents)]
        (directory / f"{code}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return directory


def answers_in(path: Path) -> list[tuple[int, int]]:
    """Returns which answers a file has: the first or second time, and the number of the prompt."""
    if not path.exists():
        return []
    with closing(sqlite3.connect(path, timeout=60)) as file:
        try:
            return list(file.execute("select asking, prompt from answers"))
        except sqlite3.OperationalError:  # it is being made
            return []


@pytest.mark.parametrize(
    ("documents", "kills", "client_too"), [(120, 2, False), pytest.param(5000, 6, True, marks=pytest.mark.long)]
)
def test_killed_and_continued(documents, kills, client_too, reading_model, tmp_path) -> None:
    model, begin = reading_model("llama"), time.monotonic()
    quantize(model, plan(model, policy="rtn", bits=2, group="channel"), out=tmp_path / "w2")
    texts, saved = write_texts(tmp_path / "texts", documents), tmp_path / "reference"
    corpus = read_corpus(texts, evaluation_share=1.0)
    options = {"top": TOP, "concurrency": 16}
    with FakeServer(Scorer(Checkpoint(tmp_path / "w2"))).running() as whole:
        whole.recorded = {}
        undisturbed = evaluate(
            whole.url,
            reference=model,
            text=corpus,
            tokens=1_000_000,
            save_reference=saved,
            server=ServerOptions(**options),
        )
        with HttpClient(ServerAddress.parse(whole.url), key=None, connections=1, timeout=60, patience=5) as client:
            with open_reference(saved) as kept:  # of which another beginning is asked first
                first = max(prompts_of(kept.text), key=len)
            RunningServer.find(client, identify(client, None), [], top=TOP, prompt=first)
    prompts = 2 * documents
    assert len(whole.recorded) == prompts + 2  # and the first questions
    recorded, out = record(whole.recorded, tmp_path / "recorded"), tmp_path / "scores.json"
    answers = tmp_path / "scores.json.answers"
    with server_that_dies(recorded) as server:
        if client_too:
            words = ["--reference", saved, "--top-k", str(TOP), "--concurrency", "16", "--out", out]
            client = subprocess.Popen([COMMAND, "--quiet", "evaluate", server.url, *words])
            while len(answers_in(answers)) < prompts // 3:
                assert client.poll() is None
                time.sleep(0.05)
            client.kill()
            client.wait()
            assert not out.exists()
        before = len(answers_in(answers))
        places = [before + (number + 1) * (prompts - before) // (kills + 1) for number in range(kills)]

        def disturb(stage: str, done: float, _total: float) -> None:
            if stage == "asking the server" and places and done >= places[0]:
                places.pop(0)
                server.kill_and_start()

        kept = ServerOptions(**options, answers=answers, keep_answers=True)
        scores = evaluate(server.url, reference=saved, server=kept, progress=disturb)
    assert (server.kills, places) == (kills + 1, [])
    assert any("had to be sent again" in note for note in scores.notes)
    there = answers_in(answers)
    assert sorted(number for asking, number in there if asking == 0) == list(range(prompts))
    assert len(set(there)) == len(there)
    mine, other = scores.documents.columns(), undisturbed.documents.columns()
    assert all(np.array_equal(mine[name], other[name]) for name in other)
    assert scores.measurement is not None
    assert undisturbed.measurement is not None
    assert scores.measurement.noise == undisturbed.measurement.noise
    scores.save(out)
    assert Scores.load(out).documents.tokens.sum() == undisturbed.documents.tokens.sum()
    seconds, retried = time.monotonic() - begin, next(note for note in scores.notes if "sent again" in note)
    print(f"{prompts} prompts, {before} kept of a killed client, {kills} kills, {seconds:.0f} s; {retried}")
