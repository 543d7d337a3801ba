"""What is known of a model without running it."""

import numpy as np
import pytest
import torch
import transformers as t
from safetensors.numpy import load_file

from fairbits.api.inspect import inspect
from fairbits.models.checkpoint import Checkpoint


def test_an_inspection_has_the_blocks_and_their_moments() -> None:
    seen = []
    inspection = inspect("embedded:tiny", progress=lambda _, done, total: seen.append((done, total)))
    data = inspection.as_data()
    assert data["schema"] == "fairbits.inspection/1"
    assert data["fingerprint"] == Checkpoint("embedded:tiny").fingerprint
    assert len(inspection.moments.blocks) == inspection.checkpoint.architecture.n_blocks == 12
    assert seen[-1][0] == seen[-1][1]


def kurtosis(*weights: np.ndarray) -> float:
    """Returns the excess kurtosis of all weights together, in plain numpy."""
    w = np.concatenate([weight.astype(np.float64).ravel() for weight in weights])
    d = w - w.mean()
    return float(np.mean(d**4) / np.mean(d**2) ** 2 - 3)


def test_kappa_by_role_tells_cross_attention_from_self_attention(tmp_path) -> None:
    torch.manual_seed(0)
    shape = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4}
    model = t.MT5ForConditionalGeneration(t.MT5Config(**shape, vocab_size=300, decoder_start_token_id=0))
    model.decoder.block[1].layer[1].EncDecAttention.k.weight.data[0, :2] = 5.0
    model.save_pretrained(tmp_path)
    tensors, inspection = load_file(tmp_path / "model.safetensors"), inspect(tmp_path)
    encoder, decoder = inspection.roles[0], inspection.roles[3]
    assert list(encoder) == ["q", "k", "v", "o", "gate", "up", "down"]
    assert list(decoder) == ["q", "k", "v", "o", "cross q", "cross k", "cross v", "cross o", "gate", "up", "down"]
    for role, name in (("k", "0.SelfAttention.k"), ("cross k", "1.EncDecAttention.k"), ("down", "2.DenseReluDense.wo")):
        expected = kurtosis(tensors[f"decoder.block.1.layer.{name}.weight"])
        assert decoder[role].kappa == pytest.approx(expected, rel=1e-6)
    every = [(part.kappa, i, role) for i, block in enumerate(inspection.roles) for role, part in block.items()]
    assert max(every)[1:] == (3, "cross k")
    assert inspection.as_data()["roles"][3]["cross k"] == decoder["cross k"].kappa > 10


def test_the_experts_of_a_block_are_one_role(tmp_path) -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = t.MixtralForCausalLM(t.MixtralConfig(**shape, num_key_value_heads=2, num_local_experts=3, vocab_size=300))
    model.save_pretrained(tmp_path)
    tensors, (roles,) = load_file(tmp_path / "model.safetensors"), inspect(tmp_path).roles
    downs = [tensors[f"model.layers.0.block_sparse_moe.experts.{i}.w2.weight"] for i in range(3)]
    assert roles["down"].n == sum(part.size for part in downs)
    assert roles["down"].kappa == pytest.approx(kurtosis(*downs), rel=1e-6)
    assert list(roles)[:4] == ["q", "k", "v", "o"]
    assert list(roles)[-1] == "router"
