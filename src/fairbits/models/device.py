"""Devices: which are available, moving a model to one, and the type in which it computes there.

A device is resolved once, where a command begins; functions further down take it as it is, and files record it.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from torch import nn

from fairbits.core.errors import InputError
from fairbits.core.memory import WHOLE_MODEL_SHARE
from fairbits.core.torchrun import this_process
from fairbits.core.units import gigabytes

Model = TypeVar("Model", bound=nn.Module)


AUTO = "auto"  # the GPU if torch has one on this machine, else the CPU


def resolve_device(device: str, *, earlier: str | None = None) -> str:
    """Returns the device to compute on: cpu, cuda, or one of several such as cuda:1.

    "auto" becomes the device of an `earlier` part of the same work, if torch has it here, so that the work can be
    continued; else the GPU if there is one, else the CPU. In one of several processes that torchrun has started, "auto"
    and "cuda" become the GPU of this process; another GPU that is named is shared by all that name it.
    """
    graphics = [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    here = ["cpu", *(["cuda"] if graphics else []), *graphics]
    if device == AUTO:
        available = "cuda" if graphics and torch.cuda.is_available() else "cpu"
        device = str(earlier) if earlier in here else available
    elif device not in here:
        raise InputError(f"device is {device!r:.40}; it must be auto, or one that torch has here: {', '.join(here)}")
    process = this_process()
    if device != "cuda" or not process.several:
        return device
    if process.local_count > len(graphics):
        raise InputError(
            f"torchrun has started {process.local_count} processes and torch has {len(graphics)} GPUs here; start one "
            "for each GPU (--nproc-per-node), or give --device cpu"
        )
    return graphics[process.local_rank]


def gpu_note(device: str) -> str | None:
    """Returns a line that names the GPU; None if the device is not one."""
    return f"device: {device} ({torch.cuda.get_device_name(device)})" if is_gpu(device) else None


def is_gpu(device: str | torch.device) -> bool:
    """Returns whether a device is a GPU."""
    return torch.device(device).type == "cuda"


def move(model: Model, device: str | torch.device) -> Model:
    """Returns the model itself, moved to a device."""
    moved: Model = model.to(device)
    return moved


def compute_dtype(device: str | torch.device) -> torch.dtype:
    """Returns the type in which a model computes during training: a 16-bit type where that is fast."""
    return torch.bfloat16 if is_gpu(device) else torch.float32


def autocast(device: str | torch.device, dtype: torch.dtype | None = None) -> AbstractContextManager[Any]:
    """Returns a context in which a device computes in `dtype`, by default the type of `compute_dtype`."""
    dtype = dtype or compute_dtype(device)
    return nullcontext() if dtype == torch.float32 else torch.autocast(torch.device(device).type, dtype=dtype)


def autocast_dtype(device: str | torch.device) -> torch.dtype:
    """Returns the type in which a device currently computes: float32 outside `autocast`."""
    kind = torch.device(device).type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else torch.float32


@contextmanager
def tensor_cores() -> Iterator[None]:
    """Lets a GPU multiply float32 matrices within a `with` statement with 10 bits of mantissa, summed in float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


@contextmanager
def fixed_seed(seed: int | None, device: str | torch.device) -> Iterator[None]:
    """Seeds the random numbers drawn within a `with` statement, if there is a seed; the state before is restored."""
    if seed is None:
        yield
        return
    with torch.random.fork_rng(devices=[device] if is_gpu(device) else []):
        torch.manual_seed(seed)
        yield


def describe_devices() -> tuple[str, ...]:
    """Returns a line for each device that torch has on this machine."""
    lines = [f"cpu, {torch.get_num_threads()} of {os.cpu_count()} threads"]
    for i in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(i)
        lines.append(f"cuda:{i}, {torch.cuda.get_device_name(i)}, {gigabytes(free)} of {gigabytes(total)} free")
    if torch.backends.mps.is_available():
        lines.append("mps, which fairbits does not use")
    return tuple(lines)


CONTROL_GROUP = Path("/sys/fs/cgroup")
GROUP_FILES = (("", "memory.max", "memory.current"), ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes"))
"""Directory, limit and use of control groups, of version 2 and of version 1."""
RECLAIMED = ("active_file", "inactive_file")


@dataclass(frozen=True)
class Capacity:
    """Bytes that are free; `scratch` is for temporary files, `shared` if it is on the same disk as `disk`."""

    gpu: int | None
    ram: int | None
    disk: int
    scratch: int
    shared: bool


def free_capacity(device: str, *, out: Path, scratch: Path) -> Capacity:
    """Returns what is free for work on a device that writes into the existing directory `out`."""
    return Capacity(
        gpu=free_gpu_memory(device),
        ram=free_memory(),
        disk=shutil.disk_usage(out).free,
        scratch=shutil.disk_usage(scratch).free,
        shared=os.stat(out).st_dev == os.stat(scratch).st_dev,
    )


def free_gpu_memory(device: str) -> int | None:
    """Returns the free memory of a GPU within the limits of torch, with what torch has reserved; None for a CPU."""
    if not is_gpu(device):
        return None
    named = torch.device(device).index
    index = torch.cuda.current_device() if named is None else named
    free, total = torch.cuda.mem_get_info(index)
    unused = torch.cuda.memory_reserved(index) - torch.cuda.memory_allocated(index)
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", lambda _index: 1.0)(index)  # since torch 2.8
    return int(min(free + unused, fraction * total - torch.cuda.memory_allocated(index)))


def free_memory() -> int:
    """Returns the RAM that can be used without swapping, within the limit of a container."""
    system, group = int(psutil.virtual_memory().available), _free_in_group()
    return system if group is None else min(system, group)


def fits_whole(needed: float, device: str, *, share: float = WHOLE_MODEL_SHARE) -> bool:
    """Returns whether some bytes, by default all weights, take at most a share of what is free on a device."""
    free = free_gpu_memory(device)
    return needed <= share * (free_memory() if free is None else free)


def _free_in_group() -> int | None:
    """Returns what the control group of a container has left; what it caches of files can be reclaimed."""
    for folder, limit, used in GROUP_FILES:
        try:
            most, now = ((CONTROL_GROUP / folder / name).read_text().strip() for name in (limit, used))
            table = (line.split() for line in (CONTROL_GROUP / folder / "memory.stat").read_text().splitlines())
            cached = sum(int(value) for name, value in table if name in RECLAIMED)
            return None if most == "max" else int(most) - int(now) + cached
        except (OSError, ValueError):
            continue
    return None
