"""What is learned of a linear map: how far each weight is from its code, and the scales. Only codes reach the model.

W = s·(c + round(v)), c the codes at the start, v bounded offsets in units of the scale, s = s₀ eʳ in the type that is
stored. The rounding passes gradients straight through: ∂/∂v = s·∂/∂W, and ∂/∂r = s Σ (c + round(v))·∂/∂W over a group.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from fairbits.errors import InputError
from fairbits.model.architecture import Weight
from fairbits.model.codes import Codes
from fairbits.model.device import autocast_dtype
from fairbits.model.groups import divisors, split_like
from fairbits.theory.grid import Grid

if TYPE_CHECKING:
    from transformers import PreTrainedModel

FARTHEST = 1.49
"""How far a weight may go from its first code: to either neighbour, and not beyond."""
PRIOR = 0.6
"""Share of its distance from the code that a weight keeps at the start: those near an edge cross it more easily."""


class _Rounded(torch.autograd.Function):
    """s·(c + round(v)) with gradients that pass straight through the rounding."""

    @staticmethod
    def forward(ctx: Any, offsets: Tensor, logs: Tensor, own: "Latents") -> Tensor:
        codes, scales = own.codes_now(offsets), own.scales_now(logs)
        ctx.save_for_backward(codes, scales)
        return (codes * scales).to(own.stored).to(autocast_dtype(offsets.device))  # as a loader would make them

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        codes, scales = ctx.saved_tensors
        scaled = grad * scales
        return scaled, (scaled * codes).sum(2, keepdim=True), None


class Latents(nn.Module):
    """The parametrization of one linear map (out, in)."""

    start: Tensor
    first_scales: Tensor

    def __init__(self, W: Tensor, codes: Codes, *, grid: Grid, transposed: bool) -> None:
        super().__init__()
        self.bits, self.lowest, self.highest = grid.bits, int(grid.lowest), int(grid.highest)
        self.transposed, self.stored = transposed, codes.scales.dtype
        self.shape = codes.codes.shape
        self.register_buffer("start", split_like(codes.codes, codes.scales).to(W.device))
        self.register_buffer("first_scales", codes.scales.float()[:, :, None].to(W.device))
        away = split_like(W.float(), codes.scales) / divisors(self.first_scales)
        away = away.sub_(self.start).clamp_(-0.5, 0.5)
        self.offsets = nn.Parameter(away.mul_(PRIOR))
        self.logs = nn.Parameter(torch.zeros_like(self.first_scales))

    def forward(self, _original: Tensor) -> Tensor:
        """Returns the weights that a loader would make of the codes now."""
        W: Tensor = _Rounded.apply(self.offsets, self.logs, self).reshape(self.shape)  # type: ignore[no-untyped-call]
        return W.T if self.transposed else W

    def codes_now(self, offsets: Tensor) -> Tensor:
        """Returns the codes, in float32."""
        return offsets.round().add_(self.start).clamp_(self.lowest, self.highest)

    def scales_now(self, logs: Tensor) -> Tensor:
        """Returns the scales as they will be stored, in float32."""
        return (self.first_scales * logs.exp()).to(self.stored).float()

    @torch.no_grad()
    def bound(self) -> None:
        """Takes back every offset that has gone too far."""
        self.offsets.clamp_(-FARTHEST, FARTHEST)

    @torch.no_grad()
    def found(self) -> Codes:
        """Returns the codes as they are now, on the CPU."""
        codes = self.codes_now(self.offsets).to(torch.int8).reshape(self.shape)
        return Codes(codes.cpu(), self.scales_now(self.logs)[:, :, 0].to(self.stored).cpu(), self.bits)


@contextmanager
def attached(
    model: "PreTrainedModel",
    weights: Mapping[str, Weight],
    start: Mapping[str, tuple[Codes, Grid]],
) -> Iterator[dict[str, Latents]]:
    """Puts latents in the place of the named weights, and in the end the weights that were there before.

    All else in the model stays as it is, and gets no gradients.
    """
    modules = dict(model.named_modules())
    model.requires_grad_(False)
    made: dict[str, Latents] = {}
    try:
        for name, (codes, grid) in start.items():
            weight = weights[name]
            module = modules.get(weight.module)
            if module is None or not isinstance(getattr(module, "weight", None), Tensor):
                raise InputError(
                    f"{name} is no weight of a module of {type(model).__name__}, so its rounding cannot be learned; "
                    "take the policy gptq"
                )
            own = module.weight.detach()
            W = own.T if weight.transposed else own
            latents = Latents(W, codes, grid=grid, transposed=weight.transposed)
            parametrize.register_parametrization(module, "weight", latents, unsafe=True)
            made[name] = latents
        yield made
    finally:
        for name in made:
            module = modules[weights[name].module]
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
