"""The engine: rounds a model by a plan, one block in memory at a time.

The text passes every block twice. First the block has its full-precision weights, and the inputs of its linear maps are
observed (`hessian`); then all its maps are rounded for these inputs. The second time it has its codes: the error of
each language is measured, and the outputs become the inputs of the next block. So every block is rounded for what the
quantized blocks before it produce, and can compensate for their errors. In between, learning may refine the codes
(`refinement`).

Resuming. A block depends on the text and on the codes of the blocks before it, and on nothing else: no random state and
no sum is carried from one block to the next. So an interrupted run loads its finished blocks, passes the text through
them once, and rounds the remaining ones to the same codes as without interruption.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import torch
from torch import Tensor

from fairbits.errors import InputError
from fairbits.measure.passes.batches import Batch, batches
from fairbits.measure.passes.lockstep import Lockstep, lockstep
from fairbits.measure.passes.recorder import is_observable
from fairbits.measure.passes.text import Text, Window
from fairbits.memory import BLOCK_ACTIVATIONS_BYTES, BLOCK_POSITIONS, GPU_BLOCK_ACTIVATIONS_BYTES, GPU_BLOCK_POSITIONS
from fairbits.model.architecture import Block
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.device import is_gpu
from fairbits.model.files.stored_weights import scale_dtype
from fairbits.model.groups import Codes, grid_of
from fairbits.model.scheme import Scheme
from fairbits.model.streaming_model import StreamingModel
from fairbits.progress import Progress
from fairbits.quantization.plan import LayerResult, LearningResult, Plan
from fairbits.quantization.rounding.hessian import HessianAccumulator, input_points
from fairbits.quantization.rounding.layer import language_scales, layer_result, matrix, round_layer, weight_change
from fairbits.quantization.rounding.observation import TextLanguages
from fairbits.quantization.rounding.output_errors import OutputErrors
from fairbits.quantization.rounding.ranks import ALONE, Ranks
from fairbits.quantization.rounding.refinement import NOT_LEARNED, ReferenceStates, RefineBlock, refine_block

MOST_BATCHES = 256
"""The largest number of batches, each of which has a thread; most of the time it waits."""
ACTIVATIONS_PER_POSITION = 16
"""About how many numbers per position and unit of width a block computes."""
ONE_PROCESS = "learned rounding runs in one process; start it without torchrun, or use the policy gptq"


@dataclass(frozen=True, eq=False)
class RoundedBlock:
    """A block whose linear maps are rounded; `index` is None for what lies outside the blocks.

    `layers`      codes by the name of the tensor in the checkpoint
    `outcomes`    size and errors of each
    `thresholds`  scales of each language of the plan alone, (languages, out, groups), if the plan has `thresholds`
    `learned`     the result of learning, in the last block only
    """

    index: int | None
    layers: Mapping[str, Codes]
    outcomes: tuple[LayerResult, ...]
    thresholds: Mapping[str, Tensor] = field(default_factory=dict)
    learned: LearningResult | None = None


Finished = Callable[[int | None], RoundedBlock | None]


def round_model(
    checkpoint: Checkpoint,
    plan: Plan,
    *,
    text: Text | None = None,
    device: str = "cpu",
    finished: Finished | None = None,
    refine: RefineBlock | None = None,
    ranks: Ranks = ALONE,
    progress: Progress | None = None,
) -> Iterator[RoundedBlock]:
    """Yields all blocks in the order of the forward pass, then what lies outside them.

    With `text` the error of each of its languages is measured, and schemes that read text can be executed; without it,
    weights are read one by one and only codes are computed. `finished` gives the blocks that an interrupted run
    already has: the text only passes through them, and the codes of the others are the same as without interruption.
    `refine` finds better codes for each block that text reaches, before the next block gets its outputs. Several
    `ranks` share the work, and each of them yields all blocks; `refine` needs a single one.
    """
    check_plan(checkpoint, plan, text)
    if refine is not None and text is None:
        raise InputError("refining codes needs text, and none was given; give the plan's calibration text")
    if refine is not None and not ranks.alone:
        raise InputError(ONE_PROCESS)
    job = _Rounding(checkpoint, plan, finished or (lambda _index: None), _Counter(progress), refine, ranks)
    return _without_text(job) if text is None else _with_text(job, text, device)


class _Counter:
    """Counts what is done, and reports it."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress, self._done, self.total = progress, 0, 0

    def add(self, count: int = 1) -> None:
        self._done += count
        if self._progress is not None:
            self._progress("rounding blocks", self._done, self.total)


@dataclass(frozen=True, eq=False)
class _Rounding:
    checkpoint: Checkpoint
    plan: Plan
    finished: Finished
    ticks: _Counter
    refine: RefineBlock | None = None
    ranks: Ranks = ALONE

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.checkpoint.architecture.blocks

    @property
    def refinement_ticks(self) -> int:
        return 0 if self.refine is None else self.refine.ticks

    def schemes(self, index: int | None) -> dict[str, Scheme]:
        """Returns the schemes of the layers of a block that are quantized."""
        weights = self.checkpoint.architecture.weights
        return {name: scheme for name, scheme in self.plan.schemes.items() if weights[name].block == index}

    def round_block(
        self, index: int | None, inputs: HessianAccumulator | None = None
    ) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns a block with its codes, still without the errors of languages, and ΔW of every map in it."""
        dtype, weights = scale_dtype(self.checkpoint), self.checkpoint.architecture.weights
        layers: dict[str, Codes] = {}
        outcomes: list[LayerResult] = []
        changes, thresholds = {}, {}
        # maps that share an input are next to each other: its statistics and its factor are computed once
        statistics_of = lru_cache(maxsize=1)(lambda sees: None if inputs is None else inputs.statistics(sees))
        for name, scheme in self._own_schemes(index).items():
            W, own = matrix(self.checkpoint, weights[name]), statistics_of(weights[name].sees)
            try:
                layers[name], notes = round_layer(W, scheme, dtype=dtype, inputs=own)
            except InputError as problem:
                raise InputError(f"{name}: {problem}") from None
            outcome, changes[name] = layer_result(weights[name], W, layers[name], scheme, notes)
            outcomes.append(outcome)
            if self.plan.thresholds and own is not None and own.squares is not None:
                squares = own.squares[[own.languages.index(code) for code in self.plan.languages]]
                thresholds[name] = language_scales(W, scheme, squares, dtype=dtype)
            self.ticks.add()
        done = RoundedBlock(index, layers, tuple(outcomes), thresholds)
        return (done, changes) if self.ranks.alone else self._join(done, changes, wanted=inputs is not None)

    def _own_schemes(self, index: int | None) -> dict[str, Scheme]:
        """Returns the schemes of the layers that this rank rounds; those that share an input stay together."""
        weights, schemes = self.checkpoint.architecture.weights, self.schemes(index)
        costs: dict[str, float] = {}
        for name, scheme in schemes.items():
            (out, width), sees = weights[name].shape, weights[name].sees or name
            # a product of each column with those before it; and once for each input, the factor of H
            cost = width * (out + (0 if sees in costs else width)) if scheme.rounding == "gptq" else 1
            costs[sees] = costs.get(sees, 0.0) + cost * width
        owner = self.ranks.owners(costs)
        return {name: each for name, each in schemes.items() if owner[weights[name].sees or name] == self.ranks.rank}

    def _join(
        self, part: RoundedBlock, changes: dict[str, Tensor], *, wanted: bool
    ) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns the block with what all ranks have rounded of it; ΔW of the others' maps only where it is wanted."""
        parts = list(self.ranks.each(part))
        layers = {name: codes for each in parts for name, codes in each.layers.items()}
        outcomes = {result.name: result for each in parts for result in each.outcomes}
        thresholds = {name: scales for each in parts for name, scales in each.thresholds.items()}
        weights, schemes = self.checkpoint.architecture.weights, self.schemes(part.index)
        for name in schemes.keys() - changes.keys() if wanted else ():
            changes[name] = weight_change(matrix(self.checkpoint, weights[name]), layers[name])
        self.ticks.add(len(schemes) - len(part.layers))
        done = RoundedBlock(
            part.index,
            {name: layers[name] for name in schemes},
            tuple(outcomes[name] for name in schemes),
            {name: thresholds[name] for name in schemes if name in thresholds},
        )
        return done, changes

    def replace_codes(self, done: RoundedBlock, codes: Mapping[str, Codes]) -> tuple[RoundedBlock, dict[str, Tensor]]:
        """Returns a block with other codes for some of its maps, and ΔW of every map in it."""
        weights, schemes = self.checkpoint.architecture.weights, self.schemes(done.index)
        layers = {**done.layers, **codes}
        outcomes, changes = [], {}
        for old in done.outcomes:
            name, notes = old.name, old.notes if old.name in codes else (*old.notes, NOT_LEARNED)
            W = matrix(self.checkpoint, weights[name])
            outcome, changes[name] = layer_result(weights[name], W, layers[name], schemes[name], notes)
            outcomes.append(outcome)
        return replace(done, layers=layers, outcomes=tuple(outcomes)), changes


def _without_text(job: _Rounding) -> Iterator[RoundedBlock]:
    """Yields the blocks, reading weights only."""
    job.ticks.total = len(job.plan.schemes)
    for index in (*(block.index for block in job.blocks), None):
        done = job.finished(index)
        if done is None:
            done, _ = job.round_block(index)
        else:
            job.ticks.add(len(job.schemes(index)))
        yield done


def _with_text(job: _Rounding, text: Text, device: str) -> Iterator[RoundedBlock]:
    """Yields the blocks, walking through them with all of the text, as far as there is anything to round."""
    positions = _positions_at_once(job.checkpoint, text, device)
    parts = _split_documents(text, job.refine.held_out if job.refine else ())
    whole = [batch for part in parts for batch in batches(part, positions=positions)]
    far = max((block.index + 1 for block in job.blocks if job.schemes(block.index)), default=0)
    job.ticks.total = len(job.plan.schemes) + (2 * len(job.ranks.split(whole)) + job.refinement_ticks) * far
    # the embedding is yielded last but rounded first, as the blocks must get its quantized outputs
    outside = job.finished(None) or job.round_block(None)[0]
    if any(job.finished(block.index) is None for block in job.blocks[:far]):
        languages = TextLanguages.of(text, job.plan.languages)
        yield from _round_walking(job, job.blocks[:far], whole, device=device, languages=languages, outside=outside)
    else:
        far = 0
    yield from (job.finished(block.index) or job.round_block(block.index)[0] for block in job.blocks[far:])
    yield outside


def _round_walking(
    job: _Rounding,
    blocks: Sequence[Block],
    whole: Sequence[Batch],
    *,
    device: str,
    languages: TextLanguages,
    outside: RoundedBlock,
) -> Iterator[RoundedBlock]:
    """Yields the blocks, while all batches of this rank walk through them in lock step.

    For refinement the hidden states of the full-precision model walk along. They pass a block right after it is
    loaded, also if it is finished already: the next block needs them.
    """
    chosen, rounds = [batch.on(device) for batch in job.ranks.split(whole)], job.ranks.rounds(len(whole))
    ids = [each.flatten() for batch in whole for name, each in batch.inputs.items() if name.endswith("input_ids")]
    model = StreamingModel(job.checkpoint, device)
    model.load_outside(torch.unique(torch.cat(ids)), outside.layers)
    reference = ReferenceStates()
    with lockstep(model.model, [block.module for block in blocks], chosen) as walk:
        for block in blocks:
            done = job.finished(block.index)
            targets: tuple[Tensor, ...] = ()
            if job.refine is not None:
                model.load_block(block, {})
                targets = reference.advance(walk.paused())
            if done is None:
                done = _calibrate_block(
                    job, block, model, walk=walk, rounds=rounds, languages=languages, targets=targets
                )
            else:
                model.load_block(block, done.layers)
                walk.advance(lambda _batch: job.ticks.add())
                job.ticks.add(len(chosen) + len(job.schemes(block.index)) + job.refinement_ticks)
            model.release_block(block)
            yield done


def _calibrate_block(
    job: _Rounding,
    block: Block,
    model: StreamingModel,
    *,
    walk: Lockstep,
    rounds: int,
    languages: TextLanguages,
    targets: tuple[Tensor, ...],
) -> RoundedBlock:
    """Returns a block, rounded for its inputs and refined for its targets, and moves the walk past it."""
    modules = dict(model.model.named_modules())
    visible = {name: weight for name, weight in block.linears.items() if is_observable(weight, modules)}
    schemes = job.schemes(block.index)
    points = input_points(visible, schemes, thresholds=job.plan.thresholds)
    inputs = HessianAccumulator(languages, points, ranks=job.ranks, rounds=rounds)
    if points:
        if not targets:  # otherwise it was loaded for them
            model.load_block(block, {})
        with inputs.observe(model.model) as start:
            walk.compute(_count_batches(start, job.ticks))
    else:
        job.ticks.add(len(walk))
    done, changes = job.round_block(block.index, inputs)
    del inputs  # its matrices may be larger than the block
    if job.refine is not None:
        changes.clear()
        layers = {name: (each, grid_of(schemes[name])) for name, each in done.layers.items()}
        paused, tick = walk.paused(), job.ticks.add
        codes = refine_block(job.refine, block, layers, model=model, batches=paused, targets=targets, tick=tick)
        done, changes = job.replace_codes(done, codes)
    model.load_block(block, done.layers)
    observed = {name: (each, model.to_device(changes.pop(name))) for name, each in visible.items() if name in changes}
    errors = OutputErrors(languages, observed, ranks=job.ranks)
    with errors.observe(model.model) as start:
        walk.advance(_count_batches(start, job.ticks))
    return replace(done, outcomes=tuple(replace(each, error=errors.error(each.name)) for each in done.outcomes))


def _count_batches(start: Callable[[Batch], None], ticks: _Counter) -> Callable[[Batch], None]:
    def before(batch: Batch) -> None:
        start(batch)
        ticks.add()

    return before


def _split_documents(text: Text, held_out: Collection[int]) -> Iterator[Text]:
    """Yields the text without the held-out documents, and these alone."""
    sides: tuple[list[Window], list[Window]] = ([], [])
    for window in text.windows:
        sides[window.document in held_out].append(window)
    yield from (replace(text, windows=tuple(side)) for side in sides if side)


def _positions_at_once(checkpoint: Checkpoint, text: Text, device: str) -> int:
    """Returns how many positions a batch may have: few enough for the caches, enough for the number of threads."""
    width = int(checkpoint.config.get_text_config().hidden_size)
    room, most = BLOCK_ACTIVATIONS_BYTES, BLOCK_POSITIONS
    if is_gpu(device):
        room, most = GPU_BLOCK_ACTIVATIONS_BYTES, GPU_BLOCK_POSITIONS
    fitting = min(max(room // (4 * ACTIVATIONS_PER_POSITION * width), 64), most)
    return max(fitting, sum(window.length for window in text.windows) // MOST_BATCHES)


def check_plan(checkpoint: Checkpoint, plan: Plan, text: Text | None) -> None:
    """Raises if a plan cannot be executed with this model and text."""
    unknown = [each.name for each in plan.layers if each.name not in checkpoint.architecture.weights]
    if unknown:
        raise InputError(f"the plan names {unknown[0]}, which {checkpoint.target} does not have; plan for this model")
    if text is None:
        if plan.reads_text:
            raise InputError(f"the plan ({plan.policy}) reads text, and none was given; give its calibration text")
        return
    missing = [code for code in plan.languages if code not in text.languages]
    if missing:
        raise InputError(
            f"the plan gives weight to {', '.join(missing)}, and the text has none of it; give the plan's text"
        )
    if plan.reads_text and not any(weight > 0 for weight in plan.languages.values()):
        raise InputError("the plan reads text and gives no language a weight above 0; at least one must have weight")
