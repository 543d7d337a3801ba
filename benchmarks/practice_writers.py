"""The variants of practice.py: what published checkpoints are quantized with, and fairbits' own GPTQ.

Those that read text read English, as published practice does, but for GPTQ on the equal mix. The head and the
embedding stay as they are, but in `Q4_0` and `Q8_0`, which also round the embedding.
"""

import argparse
import json
import shlex
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import fairbits
from fairbits import Checkpoint
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.io.safetensors_files import in_memory, write_tensors
from fairbits.text.corpus import TextRequest
from presets import Ranges, copy_tokenizer, input_ranges, write_preset
from real_autoround import rows_of
from real_items import ALL, path_of
from real_texts import CALIBRATED, LANGUAGES, Texts

WORKER = Path(__file__).with_name("practice_awq.py")
TEXT, ENGLISH, SEQUENCE, MIX_TOKENS = "help", "eng_Latn", 512, 450
PRESETS = ("FP8_DYNAMIC", "FP8_BLOCK", "FP8", "W8A8", "W4A8", "NVFP4", "NVFP4A16", "MXFP4", "MXFP4A16", "W4A16")
STATIC = ("FP8", "NVFP4")
"""The presets whose inputs have static scales."""
KEYS_AND_VALUES = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
TEXTS = Texts.of(
    argparse.Namespace(text=TEXT, languages=CALIBRATED, evaluation=[TEXT], evaluation_languages=list(LANGUAGES))
)


def write_reference(model: str, out: Path) -> None:
    """Writes a published model in bfloat16; a model that is a directory is copied so too."""
    checkpoint = Checkpoint(path_of(model))
    draft = out.with_name(f"{out.name}.draft")
    draft.mkdir(parents=True, exist_ok=True)
    tensors = {info.name: tensor.to(torch.bfloat16).clone() for info, tensor in checkpoint.stream()}
    write_tensors(draft / "model.safetensors", in_memory(tensors))
    copy_tokenizer(checkpoint.directory, draft)
    set_type(checkpoint.directory, draft, "bfloat16")
    draft.rename(out)


def set_type(model: Path, out: Path, name: str) -> None:
    """Writes the configuration of a model with another type of the weights."""
    config = json.loads((model / "config.json").read_text(encoding="utf-8")) | {"dtype": name}
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")


@dataclass(frozen=True)
class Writer:
    """Writes the variants of one model, a plain directory."""

    model: Path
    device: str
    awq_python: str = "python"

    def write(self, variant: str, out: Path) -> int | None:
        """Writes a variant; returns its size in bytes if `out` does not show it."""
        if variant in PRESETS:
            write_preset(
                self.model, variant, out, ranges=self.ranges if variant in STATIC else None, device=self.device
            )
            return None
        return VARIANTS[variant](self, out)

    @cached_property
    def rows(self) -> list[list[int]]:
        """All English calibration text, in rows of tokens."""
        english, request = TEXTS.calibration.restrict([ENGLISH]), TextRequest("calibration", ALL, SEQUENCE)
        return rows_of(tokenize_corpus(Checkpoint(self.model), english, request=request), SEQUENCE)

    @cached_property
    def ranges(self) -> Ranges:
        """The largest inputs of all layers on the rows."""
        return input_ranges(self.model, self.rows, device=self.device)

    def awq(self, out: Path) -> None:
        """Writes what llm-compressor does, in its own environment."""
        rows = out.with_name("rows.json")
        rows.write_text(json.dumps(self.rows), encoding="utf-8")
        command = [*shlex.split(self.awq_python), str(WORKER), str(self.model), str(rows), str(out)]
        subprocess.run(command, check=True)

    def gptq(self, policy: str, tokens: int, out: Path) -> None:
        """Writes what fairbits' GPTQ does in 4 bits and groups of 128."""
        text = {"text": TEXTS.calibration, "tokens": tokens, "sequence": SEQUENCE, "device": self.device}
        plan = fairbits.plan(self.model, policy=policy, bits=4, group=128, **text)
        fairbits.quantize(self.model, plan, out=out, text=TEXTS.calibration, device=self.device)

    def fp8_keys_and_values(self, out: Path) -> None:
        """Writes the model itself, to be served with keys and values in FP8, with the scale 1: no others are stored."""
        shutil.copytree(self.model, out)
        how = {"quant_method": "compressed-tensors", "format": "dense", "config_groups": {}, "ignore": []}
        rounded = how | {"quantization_status": "compressed", "kv_cache_scheme": KEYS_AND_VALUES}
        config = json.loads((out / "config.json").read_text(encoding="utf-8")) | {"quantization_config": rounded}
        (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")

    def nf4(self, out: Path) -> None:
        """Writes what bitsandbytes does; it computes in float32, so that only the weights count."""
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig

        config = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32)
        options = {"quantization_config": config, "device_map": self.device, "dtype": "auto"}
        AutoModelForCausalLM.from_pretrained(self.model, **options).save_pretrained(out)
        copy_tokenizer(self.model, out)

    def gguf(self, name: str, out: Path) -> int:
        """Writes a model as a GGUF file would give it back, in float32; returns the bytes of the rounded tensors.

        The embedding, and the head if it is apart, have 8 bits, as the package gguf writes no Q6_K.
        """
        size, tensors = 0, dict[str, Tensor]()
        for name_of_tensor, tensor in self._tensors():
            outside = "embed_tokens" in name_of_tensor or "lm_head" in name_of_tensor
            kind = "F32" if tensor.ndim < 2 else "Q8_0" if outside else name
            tensors[name_of_tensor], count = round_trip(tensor, kind)
            size += count
        out.mkdir()
        save_file(tensors, out / "model.safetensors", {"format": "pt"})
        copy_tokenizer(self.model, out)
        set_type(self.model, out, "float32")
        return size

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        with safe_open(self.model / "model.safetensors", "pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, file.get_tensor(name).float()


def round_trip(tensor: Tensor, kind: str) -> tuple[Tensor, int]:
    """Returns a tensor after the package gguf has rounded it, and its bytes in a file."""
    import gguf

    to = gguf.GGMLQuantizationType[kind]
    values = tensor.numpy()
    packed = [gguf.quantize(part, to) for part in np.array_split(values, max(1, values.size >> 24))]
    back = np.concatenate([gguf.dequantize(part, to) for part in packed])
    return torch.from_numpy(back.reshape(values.shape).astype(np.float32)), sum(part.nbytes for part in packed)


VARIANTS: Mapping[str, Callable[[Writer, Path], int | None]] = {
    "AWQ": Writer.awq,
    "GPTQ-English": lambda writer, out: writer.gptq("gptq:mix=english", ALL, out),
    "GPTQ-mix": lambda writer, out: writer.gptq("gptq", MIX_TOKENS, out),
    "FP8-KV": Writer.fp8_keys_and_values,
    "nf4": Writer.nf4,
    "Q8_0": lambda writer, out: writer.gguf("Q8_0", out),
    "Q4_0": lambda writer, out: writer.gguf("Q4_0", out),
}
