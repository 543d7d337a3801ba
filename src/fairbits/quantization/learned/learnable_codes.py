"""What is learned of a linear layer: the offset of each weight from its first code, and the scale of each group.

The model computes with W = s·(c + round(v)). c are the codes at the start. v are the offsets, in units of the scale,
bounded so that a code reaches either neighbour of its first value and no farther. s = s₀ eʳ is the scale in the type
that is stored. So the forward pass only ever sees weights that a loader could make of codes: what is evaluated is
exactly what will be written. Rounding has no useful derivative; the straight-through estimator takes it as the
identity, which gives ∂/∂v = s·∂/∂W, and ∂/∂r = s Σ (c + round(v))·∂/∂W over a group.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Weight
from fairbits.models.device import autocast_dtype
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import Codes, divisors, split_like

MAX_OFFSET = 1.49
"""The largest offset of a weight from its first code: it rounds to either neighbour, and to nothing beyond."""
INITIAL_SHARE = 0.6
"""Share of its rounding error that a weight starts with as its offset: weights near an edge cross it more easily."""


class _StraightThrough(torch.autograd.Function):
    """s·(c + round(v)), whose backward pass takes the rounding as the identity."""

    @staticmethod
    def forward(ctx: Any, offsets: Tensor, log_scales: Tensor, learnable: "LearnableCodes") -> Tensor:
        scales = learnable.scales_at(log_scales)
        ctx.save_for_backward(offsets, scales)  # codes are made of the offsets again
        ctx.learnable = learnable
        # through the stored type, as a loader would compute it
        codes = learnable.codes_at(offsets)
        return (codes * scales).to(learnable.stored).to(autocast_dtype(offsets.device))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        offsets, scales = ctx.saved_tensors
        scaled = grad * scales
        by_group = (scaled * ctx.learnable.codes_at(offsets)).sum(2, keepdim=True)
        return scaled.to(offsets.dtype), by_group, None


class LearnableCodes(nn.Module):
    """The codes and scales of one linear layer (out, in) as a parametrization of its weight."""

    first_codes: Tensor
    first_scales: Tensor

    def __init__(self, W: Tensor, codes: Codes, *, grid: Grid, transposed: bool) -> None:
        super().__init__()
        self.bits, self.lowest, self.highest = grid.bits, int(grid.lowest), int(grid.highest)
        self.transposed, self.stored = transposed, codes.scales.dtype
        self.shape = codes.codes.shape
        self.register_buffer("first_codes", split_like(codes.codes, codes.scales).to(W.device))
        self.register_buffer("first_scales", codes.scales.float()[:, :, None].to(W.device))
        errors = split_like(W.float(), codes.scales) / divisors(self.first_scales)
        errors = errors.sub_(self.first_codes).clamp_(-0.5, 0.5)
        self.offsets = nn.Parameter(errors.mul_(INITIAL_SHARE).to(torch.bfloat16))
        self.log_scales = nn.Parameter(torch.zeros_like(self.first_scales))

    def forward(self, _original: Tensor) -> Tensor:
        """Returns the weights that a loader would make of the present codes."""
        W: Tensor = _StraightThrough.apply(self.offsets, self.log_scales, self).reshape(self.shape)  # type: ignore[no-untyped-call]
        return W.T if self.transposed else W

    def codes_at(self, offsets: Tensor) -> Tensor:
        return offsets.round().add_(self.first_codes).clamp_(self.lowest, self.highest)

    def scales_at(self, log_scales: Tensor) -> Tensor:
        """Returns the scales at these logarithms, rounded to the stored type, in float32."""
        return (self.first_scales * log_scales.exp()).to(self.stored).float()

    @torch.no_grad()
    def current(self) -> Codes:
        codes = self.codes_at(self.offsets).to(torch.int8).reshape(self.shape)
        return Codes(codes.cpu(), self.scales_at(self.log_scales)[:, :, 0].to(self.stored).cpu(), self.bits)


@contextmanager
def learnable_codes(
    model: PreTrainedModel, weights: Mapping[str, Weight], start: Mapping[str, tuple[Codes, Grid]]
) -> Iterator[dict[str, LearnableCodes]]:
    """Gives learnable codes that replace the named weights, which must be loaded again; nothing else gets gradients."""
    modules = dict(model.named_modules())
    model.requires_grad_(False)
    attached: dict[str, LearnableCodes] = {}
    try:
        for name, (codes, grid) in start.items():
            weight = weights[name]
            module = modules.get(weight.module)
            if module is None or not isinstance(getattr(module, "weight", None), Tensor):
                raise InputError(
                    f"{name} is not the weight of a module of {type(model).__name__}, so its rounding cannot be "
                    "learned; use the policy gptq"
                )
            stored = module.weight.detach()
            W = stored.T if weight.transposed else stored
            learnable = LearnableCodes(W, codes, grid=grid, transposed=weight.transposed)
            parametrize.register_parametrization(module, "weight", learnable, unsafe=True)
            original = module.parametrizations["weight"].original
            original.data = original.new_empty(0)
            attached[name] = learnable
        yield attached
    finally:
        for name in attached:
            module = modules[weights[name].module]
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
