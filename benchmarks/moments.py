"""How long the weight moments take, against `torch.sum` over the same memory-mapped tensors in the same run.

    python benchmarks/moments.py [--tensors 16] [--weights 16] [--threads N] [--repeats 7]

Every timing maps the tensor afresh, as reading a checkpoint does; the pages lie in the page cache. Rounds of both
alternate, the best time of each tensor counts, and both use the same number of threads. Peak memory is the resident
set, mapped pages included, above what the process held after a first, small file had compiled everything.
"""

import argparse
import platform
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numba
import torch
from safetensors.torch import save_file

from fairbits.models.io.safetensors_files import map_tensor, read_header
from fairbits.models.weight_moments import tensor_moments

BAR_TIME = 3.0
BAR_MEMORY = 64e6
BARRED = (torch.bfloat16, torch.float32)  # float16 is timed too, without a bar


def write(path: Path, dtype: torch.dtype, *, tensors: int, weights: int) -> None:
    """Writes square-ish matrices of Gaussian weights with one heavy tail among them."""
    rng = torch.Generator().manual_seed(0)
    shape = (weights // 4096, 4096)
    made = {f"layer.{i}.weight": (torch.randn(shape, generator=rng) * 0.02).to(dtype) for i in range(tensors)}
    made["layer.0.weight"] *= torch.empty(shape).exponential_(generator=rng).to(dtype)
    save_file(made, path)


def seconds(path: Path, function: Callable[[torch.Tensor], object]) -> list[float]:
    """Returns the times of mapping each tensor of the file afresh and applying `function` to it."""
    times = []
    for info in read_header(path).values():
        start = time.perf_counter()
        function(map_tensor(info))
        times.append(time.perf_counter() - start)
    return times


def best(rounds: Iterable[list[float]]) -> float:
    """Returns the sum over all tensors of the shortest time each of them took."""
    return sum(min(times) for times in zip(*rounds, strict=True))


def resident(key: str) -> int:
    """Returns the resident memory in bytes, now ("VmRSS") or at its peak ("VmHWM"); 0 where /proc is missing."""
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(key + ":")), 0)


def peak_above(path: Path, function: Callable[[torch.Tensor], object]) -> int:
    """Returns how far the resident memory rises above the present while results of all tensors are kept."""
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = resident("VmRSS")
    kept = [function(map_tensor(info)) for info in read_header(path).values()]
    return (resident("VmHWM") - before) * bool(kept)


def measure(folder: Path, dtype: torch.dtype, *, tensors: int, weights: int, repeats: int) -> bool:
    """Prints time and memory for one dtype; returns whether both bars hold."""
    name = str(dtype).removeprefix("torch.")
    path, small = folder / f"{name}.safetensors", folder / f"{name}.small.safetensors"
    write(path, dtype, tensors=tensors, weights=weights)
    write(small, dtype, tensors=1, weights=1 << 18)
    for function in (torch.sum, tensor_moments):
        seconds(small, function)
    peak = peak_above(path, tensor_moments)
    rounds = [(seconds(path, torch.sum), seconds(path, tensor_moments)) for _ in range(repeats)]
    plain, ours = (best(times) for times in zip(*rounds, strict=True))
    n = tensors * weights
    extra = peak - weights * dtype.itemsize
    print(
        f"{name:9} sum {plain / n * 1e9:5.3f} ns   moments {ours / n * 1e9:5.3f} ns   ratio {ours / plain:4.2f}"
        f"   peak {peak / 1e6:6.1f} MB = 1 tensor + {extra / 1e6:5.1f} MB"
    )
    path.unlink()
    return (ours <= BAR_TIME * plain or dtype not in BARRED) and extra <= BAR_MEMORY


def main() -> None:
    """Prints the comparison for all dtypes and fails if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", type=int, default=16, help="more in all than the caches hold")
    parser.add_argument("--weights", type=int, default=16, help="2²⁰ weights per tensor")
    parser.add_argument("--threads", type=int, default=numba.get_num_threads())
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    numba.set_num_threads(options.threads)
    torch.set_num_threads(options.threads)
    sizes = {"tensors": options.tensors, "weights": options.weights << 20, "repeats": options.repeats}
    print(f"{platform.processor() or platform.machine()}, {options.threads} thread(s), {sizes}; times per weight")
    with tempfile.TemporaryDirectory() as folder:
        held = [measure(Path(folder), dtype, **sizes) for dtype in (torch.bfloat16, torch.float16, torch.float32)]
    print(
        f"bars: ratio <= {BAR_TIME:g} (bfloat16, float32), "
        f"peak <= 1 tensor + {BAR_MEMORY / 1e6:g} MB: {'held' if all(held) else 'MISSED'}"
    )
    raise SystemExit(not all(held))


if __name__ == "__main__":
    main()
