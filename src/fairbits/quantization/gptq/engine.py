"""The engine: rounds a model by a plan, one block in memory at a time.

The text passes every block twice. First the block has its full-precision weights, and the inputs of its layers are
observed (`hessian`); then all its layers are rounded for these inputs. The second time it has its codes: the error of
each language is measured, and the outputs become the inputs of the next block. So every block is rounded for what the
quantized blocks before it produce, and can compensate for their errors. In between, learning may refine the codes
(`RefineBlock`).

Resuming. A block depends on the text and on the codes of the blocks before it, and on nothing else: no random state and
no sum is carried from one block to the next. So an interrupted run loads its finished blocks, passes the text through
them once, and rounds the remaining ones to the same codes as without interruption.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.memory import GPU_WALK_STATES_BYTES
from fairbits.core.progress import ROUNDING, Progress
from fairbits.forward.batches import Batch, batches
from fairbits.forward.lockstep import Lockstep, VisitProgress, lockstep, positions_at_once
from fairbits.forward.recorder import is_observable
from fairbits.forward.windows import TokenizedText, Window
from fairbits.models.architecture.architecture import Architecture, Block
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu
from fairbits.models.scales.groups import Codes
from fairbits.models.streaming_model import ReadAhead, StreamingModel, walk_dtype
from fairbits.quantization.gptq.block_rounding import BlockContext, BlockRounding, Finished, RefineBlock, RoundedBlock
from fairbits.quantization.gptq.hessian import HessianAccumulator, TextLanguages, input_points
from fairbits.quantization.gptq.output_errors import OutputErrors
from fairbits.quantization.gptq.ranks import ALONE, Ranks
from fairbits.quantization.plan import Plan

ONE_PROCESS = "learned rounding runs in one process; start it without torchrun, or use the policy gptq"


def round_model(
    checkpoint: Checkpoint,
    plan: Plan,
    *,
    text: TokenizedText | None = None,
    device: str = "cpu",
    finished: Finished | None = None,
    refine: RefineBlock | None = None,
    ranks: Ranks = ALONE,
    dtype: torch.dtype | None = None,
    on_device: bool = False,
    progress: Progress | None = None,
) -> Iterator[RoundedBlock]:
    """Yields all blocks in the order of the forward pass, then the layers outside them.

    With `text` the error of each of its languages is measured. `finished` gives the blocks that an interrupted run has.
    `refine` finds better codes for each block before the next one gets its outputs. Several `ranks` share the work, and
    each of them yields all blocks. `dtype` is the type in which text passes, by default `walk_dtype`.
    """
    check_plan(plan, checkpoint.architecture, text)
    if refine is not None and text is None:
        raise InputError("refining codes needs text; give the plan's calibration text")
    if refine is not None and not ranks.alone:
        raise InputError(ONE_PROCESS)
    narrow = dtype is None and refine is None and is_gpu(device) and checkpoint.stated_dtype.itemsize == 2
    if dtype is None:
        dtype = walk_dtype(checkpoint, device) if narrow else torch.float32
    total = checkpoint.architecture.n_blocks
    finished, counter = finished or (lambda _index: None), VisitProgress(progress, ROUNDING, total=total)
    job = BlockRounding(checkpoint, plan, finished, counter, device, dtype, narrow, refine, ranks)
    rounded = _without_text(job) if text is None else _with_text(job, text)
    return rounded if on_device or not is_gpu(device) else (block.on("cpu") for block in rounded)


def _without_text(job: BlockRounding) -> Iterator[RoundedBlock]:
    job.counter.visits = len(job.plan.schemes)
    indices = (*(block.index for block in job.blocks), None)
    with job.read_ahead(indices) as reader:
        for index in indices:
            done = job.finished(index)
            if done is None:
                done, _ = job.round_block(index, reader)
            else:
                job.counter.add(len(job.schemes(index)))
            yield done


def _with_text(job: BlockRounding, text: TokenizedText) -> Iterator[RoundedBlock]:
    """Yields the blocks, walking through them with all of the text, as far as there is anything to round."""
    positions = positions_at_once(job.checkpoint.hidden_size, text, device=job.device, dtype=job.dtype)
    parts = _split_documents(text, job.refine.held_out if job.refine else ())
    whole = [batch for part in parts for batch in batches(part, positions=positions)]
    far = max((block.index + 1 for block in job.blocks if job.schemes(block.index)), default=0)
    job.counter.visits = len(job.plan.schemes) + (2 * len(job.ranks.split(whole)) + job.refinement_ticks) * far
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
    in_main_memory = _states_in_main_memory(job, whole)
    place, rounds = "cpu" if in_main_memory else job.device, job.ranks.rounds(len(whole))
    chosen = [batch.on(place) for batch in job.ranks.split(whole)]
    model = StreamingModel(job.checkpoint, job.device, dtype=job.dtype, read=reader.read, outside=place)
    model.load_outside(torch.unique(torch.cat([batch.ids for batch in whole])), outside.layers)
    paths = [block.module for block in blocks]
    with lockstep(model.model, paths, chosen, device=job.device if in_main_memory else None) as walk:
        text = _WalkingText(job, model, walk, languages, rounds, reader)
        for block in blocks:
            targets = text.advance_reference(block) if job.refine is not None else ()
            done = job.finished(block.index)
            if done is None:
                done = text.calibrate(block, targets)
            else:
                model.load_block(block, done.layers)
                with job.precision():
                    walk.advance(lambda _batch: job.counter.add())
                job.counter.add(len(chosen) + len(job.schemes(block.index)) + job.refinement_ticks)
            model.release_block(block)
            yield done


@dataclass(eq=False)
class _WalkingText:
    """The batches of this rank, paused before a block of the model that they walk through."""

    job: BlockRounding
    model: StreamingModel
    walk: Lockstep
    languages: TextLanguages
    rounds: int  # how often each rank has a batch, if there are several
    reader: ReadAhead
    reference: tuple[Tensor | None, ...] = ()  # full-precision hidden states, which walk along for refinement

    @torch.no_grad()
    def advance_reference(self, block: Block) -> tuple[Tensor, ...]:
        """Returns the reference states after a block in full precision, which is loaded."""
        self.model.load_block(block, {})
        paused = self.walk.paused()
        pairs = zip(paused, self.reference or (None,) * len(paused), strict=True)
        after = tuple(batch.output(states if batch.continues else None) for batch, states in pairs)
        self.reference = after
        return after

    def calibrate(self, block: Block, targets: tuple[Tensor, ...]) -> RoundedBlock:
        """Returns a block, rounded for its inputs and refined for its targets, and moves the walk past it."""
        job, model = self.job, self.model
        modules = dict(model.model.named_modules())
        visible = {name: weight for name, weight in block.linears.items() if is_observable(weight, modules)}
        experts = {name: weight for name, weight in block.linears.items() if weight.expert is not None}
        points = input_points({**visible, **experts}, job.schemes(block.index), thresholds=job.plan.thresholds)
        inputs = HessianAccumulator(self.languages, points, ranks=job.ranks, rounds=self.rounds)
        if points:
            if not targets:  # otherwise it was loaded for them
                model.load_block(block, {})
            with job.precision(), inputs.observe(model.model) as start:
                self.walk.compute(job.counter.counting(start))
        else:
            job.counter.add(len(self.walk))
        done, changes = job.round_block(block.index, self.reader, inputs)
        del inputs  # its matrices may be larger than the block
        if job.refine is not None:
            changes.clear()
            refined = self._refine(job.refine, block, done.layers, targets, modules=visible)
            done, changes = job.replace_codes(done, refined, self.reader)
        model.load_block(block, done.layers)
        observed = {name: (visible[name], model.to_device(changes.pop(name))) for name in visible if name in changes}
        errors = OutputErrors(self.languages, observed, ranks=job.ranks)
        with job.precision(), errors.observe(model.model) as start:
            self.walk.advance(job.counter.counting(start))
        return replace(done, results=tuple(replace(result, error=errors.error(result.name)) for result in done.results))

    def _refine(
        self,
        refine: RefineBlock,
        block: Block,
        layers: Mapping[str, Codes],
        targets: tuple[Tensor, ...],
        *,
        modules: Collection[str],
    ) -> Mapping[str, Codes]:
        """Returns the codes that `refine` finds for layers that are modules; the block has its first weights."""
        schemes, counter = self.job.plan.schemes, self.job.counter
        start = {name: (codes, schemes[name]) for name, codes in layers.items() if name in modules}
        if not start:
            counter.add(refine.ticks)
            return {}
        if rest := {name: codes for name, codes in layers.items() if name not in start}:
            self.model.load_block(block, rest)
        paused, model = self.walk.paused(), self.model.model
        return refine(BlockContext(block.index, block.stack, model, paused, targets, block.weights, start, counter.add))


def _split_documents(text: TokenizedText, held_out: Collection[int]) -> Iterator[TokenizedText]:
    sides: tuple[list[Window], list[Window]] = ([], [])
    for window in text.windows:
        sides[window.document in held_out].append(window)
    yield from (replace(text, windows=tuple(side)) for side in sides if side)


def _states_in_main_memory(job: BlockRounding, whole: Sequence[Batch]) -> bool:
    """Returns whether the states of the whole text, whatever the ranks, are too large for the GPU."""
    positions = sum(batch.size for batch in whole)
    states = 3 * positions * job.checkpoint.hidden_size * job.dtype.itemsize
    return is_gpu(job.device) and job.refine is None and states > GPU_WALK_STATES_BYTES


def check_plan(plan: Plan, architecture: Architecture, text: TokenizedText | None) -> None:
    """Raises if a plan cannot be executed with this model and text."""
    unknown = [layer.name for layer in plan.layers if layer.name not in architecture.weights]
    if unknown:
        raise InputError(f"the plan names {unknown[0]}, which this model does not have; make a plan for it")
    if text is None:
        if plan.reads_text:
            raise InputError(f"the plan ({plan.policy}) reads text; give its calibration text")
        return
    missing = [code for code in plan.languages if code not in text.languages]
    if missing:
        raise InputError(
            f"the plan gives weight to {', '.join(missing)}, which the text does not have; give the plan's text"
        )
    if plan.reads_text and not any(weight > 0 for weight in plan.languages.values()):
        raise InputError("the plan reads text but gives no language a weight above 0; at least one must have weight")
