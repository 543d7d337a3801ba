"""How long the exact clip of all weights of an 8B model takes on a GPU.

    python benchmarks/clip_gpu.py [--weights MILLIONS] [--buffer MILLIONS] [--group 128] [--bits 4]

A buffer of random bfloat16 weights is searched again and again until this many weights are done, with and without
importance. The unit is one pass over the same bytes, a sum by torch. The rate of the compiled kernel on the CPU of the
same machine is printed next to it, and how the scales of both differ.
"""

import argparse
import os
import time
from collections.abc import Callable

import numpy as np
import torch
from numba import get_num_threads

from fairbits.models.scales.exact_clip import clip_blocks, device_steps
from fairbits.models.scales.grid import Grid

GOAL = 0.5
"""Seconds for 8 B weights, group 128, with importance."""
COLUMNS = 4096


def seconds(function: Callable[[], object], *, times: int) -> float:
    """Returns the time of this many calls in seconds, after two calls that compile and warm up."""
    function(), function()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(times):
        function()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1000


def count_differences(
    actual: tuple[np.ndarray, np.ndarray], expected: tuple[np.ndarray, np.ndarray], energy: np.ndarray
) -> tuple[int, int]:
    """Returns how many groups have another step, and how many of these another error; the others are ties.

    Both arguments are (steps, errors), and `energy` is Σhw²: an error below 1e-24 of it is 0.
    """
    differ = ~np.isclose(actual[0], expected[0], rtol=1e-10, atol=0)
    apart = np.abs(actual[1] - expected[1]) > 1e-9 * np.abs(expected[1]) + 1e-24 * energy
    return int(differ.sum()), int((differ & apart).sum())


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", type=int, default=8000, help="millions of weights")
    parser.add_argument("--buffer", type=int, default=512, help="millions of weights in memory")
    parser.add_argument("--group", type=int, default=128)
    parser.add_argument("--bits", type=int, nargs="+", default=[3, 4, 8])
    chosen = parser.parse_args()
    rows = chosen.buffer * 10**6 // COLUMNS
    times = max(1, round(chosen.weights * 10**6 / (rows * COLUMNS)))
    total = times * rows * COLUMNS
    generator = torch.Generator("cuda").manual_seed(0)
    W = torch.empty(rows, COLUMNS, dtype=torch.bfloat16, device="cuda").normal_(0, 0.02, generator=generator)
    h = torch.empty(COLUMNS, dtype=torch.float64, device="cuda").log_normal_(0, 1.5, generator=generator)
    print(f"{torch.cuda.get_device_name()}, {os.cpu_count()} CPU cores; {total / 1e9:.2f} B weights, {chosen.group=}")
    one_pass = seconds(lambda: W.sum(dtype=torch.float32), times=times)
    print(f"one pass over the weights: {one_pass:.4f} s ({2 * total / one_pass / 1e12:.2f} TB/s)")
    blocks, group_importance = W.reshape(rows, -1, chosen.group), h.reshape(-1, chosen.group)
    for bits in chosen.bits:
        grid = Grid(bits, "twos")
        for name, weight in (("weighted", group_importance), ("unweighted", None)):
            taken = seconds(lambda weight=weight, grid=grid: device_steps(blocks, weight, grid=grid), times=times)
            goal = f"  (goal {GOAL} s)" if bits == 4 and weight is not None else ""
            print(f"W{bits} exact clip, {name:10}: {taken:7.3f} s, {taken / one_pass:6.1f} passes{goal}")
        part = W[: 2**22 // COLUMNS * 4]
        steps, errors = device_steps(part.reshape(len(part), -1, chosen.group), group_importance, grid=grid)
        small, importance = part.float().cpu().numpy(), h.cpu().numpy()
        clip_blocks(small[:64], grid, group=chosen.group, importance=importance)
        start = time.perf_counter()
        expected = clip_blocks(small, grid, group=chosen.group, importance=importance)
        taken = time.perf_counter() - start
        energy = (np.square(small, dtype=np.float64) * importance).reshape(*expected.step.shape, -1).sum(axis=2)
        there, here = (steps.cpu().numpy(), errors.cpu().numpy()), (expected.step, expected.error)
        differ, worse = count_differences(there, here, energy)
        rate, whole = small.size / taken, total / small.size * taken
        print(f"W{bits} numba, {get_num_threads()} threads: {rate / 1e6:.0f} M weights/s, {whole:.0f} s for all")
        print(f"W{bits} steps of both: {differ} of {expected.step.size} differ, {worse} of them by more than a tie")


if __name__ == "__main__":
    main()
