"""The engine: rounds a model by a plan, one block in memory at a time.

The text passes every block twice. First the block has its full-precision weights, and the inputs of its layers are
observed (`hessian`); then all its maps are rounded for these inputs. The second time it has its codes: the error of
each language is measured, and the outputs become the inputs of the next block. So every block is rounded for what the
quantized blocks before it produce, and can compensate for their errors. In between, learning may refine the codes
(`refinement`).

Resuming. A block depends on the text and on the codes of the blocks before it, and on nothing else: no random state and
no sum is carried from one block to the next. So an interrupted run loads its finished blocks, passes the text through
them once, and rounds the remaining ones to the same codes as without interruption.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.memory import GPU_WALK_STATES_BYTES
from fairbits.core.progress import Progress
from fairbits.forward.batches import Batch, batches
from fairbits.forward.lockstep import Lockstep, lockstep, positions_at_once
from fairbits.forward.recorder import is_observable
from fairbits.forward.windows import Text, Window
from fairbits.models.architecture.records import Block
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu
from fairbits.models.io.read_ahead import ReadAhead
from fairbits.models.io.stored_weights import scale_dtype
from fairbits.models.scales.groups import scheme_grid
from fairbits.models.streaming_model import StreamingModel, walk_dtype
from fairbits.quantization.gptq.block_rounding import BlockRounding, Counter, Finished, RoundedBlock
from fairbits.quantization.gptq.hessian import HessianAccumulator, TextLanguages, input_points
from fairbits.quantization.gptq.output_errors import OutputErrors
from fairbits.quantization.gptq.ranks import ALONE, Ranks
from fairbits.quantization.gptq.refinement import ReferenceStates, RefineBlock, refine_block
from fairbits.quantization.plan import Plan

ONE_PROCESS = "learned rounding runs in one process; start it without torchrun, or use the policy gptq"


def round_model(
    checkpoint: Checkpoint,
    plan: Plan,
    *,
    text: Text | None = None,
    device: str = "cpu",
    finished: Finished | None = None,
    refine: RefineBlock | None = None,
    ranks: Ranks = ALONE,
    dtype: torch.dtype | None = None,
    on_device: bool = False,
    progress: Progress | None = None,
) -> Iterator[RoundedBlock]:
    """Yields all blocks in the order of the forward pass, then what lies outside them.

    With `text` the error of each of its languages is measured, and schemes that read text can be executed; without it,
    weights are read one by one and only codes are computed. `finished` gives the blocks that an interrupted run
    already has: the text only passes through them, and the codes of the others are the same as without interruption.
    `refine` finds better codes for each block that text reaches, before the next block gets its outputs. Several
    `ranks` share the work, and each of them yields all blocks; `refine` needs a single one. `dtype` is the type in
    which text passes through the blocks, by default that of `walk_dtype`, and float32 with `refine`. Codes are on the
    CPU in the end, unless they are to stay `on_device`.
    """
    check_plan(checkpoint, plan, text)
    if refine is not None and text is None:
        raise InputError("refining codes needs text, and none was given; give the plan's calibration text")
    if refine is not None and not ranks.alone:
        raise InputError(ONE_PROCESS)
    narrow = dtype is None and refine is None and is_gpu(device) and scale_dtype(checkpoint).itemsize == 2
    if dtype is None:
        dtype = walk_dtype(checkpoint, device) if narrow else torch.float32
    finished, ticks = finished or (lambda _index: None), Counter(progress)
    job = BlockRounding(checkpoint, plan, finished, ticks, device, dtype, narrow, refine, ranks)
    found = _without_text(job) if text is None else _with_text(job, text)
    return found if on_device or not is_gpu(device) else (block.on("cpu") for block in found)


def _without_text(job: BlockRounding) -> Iterator[RoundedBlock]:
    """Yields the blocks, reading weights only."""
    job.ticks.total = len(job.plan.schemes)
    indices = (*(block.index for block in job.blocks), None)
    with job.read_ahead(indices) as reader:
        for index in indices:
            done = job.finished(index)
            if done is None:
                done, _ = job.round_block(index, reader)
            else:
                job.ticks.add(len(job.schemes(index)))
            yield done


def _with_text(job: BlockRounding, text: Text) -> Iterator[RoundedBlock]:
    """Yields the blocks, walking through them with all of the text, as far as there is anything to round."""
    positions = positions_at_once(job.checkpoint, text, device=job.device, dtype=job.dtype)
    parts = _split_documents(text, job.refine.held_out if job.refine else ())
    whole = [batch for part in parts for batch in batches(part, positions=positions)]
    far = max((block.index + 1 for block in job.blocks if job.schemes(block.index)), default=0)
    job.ticks.total = len(job.plan.schemes) + (2 * len(job.ranks.split(whole)) + job.refinement_ticks) * far
    with job.read_ahead((None, *(block.index for block in job.blocks[:far])), whole=True) as reader:
        # the embedding is yielded last but rounded first, as the blocks must get its quantized outputs
        outside = job.finished(None) or job.round_block(None, reader)[0]
        if any(job.finished(block.index) is None for block in job.blocks[:far]):
            languages = TextLanguages.of(text, job.plan.languages)
            yield from _round_walking(job, job.blocks[:far], whole, languages=languages, outside=outside, reader=reader)
        else:
            far = 0
        yield from (job.finished(block.index) or job.round_block(block.index, reader)[0] for block in job.blocks[far:])
    yield outside


def _round_walking(
    job: BlockRounding,
    blocks: Sequence[Block],
    whole: Sequence[Batch],
    *,
    languages: TextLanguages,
    outside: RoundedBlock,
    reader: ReadAhead,
) -> Iterator[RoundedBlock]:
    """Yields the blocks, while all batches of this rank walk through them in lock step.

    For refinement the hidden states of the full-precision model walk along. They pass a block right after it is
    loaded, also if it is finished already: the next block needs them.
    """
    apart = _states_in_main_memory(job, whole)
    place, rounds = "cpu" if apart else job.device, job.ranks.rounds(len(whole))
    chosen = [batch.on(place) for batch in job.ranks.split(whole)]
    model = StreamingModel(job.checkpoint, job.device, dtype=job.dtype, read=reader.read, outside=place)
    model.load_outside(torch.unique(torch.cat([batch.ids for batch in whole])), outside.layers)
    reference = ReferenceStates()
    paths = [block.module for block in blocks]
    with lockstep(model.model, paths, chosen, device=job.device if apart else None) as walk:
        for block in blocks:
            done = job.finished(block.index)
            targets: tuple[Tensor, ...] = ()
            if job.refine is not None:
                model.load_block(block, {})
                targets = reference.advance(walk.paused())
            if done is None:
                done = _calibrate_block(
                    job, block, model, walk=walk, rounds=rounds, languages=languages, targets=targets, reader=reader
                )
            else:
                model.load_block(block, done.layers)
                with job.precision():
                    walk.advance(lambda _batch: job.ticks.add())
                job.ticks.add(len(chosen) + len(job.schemes(block.index)) + job.refinement_ticks)
            model.release_block(block)
            yield done


def _calibrate_block(
    job: BlockRounding,
    block: Block,
    model: StreamingModel,
    *,
    walk: Lockstep,
    rounds: int,
    languages: TextLanguages,
    targets: tuple[Tensor, ...],
    reader: ReadAhead,
) -> RoundedBlock:
    """Returns a block, rounded for its inputs and refined for its targets, and moves the walk past it."""
    modules = dict(model.model.named_modules())
    visible = {name: weight for name, weight in block.linears.items() if is_observable(weight, modules)}
    schemes = job.schemes(block.index)
    experts = {name: weight for name, weight in block.linears.items() if weight.expert is not None}
    points = input_points({**visible, **experts}, schemes, thresholds=job.plan.thresholds)
    inputs = HessianAccumulator(languages, points, ranks=job.ranks, rounds=rounds)
    if points:
        if not targets:  # otherwise it was loaded for them
            model.load_block(block, {})
        with job.precision(), inputs.observe(model.model) as start:
            walk.compute(_count_batches(start, job.ticks))
    else:
        job.ticks.add(len(walk))
    done, changes = job.round_block(block.index, reader, inputs)
    del inputs  # its matrices may be larger than the block
    if job.refine is not None:
        changes.clear()
        layers = {name: (each, scheme_grid(schemes[name])) for name, each in done.layers.items()}
        paused, tick = walk.paused(), job.ticks.add
        codes = refine_block(job.refine, block, layers, model=model, batches=paused, targets=targets, tick=tick)
        done, changes = job.replace_codes(done, codes, reader)
    model.load_block(block, done.layers)
    observed = {name: (each, model.to_device(changes.pop(name))) for name, each in visible.items() if name in changes}
    errors = OutputErrors(languages, observed, ranks=job.ranks)
    with job.precision(), errors.observe(model.model) as start:
        walk.advance(_count_batches(start, job.ticks))
    return replace(done, outcomes=tuple(replace(each, error=errors.error(each.name)) for each in done.outcomes))


def _count_batches(start: Callable[[Batch], None], ticks: Counter) -> Callable[[Batch], None]:
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


def _states_in_main_memory(job: BlockRounding, whole: Sequence[Batch]) -> bool:
    """Returns whether the hidden states of all batches are too large for the GPU.

    There are three: the embedding, which the model holds on to, and the input and output of a block. It depends on the
    whole text, also with several ranks, so that codes do not depend on their number.
    """
    positions = sum(batch.size for batch in whole)
    states = 3 * positions * _width(job.checkpoint) * job.dtype.itemsize
    return is_gpu(job.device) and job.refine is None and states > GPU_WALK_STATES_BYTES


def _width(checkpoint: Checkpoint) -> int:
    return int(checkpoint.config.get_text_config().hidden_size)


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
