"""Two processes that torchrun starts against one: wall time, CPU time, and whether the codes are equal.

    python benchmarks/ranks.py [--processes 2] [--width 1024] [--inner 2816] [--blocks 2] [--tokens 2048] [--device cpu]

The model is a Llama with random weights, and the text that of the embedded declaration in all its languages. Each
process has one thread. The time of a command that only opens the model and makes the plan (imports, tokenizer, hashes)
is measured as well and taken off, as it is the same for every number of processes. On a busy machine wall time says
little, and CPU time is the measure: that of all processes together shows what sharing costs, and that of the busiest
process shows what is left to wait for.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from fairbits import Checkpoint

COUNTED = """
import atexit, os, resource, sys
from pathlib import Path
from fairbits.cli import main

def save():
    used = resource.getrusage(resource.RUSAGE_SELF)
    Path(os.environ["COUNTED"], os.environ.get("RANK", "0")).write_text(str(used.ru_utime + used.ru_stime))

atexit.register(save)
main()
"""
"""The command line, which saves the CPU time of its process."""


@dataclass(frozen=True)
class Cost:
    """Seconds that a command took: on the clock, and of the CPU in each of its processes."""

    wall: float
    cpu: tuple[float, ...]

    def less(self, other: "Cost") -> "Cost":
        """Returns the cost without that of another command, in every process."""
        return Cost(self.wall - other.wall, tuple(each - max(other.cpu) for each in self.cpu))


def random_model(directory: Path, options: argparse.Namespace) -> Path:
    """Returns the directory of a Llama with random weights and the embedded tokenizer."""
    tokenizer = Checkpoint("embedded:tiny").tokenizer()
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.width,
        intermediate_size=options.inner,
        num_hidden_layers=options.blocks,
        num_attention_heads=max(options.width // 64, 1),
        num_key_value_heads=max(options.width // 128, 1),
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def timed(command: list[str], processes: int, directory: Path) -> Cost:
    """Returns what a command of fairbits costs in this many processes."""
    script, counted = directory / "counted.py", directory / f"counted-{time.monotonic_ns()}"
    script.write_text(COUNTED)
    counted.mkdir()
    start = [sys.executable]
    if processes > 1:
        start += ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    own = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "COUNTED": str(counted)}
    began = time.perf_counter()
    subprocess.run([*start, str(script), *command], env={**os.environ, **own}, check=True, stdout=subprocess.DEVNULL)
    wall = time.perf_counter() - began
    return Cost(wall, tuple(float(file.read_text()) for file in sorted(counted.iterdir())))


def main() -> None:
    """Times both, and compares what they have written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--inner", type=int, default=2816)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--languages", default="eng_Latn,fra_Latn,heb_Hebr,jpn_Jpan,rus_Cyrl,swh_Latn")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        model = random_model(place / "model", options)
        words = ["--languages", options.languages, "--tokens", str(options.tokens), "--device", options.device]
        common = [str(model), *words, "--bits", "4", "--group", "64", "--quiet"]
        timed(["plan", *common, "--out", str(place / "first.json")], 1, place)  # compiles what is compiled
        opening = timed(["plan", *common, "--out", str(place / "plan.json")], 1, place)
        costs = {
            count: timed(["quantize", *common, "--out", str(place / f"with-{count}")], count, place)
            for count in (1, options.processes)
        }
        written = [{file.name: file.read_bytes() for file in (place / f"with-{count}").iterdir()} for count in costs]
    print(f"{options.blocks} blocks of width {options.width}, {options.device}, torch {torch.__version__}, ", end="")
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; opening took {max(opening.cpu):.1f} s of CPU")
    print("processes  wall s  CPU s  busiest process  without opening: CPU s  busiest process")
    for count, cost in costs.items():
        net = cost.less(opening)
        print(f"{count:9}  {cost.wall:6.1f}  {sum(cost.cpu):5.1f}  {max(cost.cpu):15.1f}  ", end="")
        print(f"{sum(net.cpu):22.1f}  {max(net.cpu):15.1f}")
    one, several = (costs[count].less(opening) for count in costs)
    print(f"CPU of all processes, {options.processes} to 1: {sum(several.cpu) / sum(one.cpu):.2f}")
    print(f"CPU of the busiest process, {options.processes} to 1: {max(several.cpu) / max(one.cpu):.2f}")
    print(f"files are equal: {written[0] == written[1]} ({len(written[0])} files)")
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
    print(f"peak memory of a process: {peak:.2f} GB")


if __name__ == "__main__":
    main()
