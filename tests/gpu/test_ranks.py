"""Two processes of torchrun write what one process writes on a GPU: both on the first GPU, and on one each."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
LANGUAGES = (
    "eng_Latn,fra_Latn,deu_Latn,rus_Cyrl,heb_Hebr,arb_Arab,jpn_Jpan,zho_Hans,swh_Latn,hin_Deva,fin_Latn,tur_Latn"
)
OPTIONS = ("--languages", LANGUAGES, "--tokens", "2048", "--bits", "4", "--group", "64", "--embeddings", "8")


def written(out: Path, *, device: str, count: int) -> dict[str, bytes]:
    """Returns the files that this many processes write."""
    start = [sys.executable]
    if count > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    command = [*start, "-m", "fairbits", "quantize", "embedded:tiny", *OPTIONS, "--device", device, "--out", str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "4"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Returns the files that one process writes."""
    return written(tmp_path_factory.mktemp("ranks") / "one", device="cuda", count=1)


def test_two_processes_that_share_a_gpu_write_the_same_files(alone, tmp_path) -> None:
    assert written(tmp_path / "two", device="cuda:0", count=2) == alone


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_two_processes_with_a_gpu_each_write_the_same_files(alone, tmp_path) -> None:
    assert written(tmp_path / "two", device="auto", count=2) == alone
