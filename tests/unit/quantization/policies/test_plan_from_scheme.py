"""Which layers a plan quantizes, and which it keeps."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import transformers as t
from safetensors.torch import load_file, save_file

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.compressed_tensors import check_storable
from fairbits.quantization.evidence import Evidence


def test_norms_head_and_embedding_are_kept_by_default(llama: Evidence, make_plan: Any) -> None:
    kept = {layer.role for layer in make_plan("rtn", llama).layers if layer.bits is None}
    assert kept == {"embedding", "head"}  # norms are not in the plan at all
    plan = make_plan("mse", llama, embeddings=8)
    outside = [layer for layer in plan.quantized if layer.block is None]
    assert [(layer.role, layer.bits, layer.scheme.clip) for layer in outside] == [
        ("embedding", 8, "absmax"),
        ("head", 8, "absmax"),
    ]
    assert plan.layers[0].role == "embedding"
    assert plan.layers[-1].role == "head"
    assert plan.size_bytes < make_plan("mse", llama).size_bytes


def test_four_bits_are_for_the_head_alone(llama: Evidence, make_plan: Any) -> None:
    plan, wider = make_plan("rtn", llama, embeddings=4), make_plan("rtn", llama, embeddings=8)
    assert [(layer.role, layer.bits) for layer in plan.quantized if layer.block is None] == [
        ("embedding", 8),
        ("head", 4),
    ]
    check_storable(llama.checkpoint, plan.schemes)
    head = llama.checkpoint.architecture.head
    assert head is not None
    assert wider.size_bytes - plan.size_bytes == math.prod(head.shape) // 2
    note = "the head has 4 bits, the embedding 8: the format packs linear layers only"
    assert note in plan.notes
    assert note not in wider.notes


def test_a_note_says_that_vllm_cannot_load_a_quantized_embedding(llama: Evidence, make_plan: Any) -> None:
    warned = {bits: make_plan("rtn", llama, embeddings=bits).notes for bits in ("keep", 8, 4)}
    assert [sum("vLLM 0.32 cannot load" in note for note in notes) for notes in warned.values()] == [0, 1, 1]


def test_a_tied_head_is_the_embedding(reading_model: Callable[[str], Checkpoint], make_plan: Any) -> None:
    tied = Evidence(reading_model("gemma3"))
    plan = make_plan("rtn", tied, embeddings=8)
    assert [layer.role for layer in plan.quantized if layer.block is None] == ["embedding"]
    check_storable(tied.checkpoint, plan.schemes)
    with pytest.raises(InputError, match=r"head and embedding tied: the format needs at least 8 bits .* use 8"):
        make_plan("rtn", tied, embeddings=4)


def test_a_head_that_repeats_the_embedding_in_the_file_is_tied(
    saved: Callable[..., Checkpoint], make_plan: Any
) -> None:
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 48}
    checkpoint = saved(t.LlamaForCausalLM(t.LlamaConfig(**size, vocab_size=64, tie_word_embeddings=True)))
    file = checkpoint.directory / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file, {"format": "pt"})
    with pytest.raises(InputError, match="head and embedding tied"):
        make_plan("rtn", Evidence(Checkpoint(checkpoint.directory)), embeddings=4)


def test_fused_layers_share_bits_and_group(llama: Evidence, make_plan: Any) -> None:
    plan = make_plan("allocate", llama, avg_bits=4.5)
    layers = {layer.name: layer for layer in plan.layers}
    for group in llama.checkpoint.architecture.fused_groups.values():
        assert len({layers[weight.name].scheme.as_stored for weight in group}) == 1


def test_routers_are_kept(reading_model: Callable[[str], Checkpoint], make_plan: Any, rounded_layers: Any) -> None:
    plan = make_plan("rtn", Evidence(reading_model("mixtral")))
    mlp = {"mlp_gate", "mlp_up", "mlp_down"}
    assert {layer.role for layer in rounded_layers(plan)} == {"q", "k", "v", "attention_out"} | mlp
    assert sum(layer.role in mlp for layer in rounded_layers(plan)) == 18  # 2 blocks × 3 experts × 3 maps
    assert any(layer.role == "router" and layer.bits is None for layer in plan.layers)


def test_a_tensor_can_have_one_scale(llama: Evidence, make_plan: Any, schemes: Any) -> None:
    assert {scheme.group for scheme in schemes(make_plan("gptq", llama, group="tensor"))} == {"tensor"}


def test_the_size_is_the_size_of_the_file(llama: Evidence, make_plan: Any) -> None:
    four, eight = (make_plan("rtn", llama, bits=bits).size_bytes for bits in (4, 8))
    assert eight - four == sum(llama.block_weights) // 2  # half a byte more per weight, steps the same


def test_the_same_evidence_gives_the_same_digest(llama: Evidence, make_plan: Any) -> None:
    assert make_plan("protect", llama, k=1).digest == make_plan("protect", llama, k=1).digest
    assert make_plan("protect", llama, k=1).digest != make_plan("protect", llama, k=1, bits=3).digest


def test_a_group_that_does_not_divide_is_refused_with_groups_that_do(unmeasured: Evidence, make_plan: Any) -> None:
    with pytest.raises(InputError, match=r"inputs, which groups of 32 do not divide.*2, 4, 8, 16 would"):
        make_plan("protect", unmeasured, group=32)
