"""The blocks of a model, and the role and input of each linear layer in them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from torch import nn
from transformers import PreTrainedModel

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Role, RowRange
from fairbits.models.architecture.fused_rows import attention_layout, gate_layout
from fairbits.models.architecture.meta_model import Key, TracedCall
from fairbits.models.architecture.roles import Reading, Site, read_block, sites

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
    """Returns the paths of all modules around a module, and its own.

    >>> prefixes("model.layers.0")
    ['model', 'model.layers', 'model.layers.0']
    """
    return list(accumulate(path.split("."), "{}.{}".format))


def _blocks(model: PreTrainedModel, calls: Mapping[str, list[TracedCall]], listed: Sequence[Site]) -> tuple[str, ...]:
    """Returns the members of the outermost lists of modules that hold several linear layers each."""
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
    """Returns how many experts a block has; transformers stacks their matrices in three dimensions."""
    counts = (
        parameter.shape[0]
        for module in block.modules()
        if not isinstance(module, nn.Conv1d)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim == 3
    )
    return max(counts, default=None)


def _named(names: dict[Key, str], key: Key, *, wish: str, otherwise: str) -> str:
    """Returns the name of an input; a new one is `wish`, or `otherwise` if `wish` is taken."""
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
    find, last = (attention_layout, "attention_out") if reading.role == "qkv" else (gate_layout, "mlp_down")
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
