"""Which weights of a block may be scaled against each other without changing what the block computes.

A coupling is one channel between two linear steps: the slices on one side × c and those on the other ÷ c leave the
function as it was. Three routes lead through such channels:

- ``norm``: norm gain and bias → input columns of every linear layer that sees the norm's output;
- ``value``: value rows and bias → attention-output columns of every query head that reads them;
- ``mlp``: up rows and bias → down columns, where the up branch is linear (gated MLPs).

The families are those whose forward pass was read and is checked numerically in the tests: nothing besides the listed
slices touches the channel. Others, such as Gemma with its gain of 1 + g, are refused.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from fairbits.core.checks import one_of
from fairbits.core.errors import InputError

if TYPE_CHECKING:
    from fairbits.models.architecture.architecture import Weight
    from fairbits.models.checkpoint import Checkpoint

Route = Literal["norm", "value", "mlp"]
Linears = dict[str, "Weight"]  # the linear layers of a block by role

FAMILIES = ("bloom", "llama", "mistral", "qwen2", "qwen3")
SEES_NORM = {
    "input_layernorm": ("qkv", "q", "k", "v"),
    "post_attention_layernorm": ("mlp_up", "mlp_gate"),
}


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


def couplings(checkpoint: "Checkpoint", block: int, *, route: Route) -> tuple[tuple[Coupling, ...], ...]:
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
