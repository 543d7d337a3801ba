"""Measured rates: a few seconds of the operations that the work consists of, in the sizes of a model, on this machine.

Nothing is assumed about devices. Each rate comes from the function that the work itself calls, or from the same
operation of torch. Other processes on the machine slow both.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fairbits.api.dry_run.sizes import ModelSize
from fairbits.api.dry_run.work import Rates
from fairbits.core.errors import InputError
from fairbits.core.units import MIB
from fairbits.evaluation.divergence import compare_logits
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import compute_dtype, is_gpu
from fairbits.models.scales.groups import choose_scales, scheme_grid
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.gptq.columns import factorize, gptq

SECONDS = 0.12
"""How long each rate is measured, at least."""
LARGEST = 4096
"""Rows and columns of measured matrices, at most: larger ones are as fast."""
POSITIONS = {False: 512, True: 8192}
"""Positions of a measured product, by whether the device is a GPU."""
GPTQ_COLUMNS = 256
CLIPPED = 2**20
"""Weights of the measured exact clip."""
CHUNK = 4 * MIB
READ, WRITTEN = 128 * MIB, 64 * MIB
"""Bytes that are read and written for a rate, at most."""
MEASURED = Scheme(4, 128, "exact", "twos", "mean", "gptq")
"""The scheme of the measured clip and the measured columns."""


def measure_rates(checkpoint: Checkpoint, *, device: str, out: str | Path | None) -> Rates:
    """Returns the rates on a device, in sizes of this model; files are written to `out`, where nothing is left."""
    size = ModelSize.of(checkpoint)
    clock = _Clock(device)
    columns, cells = clock.gptq(min(max(each.out for each in size.largest.maps), LARGEST))
    narrow = [each for each in size.largest.maps if each.rounded] or list(size.largest.maps)
    width, out_width = (min(max(getattr(each, name) for each in narrow), LARGEST) for name in ("columns", "out"))
    return Rates(
        products=clock.products(width, out_width, torch.float32),
        fast=clock.products(width, out_width, compute_dtype(device)),
        traffic=clock.traffic(size.width),
        calls=clock.calls(),
        logits=clock.logits(size.vocabulary),
        clipped=clock.clipped(),
        columns=columns,
        cells=cells,
        factors=clock.factors(width),
        host=_Clock("cpu").traffic(size.width),
        moved=clock.moved(),
        read=read_rate(checkpoint),
        written=written_rate(existing_directory(out)),
        hashed=_Clock("cpu").rate(4 * MIB, partial(hashlib.sha256, bytes(4 * MIB))),
    )


@dataclass(frozen=True)
class _Clock:
    """Measures how fast a device does something."""

    device: str

    def rate(self, amount: float, once: Callable[[], object]) -> float:
        """Returns how much of `amount` is done in a second; the first call, which may compile, does not count."""
        once()
        self._finish()
        count, begin = 0, time.perf_counter()
        while True:
            once()
            self._finish()
            count += 1
            spent = time.perf_counter() - begin
            if spent >= SECONDS:
                return amount * count / spent

    def products(self, width: int, out: int, dtype: torch.dtype) -> float:
        positions = POSITIONS[is_gpu(self.device)]
        x, W = self._normal(positions, width).to(dtype), self._normal(width, out).to(dtype)
        return self.rate(2 * positions * width * out, partial(torch.mm, x, W))

    def traffic(self, width: int) -> float:
        x = self._normal(POSITIONS[is_gpu(self.device)], width)
        y = torch.empty_like(x)
        return self.rate(2 * x.nbytes, partial(torch.mul, x, 0.5, out=y))

    def calls(self) -> float:
        x, several = torch.zeros(8, device=self.device), 64

        def once() -> None:
            for _ in range(several):
                x.add_(1)

        return self.rate(several, once)

    def logits(self, vocabulary: int) -> float:
        vocabulary = min(vocabulary, 2**15)
        a, b = (self._normal(64, vocabulary) for _ in range(2))
        labels = torch.zeros(64, dtype=torch.long, device=self.device)
        return self.rate(a.numel(), lambda: compare_logits(a, b, labels))

    def clipped(self) -> float:
        W = self._normal(CLIPPED // 1024, 1024)
        importance = np.ones((1, 1024))
        return self.rate(CLIPPED, lambda: choose_scales(W, MEASURED, importance=importance, dtype=torch.float32))

    def gptq(self, rows: int) -> tuple[float, float]:
        """Returns how many columns, and how many weights in them, are rounded in a second."""
        x = self._normal(2 * GPTQ_COLUMNS, GPTQ_COLUMNS)
        H = x.T @ x
        factor, _ = factorize(H)

        def seconds(count: int) -> float:
            W, scales = self._normal(count, GPTQ_COLUMNS), torch.full((count, 1), 0.5, device=self.device)
            return 1 / self.rate(1, lambda: gptq(W, H, scales, grid=scheme_grid(MEASURED), factor=factor))

        few = seconds(8)
        many = max(seconds(rows) - few, 1e-9)
        return GPTQ_COLUMNS / few, GPTQ_COLUMNS * (rows - 8) / many

    def factors(self, columns: int) -> float:
        columns = min(columns, 2048)
        x = self._normal(columns, columns)
        H = x @ x.T + columns * torch.eye(columns, device=self.device)
        return self.rate(columns**3 / 3, lambda: factorize(H))

    def moved(self) -> float:
        if not is_gpu(self.device):
            return float("inf")
        x = torch.zeros(16 * MIB, dtype=torch.uint8)
        return self.rate(x.nbytes, lambda: x.to(self.device))

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).to(self.device)

    def _finish(self) -> None:
        if is_gpu(self.device):
            torch.cuda.synchronize(self.device)


def read_rate(checkpoint: Checkpoint) -> float:
    """Returns the bytes of the model's own files that are read in a second, from places all over them."""
    done, begin = 0, time.perf_counter()
    for path, offset in _places(checkpoint):
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            done += len(file.read(CHUNK))
        if time.perf_counter() - begin > 4 * SECONDS or done >= READ:
            break
    return max(done, 1) / max(time.perf_counter() - begin, 1e-9)


def _places(checkpoint: Checkpoint) -> Iterator[tuple[Path, int]]:
    """Yields chunks of the files, far from each other first."""
    files = sorted({info.file for info in checkpoint.files.values()})
    chunks = [(path, offset) for path in files for offset in range(0, path.stat().st_size, CHUNK)]
    for step in (64, 16, 4, 1):
        yield from chunks[::step]


def written_rate(directory: Path) -> float:
    """Returns the bytes that reach the disk in a second; the file has no name, and is gone afterwards."""
    content = os.urandom(CHUNK)
    try:
        with tempfile.TemporaryFile(dir=directory, buffering=0) as file:
            done, begin = 0, time.perf_counter()
            while time.perf_counter() - begin < 2 * SECONDS and done < WRITTEN:
                done += file.write(content)
            os.fsync(file.fileno())
            return done / (time.perf_counter() - begin)
    except OSError as problem:
        reason = problem.strerror or problem
        raise InputError(f"{directory} cannot be written ({reason}); give another directory with --out") from None


def existing_directory(path: str | Path | None) -> Path:
    """Returns a directory, or the nearest one above it that exists; without a path the current one."""
    wanted = Path.cwd() if path is None else Path(path).absolute()
    return next(each for each in (wanted, *wanted.parents) if each.is_dir())


def slowed(rates: Rates, factor: float) -> Rates:
    """Returns all rates divided by a factor."""
    return replace(rates, **{name: getattr(rates, name) / factor for name in vars(rates) if name != "seconds"})
