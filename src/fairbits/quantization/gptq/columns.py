"""GPTQ: rounding column by column, where later columns compensate for the errors of earlier ones.

The idea. A row w of weights is rounded to ŵ, and its error e = ŵ − w costs e H eᵀ (`hessian`). With H = R Rᵀ, R upper
triangular, the cost is a sum of squares, one for each column:

    e H eᵀ = Σ_k R_kk² (e_k + Σ_{j<k} e_j R_jk/R_kk)²

The bracket of column k depends on the errors of earlier columns only. So columns are rounded in order, and ŵ_k is the
value of the grid nearest to w_k − Σ_{j<k} e_j R_jk/R_kk, which makes its bracket as small as it can be then. Instead of
updating all later weights after each column with the inverse of H (Frantar et al. 2023), each column looks back at the
errors before it. Both give the same codes, and this needs no inverse.

Block-wise compensation. Looking back column by column would be one matrix-vector product each, over all columns
before it. Columns are grouped into panels (`columns_at_once`). What all earlier panels contribute to a panel is one
matrix product before it is entered, and only the columns within it are looked back at one by one. The sums are the
same. A panel is one call of a compiled loop (`columns_cpu`), on a GPU one launch of a kernel (`columns_gpu`).
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fairbits.models.scales.float_scales import AnyGrid
from fairbits.models.scales.groups import Codes, divisors, round_to_nearest
from fairbits.quantization.gptq import columns_cpu, columns_gpu
from fairbits.quantization.gptq.columns_cpu import Panel

TRIES = 4  # how often the damping is raised tenfold before rounding falls back to nearest
DOUBLE_UP_TO = 512
"""Up to this many columns float64 is used. It doubles the time; with more columns float32 is precise enough."""


@dataclass(frozen=True, eq=False)
class Factor:
    """The order of the columns, and H in that order, with `damp` added to its diagonal, as R Rᵀ.

    `feedback[k, j]` is R_jk / R_kk, lower triangular with ones on the diagonal; `cost` is R_kk².
    """

    order: Tensor
    feedback: Tensor
    cost: Tensor
    damp: float


@dataclass(frozen=True, eq=False)
class GPTQResult:
    """The codes, the number of rows that kept the codes of nearest rounding, and a note on every fall-back."""

    codes: Codes
    kept_nearest: int
    notes: tuple[str, ...]


def factorize(H: Tensor, *, damp: float = 0.01, act_order: bool = True) -> tuple[Factor | None, tuple[str, ...]]:
    """Returns H + damp·mean(diag H)·I as R Rᵀ, or None if no damping makes it positive definite, and notes.

    `act_order` puts the columns with the largest H_jj first: they are rounded while most others are left to
    compensate. Inputs that are always 0 neither compensate nor are compensated.
    """
    diagonal = H.diagonal().double()
    dead = diagonal <= 0
    mean = float(diagonal.clamp(min=0).mean())
    order = torch.argsort(diagonal, descending=True, stable=True) if act_order else torch.arange(len(H)).to(H.device)
    backwards = order.flip(0)
    turned = H.index_select(0, backwards).index_select(1, backwards)
    turned = turned.to(torch.float64 if len(H) <= DOUBLE_UP_TO else torch.float32)
    turned.diagonal().add_(dead[backwards].to(turned.dtype))  # so that dead columns are independent of the others
    share, added = damp, 0.0
    for attempt in range(TRIES + 1):
        turned.diagonal().add_((share - added) * mean)
        upper, failed = torch.linalg.cholesky_ex(turned, upper=True)
        if not failed:
            feedback = upper.flip(0, 1)  # Rᵀ: the factor of the reversed matrix, reversed
            along = feedback.diagonal().clone()
            # the error of a dead column costs nothing
            factor = Factor(order, feedback.div_(along[:, None]), along.square_() - dead[order].to(along), share * mean)
            raised = f"H is not positive definite: the damping was raised to {share:g} of its mean diagonal"
            return factor, (raised,) * (attempt > 0)
        share, added = max(10 * share, 1e-4), share
    return None, (f"H is not positive definite even with a damping of {added:g}: rounded to nearest",)


def gptq(
    W: Tensor,
    H: Tensor,
    scales: Tensor,
    *,
    grid: AnyGrid,
    damp: float = 0.01,
    act_order: bool = True,
    columns_at_once: int = 128,
    factor: Factor | None = None,
) -> GPTQResult:
    """Returns codes of W (out, in) with small errors e H eᵀ for fixed `scales` (out, groups), H = E[x xᵀ].

    The scales belong to the original groups, whatever the order of the columns. A row whose error is larger than with
    nearest rounding keeps the nearest codes. Layers with the same input share a `factor` of their H.
    """
    plain = round_to_nearest(W, scales, grid=grid)
    notes: tuple[str, ...] = ()
    if factor is None:
        factor, notes = factorize(H, damp=damp, act_order=act_order)
        if factor is None:
            return GPTQResult(plain, len(W), notes)
    weights = _reorder(W, factor)
    errors = torch.empty_like(weights)
    chosen, damage = _round_columns(weights, scales, factor, grid=grid, columns_at_once=columns_at_once, errors=errors)
    torch.sub(_reorder(plain.dequantized, factor), weights, out=errors)
    better = _costs_more(errors, factor, columns_at_once, than=damage)
    codes = chosen[torch.argsort(factor.order)].T.contiguous()
    worse = ~better & (codes != plain.codes).any(1)
    codes = torch.where(worse[:, None], plain.codes, codes)
    return GPTQResult(replace(plain, codes=codes), int(worse.sum()), notes)


def _reorder(W: Tensor, factor: Factor) -> Tensor:
    """Returns W transposed, so that one of its columns is contiguous memory, in the order of the factor."""
    return W.T.contiguous().index_select(0, factor.order).to(factor.feedback.dtype)


def _round_columns(
    weights: Tensor, scales: Tensor, factor: Factor, *, grid: AnyGrid, columns_at_once: int, errors: Tensor
) -> tuple[Tensor, Tensor]:
    """Returns the codes (in, out) in the order of the factor and e H eᵀ of every row; `errors` is where ŵ − w goes."""
    columns, out = weights.shape
    group = (factor.order // (columns // scales.shape[1])).int()
    stored = scales.T.contiguous()
    divide_by = divisors(stored).to(weights.dtype)
    codes = torch.empty(columns, out, dtype=torch.int8, device=weights.device)
    damage = torch.zeros(out, dtype=torch.float64, device=weights.device)
    on_gpu = weights.is_cuda and columns_gpu.AVAILABLE
    round_panel = columns_gpu.round_panel if on_gpu else columns_cpu.round_panel
    for start in range(0, columns, columns_at_once):
        here = slice(start, min(start + columns_at_once, columns))
        # what all earlier panels contribute to this one, in one product
        wanted = torch.addmm(weights[here], factor.feedback[here, :start], errors[:start], alpha=-1)
        feedback = factor.feedback[here, here]
        panel = Panel(wanted, weights[here], feedback, stored, divide_by, group[here], codes[here], errors[here])
        round_panel(panel, grid)
        brackets = errors[here] + weights[here] - wanted
        damage += _cost(brackets, factor, start) - _damping(errors[here], factor)
    return codes, damage


def _costs_more(errors: Tensor, factor: Factor, columns_at_once: int, *, than: Tensor) -> Tensor:
    """Returns whether e H eᵀ of every row is at least `than`; on a CPU it stops once the first columns show it."""
    total = -_damping(errors, factor)
    for start in range(0, len(errors), columns_at_once):
        stop = start + columns_at_once
        total += _cost(factor.feedback[start:stop, :stop] @ errors[:stop], factor, start)
        if not total.is_cuda and (total >= than).all():
            break
    return total >= than


def _cost(brackets: Tensor, factor: Factor, start: int) -> Tensor:
    return torch.mv(brackets.square_().T, factor.cost[start : start + len(brackets)]).double()


def _damping(errors: Tensor, factor: Factor) -> Tensor:
    return factor.damp * errors.square().sum(0).double()
