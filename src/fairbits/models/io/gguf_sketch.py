"""What an estimate needs of a GGUF file, in seconds: its configuration, and a tokenizer that is about like its own.

transformers reads every entry of the vocabulary one by one, twice, which takes most of a minute for large ones.
"""

import math
import mmap
from pathlib import Path
from typing import Any
from unittest.mock import patch

import gguf
import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, PretrainedConfig, PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from fairbits.core.errors import InputError
from fairbits.core.files import cache_directory
from fairbits.models.architecture.meta_model import check_values, meta_model
from fairbits.models.io.gguf_file import kept_name, open_header, read_strings, skip_array

TOKENS = "tokenizer.ggml.tokens"
LONG = 1024  # elements from which on an array is not read


class HeaderReader(gguf.GGUFReader):
    """Reads a file as the package gguf does, but skips the elements of long arrays, such as the vocabulary."""

    def _get_field_parts(self, orig_offs: int, raw_type: int) -> tuple[int, list[Any], list[int], list[Any]]:
        if raw_type == gguf.GGUFValueType.ARRAY:
            data: Any = self.data
            if int(np.frombuffer(data[orig_offs + 4 : orig_offs + 12].tobytes(), "<u8")[0]) > LONG:
                return skip_array(data, orig_offs) - orig_offs, [], [], [gguf.GGUFValueType.ARRAY]
        return super()._get_field_parts(orig_offs, raw_type)


def is_dequantized(path: Path) -> bool:
    """Returns whether the cache has the dequantized weights of a file."""
    return (cache_directory() / kept_name(path, open_header(path))).is_dir()


def sketch_gguf(path: Path) -> tuple[PretrainedConfig, PreTrainedTokenizerBase]:
    """Returns the configuration of the model, and a tokenizer of its vocabulary that prefers long and early tokens."""
    header = open_header(path)
    if TOKENS not in header.arrays:
        raise InputError(f"{path} has no vocabulary ({TOKENS}); fetch it again, or use a file that holds a whole model")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        tokens = read_strings(data, header.arrays[TOKENS])
    with patch.object(gguf, "GGUFReader", HeaderReader):
        try:
            parsed = load_gguf_checkpoint(str(path))  # type: ignore[no-untyped-call]
            entries = parsed["config"] | {"vocab_size": len(tokens)}
            config: PretrainedConfig = AutoConfig.for_model(**entries)
        except Exception as problem:  # whatever a damaged file, or one of an unknown family, sets off in there
            raise InputError(f"transformers cannot read {path}: {type(problem).__name__}: {problem}") from problem
    check_values(meta_model(config), header.values)
    return config, _tokenizer(tokens, header.metadata)


def _tokenizer(tokens: list[str], metadata: Any) -> PreTrainedTokenizerBase:
    pieces = Tokenizer(models.Unigram([(token, -math.log(i + 2)) for i, token in enumerate(tokens)], unk_id=0))
    in_bytes = metadata.get("tokenizer.ggml.model") == "gpt2"
    if in_bytes:
        pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    else:
        pieces.pre_tokenizer, pieces.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    special = {}
    for name in ("bos", "eos"):
        number = metadata.get(f"tokenizer.ggml.{name}_token_id")
        if isinstance(number, int) and number < len(tokens):
            special[f"{name}_token"] = tokens[number]
    return PreTrainedTokenizerFast(tokenizer_object=pieces, **special)  # type: ignore[no-untyped-call]
