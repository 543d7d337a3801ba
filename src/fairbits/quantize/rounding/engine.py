"""The engine: carries out a plan, one block in memory at a time; each sees what the quantized ones before it give.

Within a block all linear maps are rounded for the inputs that they have while the block itself still has its own
weights: the text passes every block twice, once before it is rounded and once after. In between someone may refine
its codes (`station`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from fairbits.errors import InputError
from fairbits.measure.passes.batches import Batch, batches
from fairbits.measure.passes.recorder import is_observable
from fairbits.measure.passes.text import Text, Window
from fairbits.memory import BLOCK_ACTIVATIONS_BYTES, BLOCK_POSITIONS, GPU_BLOCK_ACTIVATIONS_BYTES, GPU_BLOCK_POSITIONS
from fairbits.model.architecture import Block, Weight
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.codes import Codes
from fairbits.model.device import is_gpu
from fairbits.model.files.packed import scale_dtype
from fairbits.model.groups import grid_of
from fairbits.model.scheme import Scheme
from fairbits.progress import Progress
from fairbits.quantize.plan import Learned, Outcome, Plan
from fairbits.quantize.rounding.inputs import Audience, Effects, Inputs, Point, audience, stack_of
from fairbits.quantize.rounding.layer import matrix, outcome_of, rounded, thresholds_of
from fairbits.quantize.rounding.lockstep import Lockstep, lockstep
from fairbits.quantize.rounding.shell import Shell
from fairbits.quantize.rounding.station import LEFT, Originals, Refine, refined

MOST_BATCHES = 256
"""Batches, each of which takes a thread that waits most of the time."""
KEPT_PER_POSITION = 16
"""Numbers per position and unit of width that a block makes on the way, about."""


@dataclass(frozen=True, eq=False)
class RoundedBlock:
    """A block whose linear maps are rounded; `index` is None for what lies outside the blocks.

    `layers`      codes by the name of the tensor in the checkpoint
    `outcomes`    what came of each
    `thresholds`  scales of each language of the plan alone, (languages, out, groups), if the plan asks for them
    `learned`     what learning came to, with the last of them
    """

    index: int | None
    layers: Mapping[str, Codes]
    outcomes: tuple[Outcome, ...]
    thresholds: Mapping[str, Tensor] = field(default_factory=dict)
    learned: Learned | None = None


Finished = Callable[[int | None], RoundedBlock | None]


def round_model(
    checkpoint: Checkpoint,
    plan: Plan,
    *,
    text: Text | None = None,
    device: str = "cpu",
    finished: Finished | None = None,
    refine: Refine | None = None,
    progress: Progress | None = None,
) -> Iterator[RoundedBlock]:
    """Yields all blocks in the order of the forward pass, then what lies outside them.

    With `text` the error of each of its languages is measured, and schemes that read text can be carried out;
    without, weights are read one by one and nothing is computed but codes. `finished` gives the blocks that an
    interrupted run already has: they are only passed through, and what follows is the same as without interruption.
    `refine` is asked for better codes of every block that text reaches, before the next block sees what it gives.
    """
    check_plan(checkpoint, plan, text)
    if refine is not None and text is None:
        raise InputError("codes are to be refined, and no text was given; give the plan's calibration text")
    job = _Job(checkpoint, plan, finished or (lambda _index: None), _Ticks(progress), refine)
    return _without_text(job) if text is None else _with_text(job, text, device)


class _Ticks:
    """Counts and reports what is done."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._done, self.total = progress, 0, 0

    def add(self, count: int = 1) -> None:
        self._done += count
        if self._progress is not None:
            self._progress("rounding blocks", self._done, self.total)


@dataclass(frozen=True, eq=False)
class _Job:
    checkpoint: Checkpoint
    plan: Plan
    finished: Finished
    ticks: _Ticks
    refine: Refine | None = None

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.checkpoint.architecture.blocks

    @property
    def ticks_of_refining(self) -> int:
        return 0 if self.refine is None else self.refine.ticks

    def schemes(self, index: int | None) -> dict[str, Scheme]:
        """Returns the schemes of what is quantized in a block."""
        weights = self.checkpoint.architecture.weights
        return {name: scheme for name, scheme in self.plan.schemes.items() if weights[name].block == index}

    def rounded(self, index: int | None, inputs: Inputs | None = None) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns a block with its codes, the errors of languages still missing, and ΔW of every map in it."""
        dtype, weights = scale_dtype(self.checkpoint), self.checkpoint.architecture.weights
        layers: dict[str, Codes] = {}
        outcomes: list[Outcome] = []
        changes, thresholds = {}, {}
        # maps that see the same input stand side by side: what is known of it is worked out once
        input_of = lru_cache(maxsize=1)(lambda sees: None if inputs is None else inputs.known(sees))
        for name, scheme in self.schemes(index).items():
            W, known = matrix(self.checkpoint, weights[name]), input_of(weights[name].sees)
            try:
                layers[name], notes = rounded(W, scheme, dtype=dtype, known=known)
            except InputError as problem:
                raise InputError(f"{name}: {problem}") from None
            outcome, changes[name] = outcome_of(weights[name], W, layers[name], scheme, notes)
            outcomes.append(outcome)
            if self.plan.thresholds and known is not None and known.squares is not None:
                alone = known.squares[[known.languages.index(code) for code in self.plan.languages]]
                thresholds[name] = thresholds_of(W, scheme, alone, dtype=dtype)
            self.ticks.add()
        return RoundedBlock(index, layers, tuple(outcomes), thresholds), changes

    def with_codes(self, done: RoundedBlock, codes: Mapping[str, Codes]) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns a block with other codes for some of its maps, and ΔW of every map in it."""
        weights, schemes = self.checkpoint.architecture.weights, self.schemes(done.index)
        layers = {**done.layers, **codes}
        outcomes, changes = [], {}
        for old in done.outcomes:
            name, notes = old.name, old.notes if old.name in codes else (*old.notes, LEFT)
            W = matrix(self.checkpoint, weights[name])
            outcome, changes[name] = outcome_of(weights[name], W, layers[name], schemes[name], notes)
            outcomes.append(outcome)
        return replace(done, layers=layers, outcomes=tuple(outcomes)), changes


def _without_text(job: _Job) -> Iterator[RoundedBlock]:
    """Yields the blocks, by reading weights only."""
    job.ticks.total = len(job.plan.schemes)
    for index in (*(block.index for block in job.blocks), None):
        done = job.finished(index)
        if done is None:
            done, _ = job.rounded(index)
        else:
            job.ticks.add(len(job.schemes(index)))
        yield done


def _with_text(job: _Job, text: Text, device: str) -> Iterator[RoundedBlock]:
    """Yields the blocks, walking through them with all of the text, as far as there is anything to round."""
    positions, apart = _positions_at_once(job.checkpoint, text, device), job.refine.held_out if job.refine else ()
    chosen = [batch.on(device) for part in _parted(text, apart) for batch in batches(part, positions=positions)]
    far = max((block.index + 1 for block in job.blocks if job.schemes(block.index)), default=0)
    job.ticks.total = len(job.plan.schemes) + (2 * len(chosen) + job.ticks_of_refining) * far
    # the embedding is first on the way though last in the order: the blocks shall see it as it will be
    outside = job.finished(None) or job.rounded(None)[0]
    if any(job.finished(block.index) is None for block in job.blocks[:far]):
        yield from _walked(job, job.blocks[:far], chosen, listeners=audience(text, job.plan.languages), outside=outside)
    else:
        far = 0
    yield from (job.finished(block.index) or job.rounded(block.index)[0] for block in job.blocks[far:])
    yield outside


def _walked(
    job: _Job, blocks: Sequence[Block], chosen: list[Batch], *, listeners: Audience, outside: RoundedBlock
) -> Iterator[RoundedBlock]:
    ids = [each.flatten() for batch in chosen for name, each in batch.inputs.items() if name.endswith("input_ids")]
    shell = Shell(job.checkpoint, ids[0].device)
    shell.fill_outside(torch.unique(torch.cat(ids)).cpu(), outside.layers)
    originals = Originals()
    with lockstep(shell.model, [block.module for block in blocks], chosen) as walk:
        for block in blocks:
            done = job.finished(block.index)
            targets: tuple[Tensor, ...] = ()
            if job.refine is not None:
                shell.fill(block, {})
                targets = originals.passed(walk.turns())
            if done is None:
                done = _calibrated(job, block, shell, walk=walk, listeners=listeners, targets=targets)
            else:
                shell.fill(block, done.layers)
                walk.advance(lambda _batch: job.ticks.add())
                job.ticks.add(len(chosen) + len(job.schemes(block.index)) + job.ticks_of_refining)
            shell.empty(block)
            yield done


def _calibrated(
    job: _Job, block: Block, shell: Shell, *, walk: Lockstep, listeners: Audience, targets: tuple[Tensor, ...]
) -> RoundedBlock:
    """Returns a block, rounded for what it sees and refined for its targets, and takes the walk past it."""
    modules = dict(shell.model.named_modules())
    visible = {name: weight for name, weight in block.linears.items() if is_observable(weight, modules)}
    schemes = job.schemes(block.index)
    points = _points(job, {name: each for name, each in schemes.items() if name in visible}, visible)
    inputs = Inputs(listeners, points)
    if points:
        if not targets:  # for which it was filled
            shell.fill(block, {})
        with inputs.watched(shell.model) as start:
            walk.rehearse(_counted(start, job.ticks))
    else:
        job.ticks.add(len(walk))
    done, changes = job.rounded(block.index, inputs)
    del inputs  # its products may be larger than the block
    if job.refine is not None:
        changes.clear()
        layers = {name: (each, grid_of(schemes[name])) for name, each in done.layers.items()}
        turns, tick = walk.turns(), job.ticks.add
        codes = refined(job.refine, block, layers, shell=shell, turns=turns, targets=targets, tick=tick)
        done, changes = job.with_codes(done, codes)
    shell.fill(block, done.layers)
    effects = Effects(listeners, {n: (w, shell.placed(changes.pop(n))) for n, w in visible.items() if n in changes})
    with effects.watched(shell.model) as start:
        walk.advance(_counted(start, job.ticks))
    return replace(done, outcomes=tuple(replace(each, error=effects.error(each.name)) for each in done.outcomes))


def _points(job: _Job, schemes: Mapping[str, Scheme], visible: Mapping[str, Weight]) -> dict[str, Point]:
    """Returns the inputs of a block that something must be known of."""
    points: dict[str, Point] = {}
    for name, each in schemes.items():
        weight = visible[name]
        assert weight.sees is not None
        products = each.rounding == "gptq"
        squares = job.plan.thresholds or (each.objective is not None and not (products and each.objective == "mean"))
        if products or squares:
            known = points.get(weight.sees, Point(weight.module, stack_of(weight), False, False))
            points[weight.sees] = replace(known, squares=known.squares or squares, products=known.products or products)
    return points


def _counted(start: Callable[[Batch], None], ticks: _Ticks) -> Callable[[Batch], None]:
    def before(batch: Batch) -> None:
        start(batch)
        ticks.add()

    return before


def _parted(text: Text, apart: Collection[int]) -> Iterator[Text]:
    """Yields the text without some documents, and these alone."""
    sides: tuple[list[Window], list[Window]] = ([], [])
    for window in text.windows:
        sides[window.document in apart].append(window)
    yield from (replace(text, windows=tuple(side)) for side in sides if side)


def _positions_at_once(checkpoint: Checkpoint, text: Text, device: str) -> int:
    """Returns how many positions a batch may have: few enough for the caches, and so many that threads stay few."""
    width = int(checkpoint.config.get_text_config().hidden_size)
    room, most = BLOCK_ACTIVATIONS_BYTES, BLOCK_POSITIONS
    if is_gpu(device):
        room, most = GPU_BLOCK_ACTIVATIONS_BYTES, GPU_BLOCK_POSITIONS
    roomy = min(max(room // (4 * KEPT_PER_POSITION * width), 64), most)
    return max(roomy, sum(window.length for window in text.windows) // MOST_BATCHES)


def check_plan(checkpoint: Checkpoint, plan: Plan, text: Text | None) -> None:
    """Raises if a plan cannot be carried out with this model and text."""
    unknown = [each.name for each in plan.layers if each.name not in checkpoint.architecture.weights]
    if unknown:
        raise InputError(f"the plan names {unknown[0]}, which {checkpoint.target} does not have; plan for this model")
    if text is None:
        if plan.reads_text:
            raise InputError(f"the plan ({plan.policy}) reads text, and none was given; give its calibration text")
        return
    missing = [code for code in plan.languages if code not in text.languages]
    if missing:
        raise InputError(f"the plan counts {', '.join(missing)}, of which the text has none; give the plan's text")
    if plan.reads_text and not any(weight > 0 for weight in plan.languages.values()):
        raise InputError("the plan reads text and gives no language a weight above 0; at least one must count")
