"""Models of real shapes with random weights, and text for them: for measuring time and memory, not damage."""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from string import ascii_lowercase

import torch
from torch import Tensor
from transformers import LlamaConfig

from fairbits import Checkpoint
from fairbits.models.io.safetensors_files import in_memory, write_tensors
from fairbits.text.included_texts import help_text

EMBEDDED = "embedded:tiny"
SEED = 0
LEAST_DOCUMENTS = 8
NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True)
class Shape:
    """The sizes of a published Llama."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    blocks: int
    vocabulary: int = 128_256

    @property
    def block_weights(self) -> int:
        """The number of weights in the linear layers of a block."""
        return sum(math.prod(shape) for shape in self.linears().values())

    def linears(self) -> dict[str, tuple[int, int]]:
        """Returns the linear layers of a block by their names in a checkpoint."""
        head = self.hidden // self.heads
        keys = self.kv_heads * head
        return {
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "mlp.gate_proj": (self.intermediate, self.hidden),
            "mlp.up_proj": (self.intermediate, self.hidden),
            "mlp.down_proj": (self.hidden, self.intermediate),
        }

    def files(self, blocks: int) -> Iterator[tuple[str, dict[str, tuple[int, ...]]]]:
        """Yields the name of each file of a checkpoint, and the shapes of its tensors; a file for every block."""
        table = self.vocabulary, self.hidden
        outside = {"model.embed_tokens.weight": table, "model.norm.weight": (self.hidden,), "lm_head.weight": table}
        yield f"model-{1:05}-of-{blocks + 1:05}.safetensors", outside
        for index in range(blocks):
            prefix = f"model.layers.{index}"
            maps = {f"{prefix}.{name}.weight": size for name, size in self.linears().items()}
            norms = {f"{prefix}.{name}.weight": (self.hidden,) for name in NORMS}
            yield f"model-{index + 2:05}-of-{blocks + 1:05}.safetensors", maps | norms

    def config(self, blocks: int) -> LlamaConfig:
        """Returns the configuration of a model of this shape with some of its blocks."""
        tokens = Checkpoint(EMBEDDED).config
        return LlamaConfig(
            architectures=["LlamaForCausalLM"],
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            num_hidden_layers=blocks,
            vocab_size=self.vocabulary,
            tie_word_embeddings=False,
            dtype=torch.bfloat16,
            bos_token_id=tokens.bos_token_id,
            eos_token_id=tokens.eos_token_id,
            pad_token_id=tokens.pad_token_id,
        )


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("tiny", 256, 768, 4, 2, 4, 16_384),
        Shape("100m", 768, 2048, 12, 6, 12, 16_384),
        Shape("1b", 2048, 8192, 32, 8, 16),
        Shape("8b", 4096, 14_336, 32, 8, 32),
        Shape("70b", 8192, 28_672, 64, 8, 80),
        Shape("405b", 16_384, 53_248, 128, 8, 126),
    )
}


def write_model(directory: Path, shape: Shape, blocks: int, *, device: str = "cpu") -> Path:
    """Returns the directory of a model with this many blocks, a file for each; made if it is not there."""
    if (directory / "config.json").is_file():
        return directory
    directory.mkdir(parents=True, exist_ok=True)
    rng = torch.Generator(device).manual_seed(SEED)

    def weights(size: tuple[int, ...]) -> Tensor:
        if len(size) == 1:
            return torch.ones(size, dtype=torch.bfloat16)
        return torch.randn(size, generator=rng, device=device).mul_(size[1] ** -0.5).bfloat16().cpu()

    files: dict[str, str] = {}
    for name, sizes in shape.files(blocks):
        write_tensors(directory / name, in_memory({tensor: weights(size) for tensor, size in sizes.items()}))
        files |= dict.fromkeys(sizes, name)
    content = {"metadata": {}, "weight_map": files}
    (directory / "model.safetensors.index.json").write_text(json.dumps(content), encoding="utf-8")
    Checkpoint(EMBEDDED).tokenizer().save_pretrained(directory)
    shape.config(blocks).save_pretrained(directory)  # last, as it marks the model as complete
    return directory


def write_text(directory: Path, *, languages: int, tokens: int, document: int) -> Path:
    """Returns a directory with at least `tokens` of each of so many languages in each split; made if it is not there.

    The words are those of `help`, repeated, in documents of about `document` tokens. A language beyond the twelve of
    `help` repeats the text of another one under a private code: for time and memory the words do not matter.
    """
    if directory.exists():
        return directory
    corpus = help_text()
    codes = list(corpus.evaluation)
    tokenizer = Checkpoint(EMBEDDED).tokenizer()
    for split, index in product(("calibration", "evaluation"), range(languages)):
        code = codes[index % len(codes)]
        name = code if index < len(codes) else f"qa{ascii_lowercase[index - len(codes)]}"
        words = " ".join(" ".join(corpus.split(split)[code]).split()) + " "
        length = len(tokenizer(words)["input_ids"])
        size = math.ceil(document * len(words) / length)  # in characters
        count = max(math.ceil(1.1 * tokens / document), LEAST_DOCUMENTS)
        endless = words * (1 + math.ceil(count * size / len(words)))
        lines = [f"{turn} {endless[turn * size : (turn + 1) * size]}" for turn in range(count)]
        file = directory / split / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("\n".join(lines), encoding="utf-8")
    return directory


def smaller_tokenizer(file: Path, size: int) -> str:
    """Returns the content of a tokenizer.json with its first `size` tokens: it still reads any text, as bytes."""
    whole = json.loads(file.read_text(encoding="utf-8"))
    bpe = whole["model"]
    bpe["vocab"] = {token: number for token, number in bpe["vocab"].items() if number < size}
    bpe["merges"] = [pair for pair in bpe["merges"] if "".join(pair) in bpe["vocab"]]
    return json.dumps(whole)
