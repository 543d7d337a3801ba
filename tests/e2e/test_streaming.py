"""A checkpoint of 4 GB goes through in a stream, in a small part of its size."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

MB = 2**20
SHARDS, TENSORS, TENSOR_BYTES = 8, 4, 128 * MB

# Resident memory counts the mapped pages of a file as it counts any other; VmHWM is its peak.
CODE = """
import sys
from fairbits.models.checkpoint import Checkpoint

def memory(field):
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))

before = memory("VmRSS")
total = sum(int(tensor.sum()) for info, tensor in Checkpoint(sys.argv[1]).stream())
print(total, memory("VmHWM") - before)
kept = []
for info, tensor in Checkpoint(sys.argv[1]).stream():
    kept.append(tensor)
    int(tensor.sum())  # its pages are read
    if len(kept) == 8:
        break
print(memory("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a checkpoint of bf16 tensors, sparse on disk: zeros, and as its last element every tensor has a 1."""
    directory = tmp_path_factory.mktemp("large")
    weight_map = {}
    for shard in range(SHARDS):
        file = f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        header = {}
        for i in range(TENSORS):
            name = f"block.{shard * TENSORS + i}.weight"
            offsets = [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES]
            header[name] = {"dtype": "BF16", "shape": [TENSOR_BYTES // 8192, 4096], "data_offsets": offsets}
            weight_map[name] = file
        text = json.dumps(header).encode()
        with (directory / file).open("wb") as output:
            output.write(len(text).to_bytes(8, "little") + text)
            for _ in range(TENSORS):
                output.seek(TENSOR_BYTES - 2, 1)
                output.write(b"\x80\x3f")  # 1 in bf16
    total = SHARDS * TENSORS * TENSOR_BYTES
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    (directory / "config.json").write_text("{}")
    assert total == 4 * 2**30
    return directory


@pytest.mark.long
def test_four_gigabytes_stream_in_less_than_500_mb_and_the_measure_sees_what_is_kept(large: Path) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, large], capture_output=True, text=True, check=True)
    total, peak, with_kept = map(int, done.stdout.split())
    assert total == SHARDS * TENSORS
    assert TENSOR_BYTES <= peak < 500 * MB
    assert with_kept > 7 * TENSOR_BYTES  # eight are kept; what start-up took may have gone meanwhile
