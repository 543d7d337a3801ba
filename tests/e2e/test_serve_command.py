"""fairbits serve as a process of its own: it listens, stops in order, and leaves nothing broken when it is killed."""

import hashlib
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import numpy as np
import openai
import pytest

from fairbits.evaluation.scores import Scores

COMMAND = Path(sys.executable).with_name("fairbits")
PROMPT = "Tous les êtres humains naissent libres"


@contextmanager
def served(adaptive: tuple[Path, Path], *options: str) -> Iterator[tuple[subprocess.Popen[str], openai.OpenAI, str]]:
    """Gives the process, when it has said where it listens, a client for it, and what it has said."""
    base, overlays = adaptive
    command = [COMMAND, "serve", base, "--overlays", overlays, "--name", "tiny", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            output = process.stdout.readline()
            while "--json" in options and not output.endswith("\n}\n"):
                output += process.stdout.readline()
            match = re.search(r"http://[\d.]+:\d+", output)
            assert match, output
            with openai.OpenAI(base_url=f"{match[0]}/v1", api_key="none", max_retries=0, timeout=60) as client:
                yield process, client, output
        finally:
            process.kill()


def checksums(adaptive: tuple[Path, Path]) -> dict[Path, str]:
    files = (file for directory in adaptive for file in directory.rglob("*") if file.is_file())
    return {file: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def ended(process: subprocess.Popen[str], sign: signal.Signals) -> tuple[int, str]:
    """Returns how a process ends at a signal, and what it says."""
    process.send_signal(sign)
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


@pytest.mark.long
def test_killed_in_the_middle_and_started_again(adaptive: tuple[Path, Path], command) -> None:
    before = checksums(adaptive)
    with served(adaptive, "--port", "0") as (process, client, _):
        port = client.base_url.port
        whole = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, temperature=0)
        stream = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=500, temperature=0, stream=True)
        next(iter(stream))
        process.kill()
        process.wait(timeout=30)
        stream.close()
    with served(adaptive, "--port", str(port)) as (process, client, _):
        again = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=4, temperature=0)
        assert again.choices == whole.choices
        code, _, errors = command("serve", adaptive[0], "--port", port)
        assert code == 2
        assert f"cannot listen on port {port} of 127.0.0.1" in errors
        assert "Traceback" not in errors
        assert ended(process, signal.SIGINT)[0] == 0
    assert checksums(adaptive) == before


@pytest.mark.long
def test_json_says_where_and_the_end_comes_after_what_was_taken(adaptive: tuple[Path, Path]) -> None:
    with served(adaptive, "--port", "0", "--json") as (process, client, printed):
        announcement = json.loads(printed)
        assert announcement["model"] == "tiny"
        assert announcement["languages"] == ["eng_Latn", "heb_Hebr", "jpn_Jpan", "fra_Latn"]
        with urllib.request.urlopen(f"{announcement['url']}/health") as answer:
            assert json.load(answer) == {"status": "ok"}
        answers: list[int] = []

        def ask() -> None:
            answer = client.completions.create(model="tiny", prompt=PROMPT, max_tokens=60, temperature=0)
            answers.append(answer.usage.completion_tokens)

        client.models.list()
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        url = f"http://127.0.0.1:{client.base_url.port}/metrics"
        end = monotonic() + 60
        while running(url) < 3:
            assert monotonic() < end
        code, errors = ended(process, signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert answers == [60, 60, 60]
        assert (code, "Traceback" in errors) == (0, False)
        with socket.socket() as probe:
            assert probe.connect_ex(("127.0.0.1", client.base_url.port)) != 0


@pytest.mark.long
def test_a_stream_that_runs_at_the_signal_is_finished(adaptive: tuple[Path, Path]) -> None:
    with served(adaptive, "--port", "0") as (process, client, _):
        asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 80, "temperature": 0}
        stream = iter(client.completions.create(**asked, stream=True))
        next(stream)
        process.send_signal(signal.SIGTERM)
        *_, last = stream
        assert last.choices[0].finish_reason in ("length", "stop")
        assert process.wait(timeout=60) == 0


def running(url: str) -> float:
    """Returns how many choices run or wait."""
    with urllib.request.urlopen(url, timeout=30) as answer:
        numbers = re.findall(rb"^fairbits_(?:running|queue_length) (\S+)$", answer.read(), flags=re.MULTILINE)
    return sum(map(float, numbers))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--overlays", "nowhere"), "has no overlays.json"),
        (("--host", "no.such.host.invalid"), "--host is"),
        (("--host", "203.0.113.7"), "cannot listen on port"),
        (("--api-key-file", "nowhere"), "cannot be read"),
        (("--name", ""), "--name is"),
        (("--device", "toaster"), "device is"),
    ],
)
def test_what_cannot_be_served_is_said_in_one_line(adaptive, command, options, message) -> None:
    code, printed, errors = command("serve", adaptive[0], "--port", "0", *options)
    assert (code, printed) == (2, "")
    assert message in errors
    assert errors.count("\n") == 1


def test_a_key_must_be_long(adaptive, command, tmp_path) -> None:
    (tmp_path / "key").write_text("short\n")
    code, _, errors = command("serve", adaptive[0], "--port", "0", "--api-key-file", tmp_path / "key")
    assert code == 2
    assert "16 characters or more" in errors


@pytest.mark.long
def test_evaluate_measures_a_server_as_its_checkpoint(
    adaptive: tuple[Path, Path], outer_blocks, command, tmp_path
) -> None:
    text = ("--languages", "eng_Latn,heb_Hebr", "--tokens", "192", "--sequence", "48", "--device", "cpu")
    reference, here, there = outer_blocks(4).directory, tmp_path / "here.json", tmp_path / "there.json"
    assert command("evaluate", adaptive[0], "--reference", reference, *text, "--out", here)[0] == 0
    process = [COMMAND, "serve", adaptive[0], "--name", "tiny", "--port", "0"]
    with subprocess.Popen(process, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            match = re.search(r"http://[\d.]+:\d+", server.stdout.readline())
            assert match
            options = ("--reference", reference, *text, "--out", there)
            code, printed, errors = command("evaluate", f"{match[0]}/v1", *options)
        finally:
            server.kill()
    assert (code, "Traceback" in errors) == (0, False)
    local, served = Scores.load(here), Scores.load(there)
    assert served.documents.nll_quantized == pytest.approx(local.documents.nll_quantized, rel=1e-5)
    assert np.array_equal(served.documents.flips, local.documents.flips)
    assert local.documents.flips.sum() > 0
    assert (served.documents.kl <= local.documents.kl * (1 + 1e-5)).all()
    assert served.measurement is not None
    assert (served.measurement.engine, served.measurement.model) == ("fairbits", "tiny")
    assert "KL at least" in printed
