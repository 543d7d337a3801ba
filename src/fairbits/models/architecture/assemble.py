"""The architecture map of a checkpoint, assembled from its tensor names, its blocks and their inputs."""

import inspect
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES

from fairbits.core.errors import InputError
from fairbits.models.architecture.architecture import EXPERT_ROLES, Architecture, Block, Role, Weight
from fairbits.models.architecture.blocks import Walk, is_norm, prefixes, stream_size, walk
from fairbits.models.architecture.meta_model import (
    TEXT,
    Key,
    TracedCall,
    check_stream,
    check_values,
    describe_modules,
    identity,
    initializes,
    meta_model,
    model_class,
    trace,
)
from fairbits.models.architecture.parameter_mapping import Shape, TensorNames, TensorSource, resolve_names
from fairbits.models.untrusted.config_check import DEPTHS


def map_architecture(
    config: PretrainedConfig, shapes: Mapping[str, Shape], *, trust_remote_code: bool = False
) -> Architecture:
    """Returns the role, block, input and companions of every tensor, given a checkpoint's names and shapes."""
    if getattr(config, "quantization_config", None) is not None:
        raise InputError(
            "the configuration has a quantization_config: the checkpoint is already quantized; give the original model"
        )
    cls = model_class(config, trust_remote_code=trust_remote_code)
    _check_depth(config, len(shapes))
    model = meta_model(config, cls)
    names = resolve_names(model, shapes)  # before anything of the configured size is built
    check_values(model, sum(map(math.prod, shapes.values())))
    try:
        calls = trace(model)
        steps = walk(model, calls)
        check_stream(model, calls, steps.blocks[0])
    except InputError as error:
        raise InputError(
            f"{cls.__name__} cannot be mapped: {error}; token ids must pass through a list of "
            f"blocks; {describe_modules(model, shapes)}"
        ) from error
    view = _View(model, calls, steps, names)
    if view.only_stack == "encoder" and "attention_mask" not in inspect.signature(cls.forward).parameters:
        raise InputError(
            f"{cls.__name__} takes no attention_mask: it would mix the padding of a batch into the text, and results "
            "would depend on the batch; use a model of another class"
        )
    weights = {name: view.weight(source, tuple(shapes[name])) for name, source in names.sources.items()}
    stacks, head = [view.stack(path, "other") for path in steps.blocks], view.head
    if _asks_for_weights(model, weights.values()):  # the last use of the model
        weights = {name: replace(weight, needs_weight=weight.linear) for name, weight in weights.items()}
    blocks = tuple(
        Block(i, stack, path, {name: weight for name, weight in weights.items() if weight.block == i})
        for i, (stack, path) in enumerate(zip(stacks, steps.blocks, strict=True))
    )
    reads = TEXT if TEXT in calls[""][0].kwargs else cls.main_input_name
    head_weight = weights.get(head or "")
    return Architecture(config.model_type, cls.__name__, blocks, weights, names.tied, names.ignored, head_weight, reads)


def _asks_for_weights(model: PreTrainedModel, weights: Iterable[Weight]) -> bool:
    """Returns whether transformers fails to load packed layers, without X.weight, into the model, which loses them."""
    for weight in weights:
        module = model.get_submodule(weight.module)
        if weight.linear and weight.block is not None and not weight.is_control and isinstance(module, nn.Linear):
            module._parameters.pop("weight", None)
    return not initializes(model)


def _check_depth(config: PretrainedConfig, tensors: int) -> None:
    parts = [config, *(part for part in vars(config).values() if isinstance(part, PretrainedConfig))]
    stated = [(name, value) for part in parts for name, value in part.to_dict().items() if name in DEPTHS]
    for name, layers in stated:
        if isinstance(layers, int) and layers > tensors:
            raise InputError(
                f"the configuration has {name} = {layers:,} and the file {tensors:,} tensors; they must agree"
            )


@dataclass(frozen=True)
class _View:
    """A traced model whose tensors are described."""

    model: PreTrainedModel
    calls: Mapping[str, list[TracedCall]]
    steps: Walk
    names: TensorNames

    @cached_property
    def index(self) -> dict[str, int]:
        return {path: i for i, path in enumerate(self.steps.blocks)}

    @cached_property
    def only_stack(self) -> str:
        inside = any("encoder" in block.split(".") for block in self.steps.blocks)
        family = self.model.config.model_type
        masked = "MaskedLM" in type(self.model).__name__ or family in MODEL_FOR_MASKED_LM_MAPPING_NAMES
        decodes = getattr(self.model.config, "is_decoder", False)
        return "encoder" if (inside or masked) and not decodes else "decoder"

    @cached_property
    def tokens(self) -> set[Key | None]:
        (call,) = self.calls[""]
        return {identity(value) for value in call.kwargs.values() if isinstance(value, Tensor)}

    @cached_property
    def head(self) -> str | None:
        head = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        path = next((path for path, module in self.model.named_modules() if module is head), None)
        stored = {source.parameter: source.name for source in self.names.sources.values()}
        return ({**self.names.tied, **stored}).get(f"{path}.weight")

    def weight(self, source: TensorSource, shape: Shape) -> Weight:
        path, _, leaf = source.parameter.rpartition(".")
        block = self._block(path)
        tied_to = self.names.tied_to.get(source.name)
        weight = Weight(source.name, path, block, "", "other", shape, False, None, None, tied_to, False)
        layer = self.steps.layers.get(path) if leaf == "weight" else None
        of_experts = len(shape) == 2 if source.expert is not None else len(shape) == 3 and leaf in EXPERT_ROLES
        if layer is not None and source.n_parts > 1 and source.expert is None:
            raise InputError(
                f"{source.name!r} becomes a part of {source.parameter!r}; only experts may be joined like this"
            )
        if layer is not None:
            weight = replace(
                weight,
                role=layer.role,
                shape=(layer.site.n_out, layer.site.n_in),
                transposed=layer.site.transposed != source.turned,
                sees=layer.sees,
                fused=layer.fused,
                linear=True,
                layout=layer.layout,
            )
        elif of_experts and path in self.calls and block is not None:
            hidden_size = stream_size(self.calls, self.steps.blocks[block])
            weight = _expert_weight(weight, source, self.model.get_submodule(path), hidden_size)
        else:
            weight = replace(weight, role=self._plain_role(source))
        return replace(weight, stack=self.stack(path, weight.role))

    def stack(self, path: str, role: Role) -> str:
        """Returns "encoder", "decoder", "shared" for what precedes both, "other" for what text never reaches."""
        if role == "other" and path not in self.calls:
            return "other"
        if not self.model.config.is_encoder_decoder:
            return self.only_stack
        # the outermost decides: a decoder may itself be a class that calls its blocks an encoder
        side = next((part for part in path.split(".") if part.endswith(("encoder", "decoder"))), None)
        if side is None:
            return "shared" if role == "embedding" else "decoder"
        return "encoder" if side.endswith("encoder") else "decoder"

    def _block(self, path: str) -> int | None:
        return next((self.index[prefix] for prefix in prefixes(path) if prefix in self.index), None)

    def _plain_role(self, source: TensorSource) -> Role:
        path, _, leaf = source.parameter.rpartition(".")
        module = self.model.get_submodule(path)
        if isinstance(module, nn.Embedding) and (role := self._table_role(path, module)) is not None:
            return role
        if path not in self.calls:
            return "other"
        if is_norm(module):
            return "norm"
        return "bias" if leaf.endswith("bias") else "other"

    def _table_role(self, path: str, module: nn.Embedding) -> Role | None:
        first = self.model.get_input_embeddings()
        if module.weight is getattr(first, "weight", first):
            return "embedding"
        if path not in self.calls:
            return None
        name = path.rpartition(".")[2]
        if "type" in name:
            return "token_type"
        # some position tables receive the tokens but use only their number
        by_tokens = any(call.input_id in self.tokens for call in self.calls[path])
        return "embedding" if by_tokens and "position" not in name else "position"


def _expert_weight(plain: Weight, source: TensorSource, module: nn.Module, hidden_size: int) -> Weight:
    leaf = source.parameter.rpartition(".")[2]
    role = EXPERT_ROLES.get(leaf)
    if role is None or source.n_parts not in (1, 2):
        raise InputError(f"{source.name!r} becomes {source.parameter!r}, which is not a known part of an expert")
    if source.n_parts == 2:
        role = ("mlp_gate", "mlp_up")[source.part]  # transformers stacks the gate first
    transposed = _transposed(module, source.parameter, hidden_size) != source.turned
    stored = plain.shape[-2:]
    unit = f"blocks.{plain.block}.experts" + ("" if source.expert is None else f".{source.expert}")
    return replace(
        plain,
        role=role,
        shape=stored[::-1] if transposed else stored,
        transposed=transposed,
        sees=f"{unit}.mlp_down" if role == "mlp_down" else f"{unit}.mlp",
        fused=f"{unit}.gate_up" if role in ("mlp_gate", "mlp_up") and source.n_parts == 2 else None,
        linear=True,
        expert=source.expert,
        stacked=None if source.expert is not None else plain.shape[0],
    )


def _transposed(module: nn.Module, parameter: str, hidden_size: int) -> bool:
    """Returns whether experts multiply by (in, out): as their module says, and by the size of hidden states."""
    shapes = {name: p.shape[-2:] for name, p in module.named_parameters(recurse=False) if name in EXPERT_ROLES}
    stated = getattr(module, "is_transposed", None)
    options = (False, True) if stated is None else (bool(stated),)
    fitting = [t for t in options if all(shape[(n == "down_proj") == t] == hidden_size for n, shape in shapes.items())]
    if len(fitting) != 1:
        raise InputError(
            f"{parameter!r} cannot be recognized as (out, in) or (in, out) from {dict(shapes)}; "
            f"exactly one side must be the hidden size, {hidden_size}"
        )
    return fitting[0]
