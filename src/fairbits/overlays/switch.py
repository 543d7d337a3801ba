"""Switch: puts the rows of an overlay into a loaded model, and takes them out again bit for bit.

It is not a `SwappedModel`, which replaces whole matrices and reads them from the checkpoint to restore them. A switch
touches only the rows that an overlay changes, between two requests of a server, and has no checkpoint to read.

Rows with codes of their own lie over those of the base, which are kept meanwhile. Where only scales change, nothing is
kept: the codes k are read off the weights. A weight is k·s rounded to the type of the model; bfloat16, the coarsest,
moves it by 2^−8/(1 + 2^−8) of its value at most, so w/s lies within ½ of k for all |k| ≤ 128, if it is not rounded to
that type again. Where a scale is 0, or a weight beyond the type, the rows are kept after all.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fairbits.errors import InputError
from fairbits.model.codes import Codes
from fairbits.model.groups import dequantize, divisors, split_like
from fairbits.model.swapped_model import matrix_at
from fairbits.overlays.overlay import BASE, Overlay, Patch

if TYPE_CHECKING:
    from transformers import PreTrainedModel


Placed = tuple[Tensor, Patch, bool]
"""A parameter as (out, in), what changes in it, and whether its rows are kept meanwhile."""


class Switch:
    """A loaded base, and which overlay lies over it now. One thread at a time may use it."""

    def __init__(self, model: "PreTrainedModel", overlays: Iterable[Overlay]) -> None:
        """Checks that every overlay fits the model, and takes their codes to where it is."""
        self._patches: dict[str, list[Placed]] = {BASE: []}
        placed: dict[int, list[Placed]] = {}
        for overlay in overlays:
            if id(overlay.patches) not in placed:
                found = ((_weight(model, patch), patch) for patch in overlay.patches)
                here = ((W, patch.on(W.device)) for W, patch in found)
                placed[id(overlay.patches)] = [(W, patch, not _is_readable(W, patch)) for W, patch in here]
            self._patches[overlay.name] = placed[id(overlay.patches)]
        self._kept: list[tuple[Tensor, Patch, Tensor | None]] = []
        self.now = BASE

    @torch.no_grad()
    def to(self, name: str) -> None:
        """Makes the model that of the overlay; what is there already costs nothing. If it fails, it is the base."""
        if name == self.now != BASE:
            return
        if name not in self._patches:
            raise InputError(f"there is no overlay {name!r}; there are {', '.join(self._patches)}")
        if self._patches[name] is self._patches[self.now] and self.now != BASE:  # of the same cluster
            self.now = name
            return
        self._back()
        try:
            for W, patch, keep in self._patches[name]:
                self._put(W, patch, keep=keep)
        except BaseException:  # a keyboard's as well: half an overlay serves no language
            self._back()
            raise
        self.now = name

    def _put(self, W: Tensor, patch: Patch, *, keep: bool) -> None:
        own = W.clone() if patch.rows is None else W.index_select(0, patch.rows)
        values = _values(own, patch)
        self._kept.append((W, patch, own))  # before anything is written
        _write(W, patch.rows, values)
        if not keep:
            self._kept[-1] = (W, patch, None)  # can be computed again

    @torch.no_grad()
    def _back(self) -> None:
        """Makes the model the base again; whatever interrupts it, the next call goes on where it stopped."""
        self.now = BASE
        while self._kept:
            W, patch, kept = self._kept[-1]
            if kept is None:
                own = W if patch.rows is None else W.index_select(0, patch.rows)
                kept = _rescaled(own, patch, back=True)
                self._kept[-1] = (W, patch, kept)  # may be written twice, and not be computed twice
            _write(W, patch.rows, kept)
            self._kept.pop()


def _values(own: Tensor, patch: Patch) -> Tensor:
    """Returns what the patch puts in the place of rows."""
    if patch.codes is None:
        return _rescaled(own, patch, back=False)
    # a loader takes scales to the type of the model first, and multiplies there
    values = Codes(patch.codes, patch.scales.to(own.dtype), patch.bits).dequantized
    return values.add_(own) if patch.form == "residual" else values


def _rescaled(own: Tensor, patch: Patch, *, back: bool) -> Tensor:
    """Returns rows with other scales, whose codes stay."""
    assert patch.base_scales is not None
    old, new = (patch.scales, patch.base_scales) if back else (patch.base_scales, patch.scales)
    old, new = old.to(own.dtype), new.to(own.dtype)
    wide = torch.promote_types(own.dtype, torch.float32)
    codes = (split_like(own, old).to(wide) / divisors(old).to(wide)[:, :, None]).round_()
    return dequantize(codes.reshape(own.shape), new)


@torch.no_grad()
def _is_readable(W: Tensor, patch: Patch) -> bool:
    """Returns whether the rows of the base can be computed from those of the patch, bit for bit."""
    if patch.codes is not None:
        return False
    own = W if patch.rows is None else W.index_select(0, patch.rows)
    again = _rescaled(_rescaled(own, patch, back=False), patch, back=True)
    # 0 and −0 are equal
    return torch.equal(own, again) and torch.equal(own.signbit(), again.signbit())


def _write(W: Tensor, rows: Tensor | None, values: Tensor) -> None:
    if rows is None:
        W.copy_(values)
    else:
        W.index_copy_(0, rows, values)


def _weight(model: "PreTrainedModel", patch: Patch) -> Tensor:
    """Returns the parameter that the patch changes, as (out, in)."""
    W = matrix_at(model, patch.module, transposed=patch.transposed)
    if W is None:
        raise InputError(
            f"an overlay changes {patch.module}, and {type(model).__name__} has no matrix there; "
            "give the base that the overlays were made for"
        )
    rows = torch.arange(len(W)) if patch.rows is None else patch.rows
    columns = W.shape[1] if patch.codes is None else patch.codes.shape[1]
    fits = len(rows) == patch.count > 0 and bool((rows >= 0).all() and (rows < len(W)).all())
    if not fits or columns != W.shape[1] or W.shape[1] % patch.scales.shape[1]:
        raise InputError(
            f"an overlay changes {patch.count} rows of {columns} columns in {patch.module}, up to row "
            f"{int(rows.max()) if len(rows) else None}, and the model has {tuple(W.shape)} there; "
            "give the base that the overlays were made for"
        )
    return W
