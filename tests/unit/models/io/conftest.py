"""Small random models of several families, rounded, and the function that writes them."""

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.checkpoint_writer import QuantizedWriter
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.groups import Codes, round_to_nearest
from fairbits.models.scales.scheme import Scheme

SIZE: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 80}
WIDE = {**SIZE, "intermediate_size": 96}
GROUPED = {**WIDE, "num_key_value_heads": 2}
FAMILIES: dict[str, tuple[Any, Callable[[], Any]]] = {
    "bloom": (t.BloomForCausalLM, lambda: t.BloomConfig(**SIZE)),
    "llama": (t.LlamaForCausalLM, lambda: t.LlamaConfig(**GROUPED)),
    "qwen2": (t.Qwen2ForCausalLM, lambda: t.Qwen2Config(**GROUPED)),
    "gemma3": (t.Gemma3ForCausalLM, lambda: t.Gemma3TextConfig(**GROUPED, head_dim=16, sliding_window=8)),
    "opt": (t.OPTForCausalLM, lambda: t.OPTConfig(**SIZE, ffn_dim=96, word_embed_proj_dim=64)),
    "gpt_neox": (t.GPTNeoXForCausalLM, lambda: t.GPTNeoXConfig(**WIDE)),
    "mixtral": (t.MixtralForCausalLM, lambda: t.MixtralConfig(**GROUPED, num_local_experts=3)),
    "xlmr": (t.XLMRobertaForMaskedLM, lambda: t.XLMRobertaConfig(**WIDE, max_position_embeddings=68)),
}
IDENTITY = {"plan": "0" * 64, "model": "1" * 64, "tokenizer": "3" * 64, "fairbits": "0.2.0", "device": "cpu"}
Make = Callable[..., Checkpoint]


@pytest.fixture(scope="session")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Returns the function that gives a small random model of a family."""
    checkpoints: dict[tuple[str, torch.dtype], Checkpoint] = {}

    def make(family: str, dtype: torch.dtype = torch.float16) -> Checkpoint:
        if (family, dtype) not in checkpoints:
            cls, config = FAMILIES[family]
            torch.manual_seed(0)
            model = cls(config()).to(dtype)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            directory = tmp_path_factory.mktemp(family)
            model.save_pretrained(directory)
            checkpoints[family, dtype] = Checkpoint(directory)
        return checkpoints[family, dtype]

    t.logging.disable_progress_bar()
    return make


def linears_of_blocks(checkpoint: Checkpoint) -> list[str]:
    maps = checkpoint.architecture.linears.items()
    return [name for name, weight in maps if weight.block is not None and weight.role != "router"]


def round_all(checkpoint: Checkpoint, stored: dict[str, Scheme]) -> dict[str, Codes]:
    codes = {}
    for name, how in stored.items():
        W = checkpoint.read(name)
        blocks = W.float().reshape(W.shape[0], how.groups(W.shape[1]), -1)
        scales = (blocks.abs().amax(2) / (2 ** (how.bits - 1) - 0.5)).to(checkpoint.scale_dtype)
        codes[name] = round_to_nearest(W, scales, grid=Grid(how.bits, "twos"))
    return codes


def codes_by_block(checkpoint: Checkpoint, codes: dict[str, Codes]) -> dict[int | None, dict[str, Codes]]:
    blocks: dict[int | None, dict[str, Codes]] = {}
    for name, layer_codes in codes.items():
        blocks.setdefault(checkpoint.architecture.weights[name].block, {})[name] = layer_codes
    return blocks


def write_model(checkpoint: Checkpoint, stored: dict[str, Scheme], out: Path, **options: Any) -> dict[str, Codes]:
    codes = round_all(checkpoint, stored)
    writer = QuantizedWriter(checkpoint, out, schemes=stored, identity=IDENTITY, **options)
    for index, layers in codes_by_block(checkpoint, codes).items():
        if writer.finished(index) is None:
            writer.add(index, layers, extra={f"t{index}": torch.ones(3)}, record=b'{"\xce\xba": 1}')
    writer.finish({"plan.json": b"{}\n"})
    return codes


@pytest.fixture(autouse=True)
def no_word_of_the_libraries(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A name that a loader cannot find, and the like, is said in the log."""
    yield
    assert [
        record.getMessage() for record in caplog.get_records("call") if record.name.startswith("compressed_tensors")
    ] == []


def file_digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def mixed_schemes(checkpoint: Checkpoint) -> dict[str, Scheme]:
    weights = checkpoint.architecture.weights
    return {
        name: Scheme(8, "channel") if weights[name].block == 0 else Scheme(4, 32)
        for name in linears_of_blocks(checkpoint)
    }


@pytest.fixture(scope="session")
def inside() -> Any:
    """Returns the function that gives the names of the linear layers in the blocks."""
    return linears_of_blocks


@pytest.fixture(scope="session")
def rounded() -> Any:
    """Returns the function that rounds weights to the nearest code."""
    return round_all


@pytest.fixture(scope="session")
def by_block() -> Any:
    """Returns the function that sorts codes by their block."""
    return codes_by_block


@pytest.fixture(scope="session")
def write() -> Any:
    """Returns the function that writes a quantized model and gives its codes."""
    return write_model


@pytest.fixture(scope="session")
def digests() -> Any:
    """Returns the function that gives the digest of every file of a directory."""
    return file_digests


@pytest.fixture(scope="session")
def mixed() -> Any:
    """Returns the function that gives 8 bits to the first block and 4 to the others."""
    return mixed_schemes
