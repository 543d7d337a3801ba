"""Output formats: how a quantized checkpoint is stored. A new one is a module of its own and a line in `FORMATS`."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor

from fairbits.models.io.compressed_tensors import CompressedTensors
from fairbits.models.io.split_index import SplitIndex
from fairbits.models.io.stored_weights import scale_dtype, tied_copies, tied_parameters
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme

if TYPE_CHECKING:
    from fairbits.models.architecture.records import Weight
    from fairbits.models.checkpoint import Checkpoint


class OutputFormat(Protocol):
    """A format of quantized checkpoints: tensors in safetensors files, and what config.json says of them.

    `embedding_bits` are the only bits that an embedding can have.
    """

    @property
    def embedding_bits(self) -> int:
        """The bits of an embedding."""

    def why_not(self, weight: "Weight", scheme: Scheme) -> str | None:
        """Returns why a tensor cannot be stored with this scheme; None if it can."""

    def check(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> None:
        """Raises unless the tensors with a scheme can be stored so that loaders of the format read them."""

    def layer_bytes(self, weight: "Weight", scheme: Scheme, *, dtype: torch.dtype, tied: int = 0) -> int:
        """Returns the bytes of a tensor with scales of `dtype`; `tied` other parameters are the same tensor."""

    def tensors(self, weight: "Weight", codes: Codes, *, tied: tuple[str, ...] = ()) -> dict[str, Tensor]:
        """Returns the tensors that store the codes; `tied` are the other parameters that are the same tensor."""

    def apart(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> SplitIndex:
        """Returns those of the tensors that some loader must not meet, and that lie in files of their own."""

    def read(self, tensors: Mapping[str, Tensor], name: str, *, bits: int) -> Codes:
        """Returns the codes of `bits` bits that the method `tensors` has stored."""

    def config_entries(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> dict[str, Any]:
        """Returns what is added to config.json; raises if the library of the format would refuse it."""

    def extra_files(self, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> dict[str, bytes]:
        """Returns other files that the format needs next to config.json, by name."""


FORMATS: Mapping[str, OutputFormat] = {
    "compressed-tensors": CompressedTensors(),
}
DEFAULT_FORMAT = FORMATS["compressed-tensors"]


def planned_bytes(output: OutputFormat, checkpoint: "Checkpoint", schemes: Mapping[str, Scheme]) -> int:
    """Returns the bytes of all tensors once those with a scheme are quantized, including those that are kept."""
    weights, dtype, left_out = checkpoint.architecture.weights, scale_dtype(checkpoint), tied_copies(checkpoint)
    total = 0
    for name, info in checkpoint.tensors.items():
        if name in schemes:
            tied = len(tied_parameters(checkpoint, name))
            total += output.layer_bytes(weights[name], schemes[name], dtype=dtype, tied=tied)
        elif name not in left_out:
            total += info.nbytes
    return total
