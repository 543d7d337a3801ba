"""Rows of linear layers in a form fitted to a text, and how much damage each row saves."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairbits.forward.windows import Text
from fairbits.models.scales.groups import Codes, dequantize_in_float32, fit_scales
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.gptq.block_rounding import round_layer
from fairbits.quantization.gptq.hessian import InputStatistics
from fairbits.serve.overlays.base_model import OverlayBase
from fairbits.serve.overlays.overlay_rows import Form, Patch

RESIDUAL_BITS = 2
"""Bits of the residual of a row: of 2, 3 and 8 bits, 2 saved most per byte in measurements."""


@dataclass(frozen=True, eq=False)
class Candidate:
    """A linear layer in another form; an overlay may hold some of its rows.

    `saved` is what each row saves in nats per predicted token if errors of rows are independent: ½ F_r (e_r − e'_r),
    e_r = E[(Δw_rᵀx)²] of the base and e'_r of the other form.
    """

    form: Form
    name: str
    codes: Codes
    saved: Tensor
    base_scales: Tensor
    module: str
    transposed: bool

    def patch(self, rows: Tensor | None) -> Patch:
        """Returns some rows, or all, for an overlay."""
        codes, scales, before = (
            each if rows is None else each.index_select(0, rows)
            for each in (self.codes.codes, self.codes.scales, self.base_scales)
        )
        return Patch(
            form=self.form,
            tensor=self.name,
            module=self.module,
            bits=self.codes.bits,
            rows=rows,
            scales=scales,
            codes=None if self.form == "steps" else codes,
            base_scales=before if self.form == "steps" else None,
            transposed=self.transposed,
        )

    @property
    def row_bytes(self) -> float:
        """The bytes of a row in a file, including its number."""
        one = self.patch(torch.zeros(1, dtype=torch.int64)).tensors()
        return sum(each.nbytes for each in one.values())


def candidates(
    overlay_base: OverlayBase, text: Text, sensitivity: Mapping[str, Tensor], *, form: Form
) -> Iterator[Candidate]:
    """Yields every linear layer in a form fitted to its inputs on a text, in the base.

    "residual"  the difference to the original weights, in RESIDUAL_BITS
    "codes"     the weights quantized again, in the width of the base
    both by GPTQ with the exact weighted clip, under H = E[x xᵀ] of the text
    "steps"     the base's codes k with the scales of least error, ⟨w, k⟩_H / ⟨k, k⟩_H
    """
    dtype = overlay_base.checkpoint.scale_dtype
    for name, known in overlay_base.input_statistics(text):
        assert known.H is not None
        W, base, weight = overlay_base.original(name), overlay_base.codes(name), overlay_base.weight(name)
        lacks = W - dequantize_in_float32(base)
        codes = FORMS[form](W, base, overlay_base.schemes[name], known=known, dtype=dtype)
        still = lacks - dequantize_in_float32(codes) if form == "residual" else W - dequantize_in_float32(codes)
        saved = _energy(lacks, known.H) - _energy(still, known.H)
        yield Candidate(
            form, name, codes, 0.5 * sensitivity[name] * saved, base.scales, weight.module, weight.transposed
        )


def _residual(W: Tensor, base: Codes, scheme: Scheme, *, known: InputStatistics, dtype: torch.dtype) -> Codes:
    return _gptq(W - dequantize_in_float32(base), replace(scheme, bits=RESIDUAL_BITS), known, dtype)


def _anew(W: Tensor, _base: Codes, scheme: Scheme, *, known: InputStatistics, dtype: torch.dtype) -> Codes:
    return _gptq(W, scheme, known, dtype)


def _gptq(W: Tensor, scheme: Scheme, known: InputStatistics, dtype: torch.dtype) -> Codes:
    wanted = replace(scheme, clip="exact", objective="mean", rounding="gptq")
    return round_layer(W, wanted, dtype=dtype, inputs=known)[0]


def _rescaled(W: Tensor, base: Codes, _scheme: Scheme, *, known: InputStatistics, dtype: torch.dtype) -> Codes:
    assert known.H is not None
    return replace(base, scales=fit_scales(W, base.codes, base.scales, H=known.H.cpu()).to(dtype))


FORMS: Mapping[Form, Callable[..., Codes]] = {"residual": _residual, "codes": _anew, "steps": _rescaled}


def _energy(change: Tensor, H: Tensor) -> Tensor:
    """Returns E[(Δw_rᵀx)²] of every row."""
    moved = change.to(H.device)
    return ((moved @ H) * moved).sum(1).double().cpu()
