"""Capacity: how much memory and disk is free on this machine."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

from fairbits.core.memory import WHOLE_MODEL_SHARE
from fairbits.models.device import is_gpu

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
