"""Switch: writes the rows of an overlay into a loaded model, and restores the base bit for bit.

It is not a `SwappedModel`, which replaces whole matrices and reads them from the checkpoint to restore them. A switch
touches only the rows that an overlay changes, between two requests of a server, and has no checkpoint to read.

There are two ways to restore a row exactly. A row that gets new codes is copied before it is overwritten. If only
scales change, no copy is needed, because the codes k can be recovered from the weights: a weight is k·s rounded to the
type of the model. In bfloat16, the coarsest type, rounding changes it by at most 2^−8/(1 + 2^−8) of its value. So w/s
is within ½ of k for all |k| ≤ 128 (as long as w/s itself is computed in float32), rounding gives k exactly, and k times
the base's scale gives the base's weight. This fails if a scale is 0 or a weight overflows the type; every patch is
therefore tried once at the start, and rows that do not come back exactly are copied instead.
"""

from collections.abc import Iterable

import torch
from torch import Tensor
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.models.scales.groups import Codes, divisors, split_like
from fairbits.models.swapped_model import matrix_at
from fairbits.serve.overlays.overlay_files import BASE, Overlay, Patch

Placed = tuple[Tensor, Patch, bool]
"""A parameter as (out, in), its patch, and whether its rows must be copied before they are overwritten."""


class Switch:
    """A loaded base and its active overlay. Only one thread at a time may use it."""

    def __init__(self, model: PreTrainedModel, overlays: Iterable[Overlay]) -> None:
        self._patches: dict[str, list[Placed]] = {BASE: []}
        placed: dict[int, list[Placed]] = {}
        for overlay in overlays:
            if id(overlay.patches) not in placed:
                weights = [_weight(model, patch) for patch in overlay.patches]
                patches = [patch.on(W.device) for W, patch in zip(weights, overlay.patches, strict=True)]
                placed[id(overlay.patches)] = [
                    (W, patch, not _is_recoverable(W, patch)) for W, patch in zip(weights, patches, strict=True)
                ]
            self._patches[overlay.name] = placed[id(overlay.patches)]
        self._kept: list[tuple[Tensor, Patch, Tensor | None]] = []
        self.now = BASE

    @torch.no_grad()
    def to(self, name: str) -> None:
        """Activates an overlay; if it is active already, this costs nothing. After an error the base is active."""
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
        except BaseException:  # including KeyboardInterrupt: half an overlay serves no language
            self._back()
            raise
        self.now = name

    def _put(self, W: Tensor, patch: Patch, *, keep: bool) -> None:
        rows = W.clone() if patch.rows is None else W.index_select(0, patch.rows)
        values = _values(rows, patch)
        self._kept.append((W, patch, rows))  # before anything is written
        _write(W, patch.rows, values)
        if not keep:
            self._kept[-1] = (W, patch, None)  # can be computed again

    @torch.no_grad()
    def _back(self) -> None:
        self.now = BASE
        while self._kept:
            W, patch, kept = self._kept[-1]
            if kept is None:
                rows = W if patch.rows is None else W.index_select(0, patch.rows)
                kept = _rescaled(rows, patch, back=True)
                self._kept[-1] = (W, patch, kept)  # may be written twice but must not be computed twice
            _write(W, patch.rows, kept)
            self._kept.pop()


def _values(rows: Tensor, patch: Patch) -> Tensor:
    if patch.codes is None:
        return _rescaled(rows, patch, back=False)
    # like a loader: scales are first converted to the type of the model, then multiplied
    values = Codes(patch.codes, patch.scales.to(rows.dtype), patch.bits).dequantized
    return values.add_(rows) if patch.form == "residual" else values


def _rescaled(rows: Tensor, patch: Patch, *, back: bool) -> Tensor:
    assert patch.base_scales is not None
    old, new = (patch.scales, patch.base_scales) if back else (patch.base_scales, patch.scales)
    old, new = old.to(rows.dtype), new.to(rows.dtype)
    wide = torch.promote_types(rows.dtype, torch.float32)
    codes = (split_like(rows, old).to(wide) / divisors(old).to(wide)[:, :, None]).round_()
    return Codes(codes.reshape(rows.shape), new, patch.bits).dequantized


@torch.no_grad()
def _is_recoverable(W: Tensor, patch: Patch) -> bool:
    if patch.codes is not None:
        return False
    rows = W if patch.rows is None else W.index_select(0, patch.rows)
    again = _rescaled(_rescaled(rows, patch, back=False), patch, back=True)
    # 0 and −0 compare equal, so signs are compared too
    return torch.equal(rows, again) and torch.equal(rows.signbit(), again.signbit())


def _write(W: Tensor, rows: Tensor | None, values: Tensor) -> None:
    if rows is None:
        W.copy_(values)
    else:
        W.index_copy_(0, rows, values)


def _weight(model: PreTrainedModel, patch: Patch) -> Tensor:
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
