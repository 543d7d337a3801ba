"""Blocks that keep only their input for the backward pass: memory grows with one block, not with the depth."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint


@contextmanager
def recomputed(blocks: Iterable[nn.Module]) -> Iterator[None]:
    """Lets the blocks forget what passes in them until the backward pass asks, and compute it a second time then.

    Hooks inside a block fire twice: without gradients on the way forward, with them on the way back.
    """
    changed = list(blocks)
    for block in changed:
        block.forward = partial(_twice, block.forward)
    try:
        yield
    finally:
        for block in changed:
            del block.forward  # the one of its class appears again


def _twice(forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Calls `forward`; every argument goes in by position, as only these pass gradients on."""

    def call(*values: Any) -> Any:
        named = dict(zip(kwargs, values[len(args) :], strict=True))
        return forward(*values[: len(args)], **named)

    return checkpoint(call, *args, *kwargs.values(), use_reentrant=True, preserve_rng_state=False)
