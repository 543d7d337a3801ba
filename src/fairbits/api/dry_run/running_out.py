"""Jobs within the memory of this machine: refused if they cannot fit, and explained if memory runs out midway."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fairbits.api.dry_run.fit import Shortage, Workload, advice, capacity_here, overall, refuse_what_cannot_fit
from fairbits.core.errors import InputError, MemoryLimitError, is_out_of_memory
from fairbits.core.progress import Progress
from fairbits.core.units import readable_size
from fairbits.models.capacity import Capacity
from fairbits.models.device import is_gpu

WANTED = re.compile(r"Tried to allocate ([\d.]+) (\w+)")
UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
ADVICE = "use fewer --tokens, a shorter --sequence, another --device, or a machine with more memory"
"""What to do if it is not known what fits."""


@contextmanager
def within_memory(
    workload: Workload[Any],
    *,
    device: str,
    out: str | Path | None = None,
    check: bool = True,
    progress: Progress | None = None,
) -> Iterator[Progress]:
    """Gives the progress function for a job that is refused if it cannot fit (`check`).

    Memory that runs out nevertheless becomes a MemoryLimitError: it names the stage, and settings that fit. If the
    estimate was too low, it is raised by as much to find them.
    """
    if check:
        refuse_what_cannot_fit(workload, device=device, out=out)
    stage = ""

    def remember(what: str, done: float, total: float) -> None:
        nonlocal stage
        stage = what
        if progress is not None:
            progress(what, done, total)

    try:
        yield remember
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise
        raise MemoryLimitError(_message(problem, stage, workload, device)) from None


def _message(problem: BaseException, stage: str, workload: Workload[Any], device: str) -> str:
    where = f"while {stage}" if stage else "at the start"
    what = f"the memory of {device}" if is_gpu(device) else "the memory of this machine"
    wanted = _wanted(problem)
    more = "" if wanted is None else f": {readable_size(wanted)} more were wanted"
    return f"{what} ran out {where}{more}; {_what_fits(workload, device, wanted or 0)}"


def _wanted(problem: BaseException) -> float | None:
    """Returns the bytes that could not be allocated, if the error says so.

    >>> _wanted(RuntimeError("CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has"))
    2097152.0
    """
    found = WANTED.search(str(problem))
    return float(found[1]) * UNITS[found[2]] if found and found[2] in UNITS else None


def _what_fits(workload: Workload[Any], device: str, wanted: float) -> str:
    try:
        held, capacity = overall(workload.stages()), capacity_here(device, None)
        needed, here = _scaled(held.gpu if is_gpu(device) else held.ram, capacity, device, wanted)
        shortage = Shortage("the job", "GPU memory" if is_gpu(device) else "RAM", needed, 0)
        return f"by estimate {advice(shortage, workload, here)}"
    except (InputError, MemoryError):  # the advice must not hide the error itself
        return ADVICE


def _scaled(estimate: float, capacity: Capacity, device: str, wanted: float) -> tuple[float, Capacity]:
    """Returns what the job needs, and the capacity in units of the estimate, which may have been too low."""
    if is_gpu(device):
        used = torch.cuda.memory_allocated(device)
        limit = used + (capacity.gpu or 0)
        needed = max(used + wanted, limit, 1)
        return needed, replace(capacity, gpu=round(limit * min(estimate / needed, 1)))
    limit = min(capacity.ram or 0, round(estimate))
    return estimate, replace(capacity, ram=round(0.8 * limit))
