"""CompressedTensors: the format of compressed-tensors, which transformers and vLLM load."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fairbits.model.files.apart import Apart, joined_apart, shapes_apart
from fairbits.model.files.packed import byte_tensors, packed_tensors, read_packed, stored_bytes
from fairbits.model.files.quantization_config import BYTE_BITS, check_storable, quantization_config, why_not
from fairbits.model.files.stored_weights import in_whole_bytes, is_table
from fairbits.model.groups import Codes
from fairbits.model.scheme import Scheme

if TYPE_CHECKING:
    from fairbits.model.architecture import Weight
    from fairbits.model.checkpoint import Checkpoint


class CompressedTensors:
    """The output format of compressed-tensors; `OutputFormat` says what its methods return."""

    embedding_bits = BYTE_BITS

    def why_not(self, weight: "Weight", scheme: Scheme) -> str | None:
        """Returns why a tensor cannot be stored with this scheme; None if it can."""
        return why_not(weight, scheme)

    def check(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> None:
        """Raises unless transformers loads a checkpoint in which these tensors are packed."""
        check_storable(checkpoint, schemes)

    def layer_bytes(self, weight: "Weight", scheme: Scheme, *, dtype: torch.dtype, tied: int = 0) -> int:
        """Returns the bytes of a tensor; a parameter that is tied to an embedding has scales of its own."""
        scale_bytes = weight.shape[0] * scheme.groups(weight.shape[1]) * dtype.itemsize
        others = tied * scale_bytes if is_table(weight) else 0
        return stored_bytes(weight.shape, scheme, dtype, whole=in_whole_bytes(weight)) + others

    def tensors(self, weight: "Weight", codes: Codes, *, tied: tuple[str, ...] = ()) -> dict[str, Tensor]:
        """Returns a packed linear map, or what cannot be packed in whole bytes."""
        if not in_whole_bytes(weight):
            return packed_tensors(weight.name, codes)
        return byte_tensors(weight.name, codes, tied=tied if is_table(weight) else ())

    def apart(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> Apart:
        """Returns the shapes that vLLM cannot load, and what transformers joins."""
        weights = checkpoint.architecture.weights
        packed = [name for name in schemes if not in_whole_bytes(weights[name])]
        return Apart(shapes_apart(checkpoint.architecture, packed), *joined_apart(checkpoint))

    def read(self, tensors: Mapping[str, Tensor], name: str, *, bits: int) -> Codes:
        """Returns the codes of a linear map or an embedding."""
        return read_packed(tensors, name, bits=bits)

    def config_entries(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> dict[str, Any]:
        """Returns the quantization_config, which compressed-tensors itself has checked."""
        return {"quantization_config": quantization_config(checkpoint, schemes)}

    def extra_files(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> dict[str, bytes]:  # noqa: ARG002
        """Returns none: config.json says everything."""
        return {}
