"""PackedOnSave: a quantized model in memory whose weights are plain, and packed when it is saved.

transformers asks the `hf_quantizer` of a model for the tensors to save. This one returns those of the checkpoint that
`fairbits.quantize` writes. Codes are not kept, only scales: a weight w is code · scale, rounded to the type of the
model, and w / scale is less than 1/2 from the code for up to 8 bits.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from fairbits.errors import InputError
from fairbits.model.architecture.stacked_experts import slices_of
from fairbits.model.checkpoint import Checkpoint
from fairbits.model.files.formats import DEFAULT_FORMAT
from fairbits.model.files.stored_weights import is_stack, tied_parameters
from fairbits.model.groups import Codes, divisors, split_like
from fairbits.model.loaded_checkpoint import saved_state

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from fairbits.model.architecture import Weight


class PackedOnSave(HfQuantizer):
    """What transformers knows of a model that fairbits has quantized in memory.

    `plan_bytes`  the plan with its outcomes, as in plan.json
    `size_bytes`  the size of all tensors once the model is saved
    """

    requires_calibration = False

    def __init__(self, quantization_config: QuantizationConfigMixin, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self.plan_bytes, self.size_bytes = b"", 0
        self._scales: dict[str, Tensor] = {}
        self._bits: dict[str, int] = {}
        self._weights: dict[str, Weight] = {}
        self._tied: dict[str, tuple[str, ...]] = {}

    def attach(
        self,
        model: "PreTrainedModel",
        checkpoint: Checkpoint,
        *,
        bits: Mapping[str, int],
        scales: Mapping[str, Tensor],
        entries: Mapping[str, object],
        plan_bytes: bytes,
        size_bytes: int,
    ) -> None:
        """Makes a model with dequantized weights a quantized one in the eyes of transformers.

        `bits` and `scales` are those of the quantized tensors, by their names in the checkpoint; `entries` are the
        quantization_config of config.json.
        """
        self.plan_bytes, self.size_bytes = plan_bytes, size_bytes
        self._scales, self._bits = dict(scales), dict(bits)
        self._weights = {name: checkpoint.architecture.weights[name] for name in scales}
        self._tied = {name: tied_parameters(checkpoint, name) for name in scales}
        model.config.quantization_config = dict(entries)  # as in the file: the class would drop the version
        model.hf_quantizer, model.is_quantized = self, True  # type: ignore[assignment]
        model.quantization_method = self.quantization_config.quant_method  # type: ignore[assignment]

    def get_state_dict_and_metadata(self, model: "PreTrainedModel") -> tuple[dict[str, Tensor], dict[str, str]]:
        """Returns the tensors to save: packed where they are quantized."""
        state = _experts_apart(model, saved_state(model))
        for name, scales in self._scales.items():
            weight = self._weights[name]
            stored = state.pop(name)
            W = stored.T if weight.transposed else stored
            codes = _codes(name, W, scales.to(W.device), bits=self._bits[name])
            packed = DEFAULT_FORMAT.tensors(weight, codes, tied=self._tied[name])
            # clones, as transformers takes tensors with the same memory for tied ones
            state |= {each: tensor.clone() for each, tensor in packed.items()}
        return state, {}

    def is_serializable(self) -> bool:
        """Returns True: the model can be saved."""
        return True

    @property
    def is_trainable(self) -> bool:
        """True: weights are plain, so adapters can be trained on top of them."""
        return True

    def _dequantize(self, model: "PreTrainedModel", dtype: torch.dtype | None = None) -> "PreTrainedModel":
        """Returns the model; its weights are dequantized already."""
        if isinstance(dtype, torch.dtype):  # transformers may give its name
            torch.nn.Module.to(model, dtype)
        return model


def _experts_apart(model: "PreTrainedModel", state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors with experts that are stacked told apart, as in a checkpoint."""
    stacks = {name: tuple(each.shape) for name, each in state.items() if is_stack(name, each.shape)}
    if not stacks:
        return state
    slices = slices_of(model, stacks)
    whole = {name: each for name, each in state.items() if name not in {own.stacked for own in slices.values()}}
    return whole | {name: own.cut(state[own.stacked][own.expert]) for name, own in slices.items()}


def _codes(name: str, W: Tensor, scales: Tensor, *, bits: int) -> Codes:
    """Returns the codes that weights were dequantized from."""
    ratio = split_like(W.float(), scales) / divisors(scales.float()).unsqueeze(-1)
    codes = ratio.round().clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1).reshape(W.shape)
    found = Codes(codes.to(torch.int8), scales, bits)
    if not torch.equal(found.dequantized.to(W.dtype), W):
        raise InputError(
            f"{name} has changed since the model was quantized, and its codes no longer represent it; quantize again, "
            "or save the weights without packing: model.dequantize().save_pretrained(…)"
        )
    return found
