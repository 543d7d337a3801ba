"""One linear map: its codes, and what came of them."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fairbits.checks import Floats
from fairbits.errors import InputError
from fairbits.model.architecture import Weight
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.codes import Codes, nearest
from fairbits.model.files.packed import is_table, stored_bytes
from fairbits.model.groups import Notes, choose_scales, grid_of
from fairbits.model.scheme import Scheme
from fairbits.quantize.plan import Outcome
from fairbits.quantize.rounding.gptq import Factor, gptq

UNSEEN = "its input cannot be seen: the largest weight is a level, the others are rounded to nearest"


@dataclass(frozen=True, eq=False)
class KnownInput:
    """What is known of the input of a linear map: E_λ[x²] of each language with its π, and H with its factor.

    `factor` is None where H has none; `notes` then say so.
    """

    languages: tuple[str, ...]
    squares: Floats | None
    pi: Floats
    H: Tensor | None
    factor: Factor | None
    notes: Notes


def matrix(checkpoint: Checkpoint, weight: Weight) -> Tensor:
    """Returns a linear map, or a table, as (out, in) in float32."""
    if weight.stacked is not None or len(weight.shape) != 2:
        raise InputError(
            f"{weight.name} has shape {checkpoint.tensors[weight.name].shape}; only matrices become codes: "
            "keep it as it is, or store every expert in a tensor of its own"
        )
    stored = checkpoint.read(weight.name)
    W = (stored.T if weight.transposed else stored).float()
    if not torch.isfinite(W).all():
        raise InputError(f"{weight.name} holds NaN or infinite weights; repair or replace the checkpoint first")
    return W


def rounded(W: Tensor, scheme: Scheme, *, dtype: torch.dtype, known: KnownInput | None) -> tuple[Codes, Notes]:
    """Returns the codes of W (out, in) as the scheme says, with scales of `dtype`, and every fall-back.

    `known` is None where the map's input cannot be seen. GPTQ weighs the exact clip by the diagonal of H, which is
    E[x²] of the mixture of languages, unless the worst language or regret is asked for.
    """
    grid = grid_of(scheme)
    if not scheme.reads_text:
        scales, notes = choose_scales(W, scheme, dtype=dtype)
        return nearest(W, scales, grid=grid), notes
    if known is None:
        # not the unweighted exact clip, which may cut off weights that are vital
        scales, notes = choose_scales(W, replace(scheme, clip="absmax", objective=None), dtype=dtype)
        return nearest(W, scales, grid=grid), (UNSEEN, *notes)
    H, importance, pi = known.H, known.squares, known.pi
    if H is not None and scheme.clip == "exact" and scheme.objective not in ("worst", "regret"):
        importance, pi = H.diagonal()[None].double().cpu().numpy(), np.ones(1)
    scales, notes = choose_scales(W, scheme, importance=importance, pi=pi, dtype=dtype)
    if scheme.rounding == "nearest" or H is None or known.factor is None:
        return nearest(W, scales, grid=grid), (*notes, *(known.notes if scheme.rounding == "gptq" else ()))
    found = gptq(W.to(H.device), H, scales.to(H.device), grid=grid, factor=known.factor)
    codes = Codes(found.codes.codes.cpu(), scales, grid.bits)
    kept = f"nearest rounding was better in {found.kept_nearest} of {len(W)} rows, and is kept there"
    return codes, (*notes, *known.notes, *([kept] if found.kept_nearest else []))


def thresholds_of(W: Tensor, scheme: Scheme, squares: Floats, *, dtype: torch.dtype) -> Tensor:
    """Returns the exact scales of each language alone, (languages, out, groups), given E_λ[x²]."""
    alone = replace(scheme, clip="exact", objective="mean", rounding="nearest")
    return torch.stack([choose_scales(W, alone, importance=h[None], dtype=dtype)[0] for h in squares])


def outcome_of(weight: Weight, W: Tensor, codes: Codes, scheme: Scheme, notes: Notes) -> tuple[Outcome, Tensor]:
    """Returns what came of a linear map, still without the error of each language, and ΔW in float32."""
    change = replace(codes).dequantized.float().sub_(W)  # a copy's, as codes keep what they were dequantized to
    alpha = grid_of(scheme).alpha(codes.scales.double().numpy())
    energy = float(W.double().square().sum())
    outcome = Outcome(
        name=weight.name,
        bits=scheme.bits,
        size_bytes=stored_bytes(weight.shape, scheme, codes.scales.dtype, table=is_table(weight)),
        alpha=(float(alpha.min()), float(np.median(alpha)), float(alpha.max())),
        weight_error=float(change.double().square().sum()) / energy if energy > 0 else 0.0,
        notes=notes,
    )
    return outcome, change
