"""Which weights of a block may be scaled against each other without changing what the block computes.

A coupling is one channel between two linear steps: the slices on one side × c and those on the other ÷ c leave the
function as it was. Three routes lead through such channels:

- ``norm``: norm gain and bias → input columns of every linear layer that sees the norm's output;
- ``value``: value rows and bias → attention-output columns of every query head that reads them;
- ``mlp``: up rows and bias → down columns, where the up branch is linear (gated MLPs).

The families are those whose forward pass was read and is checked numerically in the tests: nothing besides the listed
slices touches the channel. Others, such as Gemma with its gain of 1 + g, are refused.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, permutations
from typing import Any, Literal, get_args

import numpy as np
import torch

from fairbits.core.array_checks import Floats
from fairbits.core.checks import one_of
from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import Weight
from fairbits.models.checkpoint import Checkpoint
from fairbits_research.outliers.kurtosis_search import LARGEST_EXPONENT, MOST_CHANNELS

Route = Literal["norm", "value", "mlp"]
Linears = dict[str, Weight]  # the linear layers of a block by role

FAMILIES = ("bloom", "llama", "mistral", "qwen2", "qwen3")
SEES_NORM = {"input_layernorm": ("qkv", "q", "k", "v"), "post_attention_layernorm": ("mlp_up", "mlp_gate")}
# The loss allowed in ÷ c when float16 numbers become subnormal, relative to the norm of what is divided.
# Many norm channels lose nothing at all, being two numbers each; a whole column without a small weight is rare.
LOSS: Mapping[Route, float] = {"norm": 0.0, "value": 2.0**-16, "mlp": 2.0**-16}
PowerSums = Mapping[str, tuple[Floats, Floats]]  # by tensor: of its rows (rows, 4) and of its columns (columns, 4)


@dataclass(frozen=True)
class Slice:
    """Rows (axis 0) or columns (axis 1) of one stored tensor."""

    tensor: str
    axis: int
    indices: tuple[int, ...]


@dataclass(frozen=True)
class Coupling:
    """A channel: `grows` × c with `shrinks` ÷ c leaves the function unchanged, for every c > 0."""

    channel: int
    grows: tuple[Slice, ...]
    shrinks: tuple[Slice, ...]

    def reversed(self) -> "Coupling":
        """Returns the same channel with c replaced by 1/c."""
        return Coupling(self.channel, self.shrinks, self.grows)


def couplings(checkpoint: Checkpoint, block: int, *, route: Route) -> tuple[tuple[Coupling, ...], ...]:
    """Returns, for every site of the route in the block, its couplings by channel."""
    one_of("route", route, get_args(Route))
    config, names, family = checkpoint.config, checkpoint.tensors.keys(), checkpoint.architecture.family
    if family not in FAMILIES:
        raise InputError(f"the model is of type {family!r}; exact rescaling is known for {', '.join(FAMILIES)} only")
    linears: Linears = {weight.role: weight for weight in checkpoint.architecture.blocks[block].linears.values()}
    if route == "norm":
        return tuple(_norm_sites(linears, names, config))
    if route == "value":
        return (_value_site(linears, names, config),)
    return (_mlp_site(linears, names),)


def _norm_sites(linears: Linears, names: Collection[str], config: Any) -> Iterator[tuple[Coupling, ...]]:
    if getattr(config, "apply_residual_connection_post_layernorm", False):
        raise InputError(
            "apply_residual_connection_post_layernorm is set: the residual stream also sees the norm's output, so its "
            "gain cannot be rescaled; use route 'value'"
        )
    for norm, roles in SEES_NORM.items():
        readers = [linears[role] for role in roles if role in linears]
        tensors = _with_bias(f"{readers[0].name.rsplit('.', 3)[0]}.{norm}.weight", names)
        yield tuple(
            Coupling(
                channel,
                grows=tuple(Slice(reader.name, 1, (channel,)) for reader in readers),
                shrinks=tuple(Slice(tensor, 0, (channel,)) for tensor in tensors),
            )
            for channel in range(readers[0].shape[1])
        )


def _value_site(linears: Linears, names: Collection[str], config: Any) -> tuple[Coupling, ...]:
    out = linears["attention_out"]
    value = linears["qkv"] if "qkv" in linears else linears["v"]
    rows = [row for part in value.rows("v") for row in part] if "qkv" in linears else list(range(value.shape[0]))
    head = out.shape[1] // config.num_attention_heads
    readers = out.shape[1] // len(rows)  # query heads that read the same values
    tensors = _with_bias(value.name, names)

    def columns(channel: int) -> tuple[int, ...]:
        group, i = divmod(channel, head)
        return tuple((group * readers + reader) * head + i for reader in range(readers))

    return tuple(
        Coupling(
            channel,
            grows=tuple(Slice(tensor, 0, (row,)) for tensor in tensors),
            shrinks=(Slice(out.name, 1, columns(channel)),),
        )
        for channel, row in enumerate(rows)
    )


def _mlp_site(linears: Linears, names: Collection[str]) -> tuple[Coupling, ...]:
    if "mlp_gate" not in linears:
        raise InputError("route 'mlp' needs a gated MLP, whose up branch is linear; here a nonlinearity lies between")
    up, down = linears["mlp_up"], linears["mlp_down"]
    tensors = _with_bias(up.name, names)
    return tuple(
        Coupling(
            channel,
            grows=tuple(Slice(tensor, 0, (channel,)) for tensor in tensors),
            shrinks=(Slice(down.name, 1, (channel,)),),
        )
        for channel in range(up.shape[0])
    )


def _with_bias(weight: str, names: Collection[str]) -> tuple[str, ...]:
    bias = weight.removesuffix("weight") + "bias"
    return (weight, bias) if bias in names else (weight,)


class Channels:
    """The couplings of a block that touch the measured weights, channel by channel in an order drawn from the seed.

    An order names sites that take turns: with route `norm` the attention norm alone, the MLP norm alone, or the same
    channel behind one and the other. Several orders give the search more values of κ to choose from.
    """

    def __init__(self, checkpoint: Checkpoint, block: int, *, seed: int, route: Route, measured: PowerSums) -> None:
        turned = (_growing(site, measured) for site in couplings(checkpoint, block, route=route))
        sites = [site for site in turned if site]
        if not sites:
            raise InputError(f"route {route!r} does not pass through weights of this role; choose another route")
        self.orders = tuple(order for size in range(len(sites)) for order in permutations(range(len(sites)), size + 1))
        self._sites = sites
        self._sequence = np.random.default_rng(seed).permutation(len(sites[0])).tolist()
        touched = {part.tensor for site in sites for part in (*site[0].grows, *site[0].shrinks)}
        self._tensors = {name: checkpoint.read(name) for name in touched}
        self._measured, self._loss = measured, LOSS[route]
        self._bearable: dict[Coupling, int] = {}

    def bearing(self, order: tuple[int, ...], exponent: int) -> list[Coupling]:
        """Returns the first couplings that can be rescaled by 2^exponent."""
        couplings = (self._sites[site][channel] for channel in self._sequence for site in order)
        return list(islice((c for c in couplings if self._largest_exponent(c) >= exponent), MOST_CHANNELS))

    def power_sums(self, order: tuple[int, ...], exponent: int) -> tuple[Floats, Floats]:
        """Returns the power sums of the measured weights that grow in each of those couplings, and that shrink."""
        able = self.bearing(order, exponent)
        grows, shrinks = np.zeros((len(able), 4)), np.zeros((len(able), 4))
        for i, coupling in enumerate(able):
            for sums, side in ((grows, coupling.grows), (shrinks, coupling.shrinks)):
                for part in side:
                    if part.tensor in self._measured:
                        sums[i] += self._measured[part.tensor][part.axis][list(part.indices)].sum(0)
        return grows, shrinks

    def _largest_exponent(self, coupling: Coupling) -> int:
        if coupling not in self._bearable:
            grows, shrinks = ([self._values(part) for part in side] for side in (coupling.grows, coupling.shrinks))
            self._bearable[coupling] = largest_exponent(grows, shrinks, loss=self._loss)
        return self._bearable[coupling]

    def _values(self, part: Slice) -> torch.Tensor:
        return self._tensors[part.tensor].index_select(part.axis, torch.tensor(part.indices)).flatten()


def largest_exponent(grows: Sequence[torch.Tensor], shrinks: Sequence[torch.Tensor], *, loss: float) -> int:
    """Returns the largest e such that `grows` × 2^e stays finite and `shrinks` ÷ 2^e loses at most the share `loss`."""
    factors = 2.0 ** torch.arange(1, LARGEST_EXPONENT + 1)[:, None]
    able = torch.ones(len(factors), dtype=torch.bool)
    lost, whole = torch.zeros(len(factors), dtype=torch.double), 0.0
    for x in shrinks:
        lost += (x.double() - (x / factors.to(x.dtype)) * factors.double()).square().sum(1)
        whole += float(x.double().square().sum())
    for x in grows:
        able &= (x.abs().max() * factors.to(x.dtype)).isfinite().flatten()
    return int((able & (lost <= loss**2 * whole)).long().cumprod(0).sum())


def _growing(site: Sequence[Coupling], measured: PowerSums) -> Sequence[Coupling]:
    """Returns the site turned so that measured weights grow, empty if it has none."""
    if any(part.tensor in measured for part in site[0].grows):
        return site
    if any(part.tensor in measured for part in site[0].shrinks):
        return [coupling.reversed() for coupling in site]
    return []
