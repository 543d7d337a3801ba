"""Time and memory of every command at the sizes that people serve: Llama shapes with random weights.

    python benchmarks/scale.py --shape 8b --blocks 2 6 --jobs rtn mse gptq audit evaluate --device cuda

Each job runs in a process of its own, on models with a few blocks of the real shape. All blocks are alike, so time is a
fixed part plus a part per block: from two numbers of blocks follows the time for all of them. `copy` reads and writes
the files and does nothing else. The rows are kept in `--out`; a job that is there is not run again.
"""

import argparse
import json
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from random_models import SHAPES, write_model, write_text

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Job:
    """A command with its options: languages × tokens of text, the longest window, and what it is compared with."""

    name: str
    languages: int = 0
    tokens: int = 0
    sequence: int = 512
    anchor: str = ""


JOBS = {
    job.name: job
    for job in (
        Job("copy"),
        Job("rtn", anchor="goal ≤ 45 s, or 1.3x of copy"),
        Job("mse", anchor="goal ≤ 45 s, or 1.3x of copy"),
        Job("gptq", 18, 4096, anchor="goal ≤ 150 s; fairbits 0.1.0: 390 s"),
        Job("gptq-long", 16, 65_536, 2048, "llm-compressor 745 s on one GPU, 372 s on two; goal ≤ 372 s, ≤ 12 GB"),
        Job("fair", 18, 4096, anchor="AutoRound 12 min, 18 GB"),
        Job("audit", 20, 4096, anchor="goal ≤ 300 s, ≤ 24 GB GPU, ≤ 16 GB RAM"),
        Job("evaluate", 20, 8192, anchor="goal ≤ 240 s"),
        Job("run", 20, 4096, anchor="goal ≤ 900 s"),
    )
}


@dataclass(frozen=True)
class Row:
    """What a job took: seconds, the most GPU and main memory in bytes (without pages of mapped files), CPU seconds."""

    shape: str
    blocks: int
    job: str
    seconds: float
    cpu_seconds: float
    gpu_bytes: int
    ram_bytes: int


@contextmanager
def watched_memory() -> Iterator[list[int]]:
    """Gives a list whose last element is the most anonymous memory of this process so far."""
    most, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
            held = sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))
            most.append(max(most[-1], held * 1024))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield most
    finally:
        ended.set()
        thread.join()


def work(job: Job, place: Path, *, shape: str, blocks: int, device: str) -> Callable[[], object]:
    """Returns the job itself as a function; what it needs is made now."""
    import fairbits

    model = write_model(place / f"{shape}-{blocks}", SHAPES[shape], blocks, device=device)
    out = place / f"{shape}-{blocks}-{job.name}"
    text = None
    if job.languages:
        text = write_text(
            place / f"text-{job.languages}-{job.tokens}-{job.sequence}",
            languages=job.languages,
            tokens=job.tokens,
            document=job.sequence,
        )
    read = {"text": text, "tokens": job.tokens, "sequence": job.sequence, "device": device}

    def quantize() -> object:
        policy = job.name.removesuffix("-long")
        plan = fairbits.plan(model, policy=policy, bits=4, group=128, **(read if job.languages else {}))
        return fairbits.quantize(model, plan, out=out, text=text, device=device)

    def evaluate() -> object:
        return fairbits.evaluate(place / f"{shape}-{blocks}-rtn", reference=model, **read)

    def run() -> object:
        options = ("--text", str(text), "--device", device, "--out", str(out))
        return subprocess.run([sys.executable, "-m", "fairbits", "run", str(model), *options], check=True)

    if job.name == "evaluate" and not (place / f"{shape}-{blocks}-rtn").exists():
        raise SystemExit("evaluate measures the model that the job rtn writes; run that first")
    jobs = {"copy": lambda: copy(model, out), "audit": lambda: fairbits.audit(model, **read)}
    return {**jobs, "evaluate": evaluate, "run": run}.get(job.name, quantize)


def copy(model: Path, out: Path) -> None:
    """Reads the model and writes a quarter of it, as a quantizer to 4 bits must."""
    import os

    out.mkdir()
    for file in sorted(model.glob("*.safetensors")):
        with file.open("rb") as source, (out / file.name).open("wb") as target:
            while part := source.read(64 << 20):
                target.write(part[: len(part) // 4])
            os.fsync(target.fileno())


def measure(job: Job, place: Path, *, shape: str, blocks: int, device: str) -> Row:
    """Returns what a job takes in this process."""
    import torch

    do = work(job, place, shape=shape, blocks=blocks, device=device)
    if device != "cpu":
        torch.zeros(1, device=device)
        torch.cuda.reset_peak_memory_stats()
    with watched_memory() as most:
        start, cpu = time.perf_counter(), time.process_time()
        do()
        seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    gpu = 0 if device == "cpu" else torch.cuda.max_memory_reserved()
    cpu += resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    return Row(shape, blocks, job.name, seconds, cpu, gpu, most[-1])


def extrapolated(rows: Sequence[Row], blocks: int) -> float:
    """Returns the seconds for all blocks, from the rows with the fewest and the most blocks."""
    few, many = min(rows, key=lambda row: row.blocks), max(rows, key=lambda row: row.blocks)
    if few.blocks == many.blocks:
        return many.seconds if many.blocks == blocks else float("nan")
    per_block = (many.seconds - few.seconds) / (many.blocks - few.blocks)
    return many.seconds + (blocks - many.blocks) * per_block


def print_table(rows: Sequence[Row]) -> None:
    """Prints what was measured, and what follows for all blocks."""
    print("\n| shape | job | blocks: seconds | all blocks, s | GPU, GB | RAM, GB | CPU s | compare |")
    print("|---|---|---|---|---|---|---|---|")
    for shape, name in dict.fromkeys((row.shape, row.job) for row in rows):
        job_rows = [row for row in rows if (row.shape, row.job) == (shape, name)]
        all_blocks = SHAPES[shape].blocks
        measured = ", ".join(f"{row.blocks}: {row.seconds:.1f}" for row in job_rows)
        gpu, ram = max(row.gpu_bytes for row in job_rows) / 1e9, max(row.ram_bytes for row in job_rows) / 1e9
        cells = f"{extrapolated(job_rows, all_blocks):.0f} ({all_blocks})", f"{gpu:.1f}", f"{ram:.1f}"
        anchor = JOBS[name].anchor if shape == "8b" else ""
        print(f"| {shape} | {name} | {measured} | {' | '.join(cells)} | {job_rows[-1].cpu_seconds:.0f} | {anchor} |")


def main() -> None:
    """Runs the jobs that are not there yet, each in its own process, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", default=["8b"], choices=SHAPES)
    parser.add_argument("--blocks", nargs="+", type=int, default=[2, 6])
    parser.add_argument("--jobs", nargs="+", default=list(JOBS), choices=JOBS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, default=ROOT / "build/scale", help="models, text and rows")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)  # in this process
    args = parser.parse_args()
    rows_file = args.out / "rows.jsonl"
    if args.one:
        row = measure(JOBS[args.jobs[0]], args.out, shape=args.shape[0], blocks=args.blocks[0], device=args.device)
        with rows_file.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")
        print_table([row])
        return
    args.out.mkdir(parents=True, exist_ok=True)
    for shape, job, blocks in ((s, j, b) for s in args.shape for j in args.jobs for b in args.blocks):
        if any((row.shape, row.job, row.blocks) == (shape, job, blocks) for row in read_rows(rows_file)):
            continue
        print(f"{shape}, {blocks} blocks, {job}", file=sys.stderr, flush=True)
        options = ["--shape", shape, "--blocks", str(blocks), "--jobs", job, "--device", args.device]
        subprocess.run([sys.executable, __file__, "--one", *options, "--out", str(args.out)], check=False)
    print_table(read_rows(rows_file))


def read_rows(file: Path) -> list[Row]:
    """Returns the rows that were measured before."""
    return [Row(**json.loads(line)) for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    main()
