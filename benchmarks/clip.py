"""How long exact clipping takes, as ratios against baselines timed in the same run.

    make bench            (or: python benchmarks/clip.py [--weights MILLIONS])

Groups: the plain NumPy prefix sweep (all n·g breakpoints sorted), and a 20-point grid search in vectorised torch as the
MSE observers of compressed-tensors and llm-compressor do it, on all cores. Whole tensors: `np.sort` of the same
weights. Each time is the best of several runs, after one warm-up that compiles.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable

import numpy as np
import torch
from numba import get_num_threads

from fairbits.models.scales.exact_clip import clip_blocks, minimax_blocks
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample

BARS = {"numpy": 20.0, "torch": 3.0, "sort": 4.0}


def best_of(function: Callable[[], object], *, repeats: int = 5) -> float:
    """Returns the shortest of several run times, in seconds."""
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times)


def numpy_prefix_sweep(W: np.ndarray, n: int = 7) -> np.ndarray:
    """Returns the exact steps by sorting every breakpoint |w|/(k − ½): the baseline to beat."""
    x = np.abs(W).astype(np.float64)
    k = np.arange(1, n + 1)
    order = np.argsort(-(x[:, :, None] / (k - 0.5)).reshape(len(x), -1), axis=1)
    b = np.cumsum(np.take_along_axis(np.repeat(x, n, axis=1), order, axis=1), axis=1)
    c = np.cumsum(np.tile(2 * k - 1, x.shape[1])[order], axis=1)
    at = np.argmax(b * b / c, axis=1)[:, None]
    return (np.take_along_axis(b, at, axis=1) / np.take_along_axis(c, at, axis=1))[:, 0]


def torch_grid_search(W: torch.Tensor, points: int = 20) -> torch.Tensor:
    """Returns the best of `points` shrunken absmax steps per row on the grid −8 … 7."""
    largest = W.abs().amax(dim=1, keepdim=True)
    best_error, best_step = torch.full_like(largest, torch.inf), largest / 7.5
    for i in range(points):
        step = largest * (1 - 0.8 * i / points) / 7.5
        error = (torch.clamp(torch.round(W / step), -8, 7) * step - W).square().sum(dim=1, keepdim=True)
        better = error < best_error
        best_error, best_step = torch.where(better, error, best_error), torch.where(better, step, best_step)
    return best_step


def total_error(W: np.ndarray, grid: Grid, step: np.ndarray) -> float:
    """Returns Σ(w − Q(w))² over all rows."""
    return float(np.sum((W - grid.quantize(W, step)) ** 2))


def groups(weights: np.ndarray) -> None:
    """Prints group-128 clipping against both baselines, with the error each reaches."""
    W = weights.reshape(-1, 128)
    T = torch.from_numpy(W)
    plain = best_of(lambda: numpy_prefix_sweep(W), repeats=2)
    search = best_of(lambda: torch_grid_search(T))
    symmetric, twos = Grid(4), Grid(4, "twos")
    exact = best_of(lambda: clip_blocks(W, symmetric), repeats=15)
    print(f"\ngroup 128, 4 bit, {W.size / 1e6:.1f} M float32 weights          ms per M   error")
    reached = total_error(W, symmetric, clip_blocks(W, symmetric).step)
    row("NumPy prefix sweep, symmetric", plain, W, total_error(W, symmetric, numpy_prefix_sweep(W)[:, None]))
    row("torch 20-point grid search, twos", search, W, total_error(W, twos, torch_grid_search(T).numpy()))
    row("exact, symmetric", exact, W, reached)
    for name, options in (("exact, twos", {}), ("exact, twos, sign of the step free", {"signed": True})):
        seconds = best_of(lambda options=options: clip_blocks(W, twos, **options), repeats=15)
        row(name, seconds, W, total_error(W, twos, clip_blocks(W, twos, **options).step))
    h = np.random.default_rng(1).lognormal(0, 1.5, (20, 128))
    row("exact, importance-weighted", best_of(lambda: clip_blocks(W, symmetric, importance=h[0])), W, None)
    row("minimax over 20 languages", best_of(lambda: minimax_blocks(W, symmetric, importance=h), repeats=1), W, None)
    verdict("NumPy prefix sweep / exact", plain / exact, least=BARS["numpy"])
    verdict("exact / torch grid search", exact / search, most=BARS["torch"])


def tensors(weights: np.ndarray) -> None:
    """Prints whole-tensor clipping against np.sort."""
    sort = best_of(lambda: np.sort(weights), repeats=9)
    print(f"\nwhole tensor, {weights.size / 1e6:.1f} M float32 weights              ms per M   x np.sort   gap")
    row("np.sort", sort, weights, None)
    ratios = []
    for kind in ("symmetric", "twos"):
        for bits in range(2, 9):
            grid = Grid(bits, kind)
            seconds = best_of(lambda grid=grid: clip_sample(weights, grid))
            ratios.append(seconds / sort)
            label, rate = f"exact {bits} bit, {kind}", 1e9 * seconds / weights.size
            print(f"  {label:44}{rate:9.2f}{ratios[-1]:12.2f}{clip_sample(weights, grid).gap:9.0e}")
    verdict("slowest exact / np.sort", max(ratios), most=BARS["sort"])


def row(name: str, seconds: float, W: np.ndarray, error: float | None) -> None:
    """Prints one line of a table."""
    print(f"  {name:44}{1e9 * seconds / W.size:9.2f}" + ("" if error is None else f"{error / W.size:12.6f}"))


def verdict(name: str, ratio: float, *, least: float | None = None, most: float | None = None) -> None:
    """Prints a ratio and whether it meets its bar."""
    met = (least is None or ratio >= least) and (most is None or ratio <= most)
    bar = f"at least {least:g}" if least is not None else f"at most {most:g}"
    print(f"  -> {name}: {ratio:.2f}x (bar: {bar}x) {'met' if met else 'MISSED'}")


def main() -> None:
    """Runs both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", type=float, default=4.0, help="millions of weights")
    size = int(parser.parse_args().weights * 2**20) // 128 * 128
    weights = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    threads = f"numba {get_num_threads()}, torch {torch.get_num_threads()} threads"
    print(f"{platform.machine()}, {os.cpu_count()} cores; {threads}")
    groups(weights)
    tensors(weights)


if __name__ == "__main__":
    main()
