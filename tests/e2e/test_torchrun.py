"""`torchrun -m fairbits quantize`: two real processes on the CPU write what one process writes, and end together."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from time import monotonic

import pytest
import torch

from fairbits.models.checkpoint import Checkpoint

OPTIONS = (
    "--languages",
    "eng_Latn,heb_Hebr",
    "--tokens",
    "1024",
    "--sequence",
    "64",
    "--bits",
    "3",
    "--group",
    "channel",
)

FAILING = """
import os, signal
from fairbits.cli import main
from fairbits.core.errors import InputError
from fairbits.quantization.gptq.output_errors import OutputErrors

add_all, blocks = OutputErrors._add_all, []

def fail(self):
    blocks.append(self)
    if len(blocks) == 2 and os.environ["RANK"] == "1":
        if os.environ["HOW"] == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        raise InputError("the second block cannot be used")
    add_all(self)

OutputErrors._add_all = fail
main()
"""
"""A command line in which the second process is killed, or finds an error, in the second block."""


def torchrun(
    *arguments: str | Path, program: tuple[str, ...] = ("-m", "fairbits"), how: str = ""
) -> tuple[int, str, str]:
    """Returns the exit code of torchrun, stdout and stderr of two processes with as many threads as this one."""
    start = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")
    environment = {"OMP_NUM_THREADS": str(torch.get_num_threads()), "COLUMNS": "80", "HOW": how}
    with subprocess.Popen(
        [*start, *program, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        try:
            printed, errors = process.communicate(timeout=200)
        except subprocess.TimeoutExpired:
            process.terminate()  # torchrun then ends its processes, which a kill would leave behind
            raise
    return process.returncode, printed, errors


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.fixture(scope="module")
def llama(reading_model) -> Checkpoint:
    return reading_model("llama")


@pytest.fixture
def one(llama, command, tmp_path) -> Path:
    """Returns what one process writes."""
    assert command("quantize", llama.target, *OPTIONS, "--out", tmp_path / "one")[0] == 0
    return tmp_path / "one"


@pytest.mark.long
def test_two_processes_write_the_same_bytes_and_one_of_them_prints(llama, one, tmp_path) -> None:
    code, printed, errors = torchrun("quantize", llama.target, *OPTIONS, "--out", tmp_path / "two", "--json")
    assert code == 0, errors
    assert json.loads(printed) == json.loads((one / "plan.json").read_text())
    assert files(tmp_path / "two") == files(one)


@pytest.mark.long
@pytest.mark.parametrize("how", ["refused", "killed"])
def test_what_ends_one_process_ends_both_and_one_process_goes_on(llama, one, command, tmp_path, how) -> None:
    script, out = tmp_path / "failing.py", tmp_path / "two"
    script.write_text(FAILING)
    began = monotonic()
    code, printed, errors = torchrun("quantize", llama.target, *OPTIONS, "--out", out, program=(str(script),), how=how)
    assert (code, printed) == (1, "")  # the exit code of torchrun
    assert monotonic() - began < 180  # far less than the time after which a process gives up waiting
    messages = re.findall("^error: .*", errors, flags=re.MULTILINE)
    codes = re.findall(r"exitcode\s*: (-?\d+)", errors)
    if how == "refused":
        assert messages == ["error: the second block cannot be used"]
        assert set(codes) == {"2"}
    else:
        assert "-9" in codes
        assert len(messages) <= 1  # torchrun may be faster
    assert not out.exists()
    assert command("quantize", llama.target, *OPTIONS, "--out", out, "--resume")[0] == 0
    assert files(out) == files(one)
