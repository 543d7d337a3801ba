"""A forward pass over text that counts which experts every document reaches, with one block in memory at a time."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from fairbits.core.errors import InputError
from fairbits.core.memory import GPU_STATES_BYTES, STATES_BYTES
from fairbits.core.progress import Progress
from fairbits.forward.batches import batches
from fairbits.forward.experts import BlockExperts, ExpertCounter, expert_points
from fairbits.forward.lockstep import lockstep, positions_at_once
from fairbits.forward.streaming import BlockLoader
from fairbits.forward.windows import Text, Window
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.device import is_gpu
from fairbits.models.streaming_model import walk_dtype


def count_by_document(
    checkpoint: Checkpoint, text: Text, *, device: str = "cpu", progress: Progress | None = None
) -> tuple[BlockExperts, ...]:
    """Returns the counts of every block that has experts; their rows are the documents of the text."""
    points = expert_points(checkpoint.architecture)
    counter = ExpertCounter(points, torch.arange(len(text.lang)), device=device)
    dtype = walk_dtype(checkpoint, device)
    room = (GPU_STATES_BYTES if is_gpu(device) else STATES_BYTES) // (checkpoint.hidden_size * dtype.itemsize)
    parts = list(_parts(text, room))
    for number, part in enumerate(parts if points else ()):
        _pass(checkpoint, part, counter, device=device, dtype=dtype)
        if progress is not None:
            progress("counting experts", number + 1, len(parts))
    found = counter.tables()
    if not found:
        raise InputError(
            f"{checkpoint.target} has no experts whose router can be observed; only text for a mixture of experts can "
            "be chosen by them"
        )
    return found


def _parts(text: Text, room: int) -> Iterator[Text]:
    """Yields the text in parts of at most this many positions, or of one window."""
    windows: list[Window] = []
    held = 0
    for window in text.windows:
        if windows and held + window.length > room:
            yield replace(text, windows=tuple(windows))
            windows, held = [], 0
        windows.append(window)
        held += window.length
    yield replace(text, windows=tuple(windows))


def _pass(checkpoint: Checkpoint, text: Text, counter: ExpertCounter, *, device: str, dtype: torch.dtype) -> None:
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
