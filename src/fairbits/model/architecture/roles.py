"""Roles of the linear maps of a block, from the forward pass; names only distinguish q, k and v."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from torch import nn
from transformers.pytorch_utils import Conv1D

from fairbits.errors import InputError
from fairbits.model.architecture.records import Role
from fairbits.model.architecture.skeleton import Call, Key

_PROJECTIONS: tuple[tuple[Role, re.Pattern[str]], ...] = (
    ("qkv", re.compile(r"^(w?qkv(_proj|_lin)?|query_key_value|c_attn)$", re.IGNORECASE)),
    ("q", re.compile(r"^(w?q|query)(_proj|_lin)?$", re.IGNORECASE)),
    ("k", re.compile(r"^(w?k|key)(_proj|_lin)?$", re.IGNORECASE)),
    ("v", re.compile(r"^(w?v|value)(_proj|_lin)?$", re.IGNORECASE)),
)


@dataclass(frozen=True)
class Site:
    """A module that multiplies its input by one matrix."""

    path: str
    n_out: int
    n_in: int
    transposed: bool
    sees: Key
    gives: Key


@dataclass(frozen=True)
class Reading:
    """The role of a site and the part of the block it works in: attention, cross_attention or mlp."""

    site: Site
    role: Role
    unit: str


def sites(model: nn.Module, calls: Mapping[str, list[Call]]) -> list[Site]:
    """Returns the linear maps that text passes through, in the order of the forward pass."""
    listed = []
    for path, made in calls.items():
        module = model.get_submodule(path)
        weight = module._parameters.get("weight")
        if weight is None or weight.ndim != 2 or isinstance(module, nn.Embedding) or is_norm(module):
            continue
        transposed = isinstance(module, Conv1D)
        n_out, n_in = weight.shape[::-1] if transposed else weight.shape
        call = made[0]
        if len(made) > 1:
            raise InputError(f"{path!r} is used {len(made)} times in one forward pass; every matrix must be used once")
        if call.sees is None or call.gives is None or call.width != n_in:
            raise InputError(
                f"{path!r} ({type(module).__name__}) holds a matrix {n_out} x {n_in} but is not a linear map"
            )
        listed.append(Site(path, n_out, n_in, transposed, call.sees, call.gives))
    return listed


def is_norm(module: nn.Module) -> bool:
    """Returns whether a module normalizes its input; some have a gain of two dimensions, one row per head."""
    return "norm" in type(module).__name__.lower()


def read_block(block: Sequence[Site], *, activated: frozenset[Key], n_experts: int | None) -> list[Reading]:
    """Returns the role of every linear map of a block.

    Projections q, k, v are followed by the attention's output; the rest is feed-forward: maps that widen the same input
    (the gate is the one whose output goes into an activation) and one that leads back.
    """
    readings: list[Reading] = []
    rest: list[Site] = []
    heads: list[tuple[Site, Role]] = []
    for site in block:
        role = _projection(site.path)
        if role is not None:
            heads.append((site, role))
        elif heads:
            readings += _attention(heads, site)
            heads = []
        else:
            rest.append(site)
    if heads or not readings:
        raise InputError(f"no attention with an output projection among {_listed(block)}")
    return readings + _feed_forward(rest, activated=activated, n_experts=n_experts)


def _projection(path: str) -> Role | None:
    name = path.rpartition(".")[2]
    return next((role for role, pattern in _PROJECTIONS if pattern.match(name)), None)


def _attention(heads: Sequence[tuple[Site, Role]], out: Site) -> list[Reading]:
    by_role = {role: site for site, role in heads}
    first = by_role.get("q") or by_role.get("qkv")
    known = len(heads) == len(by_role) and set(by_role) in ({"qkv"}, {"q", "k", "v"})
    inputs = {site.sees for site, _ in heads}
    if not known or first is None or not _returns(first, out) or out.sees in inputs:
        raise InputError(f"no known kind of attention: {_listed([*(site for site, _ in heads), out])}")
    unit = "cross_attention" if len(inputs) > 1 else "attention"
    return [*(Reading(site, role, unit) for site, role in heads), Reading(out, "attention_out", unit)]


def _returns(first: Site, out: Site) -> bool:
    """Returns whether the widths are those of an attention: from and back to the stream, through q of all heads."""
    through = out.n_in < first.n_out if _projection(first.path) == "qkv" else out.n_in == first.n_out
    return through and out.n_out == first.n_in


def _feed_forward(rest: Sequence[Site], *, activated: frozenset[Key], n_experts: int | None) -> list[Reading]:
    readings: list[Reading] = []
    wide: list[Site] = []
    for group in _by_input(rest):
        routers = [s for s in group if n_experts is not None and s.n_out in (1, n_experts)]
        readings += [Reading(site, "router", "mlp") for site in routers]
        plain = [site for site in group if site not in routers]
        if not plain:
            continue
        if wide:
            readings += _closed(wide, plain, activated=activated)
            wide = []
        elif len(plain) <= 2 and len({site.n_out for site in plain}) == 1:
            wide = plain
        else:
            raise InputError(f"no feed-forward layer that is known: {_listed(plain)}")
    if wide:
        raise InputError(f"nothing leads back from {_listed(wide)}; a feed-forward layer must return to the stream")
    return readings


def _closed(wide: Sequence[Site], down: Sequence[Site], *, activated: frozenset[Key]) -> list[Reading]:
    first, fits = wide[0], len(down) == 1 and down[0].n_out == wide[0].n_in
    closing = [Reading(site, "mlp_down", "mlp") for site in down]
    if fits and len(wide) == 2 and down[0].n_in == first.n_out:
        return [*(Reading(site, role, "mlp") for site, role in _gated(wide, activated=activated)), *closing]
    if fits and len(wide) == 1 and down[0].n_in == first.n_out:
        if first.n_out < first.n_in:  # a bottleneck next to the feed-forward layer, such as an adapter
            return [Reading(site, "projection", "bottleneck") for site in (first, *down)]
        return [Reading(first, "mlp_up", "mlp"), *closing]
    if fits and len(wide) == 1 and 2 * down[0].n_in == first.n_out:
        return [Reading(first, "mlp_gate_up", "mlp"), *closing]
    raise InputError(f"no feed-forward layer that is known: {_listed([*wide, *down])}")


def _gated(pair: Sequence[Site], *, activated: frozenset[Key]) -> list[tuple[Site, Role]]:
    gates = [site for site in pair if site.gives in activated]
    if len(gates) != 1:  # the activation is a plain function, which no hook sees
        gates = [site for site in pair if "gate" in site.path.rpartition(".")[2]]
    if len(gates) != 1:
        raise InputError(f"the gate cannot be determined: {_listed(pair)}")
    return [(site, "mlp_gate" if site is gates[0] else "mlp_up") for site in pair]


def _by_input(rest: Iterable[Site]) -> list[list[Site]]:
    groups: dict[Key, list[Site]] = {}
    for site in rest:
        groups.setdefault(site.sees, []).append(site)
    return list(groups.values())


def _listed(block: Iterable[Site]) -> str:
    return ", ".join(f"{site.path} ({site.n_in} -> {site.n_out})" for site in block) or "no linear maps"
