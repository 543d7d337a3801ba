"""Whether a job fits this machine: it is refused if it cannot, and explained if memory runs out midway.

Both name the settings that would fit.
"""

import re
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch

from fairbits.api.memory_needed import Held, Stage, TextSize, WorkCounter
from fairbits.core.errors import InputError, MemoryLimitError, is_out_of_memory
from fairbits.core.progress import NumberedProgress, Progress
from fairbits.core.units import readable_size
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import Capacity, free_capacity, is_gpu
from fairbits.quantization.plan import Learning, Plan
from fairbits.text.corpus import Corpus, TextRequest

CERTAIN = 0.8  # share of an estimate that is certainly needed: a job is refused only if this share does not fit
LEAST_TOKENS, LEAST_SEQUENCE = 256, 64  # the smallest amounts of text that are proposed: with less, results are noise
WANTED, UNITS = re.compile(r"Tried to allocate ([\d.]+) (\w+)"), {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
ADVICE = "use fewer --tokens, a shorter --sequence, another --device, or a machine with more memory"

Settings = TypeVar("Settings")
Kinds = Iterable[Iterable[tuple[str, Settings]]]
"""Kinds of smaller settings, each in words; the mildest change of a kind comes first."""


@dataclass(frozen=True, eq=False)
class Workload(Generic[Settings]):
    """A job with its settings: the stages that settings lead to, and smaller settings to try if they do not fit."""

    settings: Settings
    stages_for: Callable[[Settings], Iterable[Stage]]
    smaller: Callable[[Settings], Kinds[Settings]]

    def stages(self) -> tuple[Stage, ...]:
        return tuple(self.stages_for(self.settings))


def text_workload(
    job: Literal["audit", "evaluate"],
    checkpoint: Checkpoint,
    corpus: Corpus,
    request: TextRequest,
    *,
    device: str,
    text: TokenizedText | None = None,
) -> Workload[TextRequest]:
    """Returns an audit, or an evaluation of a quantized model, which has the shape of its reference model.

    `text` is the requested text, if it was read already; otherwise there is as much text as requested.
    """
    counter = WorkCounter(checkpoint, device)

    def stages(some: TextRequest) -> Iterator[Stage]:
        read = text if some == request else None
        size = TextSize.requested(some, checkpoint, corpus) if read is None else TextSize.of(read)
        if job == "audit":
            yield counter.audit(size)
        yield counter.fingerprint()
        if job == "evaluate":
            yield counter.evaluation(size, name="evaluate the reference model", reference=True)
            yield counter.evaluation(size, name="evaluate the quantized model")

    return Workload(request, stages, smaller_requests)


def quantize_workload(checkpoint: Checkpoint, plan: Plan, text: TokenizedText | None, *, device: str) -> Workload[Plan]:
    """Returns the execution of a plan on its text."""
    counter = WorkCounter(checkpoint, device)

    def stages(some: Plan) -> Iterator[Stage]:
        words = text
        if text is not None and plan.calibration is not None and some.calibration is not None:
            count = round(some.calibration.tokens / plan.calibration.tokens * len(text.windows))
            words = replace(text, windows=text.windows[: max(count, 1)])  # windows themselves are not cut
        yield counter.fingerprint()
        yield from counter.execution(some, words, name="quantize", written=True)

    return Workload(plan, stages, _smaller_plans)


def _smaller_plans(plan: Plan) -> Iterator[list[tuple[str, Plan]]]:
    """Yields a plan that learns in blocks only, and plans with less text."""
    if plan.learning is not None and plan.learning.model_steps:
        steps = plan.learning.block_steps or Learning.block_steps
        yield [("--model-steps 0", replace(plan, learning=replace(plan.learning, model_steps=0, block_steps=steps)))]
    if plan.calibration is not None:
        for kind in smaller_requests(plan.calibration.request):
            texts = [(name, replace(plan.calibration, **request.settings)) for name, request in kind]
            yield [(name, replace(plan, calibration=text)) for name, text in texts]


def smaller_requests(request: TextRequest, name: str = "--tokens") -> Kinds[TextRequest]:
    """Returns less text, and shorter windows."""
    tokens, lengths = halves(request.tokens, least=LEAST_TOKENS), halves(request.sequence, least=LEAST_SEQUENCE)
    return (
        [(f"{name} {count}", replace(request, tokens=count)) for count in tokens],
        [(f"--sequence {length}", replace(request, sequence=length)) for length in lengths],
    )


def halves(number: int, *, least: int) -> Iterator[int]:
    """Yields half of a number, half of that and so on, not below `least`."""
    while number // 2 >= least:
        number //= 2
        yield number


@dataclass(frozen=True)
class ResourceShortage:
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


def overall(stages: Sequence[Stage]) -> Held:
    """Returns what stages that run one after the other hold at most; files that are written add up."""
    held = [stage.held for stage in stages]
    return Held(
        gpu=max(part.gpu for part in held),
        ram=max(part.ram for part in held),
        written=sum(part.written for part in held),
        scratch=max(part.scratch for part in held),
    )


def shortages(stages: Sequence[Stage], capacity: Capacity) -> tuple[ResourceShortage, ...]:
    """Returns what does not fit, the largest need of each kind."""
    held, gpu = overall(stages), max(stages, key=lambda stage: stage.held.gpu)
    ram = max(stages, key=lambda stage: stage.held.ram)
    disk = held.written + (held.scratch if capacity.shared else 0)
    needs = (
        (gpu.name, "GPU memory", held.gpu, capacity.gpu),
        (ram.name, "RAM", held.ram, capacity.ram),
        ("the job", "disk space for what it writes", disk, capacity.disk),
        ("the job", "disk space for temporary files (TMPDIR)", held.scratch, capacity.scratch),
    )
    shortages = (ResourceShortage(*need[:3], need[3]) for need in needs if need[3] is not None and need[2] > need[3])
    return tuple(shortage for shortage in shortages if not (capacity.shared and shortage.what.endswith("(TMPDIR)")))


def free_here(device: str, out: str | Path | None) -> Capacity:
    """Returns what is free for work on a device that writes into `out`, which need not exist."""
    return free_capacity(device, out=existing_directory(out), scratch=Path(tempfile.gettempdir()))


def existing_directory(path: str | Path | None) -> Path:
    """Returns a directory, or the nearest one above it that exists; without a path the current one."""
    wanted = Path.cwd() if path is None else Path(path).absolute()
    return next(place for place in (wanted, *wanted.parents) if place.is_dir())


def advice(shortage: ResourceShortage, workload: Workload[Any], capacity: Capacity) -> str:
    """Returns what to lower: the mildest change of each kind that fits; otherwise what the job needs at least."""
    fitting: list[str] = []
    least = shortage.needed
    for kind in workload.smaller(workload.settings):
        for change, settings in kind:
            left = shortages(tuple(workload.stages_for(settings)), capacity)
            needed = [missing.needed for missing in left if missing.what == shortage.what]
            if not needed:
                fitting.append(change)
                break
            least = min(least, needed[0])
    if shortage.what.startswith("disk") and not fitting:
        return "free some space, or give another directory with --out"
    if fitting:
        return f"it fits with {', or with '.join(fitting)}"
    machine = "--device cpu, or a GPU" if shortage.what == "GPU memory" else "a machine"
    return f"with less text it still needs {readable_size(least)}: use {machine} with more memory"


@contextmanager
def within_memory(
    workload: Workload[Any],
    *,
    device: str,
    out: str | Path | None = None,
    check: bool = True,
    then: Sequence[str] = (),
    progress: Progress | None = None,
) -> Iterator[Progress]:
    """Gives the progress function for a job, which is refused if it certainly needs more than is free (`check`).

    It numbers the stages, unless the job is a part of one whose stages are numbered; the stages `then` follow, and
    their cost is not known. Memory that runs out nevertheless
    becomes a MemoryLimitError: it names the stage, and settings that fit.
    """
    numbered = isinstance(progress, NumberedProgress)
    stages = workload.stages() if check or not numbered else ()
    if check:
        capacity = free_here(device, out)
        for shortage in shortages(stages, capacity):
            if shortage.certain:
                raise InputError(f"{shortage}; {advice(shortage, workload, capacity)}")
    costs = [(stage.reported, stage.cost) for stage in stages if stage.reported]
    show = NumberedProgress(progress, () if numbered else [*costs, *((name, None) for name in then)])
    try:
        yield show
    except Exception as problem:
        if not is_out_of_memory(problem):
            raise
        where = f"while {show.stage}" if show.stage else "at the start"
        what = f"the memory of {device}" if is_gpu(device) else "the memory of this machine"
        match = WANTED.search(str(problem))
        wanted = float(match[1]) * UNITS.get(match[2], 0) if match else 0.0
        more = f": {readable_size(wanted)} more were wanted" if wanted else ""
        raise MemoryLimitError(f"{what} ran out {where}{more}; {_what_fits(workload, device, wanted)}") from None


def _what_fits(workload: Workload[Any], device: str, wanted: float) -> str:
    """Returns what to lower, with the capacity in units of the estimate, which may have been too low."""
    try:
        held, capacity = overall(workload.stages()), free_here(device, None)
        if is_gpu(device):
            used = torch.cuda.memory_allocated(device)
            limit = used + (capacity.gpu or 0)
            needed = max(used + wanted, limit, 1)
            shortage = ResourceShortage("the job", "GPU memory", needed, 0)
            capacity = replace(capacity, gpu=round(limit * min(held.gpu / needed, 1)))
        else:
            shortage = ResourceShortage("the job", "RAM", held.ram, 0)
            capacity = replace(capacity, ram=round(CERTAIN * min(capacity.ram or 0, round(held.ram))))
        return f"by estimate {advice(shortage, workload, capacity)}"
    except (InputError, MemoryError):  # the advice must not hide the error itself
        return ADVICE
