"""Job: what a worker is asked, and what it writes. Workers run in the environments of the peers, without fairbits."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

STORED_BITS = 16
"""What a scale counts, and a zero point that is no whole number. Peers keep them in float32, which can only help."""


@dataclass(frozen=True)
class Job:
    """Linear layers of a model that a method shall quantize.

    `modules`  dotted paths of the maps in the transformers model
    `samples`  token ids to calibrate on, each of one of the `languages`
    `group`    how many weights of a row share a scale; None: the whole row
    `device`   where the method computes, if it can compute anywhere but on the CPU
    `options`  options of the method itself
    """

    method: str
    model: str
    modules: list[str]
    samples: list[list[int]]
    languages: list[str]
    bits: int
    group: int | None
    threads: int
    device: str = "cpu"
    options: Mapping[str, Any] = field(default_factory=dict)

    def load(self, dtype: torch.dtype = torch.float32) -> torch.nn.Module:
        """Returns the model in a type."""
        from transformers import AutoModelForCausalLM

        return AutoModelForCausalLM.from_pretrained(self.model, dtype=dtype).eval()


@dataclass(frozen=True, eq=False)
class Quantized:
    """The weights of every module as a loader makes them of the stored ones, and what one costs."""

    weights: Mapping[str, torch.Tensor]
    bits_per_weight: float
    notes: tuple[str, ...] = ()


Prepared = tuple[Callable[[], object], Callable[[], Quantized]]
"""What is timed, and what reads its result."""


def work(package: str, prepare: Callable[[Job], Prepared]) -> None:
    """Carries out the job of the command line, `WORKER JOB DIRECTORY`: writes weights.safetensors and result.json."""
    _, path, out = sys.argv
    job = Job(**json.loads(Path(path).read_text(encoding="utf-8")))
    torch.set_num_threads(job.threads)
    quantize, read = prepare(job)
    start = time.perf_counter()
    quantize()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    peak = peak_bytes()
    peak_gpu = torch.cuda.max_memory_allocated()
    found = read()
    save_file(
        {name: W.detach().float().contiguous() for name, W in found.weights.items()}, f"{out}/weights.safetensors"
    )
    result = {
        "versions": {name: version(name) for name in (package, "torch", "transformers")},
        "seconds": seconds,
        "peak_bytes": peak,
        "peak_gpu_bytes": peak_gpu,
        "bits_per_weight": found.bits_per_weight,
        "notes": found.notes,
    }
    Path(out, "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def peak_bytes() -> int:
    """Returns the most memory that this process has had; ru_maxrss would begin with that of its parent."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
