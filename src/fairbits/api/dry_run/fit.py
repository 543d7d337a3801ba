"""Whether a job fits this machine, and which settings would fit if it does not."""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from fairbits.api.dry_run.rates import existing_directory
from fairbits.api.dry_run.work import Held, Stage
from fairbits.core.errors import InputError
from fairbits.core.units import readable_size
from fairbits.models.capacity import Capacity, free_capacity
from fairbits.text.text_request import TextRequest

CERTAIN = 0.8
"""Share of an estimate that is certainly needed: a job is refused only if this share does not fit."""
LEAST_TOKENS, LEAST_SEQUENCE = 256, 64
"""The smallest amounts of text that are proposed: with less, results are noise."""

Settings = TypeVar("Settings")
Kinds = Iterable[Iterable[tuple[str, Settings]]]
"""Kinds of smaller settings, each in words; the mildest change of a kind comes first."""


@dataclass(frozen=True, eq=False)
class Workload(Generic[Settings]):
    """A job with its settings: the stages that settings lead to, and smaller settings to try if they do not fit."""

    settings: Settings
    stages_of: Callable[[Settings], Sequence[Stage]]
    smaller: Callable[[Settings], Kinds[Settings]]

    def stages(self) -> tuple[Stage, ...]:
        """Returns the stages of the job."""
        return tuple(self.stages_of(self.settings))


@dataclass(frozen=True)
class Shortage:
    """A stage that needs more of something than is free, in bytes."""

    stage: str
    what: str
    needed: float
    free: float

    @property
    def certain(self) -> bool:
        """Whether it does not fit even if the estimate is too high."""
        return CERTAIN * self.needed > self.free

    def __str__(self) -> str:
        needed, free = readable_size(self.needed), readable_size(max(self.free, 0))
        return f"{self.stage} needs about {needed} of {self.what}, and {free} are free"


def overall(stages: Iterable[Stage]) -> Held:
    """Returns what stages that run one after the other hold at most; files that are written add up."""
    held = Held()
    for stage in stages:
        held |= stage.held
    return held


def shortages(stages: Sequence[Stage], capacity: Capacity) -> tuple[Shortage, ...]:
    """Returns what does not fit, the largest need of each kind."""
    return tuple(_shortages(stages, capacity))


def _shortages(stages: Sequence[Stage], capacity: Capacity) -> Iterator[Shortage]:
    for what, free in (("GPU memory", capacity.gpu), ("RAM", capacity.ram)):
        name = "gpu" if what == "GPU memory" else "ram"
        worst = max(stages, key=lambda stage: getattr(stage.held, name))
        needed = getattr(worst.held, name)
        if free is not None and needed > free:
            yield Shortage(worst.name, what, needed, free)
    held = overall(stages)
    disk = held.written + (held.scratch if capacity.shared else 0)
    if disk > capacity.disk:
        yield Shortage("the job", "disk space for what it writes", disk, capacity.disk)
    if not capacity.shared and held.scratch > capacity.scratch:
        yield Shortage("the job", "disk space for temporary files (TMPDIR)", held.scratch, capacity.scratch)


def refuse_what_cannot_fit(workload: Workload[Any], *, device: str, out: str | Path | None) -> None:
    """Raises if a job certainly needs more than this machine has free; the error names settings that would fit."""
    capacity = capacity_here(device, out)
    found = [each for each in shortages(workload.stages(), capacity) if each.certain]
    if found:
        raise InputError(f"{found[0]}; {advice(found[0], workload, capacity)}")


def capacity_here(device: str, out: str | Path | None) -> Capacity:
    """Returns what is free for work on a device that writes into `out`, which need not exist."""
    return free_capacity(device, out=existing_directory(out), scratch=Path(tempfile.gettempdir()))


def advice(shortage: Shortage, workload: Workload[Any], capacity: Capacity) -> str:
    """Returns what to lower: the mildest change of each kind that fits; else what the job needs at least."""
    fitting: list[str] = []
    least = shortage.needed
    for kind in workload.smaller(workload.settings):
        for change, settings in kind:
            left = [each for each in shortages(workload.stages_of(settings), capacity) if each.what == shortage.what]
            if not left:
                fitting.append(change)
                break
            least = min(least, left[0].needed)
    if shortage.what.startswith("disk") and not fitting:
        return "free some space, or give another directory with --out"
    if fitting:
        return f"it fits with {', or with '.join(fitting)}"
    other = "--device cpu, or a GPU" if shortage.what == "GPU memory" else "a machine"
    return f"with less text it still needs {readable_size(least)}: use {other} with more memory"


def smaller_requests(request: TextRequest, name: str = "--tokens") -> Kinds[TextRequest]:
    """Returns less text, and shorter windows."""
    return (
        [(f"{name} {each}", replace(request, tokens=each)) for each in halves(request.tokens, least=LEAST_TOKENS)],
        [
            (f"--sequence {each}", replace(request, sequence=each))
            for each in halves(request.sequence, least=LEAST_SEQUENCE)
        ],
    )


def halves(number: int, *, least: int) -> Iterator[int]:
    """Yields half of a number, half of that and so on, not below `least`.

    >>> list(halves(100, least=20))
    [50, 25]
    """
    while number // 2 >= least:
        number //= 2
        yield number
