"""Two published models: dequantized as the gguf package does it, mapped block by block, measured."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from fairbits.models.checkpoint import Checkpoint
from fairbits.models.weight_moments import WeightMoments, weight_moments

GEMMA_NAMES = {  # a tensor of every storage type in the file
    "token_embd.weight": "model.embed_tokens.weight",  # Q8_0
    "blk.0.ffn_down.weight": "model.layers.0.mlp.down_proj.weight",  # Q6_K
    "blk.9.ffn_gate.weight": "model.layers.9.mlp.gate_proj.weight",  # Q5_0
    "blk.17.attn_output.weight": "model.layers.17.self_attn.o_proj.weight",  # Q4_K
}
SMOLLM_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "blk.0.attn_v.weight": "model.layers.0.self_attn.v_proj.weight",
    "blk.29.ffn_up.weight": "model.layers.29.mlp.up_proj.weight",
}


def dequantized(path: str, names: dict[str, str]) -> dict[str, np.ndarray]:
    """Returns tensors by the name in the checkpoint, as the gguf package dequantizes them."""
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    return {ours: gguf.dequantize(tensors[name].data, tensors[name].tensor_type) for name, ours in names.items()}


@pytest.fixture(scope="module")
def gemma_weights(gemma: Checkpoint) -> dict[str, np.ndarray]:
    return dequantized(gemma.target, GEMMA_NAMES)


@pytest.fixture(scope="module")
def smollm_weights(smollm: Checkpoint) -> dict[str, np.ndarray]:
    return dequantized(smollm.target, SMOLLM_NAMES)


def test_gemma_is_dequantized_and_says_so(gemma: Checkpoint, gemma_weights: dict[str, np.ndarray]) -> None:
    assert gemma.kind == "gguf"
    assert gemma.notes == ("the reference is itself quantized (Q4_K_M, from a GGUF file, dequantized to float32)",)
    for name, expected in gemma_weights.items():
        assert gemma.read(name).equal(torch.from_numpy(np.array(expected)))


def test_smollm_is_dequantized_and_says_so(smollm: Checkpoint, smollm_weights: dict[str, np.ndarray]) -> None:
    assert smollm.notes == ("the reference is itself quantized (Q4_1, from a GGUF file, dequantized to float32)",)
    for name, expected in smollm_weights.items():
        assert smollm.read(name).equal(torch.from_numpy(np.array(expected)))


@pytest.mark.parametrize(
    ("model", "n_blocks", "shapes", "norms"),
    [
        (
            "gemma",
            18,
            {
                "q": (1024, 640),  # 4 heads of 256
                "k": (256, 640),  # one head for all of them
                "v": (256, 640),
                "attention_out": (640, 1024),
                "mlp_gate": (2048, 640),
                "mlp_up": (2048, 640),
                "mlp_down": (640, 2048),
            },
            6,
        ),
        (
            "smollm",
            30,
            {
                "q": (576, 576),  # 9 heads of 64
                "k": (192, 576),  # 3 heads
                "v": (192, 576),
                "attention_out": (576, 576),
                "mlp_gate": (1536, 576),
                "mlp_up": (1536, 576),
                "mlp_down": (576, 1536),
            },
            2,
        ),
    ],
)
def test_block_map(
    model: str, n_blocks: int, shapes: dict[str, tuple[int, int]], norms: int, request: pytest.FixtureRequest
) -> None:
    checkpoint: Checkpoint = request.getfixturevalue(model)
    architecture = checkpoint.architecture
    assert architecture.n_blocks == n_blocks
    assert architecture.tied == {"lm_head.weight": "model.embed_tokens.weight"}
    for block in architecture.blocks:
        assert {weight.role: weight.shape for weight in block.linears.values()} == shapes
        assert sum(weight.role == "norm" for weight in block.weights.values()) == norms
        assert all(name.startswith(f"model.layers.{block.index}.") for name in block.weights)
        fused = {weight.role: weight.fused for weight in block.linears.values()}
        assert fused["q"] == fused["k"] == fused["v"] != fused["mlp_gate"] == fused["mlp_up"]
    outside = {weight.name: weight.role for weight in architecture.weights.values() if weight.block is None}
    assert outside == {"model.embed_tokens.weight": "embedding", "model.norm.weight": "norm"}


def assert_moments(moments: WeightMoments, weights: np.ndarray) -> None:
    """Compares with two passes over all weights at once: first the mean, then the powers around it."""
    w = weights.astype(np.float64).ravel()
    deviation = w - w.mean()
    sigma = np.sqrt(np.mean(deviation**2))
    assert moments.n == w.size
    assert moments.mean == pytest.approx(w.mean(), abs=1e-12 * sigma)
    assert moments.sigma == pytest.approx(sigma, rel=1e-11)
    assert moments.skewness == pytest.approx(np.mean(deviation**3) / sigma**3, rel=1e-9, abs=1e-9)
    assert moments.kappa == pytest.approx(np.mean(deviation**4) / sigma**4 - 3, rel=1e-9)
    assert moments.largest == np.abs(w).max()
    for k, share in ((3, moments.beyond_3), (6, moments.beyond_6)):
        assert share == pytest.approx(np.mean(np.abs(deviation) > k * sigma), abs=0 if moments.exact else 1e-4)


@pytest.mark.parametrize("model", ["gemma", "smollm"])
def test_moments_of_tensors_and_blocks(model: str, request: pytest.FixtureRequest) -> None:
    checkpoint: Checkpoint = request.getfixturevalue(model)
    moments = weight_moments(checkpoint)
    assert moments.tensors.keys() == checkpoint.tensors.keys()
    assert moments.skipped == {}
    for name, weights in request.getfixturevalue(f"{model}_weights").items():
        assert_moments(moments.tensors[name], weights)
    assert len(moments.blocks) == checkpoint.architecture.n_blocks
    last = checkpoint.architecture.blocks[-1]
    together = np.concatenate([checkpoint.read(name).numpy().ravel() for name in last.linears])
    assert_moments(moments.blocks[-1], together)


@pytest.mark.parametrize("model", ["gemma", "smollm"])
def test_it_knows_what_it_learned(model: str, request: pytest.FixtureRequest) -> None:
    checkpoint: Checkpoint = request.getfixturevalue(model)
    tokenizer, loaded = checkpoint.tokenizer(), checkpoint.load()
    ids = tokenizer("Paris is the capital of France. Rome is the capital of", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert tokenizer.decode(loaded(ids).logits[0, -1].argmax()) == " Italy"
    # Gemma's file asks for <bos>, without which its loss is several times as high; SmolLM2's does not
    assert (ids[0, 0].item() == tokenizer.bos_token_id) == (model == "gemma")


def test_the_file_is_dequantized_only_once(gemma: Checkpoint) -> None:
    modified = (gemma.directory / "model.safetensors").stat().st_mtime_ns
    assert (Checkpoint(Path(gemma.target)).directory / "model.safetensors").stat().st_mtime_ns == modified
