"""SketchedCheckpoint: a model of known shapes with random weights, for estimates that write nothing."""

import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import torch
from torch import Tensor
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.gguf_sketch import is_dequantized, sketch_gguf
from fairbits.models.io.safetensors_files import TensorInfo

REPEATED = 2**26  # weights from which on a tensor repeats one row, so that it takes no memory


def open_sketch(target: str | Path, *, trust_remote_code: bool = False, revision: str | None = None) -> Checkpoint:
    """Returns a checkpoint for estimates: a sketch of a GGUF file that is not in the cache, else the model itself."""
    path = Path(os.path.expanduser(target))
    if path.suffix == ".gguf" and path.is_file() and revision is None and not is_dequantized(path):
        return SketchedCheckpoint(path)
    return Checkpoint(target, trust_remote_code=trust_remote_code, revision=revision)


class SketchedCheckpoint(Checkpoint):
    """A GGUF file of which the header was read: configuration, shapes, and a tokenizer that is about like its own."""

    def __init__(self, path: Path) -> None:
        config, tokenizer = sketch_gguf(path)
        self.target, self.revision, self.kind = str(path), None, "gguf"
        self.directory, self.trust_remote_code, self.notes = path.parent, False, ()
        self._raw_config, self.files = {}, MappingProxyType({})
        self.__dict__.update(config=config, fingerprint="", _tokenizer=tokenizer)

    def read(self, name: str) -> Tensor:
        shape = self._info(name).shape
        if self._info(name).numel < REPEATED:
            return torch.randn(shape)
        return torch.randn(shape[-1]).expand(shape)

    def read_pinned(self, name: str) -> Tensor:
        return self.read(name)

    def announce(self, name: str) -> None:
        pass  # there is nothing to read

    @cached_property
    def _whole(self) -> Mapping[str, TensorInfo]:
        model = self.meta_model()
        state = revert_weight_conversion(model, remove_tied_weights_from_state_dict(model.state_dict(), model))
        infos = (TensorInfo(name, tuple(x.shape), torch.float32, 4 * x.numel()) for name, x in state.items())
        return MappingProxyType({info.name: info for info in infos})
