"""Which rows an overlay holds: those that save most for their bytes, as far as the budget reaches."""

from collections.abc import Sequence

import numpy as np
import torch

from fairbits.overlays.forms import Candidate
from fairbits.overlays.overlay import Patch


def patches_within(candidates: Sequence[Candidate], budget: float | None) -> tuple[Patch, ...]:
    """Returns the rows that save most per byte and take at most `budget` bytes together; None: all rows of all maps.

    Rows that save nothing are left out even where there is room.
    """
    if budget is None:
        return tuple(each.patch(None) for each in candidates)
    size = np.concatenate([np.full(len(each.saved), each.row_bytes) for each in candidates])
    density = np.concatenate([each.saved.numpy() for each in candidates]) / size
    order = np.argsort(-density, kind="stable")
    taken = np.zeros(len(order), dtype=bool)
    taken[order[(np.cumsum(size[order]) <= budget) & (density[order] > 0)]] = True
    ends = np.cumsum([len(each.saved) for each in candidates])
    found = []
    for each, mine in zip(candidates, np.split(taken, ends[:-1]), strict=True):
        if mine.any():
            found.append(each.patch(None if mine.all() else torch.from_numpy(np.flatnonzero(mine))))
    return tuple(found)
