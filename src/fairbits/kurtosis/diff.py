"""Two models side by side: how they are built, and the weights of their blocks.

The research notes ask why BLOOM has outlier weights and XGLM has none, and want the configurations compared (6.2 of
the second). Two models differ in many traits at once, so such a table suggests causes but does not prove them.

Traits are read from modules: the class of the checkpoint is built and run on the meta device; shapes give widths and
heads, and small modules are tested: a norm that ignores a shift of its input is a LayerNorm whatever its name, and an
activation function is identified by its values. The configuration is used only for what no module shows. A trait that
cannot be determined is None; several values in one model are listed, such as "24 and 40".
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import chain
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import PreTrainedModel

from fairbits.core.checks import instance
from fairbits.core.progress import Progress
from fairbits.core.version import __version__
from fairbits.models.architecture.architecture import Architecture, Block, Role
from fairbits.models.architecture.blocks import is_norm
from fairbits.models.architecture.meta_model import TracedCall, meta_model, model_class, trace
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.weight_moments import WeightMoments, weight_moments

Trait = int | float | str | None  # also bool
Calls = Mapping[str, list[TracedCall]]

UNKNOWABLE = ("optimizer", "learning rate", "weight decay", "training data")
"""Traits that the research notes also compare (6.2 of the second) but that no checkpoint records."""

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "ReLU": functional.relu,
    "GELU": functional.gelu,
    "GELU (tanh)": lambda x: functional.gelu(x, approximate="tanh"),
    "GELU (sigmoid)": lambda x: x * torch.sigmoid(1.702 * x),
    "SiLU": functional.silu,
    "ReLU²": lambda x: functional.relu(x) ** 2,
    "tanh": torch.tanh,
}
"""Activation functions by their usual names; the forms of GELU differ by at least 5·10⁻⁴, which distinguishes them."""


@dataclass(frozen=True)
class Traits:
    """The traits of one model, in the order in which they are shown."""

    family: str
    class_name: str
    encoder_blocks: int
    decoder_blocks: int
    width: Trait
    heads: Trait
    key_value_heads: Trait
    head_dimension: Trait
    mlp_width: Trait
    gated_mlp: bool
    activation: Trait
    norm: Trait  # LayerNorm or RMSNorm
    norm_placement: Trait  # in a block: "pre", "post", "after branches", or several of them
    norm_epsilon: Trait
    positions: Trait  # alibi, rotary, learned, sinusoidal, relative bias
    rotary_base: Trait
    rotary_dimensions: Trait  # of each head
    biases: str  # of the linear layers of the blocks: "all", "none", or the roles that have one
    tied_head: bool | None
    initializer_range: Trait
    vocabulary: Trait
    longest_input: Trait
    dtype: Trait
    parameters: int

    def items(self) -> tuple[tuple[str, Trait], ...]:
        """Returns the name of every trait, as it is shown, and its value."""
        return tuple((field.name.replace("_", " "), getattr(self, field.name)) for field in fields(self))

    def as_data(self) -> dict[str, Trait]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def traits(checkpoint: Checkpoint) -> Traits:
    """Returns the traits of a model. No weights are read, except to see whether the head is tied."""
    architecture = checkpoint.architecture
    model = meta_model(
        checkpoint.config, model_class(checkpoint.config, trust_remote_code=checkpoint.trust_remote_code)
    )
    calls = trace(model)
    config = checkpoint.config.get_text_config()
    stacks = [block.stack for block in architecture.blocks]
    positions, tied = _positions(architecture, model, calls=calls), _tied_head(checkpoint)
    return Traits(
        family=architecture.family,
        class_name=architecture.class_name,
        encoder_blocks=stacks.count("encoder"),
        decoder_blocks=stacks.count("decoder"),
        **_shapes(architecture, heads=_number(config, "num_attention_heads")),
        gated_mlp=any(weight.role in ("mlp_gate", "mlp_gate_up") for weight in architecture.linears.values()),
        activation=_activation(architecture, model),
        **_norms(architecture, model, calls=calls),
        positions=positions,
        rotary_base=_rotary_base(config) if "rotary" in str(positions) else None,
        rotary_dimensions=_alike(2 * len(part) for name, part in model.named_buffers() if name.endswith("inv_freq")),
        biases=_biases(architecture),
        tied_head=tied,
        initializer_range=_number(config, "initializer_range", "init_std"),
        longest_input=_number(config, "max_position_embeddings", "seq_length"),
        dtype=_dtypes(checkpoint),
        parameters=sum(
            checkpoint.tensors[name].numel
            for name, weight in architecture.weights.items()
            if not (tied and weight.role == "head")  # a copy of the embedding
        ),
    )


def format_trait(value: Trait) -> str:
    """Returns a trait as text."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else f"{value:,}" if isinstance(value, int) else f"{value:g}"


def _alike(values: Iterable[Trait]) -> Trait:
    """Returns the common value, or a list of different values as text; None if there is none or any is unknown."""
    different = tuple(dict.fromkeys(values))
    if not different or None in different:
        return None
    return different[0] if len(different) == 1 else " and ".join(map(format_trait, different))


def _number(config: Any, *names: str) -> Trait:
    """Returns the first of these fields that holds a number; transformers itself translates a family's own names."""
    values = (getattr(config, name, None) for name in names)
    return next((value for value in values if isinstance(value, int | float) and not isinstance(value, bool)), None)


def _shapes(architecture: Architecture, *, heads: Trait) -> dict[str, Trait]:
    linears = [weight for block in architecture.blocks for weight in block.linears.values()]
    outs = [weight.shape for weight in linears if weight.role == "attention_out"]
    dimension = _alike(_over(n_in, heads) for _, n_in in outs)
    keys = [weight.shape[0] for weight in linears if weight.role == "k"]
    keys += [sum(map(len, weight.rows("k"))) for weight in linears if weight.role == "qkv"]  # 0: not known
    return {
        "width": _alike(n_out for n_out, _ in outs),
        "heads": heads,
        "head_dimension": dimension,
        "key_value_heads": _alike(_over(rows, dimension) for rows in keys),
        "mlp_width": _alike(weight.shape[1] for weight in linears if weight.role == "mlp_down"),
        "vocabulary": _alike(w.shape[0] for w in architecture.weights.values() if w.role == "embedding"),
    }


def _over(rows: int, parts: Trait) -> int | None:
    return rows // parts if rows and isinstance(parts, int) and rows % parts == 0 else None


def _activation(architecture: Architecture, model: PreTrainedModel) -> Trait:
    """Returns the activation function of the blocks: the module without parameters that has its values."""
    modules = chain.from_iterable(model.get_submodule(block.module).modules() for block in architecture.blocks)
    kinds = {type(m): m for m in modules if not any(True for _ in chain(m.children(), m.parameters(), m.buffers()))}
    return _alike(name for name in map(_function, kinds.values()) if name is not None)


def _function(module: nn.Module) -> str | None:
    """Returns which activation function a module is, by its values; None for other modules, such as dropout."""
    x = torch.linspace(-4.0, 4.0, 65)
    try:
        y = module(x)
    except Exception:  # it needs other arguments, so it is not a function of one number
        return None
    names = (name for name, f in ACTIVATIONS.items() if isinstance(y, Tensor) and torch.allclose(y, f(x), atol=1e-5))
    one_of_torch = type(module).__module__ in ("torch.nn.modules.activation", "transformers.activations")
    return next(names, type(module).__name__ if one_of_torch else None)


def _norm_kind(module: nn.Module, call: TracedCall) -> str | None:
    """Returns LayerNorm if a shift of the input changes nothing, RMSNorm if only a factor changes nothing."""
    gain = next(module.parameters(), None)
    shape = (1, 1, call.in_channels or 1) if gain is None else (1, 1, *gain.shape)
    x = torch.linspace(-1.0, 2.0, torch.Size(shape).numel()).reshape(shape)
    norm = copy.deepcopy(module).to_empty(device="cpu")
    for value in chain(norm.parameters(), norm.buffers()):
        value.data.fill_(1.0)
    try:
        y, shifted, scaled = norm(x), norm(x + 1), norm(8 * x)
    except Exception:  # the module's own code, on made-up input
        return None
    if not torch.allclose(y, scaled, atol=1e-3):
        return None
    return "LayerNorm" if torch.allclose(y, shifted, atol=1e-3) else "RMSNorm"


def _epsilon(module: nn.Module) -> float | None:
    values = (getattr(module, name, None) for name in ("eps", "variance_epsilon", "epsilon"))
    return next((float(value) for value in values if value is not None), None)


def _norms(architecture: Architecture, model: PreTrainedModel, *, calls: Calls) -> dict[str, Trait]:
    inside = [
        [
            (module, calls[path][0])
            for path, module in model.get_submodule(block.module).named_modules(prefix=block.module)
            if is_norm(module) and path in calls
        ]
        for block in architecture.blocks
    ]
    one_of_each = {(type(module), call.in_channels): (module, call) for module, call in chain.from_iterable(inside)}
    return {
        "norm": _alike(_norm_kind(module, call) for module, call in one_of_each.values()),
        "norm_epsilon": _alike(_epsilon(module) for module, _ in chain.from_iterable(inside)),
        "norm_placement": _alike(
            _placement(block, [call for _, call in norms], calls=calls)
            for block, norms in zip(architecture.blocks, inside, strict=True)
        ),
    }


def _placement(block: Block, norms: Iterable[TracedCall], *, calls: Calls) -> str | None:
    """Returns where a block normalizes, from the data flow between its modules.

    pre: queries are made from a norm's output. post: a norm's output leaves the block. after branches: a norm's input
    is what the attention returns, before it is added to the stream.
    """
    outputs, inputs = {norm.output_id for norm in norms}, {norm.input_id for norm in norms}
    queries = [calls[w.module][0] for w in block.linears.values() if w.role in ("q", "qkv")]
    returns = [calls[w.module][0] for w in block.linears.values() if w.role == "attention_out"]
    places = {
        "pre": all(call.input_id in outputs for call in queries),
        "post": calls[block.module][0].output_id in outputs,
        "after branches": all(call.output_id in inputs for call in returns),
    }
    return ", ".join(place for place, holds in places.items() if holds) or None


def _positions(architecture: Architecture, model: PreTrainedModel, *, calls: Calls) -> str | None:
    kinds = {path: type(module).__name__.lower() for path, module in model.named_modules() if path in calls}
    tables = [weight for weight in architecture.weights.values() if weight.role == "position"]
    kinds_used = {
        "alibi": any(isinstance(calls[block.module][0].kwargs.get("alibi"), Tensor) for block in architecture.blocks),
        "rotary": any("rotary" in kind for kind in kinds.values()),
        "sinusoidal": any("sinusoidal" in kind for kind in kinds.values()),
        "learned": any(table.block is None and "sinusoidal" not in kinds[table.module] for table in tables),
        "relative bias": any(table.block is not None for table in tables),
    }
    return ", ".join(name for name, holds in kinds_used.items() if holds) or None


def _rotary_base(config: Any) -> Trait:
    parameters = getattr(config, "rope_parameters", None) or {}
    by_layer = [parameters] if "rope_theta" in parameters else [p for p in parameters.values() if isinstance(p, dict)]
    return _alike(map(_base, by_layer))


def _base(parameters: Mapping[str, Any]) -> str | None:
    base, kind = parameters.get("rope_theta"), parameters.get("rope_type", "default")
    if not isinstance(base, int | float):
        return None
    return f"{base:,.10g}" + ("" if kind == "default" else f" ({kind})")


def _biases(architecture: Architecture) -> str:
    linears = {w.module: w.role for block in architecture.blocks for w in block.linears.values()}
    biased = {w.module for w in architecture.weights.values() if w.role == "bias"} & set(linears)
    if not biased or biased == set(linears):
        return "all" if biased else "none"
    return ", ".join(sorted({linears[module] for module in biased}, key=get_args(Role).index))


def _tied_head(checkpoint: Checkpoint) -> bool | None:
    """Returns whether head and embedding are one matrix; None without a head."""
    head = checkpoint.architecture.head
    if head is None or head.role == "embedding" or head.tied_to is None:
        return None if head is None else head.role == "embedding"
    weights, embedding = checkpoint.read(head.name), checkpoint.read(head.tied_to)  # both are stored: do they agree?
    return weights.dtype == embedding.dtype and torch.equal(weights, embedding)


def _dtypes(checkpoint: Checkpoint) -> Trait:
    sizes: dict[str, int] = {}
    for name in checkpoint.architecture.weights:
        info = checkpoint.tensors[name]
        dtype = str(info.dtype).removeprefix("torch.")
        sizes[dtype] = sizes.get(dtype, 0) + info.numel
    return _alike(dtype for dtype, _ in sorted(sizes.items(), key=lambda item: -item[1]))


SCHEMA = "fairbits.diff/1"


@dataclass(frozen=True)
class Side:
    """One of the two models: its traits, and the moments of the linear layers of each of its blocks."""

    target: str
    fingerprint: str
    notes: tuple[str, ...]
    traits: Traits
    blocks: tuple[WeightMoments, ...]

    @property
    def kappa(self) -> tuple[float, ...]:
        return tuple(block.kappa for block in self.blocks)

    @property
    def worst(self) -> int:
        return max(range(len(self.blocks)), key=self.kappa.__getitem__)

    def as_data(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "fingerprint": self.fingerprint,
            "notes": list(self.notes),
            "traits": self.traits.as_data(),
            "blocks": [block.as_data() for block in self.blocks],
            "max_kappa": self.kappa[self.worst],
            "max_kappa_block": self.worst,
        }


@dataclass(frozen=True)
class ModelDiff:
    """Two models, and which block of one is shown next to which of the other."""

    a: Side
    b: Side
    pairs: tuple[tuple[int, int], ...]

    @property
    def differing(self) -> tuple[str, ...]:
        both = zip(self.a.traits.items(), self.b.traits.items(), strict=True)
        return tuple(name for (name, of_a), (_, of_b) in both if differ(of_a, of_b))

    @property
    def notes(self) -> tuple[str, ...]:
        deep = (len(self.a.blocks), len(self.b.blocks))
        matched = (f"blocks of {deep[0]} and {deep[1]} are matched by relative depth; some appear twice",)
        return (
            *(matched if deep[0] != deep[1] else ()),
            f"{', '.join(UNKNOWABLE)} cannot be read from a checkpoint: see the models' papers",
        )

    def as_data(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "fairbits": __version__,
            "a": self.a.as_data(),
            "b": self.b.as_data(),
            "differing": [name.replace(" ", "_") for name in self.differing],
            "pairs": [list(pair) for pair in self.pairs],
            "notes": list(self.notes),
        }


def diff(a: Checkpoint, b: Checkpoint, *, progress: Progress | None = None) -> ModelDiff:
    """Returns the traits and the κ profiles of two models; `progress` counts the bytes of both."""
    models = (instance("a", a, Checkpoint), instance("b", b, Checkpoint))
    sizes = [sum(info.nbytes for info in model.tensors.values()) for model in models]
    # first: a model of unknown architecture fails before any weights are read
    architectures = [traits(model) for model in models]

    def side(i: int) -> Side:
        before = sum(sizes[:i])
        step = None if progress is None else lambda stage, done, _: progress(stage, before + done, sum(sizes))
        blocks = weight_moments(models[i], progress=step).blocks
        return Side(models[i].target, models[i].fingerprint, models[i].notes, architectures[i], blocks)

    sides = side(0), side(1)
    return ModelDiff(*sides, block_pairs(len(sides[0].blocks), len(sides[1].blocks)))


def block_pairs(n: int, m: int) -> tuple[tuple[int, int], ...]:
    """Returns pairs of blocks at the same relative depth, one for every block of the deeper model.

    Block i of n spans the depths i/n … (i + 1)/n; its middle is in block ⌊(i + ½)·m/n⌋ of the other.
    """
    deep = max(n, m)
    return tuple(((2 * i + 1) * n // (2 * deep), (2 * i + 1) * m // (2 * deep)) for i in range(deep))


def differ(of_a: Trait, of_b: Trait) -> bool:
    """Returns whether a trait is known for both models and differs."""
    return of_a is not None and of_b is not None and of_a != of_b
