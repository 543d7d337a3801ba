"""What is learned of a linear layer: the offset of each weight from its first code, and the scale of each group.

The model computes with W = s·x(c + round(v)). c are the codes at the start, and x(k) is the number that a code stands
for: k itself, or the k-th floating-point number. v are the offsets, bounded so that a code reaches either neighbour of
its first value and no farther. s = s₀ eʳ is the scale as it is stored. So the forward pass only ever sees weights that
a loader could make of codes: what is evaluated is exactly what will be written. Rounding has no useful derivative; the
straight-through estimator takes it as the identity, which gives ∂/∂v = s·x′·∂/∂W, x′ being half the distance between
the neighbours of a number, and ∂/∂r = s Σ x·∂/∂W over a group. Powers of two, and scales of blocks and tensors, stay
as they are.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Weight
from fairbits.models.device import autocast_dtype
from fairbits.models.rounded_activations import round_layer, scheme_rounding
from fairbits.models.scales.float_scales import code_gaps, code_values, in_8_bits
from fairbits.models.scales.groups import WEIGHT_GLOBAL_SCALE, Codes, divisors, scheme_grid, split_like
from fairbits.models.scales.scheme import Scheme

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
        values = code_values(learnable.codes_at(offsets), learnable.grid.numbers)
        return (values * scales).to(learnable.stored).to(autocast_dtype(offsets.device))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        offsets, scales = ctx.saved_tensors
        learnable, scaled = ctx.learnable, grad * scales
        codes = learnable.codes_at(offsets)
        by_group = (scaled * code_values(codes, learnable.grid.numbers)).sum(2, keepdim=True)
        if learnable.fixed_scales:
            by_group.zero_()
        return scaled.mul_(code_gaps(codes, learnable.grid.numbers)).to(offsets.dtype), by_group, None


class LearnableCodes(nn.Module):
    """The codes and scales of one linear layer (out, in) as a parametrization of its weight."""

    first_codes: Tensor
    first_scales: Tensor

    def __init__(self, W: Tensor, codes: Codes, *, scheme: Scheme, transposed: bool) -> None:
        super().__init__()
        self.start, self.grid = replace(codes), scheme_grid(scheme)
        self.fixed_scales = scheme.scales == "e8m0" or scheme.group in ("block", "tensor")
        self.transposed, self.stored = transposed, codes.scales.dtype
        self.shape = codes.codes.shape
        self.register_buffer("first_codes", split_like(codes.codes, codes.scales).to(W.device))
        self.register_buffer("first_scales", codes.scales.float()[:, :, None].to(W.device))
        errors = split_like(W.float(), codes.scales) / divisors(self.first_scales)
        errors = errors.sub_(code_values(self.first_codes, self.grid.numbers))
        errors = errors.div_(code_gaps(self.first_codes, self.grid.numbers)).clamp_(-0.5, 0.5)
        self.offsets = nn.Parameter(errors.mul_(INITIAL_SHARE).to(torch.bfloat16))
        self.log_scales = nn.Parameter(torch.zeros_like(self.first_scales))

    def forward(self, _original: Tensor) -> Tensor:
        """Returns the weights that a loader would make of the present codes."""
        W: Tensor = _StraightThrough.apply(self.offsets, self.log_scales, self).reshape(self.shape)  # type: ignore[no-untyped-call]
        return W.T if self.transposed else W

    def codes_at(self, offsets: Tensor) -> Tensor:
        return offsets.round().add_(self.first_codes).clamp_(self.grid.lowest, self.grid.highest)

    def scales_at(self, log_scales: Tensor) -> Tensor:
        """Returns the scales at these logarithms, as they are stored, in float32."""
        if self.fixed_scales:
            return self.first_scales
        if WEIGHT_GLOBAL_SCALE in self.start.constants:
            return in_8_bits(self.first_scales * log_scales.exp(), self.start.constants[WEIGHT_GLOBAL_SCALE])
        return (self.first_scales * log_scales.exp()).to(self.stored).float()

    @torch.no_grad()
    def current(self) -> Codes:
        codes = self.codes_at(self.offsets).to(torch.int8).reshape(self.shape)
        scales = self.scales_at(self.log_scales)[:, :, 0].to(self.stored)
        return replace(self.start, codes=codes.cpu(), scales=scales.cpu())


@contextmanager
def learnable_codes(
    model: PreTrainedModel, weights: Mapping[str, Weight], start: Mapping[str, tuple[Codes, Scheme]]
) -> Iterator[dict[str, LearnableCodes]]:
    """Gives learnable codes that replace the named weights, which must be loaded again; nothing else gets gradients.

    Inputs are rounded as the schemes say.
    """
    modules = dict(model.named_modules())
    model.requires_grad_(False)
    attached: dict[str, LearnableCodes] = {}
    hooks: list[RemovableHandle] = []
    try:
        for name, (codes, scheme) in start.items():
            weight = weights[name]
            module = modules.get(weight.module)
            if module is None or not isinstance(getattr(module, "weight", None), Tensor):
                raise InputError(
                    f"{name} is not the weight of a module of {type(model).__name__}, so its rounding cannot be "
                    "learned; use the policy gptq"
                )
            stored = module.weight.detach()
            W = stored.T if weight.transposed else stored
            learnable = LearnableCodes(W, codes, scheme=scheme, transposed=weight.transposed)
            parametrize.register_parametrization(module, "weight", learnable, unsafe=True)
            original = module.parametrizations["weight"].original
            original.data = original.new_empty(0)
            attached[name] = learnable
            if scheme.inputs != "kept":
                hooks += round_layer(module, scheme_rounding(scheme, codes))
        yield attached
    finally:
        for hook in hooks:
            hook.remove()
        for name in attached:
            module = modules[weights[name].module]
            parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
