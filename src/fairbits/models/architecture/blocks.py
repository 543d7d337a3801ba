"""The blocks of a model, and the role and input of each linear layer in them, from the forward pass.

Names only distinguish q, k and v.
"""

import copy
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import PROJECTION_NAMES, Role, RowRange
from fairbits.models.architecture.meta_model import TOKENS, Key, TracedCall


@dataclass(frozen=True)
class Site:
    """A module that multiplies its input by one matrix."""

    path: str
    n_out: int
    n_in: int
    transposed: bool
    input_id: Key
    output_id: Key
    times: int  # how often a forward pass uses it


@dataclass(frozen=True)
class Reading:
    """The role of a site and its part of the block: attention, cross_attention, mlp, bottleneck; mixer for others."""

    site: Site
    role: Role
    unit: str


def sites(model: nn.Module, calls: Mapping[str, list[TracedCall]]) -> list[Site]:
    """Returns the linear layers that text passes through, in the order of the forward pass."""
    listed = []
    for path, path_calls in calls.items():
        module = model.get_submodule(path)
        weight = module._parameters.get("weight")
        if weight is None or weight.ndim != 2 or isinstance(module, nn.Embedding) or is_norm(module):
            continue
        transposed = isinstance(module, Conv1D)
        n_out, n_in = weight.shape[::-1] if transposed else weight.shape
        call = path_calls[0]
        # routers give other things than a product
        channels = call.out_channels if isinstance(module, nn.Linear) else n_out
        if call.input_id is not None and call.output_id is not None and (call.in_channels, channels) == (n_in, n_out):
            listed.append(Site(path, n_out, n_in, transposed, call.input_id, call.output_id, len(path_calls)))
    return listed


def is_norm(module: nn.Module) -> bool:
    """Returns whether a module normalizes its input; some have a gain of two dimensions, one row per head."""
    return "norm" in type(module).__name__.lower()


NARROW = 16
"""A layer that has less than this part of the hidden size on one side controls others, and is not quantized. Ranks of
latent attention are larger; step sizes of state spaces have just this size. A heuristic."""


def read_block(
    block: Sequence[Site], hidden_size: int, *, activated: frozenset[Key], n_experts: int | None
) -> list[Reading]:
    """Returns the role of every linear layer of a block, whose hidden states have `hidden_size` channels.

    Projections q, k, v are followed by the attention's output; feed-forward units have layers that widen the same input
    (the gate is the one whose output goes into an activation) and one that leads back. All others are projections: of
    latent or linear attention, of state spaces, of convolutions.
    """
    for site in block:
        if site.times > 1 and not _is_narrow(site, hidden_size):
            raise InputError(
                f"{site.path!r} is used {site.times} times in one forward pass; a matrix must be used once"
            )
    readings: list[Reading] = []
    rest = list(block)
    for find in (_attentions, partial(_routers, n_experts=n_experts), partial(_feed_forwards, activated=activated)):
        read = find(rest)
        readings += read
        paths = {reading.site.path for reading in read}
        rest = [site for site in rest if site.path not in paths]
    return readings + [
        Reading(site, "control" if _is_narrow(site, hidden_size) else "projection", "mixer") for site in rest
    ]


def _routers(rest: Sequence[Site], *, n_experts: int | None) -> list[Reading]:
    return [Reading(site, "router", "mlp") for site in rest if n_experts is not None and site.n_out in (1, n_experts)]


def _is_narrow(site: Site, hidden_size: int) -> bool:
    return NARROW * min(site.n_in, site.n_out) <= hidden_size


def _projection(path: str) -> Role | None:
    name = path.rpartition(".")[2]
    return next((role for role, pattern in PROJECTION_NAMES if pattern.match(name)), None)


def _attentions(block: Sequence[Site]) -> list[Reading]:
    readings: list[Reading] = []
    heads: list[tuple[Site, Role]] = []
    for site in block:
        role = _projection(site.path)
        if role is not None:
            heads.append((site, role))
        elif heads and site.input_id not in {head.input_id for head, _ in heads}:
            readings += _attention(heads, site)
            heads = []
    return readings


def _attention(heads: Sequence[tuple[Site, Role]], out: Site) -> list[Reading]:
    by_role = {role: site for site, role in heads}
    first = by_role.get("q") or by_role.get("qkv")
    usual = len(heads) == len(by_role) and set(by_role) in ({"qkv"}, {"q", "k", "v"})
    if not usual or first is None or out.n_out != first.n_in:  # it must return to the stream
        return []
    if not (out.n_in < first.n_out if "qkv" in by_role else out.n_in == first.n_out):  # through q of all heads
        return []
    unit = "cross_attention" if len({site.input_id for site, _ in heads}) > 1 else "attention"
    return [*(Reading(site, role, unit) for site, role in heads), Reading(out, "attention_out", unit)]


def _feed_forwards(rest: Sequence[Site], *, activated: frozenset[Key]) -> list[Reading]:
    readings: list[Reading] = []
    wide: list[Site] = []
    for group in _by_input(rest):
        closed = _closed(wide, group, activated=activated) if wide else []
        readings += closed
        wide = group if not closed and len(group) <= 2 and len({site.n_out for site in group}) == 1 else []
    return readings


def _closed(wide: Sequence[Site], down: Sequence[Site], *, activated: frozenset[Key]) -> list[Reading]:
    first = wide[0]
    if len(down) != 1 or down[0].n_out != first.n_in:
        return []
    closing = [Reading(down[0], "mlp_down", "mlp")]
    if len(wide) == 2 and down[0].n_in == first.n_out:
        gated = _gated(wide, activated=activated)
        return [*(Reading(site, role, "mlp") for site, role in gated), *closing] if gated else []
    if len(wide) == 1 and down[0].n_in == first.n_out:
        if first.n_out < first.n_in:  # a bottleneck next to the feed-forward layer, such as an adapter
            return [Reading(site, "projection", "bottleneck") for site in (first, *down)]
        return [Reading(first, "mlp_up", "mlp"), *closing]
    if len(wide) == 1 and 2 * down[0].n_in == first.n_out:
        return [Reading(first, "mlp_gate_up", "mlp"), *closing]
    return []


def _gated(pair: Sequence[Site], *, activated: frozenset[Key]) -> list[tuple[Site, Role]]:
    gates = [site for site in pair if site.output_id in activated]
    if len(gates) != 1:  # the activation is a plain function, which no hook sees
        gates = [site for site in pair if "gate" in site.path.rpartition(".")[2]]
    return [(site, "mlp_gate" if site is gates[0] else "mlp_up") for site in pair] if len(gates) == 1 else []


def _by_input(rest: Iterable[Site]) -> list[list[Site]]:
    groups: dict[Key, list[Site]] = {}
    for site in rest:
        groups.setdefault(site.input_id, []).append(site)
    return list(groups.values())


_INPUTS: Mapping[Role, str] = {"attention_out": "_out", "mlp_down": "_down"}  # all others share the unit's input


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer of the module tree, with its role and input."""

    site: Site
    role: Role
    sees: str
    fused: str | None
    layout: tuple[RowRange, ...]


@dataclass(frozen=True)
class Walk:
    """The result of a traced forward pass: the blocks in order, and every linear layer by the path of its module."""

    blocks: tuple[str, ...]
    layers: Mapping[str, LinearLayer]


def walk(model: PreTrainedModel, calls: Mapping[str, list[TracedCall]]) -> Walk:
    """Returns the blocks and linear layers of a traced model."""
    listed = sites(model, calls)
    blocks = _blocks(model, calls, listed)
    activated = frozenset(_activated(model, calls))
    names: dict[Key, str] = {}
    layers: dict[str, LinearLayer] = {}
    layouts: dict[tuple[type[nn.Module], int], tuple[RowRange, ...]] = {}
    for index, path in enumerate(blocks):
        inside = [site for site in listed if site.path.startswith(f"{path}.")]
        n_experts = _n_experts(model.get_submodule(path))
        readings = read_block(inside, stream_size(calls, path), activated=activated, n_experts=n_experts)
        fused = _fused(readings, f"blocks.{index}")
        for reading in readings:
            site = reading.site
            within = f"blocks.{index}{site.path.removeprefix(path)}"
            sees = _named(names, site.input_id, wish=_input_name(reading, f"blocks.{index}"), otherwise=within)
            layout = _layout(model, reading, readings=readings, calls=calls, layouts=layouts)
            layers[site.path] = LinearLayer(site, reading.role, sees, fused.get(site.path), layout)
    head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
    for site in listed:
        if site.path not in layers:
            is_head = model.get_submodule(site.path) is head
            sees = _named(names, site.input_id, wish="head" if is_head else site.path, otherwise=site.path)
            layers[site.path] = LinearLayer(site, "head" if is_head else "projection", sees, None, ())
    return Walk(blocks, layers)


def stream_size(calls: Mapping[str, list[TracedCall]], block: str) -> int:
    """Returns the channels of a block's hidden states."""
    channels = calls[block][0].in_channels
    if channels is None:
        raise InputError(f"{block} is called without hidden states")
    return channels


def prefixes(path: str) -> list[str]:
    """Returns the paths of all modules around a module, and its own."""
    return list(accumulate(path.split("."), "{}.{}".format))


def _blocks(model: PreTrainedModel, calls: Mapping[str, list[TracedCall]], listed: Sequence[Site]) -> tuple[str, ...]:
    owners = Counter(prefix for site in listed for prefix in prefixes(site.path))
    lists = {path: module for path, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    outer = [path for path in lists if not any(prefix in lists for prefix in prefixes(path)[:-1])]
    members = [f"{path}.{i}" for path in outer for i in range(len(lists[path])) if owners[f"{path}.{i}"] > 1]
    order = {path: i for i, path in enumerate(calls)}
    if not members:
        raise InputError("no repeated list of layers with linear layers")
    return tuple(sorted(members, key=order.__getitem__))


def _activated(model: PreTrainedModel, calls: Mapping[str, list[TracedCall]]) -> list[Key]:
    """Returns the inputs of modules without parameters, such as activation functions."""
    leaves = [
        path
        for path, module in model.named_modules()
        if not isinstance(module, nn.Dropout | nn.Identity) and not [*module.parameters(), *module.children()]
    ]
    return [call.input_id for path in leaves for call in calls.get(path, []) if call.input_id is not None]


def _n_experts(block: nn.Module) -> int | None:
    counts = (
        parameter.shape[0]
        for module in block.modules()
        if not isinstance(module, nn.Conv1d)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim == 3
    )
    return max(counts, default=None)


def _named(names: dict[Key, str], key: Key, *, wish: str, otherwise: str) -> str:
    if key not in names:
        names[key] = otherwise if wish in names.values() else wish
    return names[key]


def _input_name(reading: Reading, block: str) -> str:
    if reading.unit == "cross_attention" and reading.role in ("k", "v"):
        return "encoder_output"
    return f"{block}.{reading.unit}{_INPUTS.get(reading.role, '')}"


def _fused(readings: Sequence[Reading], block: str) -> dict[str, str]:
    """Returns the group of every layer that vLLM merges with others: q, k, v of one input; gate and up.

    Of other layers it merges some that have one input, such as the first ones of latent attention, in ways that differ
    between families; so all of them share a scheme.
    """
    groups: dict[tuple[str, Key], list[Reading]] = {}
    for reading in readings:
        if reading.role in ("q", "k", "v", "mlp_gate", "mlp_up", "projection"):
            groups.setdefault((reading.unit, reading.site.input_id), []).append(reading)
    return {
        reading.site.path: f"{block}.{unit}.{_merged({r.role for r in group})}"
        for (unit, _), group in groups.items()
        if len(group) > 1
        for reading in group
    }


def _merged(roles: set[Role]) -> str:
    if "projection" in roles:
        return "projections"
    return "gate_up" if "mlp_up" in roles else "".join(role for role in "qkv" if role in roles)


def _layout(
    model: PreTrainedModel,
    reading: Reading,
    *,
    readings: Sequence[Reading],
    calls: Mapping[str, list[TracedCall]],
    layouts: dict[tuple[type[nn.Module], int], tuple[RowRange, ...]],
) -> tuple[RowRange, ...]:
    if reading.role not in ("qkv", "mlp_gate_up"):
        return ()
    find, last = (_attention_layout, "attention_out") if reading.role == "qkv" else (_gate_layout, "mlp_down")
    parent = reading.site.path.rpartition(".")[0]
    outs = [r.site.path for r in readings if r.role == last and r.site.path.startswith(f"{parent}.")]
    if len(outs) != 1 or len(calls.get(parent, ())) != 1:
        return ()
    module = model.get_submodule(parent)
    fused, out = (path.removeprefix(f"{parent}.") for path in (reading.site.path, outs[0]))
    kind = (type(module), reading.site.n_out)
    if kind not in layouts:
        try:
            layouts[kind] = find(module, calls[parent][0], fused=fused, out=out, rows=reading.site.n_out)
        except Exception:  # the module's own code, run on made-up arguments: if it fails the layout stays unknown
            layouts[kind] = ()
    return layouts[kind]


# Which rows of a fused matrix are q, k and v (or gate and up) is found by differentiating the module that uses it. It
# runs on the CPU with the output of the fused matrix given, so no weight of a real size is ever made:
#     the same value at every token: attention returns v whatever q and k are, so only rows of v have a gradient;
#     different values: the first token reaches the second through k and v only; rows without effect are q.


class _Reached(Exception):  # noqa: N818 - it carries a result, it is not an error
    """Ends the run of a module at the matrix that follows."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


def _attention_layout(
    attention: nn.Module, call: TracedCall, *, fused: str, out: str, rows: int
) -> tuple[RowRange, ...]:
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
    return _ranges(roles) if roles.count("k") == roles.count("v") > 0 and "q" in roles else ()


def _gate_layout(mlp: nn.Module, call: TracedCall, *, fused: str, out: str, rows: int) -> tuple[RowRange, ...]:
    """Returns the rows of gate and up in the output of `fused`: at 1 the slope in up is the value itself."""
    run = _runner(mlp, call, fused=fused, out=out)
    ones = torch.ones(1, TOKENS, rows, requires_grad=True)
    value = run(ones)
    (grad,) = torch.autograd.grad(value.sum(), ones)
    is_up = torch.isclose(grad[0, 0], value.detach().flatten()[0])
    return _ranges(["mlp_up" if up else "mlp_gate" for up in is_up.tolist()]) if 2 * int(is_up.sum()) == rows else ()


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


def _ranges(roles: Sequence[Role]) -> tuple[RowRange, ...]:
    parts, start = [], 0
    for role, run in groupby(roles):
        stop = start + len(list(run))
        parts.append(RowRange(role, start, stop))
        start = stop
    return tuple(parts)
