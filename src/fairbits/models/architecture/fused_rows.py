"""Which rows of a fused matrix are q, k and v (or gate and up), found by differentiating the module that uses it.

The module runs on the CPU with the output of the fused matrix given, so no weight of a real size is ever made:
    the same value at every token: attention returns v whatever q and k are, so only rows of v have a gradient;
    different values: the first token reaches the second through k and v only; rows without effect are q.
"""

import copy
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from fairbits.models.architecture.architecture import Role, RowRange
from fairbits.models.architecture.meta_model import TOKENS, TracedCall


class _Reached(Exception):  # noqa: N818 - it carries a result, it is not an error
    """Ends the run of a module at the matrix that follows."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def attention_layout(
    attention: nn.Module, call: TracedCall, *, fused: str, out: str, rows: int
) -> tuple[RowRange, ...]:
    """Returns the rows of q, k and v in the output of `fused`, empty if they cannot be determined."""
    run = _runner(attention, call, fused=fused, out=out)
    generator = torch.Generator().manual_seed(0)
    value = torch.randn(1, TOKENS, rows, generator=generator)
    same = value[:, :1].expand(1, TOKENS, rows).clone().requires_grad_()
    (grad,) = torch.autograd.grad(run(same).sum(), same)
    is_v = grad.abs().amax((0, 1)) > 1e-3  # q and k: rounding only; v: the sum of positive attention weights
    value.requires_grad_()
    weights = torch.rand(run(value).shape[-1], generator=generator)
    (grad,) = torch.autograd.grad((run(value)[0, -1] * weights).sum(), value)
    reaches = grad[0, 0] != 0
    roles: list[Role] = ["v" if v else "k" if r else "q" for v, r in zip(is_v.tolist(), reaches.tolist(), strict=True)]
    # every head of v has one of k; anything else says that made-up arguments, such as a mask, hid an effect
    return _parts(roles) if roles.count("k") == roles.count("v") > 0 and "q" in roles else ()


def gate_layout(mlp: nn.Module, call: TracedCall, *, fused: str, out: str, rows: int) -> tuple[RowRange, ...]:
    """Returns the rows of gate and up in the output of `fused`: at 1 the slope in up is the value itself."""
    run = _runner(mlp, call, fused=fused, out=out)
    ones = torch.ones(1, TOKENS, rows, requires_grad=True)
    value = run(ones)
    (grad,) = torch.autograd.grad(value.sum(), ones)
    is_up = torch.isclose(grad[0, 0], value.detach().flatten()[0])
    return _parts(["mlp_up" if up else "mlp_gate" for up in is_up.tolist()]) if 2 * int(is_up.sum()) == rows else ()


def _runner(module: nn.Module, call: TracedCall, *, fused: str, out: str) -> Callable[[Tensor], Tensor]:
    generator = torch.Generator().manual_seed(1)

    def made(tensor: Tensor) -> Tensor:
        if tensor.dtype.is_floating_point:
            return torch.rand(tensor.shape, generator=generator)
        return torch.ones(tensor.shape, dtype=tensor.dtype)

    module = copy.deepcopy(module)  # on the meta device: without weights
    first, last = module.get_submodule(fused), module.get_submodule(out)
    for part in module.modules():
        if part is not first and part is not last:
            part._parameters = {n: p if p is None else nn.Parameter(made(p)) for n, p in part._parameters.items()}
            part._buffers = {n: b if b is None else made(b) for n, b in part._buffers.items()}
    args, kwargs = tree_map_only(Tensor, made, (call.args, dict(call.kwargs)))

    def run(value: Tensor) -> Tensor:
        def give(*_: Any) -> Tensor:
            return value

        def stop(reached: Tensor) -> Tensor:
            raise _Reached(reached.reshape(1, TOKENS, -1))

        first.forward, last.forward = give, stop
        try:
            module.forward(*args, **kwargs)
        except _Reached as end:
            return end.value
        raise RuntimeError("the module never reached its output matrix")

    return run


def _parts(roles: Sequence[Role]) -> tuple[RowRange, ...]:
    parts, start = [], 0
    for role, run in groupby(roles):
        stop = start + len(list(run))
        parts.append(RowRange(role, start, stop))
        start = stop
    return tuple(parts)
