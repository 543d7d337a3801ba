"""A forward pass over text that counts which experts every document reaches, with one block in memory at a time."""

from dataclasses import replace

import torch

from fairbits.core.errors import InputError
from fairbits.core.memory import GPU_STATES_BYTES, STATES_BYTES
from fairbits.core.progress import Progress
from fairbits.forward.batches import batches, in_parts
from fairbits.forward.experts import BlockExperts, ExpertCounter, expert_points
from fairbits.forward.lockstep import bytes_per_position, lockstep, positions_at_once
from fairbits.forward.streaming import BlockLoader
from fairbits.forward.windows import TokenizedText
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu
from fairbits.models.streaming_model import walk_dtype


def count_by_document(
    checkpoint: Checkpoint, text: TokenizedText, *, device: str = "cpu", progress: Progress | None = None
) -> tuple[BlockExperts, ...]:
    """Returns the counts of every block that has experts; their rows are the documents of the text."""
    points = expert_points(checkpoint.architecture)
    counter = ExpertCounter(points, torch.arange(len(text.lang)), device=device)
    dtype = walk_dtype(checkpoint, device)
    room = (GPU_STATES_BYTES if is_gpu(device) else STATES_BYTES) // bytes_per_position(checkpoint, dtype)
    parts = list(in_parts(text.windows, lambda window: window.length, room=room, most=len(text.windows)))
    for number, windows in enumerate(parts if points else ()):
        _pass(checkpoint, replace(text, windows=tuple(windows)), counter, device=device, dtype=dtype)
        if progress is not None:
            progress("counting experts", number + 1, len(parts))
    tables = counter.tables()
    if not tables:
        raise InputError(
            f"{checkpoint.target} has no experts whose router can be observed; only text for a mixture of experts can "
            "be chosen by them"
        )
    return tables


def _pass(
    checkpoint: Checkpoint, text: TokenizedText, counter: ExpertCounter, *, device: str, dtype: torch.dtype
) -> None:
    """Passes the text through the model, up to its last block that has experts."""
    loader = BlockLoader(checkpoint, device, dtype=dtype)
    model = loader.model.model
    modules = dict(model.named_modules())
    positions = positions_at_once(checkpoint, text, device=device, dtype=dtype)
    chosen = [batch.on(device) for batch in batches(text, positions=positions)]
    ids = torch.cat([batch.inputs["input_ids"].flatten() for batch in chosen])
    loader.model.load_outside(torch.unique(ids).cpu(), {})
    last = max(point.block for point in counter.points)
    with lockstep(model, [block.module for block in loader.blocks], chosen) as walk:
        for index in loader.loaded(range(last + 1)):
            handles = counter.attach(modules, block=index)
            try:
                walk.advance(counter.start)
            finally:
                for handle in handles:
                    handle.remove()
