"""Where the time of `quantize` goes, at real shapes with random weights.

    python benchmarks/quantize_profile.py --shape 8b --blocks 4 --policy gptq --tokens 73000 --device cuda

Stages are timed by wrapping the functions that do them; a stage does not count the stages within it. On a GPU each
stage of the main thread ends when the GPU has done it (`--no-sync` leaves that out: stages then say where Python is,
and the total is that of real use). Threads that read and write are listed apart, as their time overlaps with the rest.
`--tokens` are those of all languages together.
"""

import argparse
import resource
import shutil
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

import fairbits
import fairbits.api.quantize
from fairbits.forward import lockstep
from fairbits.models import streaming_model
from fairbits.models.io import read_ahead
from fairbits.models.io import writer as write_behind
from fairbits.models.io import writer as writing
from fairbits.quantization.gptq import block_rounding, hessian
from fairbits.quantization.gptq import block_rounding as layer
from fairbits.quantization.gptq import columns as gptq
from random_models import SHAPES, write_model, write_text
from scale import watched_memory

LANGUAGES = 18
ANCHORS = "llm-compressor, GPTQ, 512 × 2,048 tokens, 32 blocks: 745 s on one GPU, 372 s on two; fairbits 0.1.0: 390 s"
VERB = sys.modules["fairbits.api.quantize"]  # the module; fairbits.quantize is the function
STAGES: tuple[tuple[str, Any, str], ...] = (
    ("tokens of the text", VERB, "calibration_text"),
    ("read files (threads)", read_ahead, "read_tensor"),
    ("wait for files, copy to the device", read_ahead.ReadAhead, "read"),
    ("weights into the block", streaming_model.StreamingModel, "load_block"),
    ("embedding, first states", lockstep.Lockstep, "start"),
    ("forward, full precision", lockstep.Lockstep, "compute"),
    ("Hessian", hessian, "_add_products"),
    ("Hessian made symmetric, checked", hessian.HessianAccumulator, "statistics"),
    ("Cholesky", hessian, "factorize"),
    ("weights to float32, checked", block_rounding, "matrix"),
    ("scales", layer, "choose_scales"),
    ("nearest codes", layer, "round_to_nearest"),
    ("GPTQ, the rest", layer, "gptq"),
    ("GPTQ, columns", gptq, "_round_columns"),
    ("GPTQ, compared with nearest", gptq, "_costs_more"),
    ("errors of weights", block_rounding, "layer_result"),
    ("forward, quantized, errors", lockstep.Lockstep, "advance"),
    ("wait for writers", write_behind.WriteBehind, "_wait"),
    ("pack (threads)", writing.QuantizedWriter, "_tensors"),
    ("copy back, hash, write (threads)", writing, "write_tensors"),
    ("finish the checkpoint", writing.QuantizedWriter, "finish"),
)


class Clock:
    """Seconds and calls by stage and thread; a stage does not count what stages within it take."""

    def __init__(self, device: str, *, sync: bool) -> None:
        self.seconds: dict[tuple[str, bool], float] = defaultdict(float)
        self.calls: dict[tuple[str, bool], int] = defaultdict(int)
        self._wait = torch.cuda.synchronize if sync and device != "cpu" else (lambda: None)
        self._lock, self._own = threading.Lock(), threading.local()

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Counts the time of a `with` statement."""
        main = threading.current_thread() is threading.main_thread()
        inside = self._own.__dict__.setdefault("inside", [0.0])
        if main:
            self._wait()
        start = time.perf_counter()
        inside.append(0.0)
        try:
            yield
        finally:
            if main:
                self._wait()
            taken = time.perf_counter() - start
            own = taken - inside.pop()
            inside[-1] += taken
            with self._lock:
                self.seconds[name, main] += own
                self.calls[name, main] += 1

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns a function that does the same and is counted."""

        @wraps(function)
        def counted(*args: Any, **kwargs: Any) -> Any:
            with self.stage(name):
                return function(*args, **kwargs)

        return counted


@contextmanager
def timed_stages(clock: Clock) -> Iterator[None]:
    """Has all stages counted meanwhile."""
    patches = [patch.object(place, name, clock.wrap(stage, getattr(place, name))) for stage, place, name in STAGES]
    for each in patches:
        each.start()
    try:
        yield
    finally:
        for each in patches:
            each.stop()


def print_profile(clock: Clock, total: float, *, blocks: int, all_blocks: int, per_block: float) -> None:
    """Prints the stages, the longest first, and what follows for all blocks."""
    named = sum(seconds for (_, main), seconds in clock.seconds.items() if main)
    print(f"| stage | s | share | calls | s a block |\n|---|---|---|---|---|\n| all | {total:.2f} | 100 % | | |")
    for (name, main), seconds in sorted(clock.seconds.items(), key=lambda each: (not each[0][1], -each[1])):
        share = f"{100 * seconds / total:.0f} %" if main else "beside"
        print(f"| {name} | {seconds:.2f} | {share} | {clock.calls[name, main]} | {seconds / blocks:.3f} |")
    print(f"| not in any stage | {total - named:.2f} | {100 * (total - named) / total:.0f} % | | |")
    whole = total + (all_blocks - blocks) * per_block
    print(f"\na block after the first takes {per_block:.2f} s; {all_blocks} blocks: about {whole:.0f} s")


def profile(given: argparse.Namespace, place: Path) -> None:
    """Quantizes the model and prints where the time went."""
    shape, clock = SHAPES[given.shape], Clock(given.device, sync=given.sync)
    model = write_model(place / "model", shape, given.blocks, device=given.device)
    options: dict[str, Any] = {"device": given.device}
    if given.tokens:
        each = -(-given.tokens // LANGUAGES)
        words = place / "text"
        write_text(words, languages=LANGUAGES, tokens=each, document=given.sequence)
        options |= {"text": words, "tokens": each, "sequence": given.sequence}
    if given.device != "cpu":
        torch.zeros(1, device=given.device)
        torch.cuda.reset_peak_memory_stats()
    ends: list[float] = []
    added = write_behind.WriteBehind.add

    def add(self: write_behind.WriteBehind, write: Callable[[], None]) -> None:
        ends.append(time.perf_counter())
        added(self, write)

    checkpoint = fairbits.Checkpoint(model)
    with watched_memory() as most, timed_stages(clock), patch.object(write_behind.WriteBehind, "add", add):
        start, cpu = time.perf_counter(), time.process_time()
        with clock.stage("fingerprint of the model"):
            _ = checkpoint.fingerprint
        with clock.stage("plan"):
            plan = fairbits.plan(checkpoint, policy=given.policy, bits=4, group=128, **options)
        text = options.get("text")
        fairbits.quantize(checkpoint, plan, out=place / "out", text=text, device=given.device)
        total, cpu = time.perf_counter() - start, time.process_time() - cpu
    per_block = (ends[-2] - ends[0]) / max(len(ends) - 2, 1)  # the last is what lies outside the blocks
    print_profile(clock, total, blocks=given.blocks, all_blocks=shape.blocks, per_block=per_block)
    gpu = 0 if given.device == "cpu" else torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    memory = f"GPU {gpu / 1e9:.1f} GB; RAM {most[-1] / 1e9:.1f} GB, with mapped files {peak / 1e9:.1f} GB"
    print(f"{memory}; CPU {cpu:.0f} s")
    print(f"{shape.name}, {given.blocks} blocks, {given.policy}, {given.tokens:,} tokens, {given.device}; {ANCHORS}")


def main() -> None:
    """Makes the model in a temporary directory, or in `--place`, and profiles."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", default="8b", choices=SHAPES)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--policy", default="gptq")
    parser.add_argument("--tokens", type=int, default=0, help="of all languages together; 0: no text")
    parser.add_argument("--sequence", type=int, default=2048)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--no-sync", dest="sync", action="store_false", help="do not wait for the GPU after each stage")
    parser.add_argument("--place", type=Path, help="directory for model and text, which stay there")
    given = parser.parse_args()
    place = given.place or Path(tempfile.mkdtemp())
    try:
        profile(given, place)
    finally:
        shutil.rmtree(place / "out", ignore_errors=True)
        if given.place is None:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
