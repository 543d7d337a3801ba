"""Groups of weights that share a scale: how the scale is chosen, the codes, and the rounding error.

A matrix W (out, in) is split into (out, groups, weights of a group), and W ≈ codes · scale within each group. Scales
are (out, groups); a scale of a whole tensor is repeated for every row, as it is stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fairbits.core.array_checks import Floats, nonnegative_array, weights_vector
from fairbits.core.errors import InputError
from fairbits.core.memory import MINIMAX_TABLE_NUMBERS
from fairbits.models.scales.clip_formulas import SEED_CONSTANTS, banner_gaussian, banner_laplace
from fairbits.models.scales.exact_clip import clip_groups, minimax_groups
from fairbits.models.scales.float_scales import AnyGrid, code_values, float_scales, grid_codes
from fairbits.models.scales.grid import FLOAT_GRIDS, FloatGrid, Grid
from fairbits.models.scales.sample_clip import minimax_sample
from fairbits.models.scales.scheme import Numbers, Scheme


@dataclass(frozen=True, eq=False)
class Codes:
    """A linear layer (out, in): W ≈ codes · scale, each scale shared by neighbouring weights of a row.

    `codes` is int8 (out, in), −2^(bits−1) … 2^(bits−1) − 1, or the codes of a floating-point grid; `scales` is
    (out, groups) in the type that loaders compute in. `constants` are what a file has for the whole layer, by the names
    in CONSTANTS.
    """

    codes: Tensor
    scales: Tensor
    bits: int
    numbers: Numbers = "int"
    constants: Mapping[str, Tensor] = field(default_factory=dict)

    @cached_property
    def dequantized(self) -> Tensor:
        """The weights that a loader computes from it, in the type of the scales."""
        values = split_like(code_values(self.codes, self.numbers), self.scales).to(self.scales.dtype)
        return (values * self.scales[:, :, None]).reshape(self.codes.shape)

    def on(self, device: str | torch.device) -> "Codes":
        return replace(self, codes=self.codes.to(device), scales=self.scales.to(device))


WEIGHT_GLOBAL_SCALE, INPUT_SCALE, INPUT_GLOBAL_SCALE = CONSTANTS = (
    *("weight_global_scale", "input_scale", "input_global_scale"),
)


def planned_constants(scheme: Scheme) -> set[str]:
    """Returns the names of the constants of a layer with a scheme."""
    nested = scheme.scales == "e4m3"
    inputs = {INPUT_GLOBAL_SCALE if nested else INPUT_SCALE} if scheme.inputs == "static" else set()
    return inputs | ({WEIGHT_GLOBAL_SCALE} if nested else set())


def computed_dtype(scheme: Scheme, dtype: torch.dtype) -> torch.dtype:
    """Returns the type of scales in memory, for a model that stores its scales in `dtype`."""
    return dtype if scheme.scales == "model" else torch.float32


def check_planned(name: str, codes: Codes, *, shape: tuple[int, ...], scheme: Scheme, dtype: torch.dtype) -> None:
    """Raises unless codes have this shape (out, in), and bits, groups and types as the scheme plans them."""
    actual = (tuple(codes.codes.shape), tuple(codes.scales.shape), codes.bits, codes.codes.dtype, codes.scales.dtype)
    scales = (shape[0], scheme.groups(shape[1]))
    planned = (tuple(shape), scales, scheme.bits, torch.int8, computed_dtype(scheme, dtype))
    if actual != planned or codes.numbers != scheme.numbers or set(codes.constants) != planned_constants(scheme):
        raise InputError(f"{name} has shape, scales, bits and types {actual}; they must be {planned}")
    if not all(bool(tensor.isfinite().all()) for tensor in (codes.scales, *codes.constants.values())):
        raise InputError(f"{name} has a scale that is NaN or infinite; all must be finite")


def round_to_nearest(W: Tensor, scales: Tensor, *, grid: AnyGrid) -> Codes:
    """Returns the codes nearest to W (out, in) for scales (out, groups) that already have their stored type."""
    codes = nearest_codes(W, scales, grid=grid)
    return Codes(codes.to(torch.int8).reshape(W.shape), scales, grid.bits, grid.numbers)


Notes = tuple[str, ...]


def scheme_grid(scheme: Scheme) -> AnyGrid:
    """Returns the grid that a scheme rounds to; scales of either sign have the codes of the twos grid."""
    if scheme.numbers != "int":
        return FLOAT_GRIDS[scheme.numbers]
    return Grid(scheme.bits, "twos" if scheme.grid == "signed" else scheme.grid)


def split_groups(W: Tensor, scheme: Scheme) -> Tensor:
    """Returns W (out, in) as (out, groups, weights of a group); if the whole tensor is a group, as (1, 1, weights)."""
    if scheme.group == "tensor":
        return W.reshape(1, 1, -1)
    return W.reshape(W.shape[0], scheme.groups(W.shape[1]), -1)


def split_like(W: Tensor, scales: Tensor) -> Tensor:
    """Returns W (out, in) as (out, groups, weights that share one of the scales), for scales (out, groups)."""
    if W.ndim != 2 or scales.shape[0] != W.shape[0] or W.shape[1] % scales.shape[1]:
        raise InputError(
            f"scales of shape {tuple(scales.shape)} do not fit weights of shape {tuple(W.shape)}; "
            "they must be (out, groups), and all groups must have the same size"
        )
    return W.reshape(*scales.shape, -1)


def divisors(scales: Tensor) -> Tensor:
    """Returns scales that are safe to divide by: a group of zeros has scale 0, and its codes must become 0."""
    return torch.where(scales == 0, 1.0, scales)


def nearest_codes(W: Tensor, scales: Tensor, *, grid: AnyGrid) -> Tensor:
    """Returns the nearest code of every weight in float32, split like the scales."""
    ratios = split_like(W, scales).float() / divisors(scales.float())[:, :, None]
    return grid_codes(ratios, grid)


def dequantize_in_float32(codes: Codes) -> Tensor:
    """Returns the weights that a float32 loader computes from codes: it multiplies in that type."""
    return replace(codes, scales=codes.scales.float()).dequantized


def rounding_error(W: Tensor, scheme: Scheme, scales: Tensor | None = None) -> Tensor:
    """Returns ΔW = Q(W) − W of rounding to nearest, in float32; `scales` are the scheme's, if they are known."""
    if scales is None:
        scales = choose_scales(W, scheme, dtype=torch.float32)[0].to(W.device)
    wide = W.float()
    codes = nearest_codes(wide, scales, grid=scheme_grid(scheme))
    return code_values(codes, scheme.numbers).mul_(scales[:, :, None]).sub_(split_like(wide, scales)).reshape(W.shape)


def choose_scales(
    W: Tensor,
    scheme: Scheme,
    *,
    importance: Floats | None = None,
    pi: Floats | None = None,
    dtype: torch.dtype,
    largest: Tensor | None = None,
) -> tuple[Tensor, Notes]:
    """Returns the scale of every group of W as (out, groups) in `dtype`, on its device, and notes on any fall-back.

    `importance` is h_j(λ) = E_λ[x_j²], (languages, in), and `pi` the weights of the languages (None: equal). The
    exact clip minimises Σ_j h_j (w_j − Q(w_j))², with
    None, "mean"       h̄ = Σ_λ π_λ h(λ) / mean_j h_j(λ), so that languages with large activations do not dominate
    "worst", "regret"  the worst of all languages with π > 0
    `largest` is the largest |w| of all layers that servers join, None for that of W: it sets a scale of whole tensors.
    """
    notes: Notes = ()
    grid, weighed = scheme_grid(scheme), _importance(scheme, importance)
    if isinstance(grid, FloatGrid):
        if weighed is not None:
            weighed, notes = _of_languages(weighed, scheme, pi)
        how = scheme if weighed is not None or importance is None else replace(scheme, clip="absmax", objective=None)
        most = W.abs().amax() if largest is None else largest
        scales = float_scales(W, how, importance=weighed, dtype=dtype, largest=most)
        stored, rounding = _stored(scales, computed_dtype(scheme, dtype))
        return stored, (*notes, *rounding)
    blocks = split_groups(W, scheme)
    if scheme.clip == "exact":
        scales, notes = _exact(blocks, scheme, grid, importance=weighed, pi=pi)
    elif isinstance(scheme.clip, float):
        scales = torch.full(blocks.shape[:2], scheme.clip / grid.steps_per_alpha, dtype=torch.float64, device=W.device)
    elif scheme.clip == "absmax":
        scales = _signed_absmax(blocks, grid) if scheme.grid == "signed" else _absmax(blocks, grid)
    else:
        scales, notes = _closed_form(blocks.float(), scheme, grid)
    stored, rounding = _stored(scales, dtype)
    return (stored.expand(W.shape[0], 1).contiguous() if scheme.group == "tensor" else stored), (*notes, *rounding)


def fit_scales(W: Tensor, codes: Tensor, scales: Tensor, *, H: Tensor) -> Tensor:
    """Returns the scales (out, groups) that minimise E‖(w − s k)ᵀx‖² for fixed codes k, each group by itself.

    They are ⟨w, k⟩_H / ⟨k, k⟩_H, with H = E[x xᵀ]. If no scale of the same sign helps, for example because all codes of
    a group are 0, the scale is kept.
    """
    blocks = split_like(W, scales)
    size, fitted = blocks.shape[2], []
    for group in range(blocks.shape[1]):
        part, k = slice(group * size, (group + 1) * size), split_like(codes, scales)[:, group].float()
        weighted = k @ H[part, part]
        over, under = (blocks[:, group] * weighted).sum(1), (k * weighted).sum(1)
        kept = scales[:, group].float()
        fits = (under > 0) & (over * kept > 0)
        fitted.append(torch.where(fits, over / torch.where(fits, under, 1.0), kept))
    return torch.stack(fitted, dim=1)


def _absmax(blocks: Tensor, grid: Grid) -> Tensor:
    """Returns max|w| / n, on the twos grid max|w| / (n + ½).

    On the symmetric grid the largest weight is a level. On the twos grid, the default of checkpoints, it is half a
    scale from its level, like no other weight of either sign, and scales are smaller than with max|w| / n.
    """
    largest = torch.maximum(blocks.amax(2), blocks.amin(2).neg_())  # makes no copy of the weights
    return largest.float().double() / (grid.highest + (0.5 if grid.kind == "twos" else 0.0))


def _signed_absmax(blocks: Tensor, grid: Grid) -> Tensor:
    """Returns the scale, of either sign, that gives the extra code to the side with the largest weight."""
    above, below = blocks.amax(2).float().double(), blocks.amin(2).neg().float().double()
    longer, shorter = torch.maximum(above, below), torch.minimum(above, below)
    size = torch.maximum(longer / (0.5 - grid.lowest), shorter / (grid.highest + 0.5))
    return torch.where(above > below, -size, size)


def _closed_form(blocks: Tensor, scheme: Scheme, grid: Grid) -> tuple[Tensor, Notes]:
    notes: list[str] = []
    away = blocks - blocks.mean(2, keepdim=True, dtype=torch.float64).float()
    sigma = away.square().mean(2, dtype=torch.float64).sqrt()
    if scheme.clip == "gaussian":
        alpha = banner_gaussian(1.0, grid.bits) * sigma
    elif scheme.clip == "laplace":
        alpha = banner_laplace(1.0, grid.bits) * away.abs().mean(2, dtype=torch.float64)
    else:
        c, d = SEED_CONSTANTS
        unit = torch.where(sigma > 0, sigma, 1.0)[..., None].float()  # fourth powers stay in range
        kappa = away.div_(unit).pow_(4).mean(2, dtype=torch.float64) - 3
        below = int((kappa[sigma > 0] < 0).sum())
        if below:
            notes.append(f"κ is below 0 in {below} of {kappa.numel()} blocks: taken as max(0, κ), as 003-13 has it")
        alpha = sigma * (c + d * torch.log1p(kappa.clamp(min=0)))
    flat = (sigma == 0) & (blocks != 0).any(2)
    if flat.any():
        notes.append(f"all weights are alike in {int(flat.sum())} of {flat.numel()} blocks: there the largest is kept")
    return torch.where(flat, _absmax(blocks, grid), alpha / grid.steps_per_alpha), tuple(notes)


def _exact(
    blocks: Tensor, scheme: Scheme, grid: Grid, *, importance: Floats | None, pi: Floats | None
) -> tuple[Tensor, Notes]:
    out, groups, size = blocks.shape
    signed = scheme.grid == "signed"
    if importance is None:
        return clip_groups(blocks, grid, signed=signed), ()
    if scheme.group != "tensor" and importance.shape[1] != groups * size:
        raise InputError(
            f"importance has shape {importance.shape} but W is {(out, groups * size)}; its rows must match W's inputs"
        )
    counted, notes = _of_languages(importance, scheme, pi)
    if counted is None:
        return _absmax(blocks, grid), notes
    if scheme.objective in (None, "mean"):
        return clip_groups(blocks, grid, importance=np.resize(counted, groups * size), signed=signed), notes
    if scheme.group == "tensor":
        scales = _tensor_minimax(blocks.float().flatten().cpu().numpy(), counted, scheme, grid)
        return torch.from_numpy(scales).to(blocks.device), notes
    return minimax_groups(blocks, grid, importance=counted, objective=str(scheme.objective), signed=signed), notes


def _of_languages(importance: Floats, scheme: Scheme, pi: Floats | None) -> tuple[Floats | None, Notes]:
    """Returns the importance of each language that counts, or their mean (1, in); None if the input is always 0."""
    share = weights_vector("pi", np.ones(len(importance)) if pi is None else pi, size=len(importance))
    counts, silent = share > 0, ~importance.any(axis=1)
    notes: Notes = ()
    if (counts & silent).any():
        left = counts & ~silent
        notes = (f"its input is 0 in {int((counts & silent).sum())} of {int(counts.sum())} languages, left out here",)
        if not left.any():
            return None, ("its input is 0 everywhere: the largest weight sets the scale",)
        counts = left
    counted: Floats = importance[counts] / importance[counts].mean(axis=1, keepdims=True)
    return (share[counts] @ counted)[None] if scheme.objective in (None, "mean") else counted, notes


def _tensor_minimax(w: np.ndarray, importance: Floats, scheme: Scheme, grid: Grid) -> Floats:
    if scheme.grid == "signed":
        raise InputError(
            "one scale per tensor for the worst language cannot have either sign; use the grid twos, or a scale per "
            "channel or group"
        )
    if not w.any():
        return np.zeros((1, 1))
    if len(importance) * w.size > MINIMAX_TABLE_NUMBERS:
        raise InputError(
            f"{w.size:,} weights share one scale, for the worst of {len(importance)} languages; the search takes "
            f"up to {MINIMAX_TABLE_NUMBERS // len(importance):,}: use one scale per channel or group"
        )
    tiled = np.tile(importance, w.size // importance.shape[1])
    best = minimax_sample(w, grid, importance=tiled, relative=scheme.objective == "regret")
    return np.full((1, 1), best.step)


def _importance(scheme: Scheme, importance: Floats | None) -> Floats | None:
    if importance is None and scheme.objective is not None:
        raise InputError(f"the clip weighs languages ({scheme.objective}); E[x²] of its input must be given")
    return None if importance is None else nonnegative_array("importance", importance, ndim=2)


def _stored(scales: Tensor, dtype: torch.dtype) -> tuple[Tensor, Notes]:
    limits = torch.finfo(dtype)
    least = limits.smallest_normal * limits.eps  # the smallest number above 0
    sizes = scales.abs()
    small, large = (sizes > 0) & (sizes < least), sizes > limits.max
    notes = [
        f"{int(beyond.sum())} of {scales.numel()} scales are {what} {dtype} can hold: taken as {limit:.3g}"
        for beyond, what, limit in ((small, "smaller than", least), (large, "larger than", limits.max))
        if beyond.any()
    ]
    kept = torch.where(small, least, sizes.clamp(max=limits.max))
    return torch.copysign(kept, scales).to(dtype), tuple(notes)
