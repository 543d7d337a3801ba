"""Results do not depend on the number of threads, nor on who else is computing."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from fairbits.models.scales.exact_clip import clip_blocks
from fairbits.models.scales.grid import Grid

DIGEST = """
import hashlib, numpy as np
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.exact_clip import clip_blocks, minimax_blocks
from fairbits.models.scales.sample_clip import clip_sample
rng = np.random.default_rng(0)
W, H = rng.standard_normal((64, 256)).astype(np.float32), rng.lognormal(0, 1, (3, 256))
parts = [
    clip_blocks(W, Grid(4), group=64).step,
    clip_blocks(W, Grid(4, "twos"), group=64, importance=H[0], signed=True).step,
    minimax_blocks(W, Grid(3), group=64, importance=H).step,
    np.array([clip_sample(W, Grid(8)).step]),
]
print(hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest())
"""


def digest(threads: int) -> str:
    command = [sys.executable, "-c", DIGEST]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"NUMBA_NUM_THREADS": str(threads)})
    return done.stdout


@pytest.mark.long
def test_same_bytes_with_one_and_two_threads() -> None:
    assert digest(1) == digest(2)


def test_concurrent_callers_do_not_disturb_each_other() -> None:
    W = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
    alone = clip_blocks(W, Grid(4)).step
    with ThreadPoolExecutor(4) as pool:
        for step in pool.map(lambda _: clip_blocks(W, Grid(4)).step, range(16)):
            assert np.array_equal(step, alone)
