"""Experts that a file stacks in one tensor, told apart: under the names by which loaders read quantized experts.

compressed-tensors holds one linear map at a time. transformers reads experts one by one where it has a rule that joins
tensors such as `experts.0.down_proj.weight` into `experts.down_proj`. Many classes have it, whether or not their files
use it. Llama 4 has none, but with packed weights its module of experts is replaced by a list of plain ones.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import (
    Concatenate,
    MergeModulelist,
    PrefixChange,
    Transpose,
    WeightConverter,
    WeightRenaming,
    WeightTransform,
    apply_renamings,
)
from transformers.quantizers import base as quantizers

if TYPE_CHECKING:
    from fairbits.model.files.safetensors_files import StoredTensor

Shape = tuple[int, ...]
METHOD = "compressed-tensors"


@dataclass(frozen=True)
class ExpertSlice:
    """Where the matrix (out, in) of an expert lies in the tensor of all experts.

    That is (experts, out, in), or (experts, in, out) if it is `turned`. Several maps of an expert may lie side by side.
    """

    stacked: str
    expert: int
    shape: Shape
    start: int  # among the rows, or the columns if turned
    turned: bool

    def place(self, info: "StoredTensor") -> "StoredTensor":
        """Returns where in its file the expert lies, given the tensor of all."""
        nbytes = info.nbytes // info.shape[0]
        return replace(info, shape=info.shape[1:], nbytes=nbytes, start=info.start + self.expert * nbytes)

    def cut(self, expert: Tensor) -> Tensor:
        """Returns the matrix, given all that belongs to its expert."""
        return (expert.T if self.turned else expert)[self.start : self.start + self.shape[0]]


def expert_slices(
    config: PretrainedConfig, stacks: Mapping[str, Shape], *, trust_remote_code: bool = False
) -> dict[str, ExpertSlice]:
    """Returns the experts that these tensors stack, by the names under which a quantized file can hold them.

    Those for which transformers knows no such names are left out.
    """
    from fairbits.model.architecture.skeleton import model_class, skeleton

    model = skeleton(config, model_class(config, trust_remote_code=trust_remote_code))
    return slices_of(model, stacks)


def slices_of(model: PreTrainedModel, stacks: Mapping[str, Shape]) -> dict[str, ExpertSlice]:
    """Returns the experts of these tensors of a model, by name."""
    from fairbits.model.architecture.names import target_of

    transforms, entries = conversions(model), dict(model.state_dict(keep_vars=True))
    merges = [each for each in transforms if isinstance(each, WeightConverter) and _merges_experts(each)]
    saved, found = _saved_names(model), dict[str, ExpertSlice]()
    for name, shape in stacks.items():
        target, pattern = target_of(name, transforms, model=model, entries=entries)
        if pattern is not None or target not in entries or tuple(entries[target].shape) != tuple(shape):
            continue
        for merge in merges:
            own = [each.partition("*")[2] for each in merge.source_patterns]
            apart = {saved(each): place for each, place in _slices(name, shape, own, turned=_turns(merge))}
            read = [target_of(each, transforms, model=model, entries=entries) for each in list(apart)[: len(own)]]
            if read == [(target, each) for each in merge.source_patterns]:
                found |= apart
    return found


def _slices(stacked: str, shape: Shape, own: list[str], *, turned: bool) -> Iterator[tuple[str, ExpertSlice]]:
    """Yields the experts of a tensor under their names in the model; `own` is how those of each map end."""
    experts, out, columns = (shape[0], shape[2], shape[1]) if turned else shape
    rows, module = out // len(own), stacked.rpartition(".")[0]
    for expert in range(experts):
        for part, end in enumerate(own):
            yield f"{module}.{expert}{end}", ExpertSlice(stacked, expert, (rows, columns), part * rows, turned)


def _saved_names(model: PreTrainedModel) -> Callable[[str], str]:
    """Returns the function from a name in the model to the name by which transformers saves it."""
    known = get_model_conversion_mapping(model, add_legacy=False)
    plain = [each for each in known if isinstance(each, WeightRenaming) and not isinstance(each, PrefixChange)]
    reverse: list[Any] = [each.reverse_transform() for each in reversed(plain)]
    return lambda name: apply_renamings(name, reverse)


def conversions(model: PreTrainedModel) -> list[WeightTransform]:
    """Returns how transformers makes parameters from the tensors of files, packed experts of Llama 4 included."""
    transforms = list(get_model_conversion_mapping(model))
    if any(is_replaced(module) for module in model.modules()):
        own = [f"experts.*.{name}_proj.weight" for name in ("gate", "up", "down")]
        turn = Transpose(1, 2)
        transforms += [
            WeightConverter(own[:2], "experts.gate_up_proj", [MergeModulelist(0), Concatenate(1), turn]),
            WeightConverter(own[2:], "experts.down_proj", [MergeModulelist(0), turn]),
        ]
    return transforms


def is_replaced(module: nn.Module) -> bool:
    """Returns whether transformers replaces this module of experts by a list of them, if weights are packed.

    It is that of Llama 4. It gets the inputs of all experts one after the other, each scaled by what the router gives
    it, and multiplies by (in, out).
    """
    known: dict[str, Any] = quantizers.MODULES_TO_PATCH_FOR_QUANTIZATION.get(type(module).__name__, {})
    return METHOD in [each.value for each in known.get("quantization_methods", ())]


def _merges_experts(converter: WeightConverter) -> bool:
    plain = all(isinstance(each, MergeModulelist | Concatenate | Transpose) for each in converter.operations)
    return plain and all("*" in pattern for pattern in converter.source_patterns)


def _turns(converter: WeightConverter) -> bool:
    return sum(isinstance(each, Transpose) for each in converter.operations) % 2 == 1
