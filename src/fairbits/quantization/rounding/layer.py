"""One linear map: its codes, and the record of its rounding."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.model.architecture import Weight
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.files.formats import DEFAULT_FORMAT
from fairbits.model.finite import all_finite
from fairbits.model.groups import Codes, Notes, choose_scales, grid_of, round_to_nearest
from fairbits.model.scheme import Scheme
from fairbits.quantization.plan import LayerResult
from fairbits.quantization.rounding.gptq import gptq
from fairbits.quantization.rounding.hessian import InputStatistics
from fairbits.theory.grid import Grid

UNSEEN = "its input cannot be observed: rounded to nearest, with scales set by the largest weight"
STARVED = "no calibration text reached this expert: rounded to nearest, with scales set by the largest weight"


def matrix(checkpoint: Checkpoint, weight: Weight, *, read: Callable[[str], Tensor] | None = None) -> Tensor:
    """Returns a linear map, or a table, as (out, in) in float32.

    `read` gives the tensor on the device where it is to be, if the checkpoint itself is not to be asked.
    """
    if weight.stacked is not None or len(weight.shape) != 2:
        raise InputError(
            f"{weight.name} has shape {checkpoint.tensors[weight.name].shape}; only matrices become codes: "
            "keep it as it is, or store every expert in a tensor of its own"
        )
    stored = (checkpoint.read if read is None else read)(weight.name)
    W = (stored.T if weight.transposed else stored).float()
    if not all_finite(W):
        raise InputError(f"{weight.name} holds NaN or infinite weights; repair or replace the checkpoint first")
    return W


def round_layer(
    W: Tensor, scheme: Scheme, *, dtype: torch.dtype, inputs: InputStatistics | None
) -> tuple[Codes, Notes]:
    """Returns the codes of W (out, in) by a scheme, with scales of `dtype`, and a note on every fall-back.

    `inputs` is None if the map's input cannot be observed. GPTQ weights the exact clip by the diagonal of H, which is
    E[x²] of the mixture of languages, unless the objective is the worst language or regret.
    """
    grid = grid_of(scheme)
    if not scheme.reads_text:
        scales, notes = choose_scales(W, scheme, dtype=dtype)
        return round_to_nearest(W, scales, grid=grid), notes
    if inputs is None:
        # not the unweighted exact clip, which may cut off vital weights
        scales, notes = choose_scales(W, replace(scheme, clip="absmax", objective=None), dtype=dtype)
        return round_to_nearest(W, scales, grid=grid), (UNSEEN, *notes)
    H, importance, pi = inputs.H, inputs.squares, inputs.pi
    if H is not None and scheme.clip == "exact" and scheme.objective not in ("worst", "regret"):
        importance, pi = H.diagonal()[None].double().cpu().numpy(), np.ones(1)
    scales, notes = choose_scales(W, scheme, importance=importance, pi=pi, dtype=dtype)
    if scheme.rounding == "nearest" or H is None or inputs.factor is None:
        return round_to_nearest(W, scales, grid=grid), (*notes, *(inputs.notes if scheme.rounding == "gptq" else ()))
    found = gptq(W.to(H.device), H, scales.to(H.device), grid=grid, factor=inputs.factor)
    codes = Codes(found.codes.codes.to(W.device), scales, grid.bits)
    kept = f"nearest rounding was better in {found.kept_nearest} of {len(W)} rows, and is kept there"
    return codes, (*notes, *inputs.notes, *([kept] if found.kept_nearest else []))


def language_scales(W: Tensor, scheme: Scheme, squares: Floats, *, dtype: torch.dtype) -> Tensor:
    """Returns the exact scales of each language alone, (languages, out, groups), given E_λ[x²]."""
    alone = replace(scheme, clip="exact", objective="mean", rounding="nearest")
    return torch.stack([choose_scales(W, alone, importance=h[None], dtype=dtype)[0].cpu() for h in squares])


def weight_change(W: Tensor, codes: Codes) -> Tensor:
    """Returns ΔW in float32."""
    return replace(codes).dequantized.float().sub_(W)  # from a copy, as codes keep what they were dequantized to


def layer_result(weight: Weight, W: Tensor, codes: Codes, scheme: Scheme, notes: Notes) -> tuple[LayerResult, Tensor]:
    """Returns the result of a linear map, still without the error of each language, and ΔW in float32."""
    change = weight_change(W, codes)
    energy, lost, *alpha = _numbers(W, change, codes.scales, grid_of(scheme))
    result = LayerResult(
        name=weight.name,
        bits=scheme.bits,
        size_bytes=DEFAULT_FORMAT.layer_bytes(weight, scheme, dtype=codes.scales.dtype),
        alpha=(alpha[0], alpha[1], alpha[2]),
        weight_error=lost / energy if energy > 0 else 0.0,
        notes=notes,
    )
    return result, change


def _numbers(W: Tensor, change: Tensor, scales: Tensor, grid: Grid) -> list[float]:
    """Returns ΣW², ΣΔW², and the least, the median and the largest clipping threshold.

    On a GPU nothing is copied in float64, and the host waits once for all five.
    """
    if not W.is_cuda:
        alpha = grid.alpha(scales.double().numpy())
        sums = [float(torch.linalg.vector_norm(each, dim=1).double().square().sum()) for each in (W, change)]
        return [*sums, float(alpha.min()), float(np.median(alpha)), float(alpha.max())]
    energy, lost = (torch.linalg.vector_norm(each, dtype=torch.float64).square() for each in (W, change))
    ordered = scales.flatten().abs().sort().values
    count = ordered.numel()
    low, below, above, high = ordered[[0, (count - 1) // 2, count // 2, -1]].double() * grid.steps_per_alpha
    found: list[float] = torch.stack([energy, lost, low, (below + above) / 2, high]).tolist()
    return found
