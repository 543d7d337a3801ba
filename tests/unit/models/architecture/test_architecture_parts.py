"""Rows of fused tensors, cross-attention, and the parts of a model that text never reaches."""

from typing import Any

import torch
import transformers as t

from fairbits.models.architecture.architecture import Weight
from fairbits.models.architecture.assemble import map_architecture

TEXT = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
TEXT |= {"intermediate_size": 48, "vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
VISION = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 1, "intermediate_size": 48}


def test_fused_tensors_say_which_rows_are_q_k_and_v(opened: Any) -> None:
    fused = [w for w in opened.map.weights.values() if w.role == "qkv"]
    interleaved = {"bloom": True, "gpt_neox": True, "gpt2": False, "phi3": False}  # interleaved by head?
    if opened.config.model_type not in interleaved:
        assert not fused
        return
    for weight in fused:
        n_k = 16 if opened.config.model_type == "phi3" else 32
        if interleaved[opened.config.model_type]:
            spans = [(role, range(s, s + 8)) for s, role in zip(range(0, 96, 8), "qkv" * 4, strict=True)]
        else:
            spans = [("q", range(32)), ("k", range(32, 32 + n_k)), ("v", range(32 + n_k, 32 + 2 * n_k))]
        assert [(part.role, range(part.start, part.stop)) for part in weight.layout] == spans
    _check_layout_by_zeroing(opened, opened.map.blocks[0].weights)


def _check_layout_by_zeroing(opened: Any, weights: Any) -> None:
    """Without v nothing comes out; without q or without k every token gets the same attention: the same comes out."""
    (fused,) = (w for w in weights.values() if w.role == "qkv")
    (out,) = (w for w in weights.values() if w.role == "attention_out")
    contexts = {role: _context_without(opened, fused, out=out, role=role) for role in ("q", "k", "v", "")}
    assert contexts["v"].abs().max() == 0
    torch.testing.assert_close(contexts["q"], contexts["k"])
    assert (contexts["q"] - contexts[""]).abs().max() > 1e-3


def _context_without(opened: Any, fused: Weight, *, out: Weight, role: Any) -> torch.Tensor:
    model, caught = opened.model(), []
    module = model.get_submodule(fused.module)
    matrix = module.weight.data.T if fused.transposed else module.weight.data
    for rows in fused.rows(role):
        matrix[rows.start : rows.stop] = 0
        if module.bias is not None:
            module.bias.data[rows.start : rows.stop] = 0
    model.get_submodule(out.module).register_forward_pre_hook(lambda _m, args: caught.append(args[0]))
    with torch.no_grad():
        model(input_ids=torch.arange(3, 11)[None], use_cache=False)
    return caught[0]


def test_gate_and_up_of_phi3_are_stacked(described: Any) -> None:
    weights = map_architecture(*described(t.Phi3ForCausalLM, t.Phi3Config(**TEXT))).weights
    fused = weights["model.layers.1.mlp.gate_up_proj.weight"]
    assert (fused.rows("mlp_gate"), fused.rows("mlp_up")) == ((range(48),), (range(48, 96),))


def test_decoder_of_mt5_sees_the_encoder(described: Any) -> None:
    size = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 1, "num_decoder_layers": 2, "num_heads": 4}
    config = t.MT5Config(**size, vocab_size=96, pad_token_id=0, eos_token_id=1, decoder_start_token_id=0)
    block = map_architecture(*described(t.MT5ForConditionalGeneration, config)).blocks[2]
    cross = {
        n.removeprefix("decoder.block.1.layer.1.EncDecAttention."): w for n, w in block.weights.items() if "Enc" in n
    }
    assert (block.stack, block.module) == ("decoder", "decoder.block.1")
    assert {n: (w.role, w.sees, w.fused) for n, w in cross.items()} == {
        "q.weight": ("q", "blocks.2.cross_attention", None),
        "k.weight": ("k", "encoder_output", "blocks.2.cross_attention.kv"),
        "v.weight": ("v", "encoder_output", "blocks.2.cross_attention.kv"),
        "o.weight": ("attention_out", "blocks.2.cross_attention_out", None),
    }
    assert sum(w.role == "norm" for w in block.weights.values()) == 3


def test_images_of_gemma3_are_left_aside(save: Any, tmp_path: Any) -> None:
    config = t.Gemma3Config(
        text_config={**TEXT, "head_dim": 16},
        vision_config={**VISION, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        image_token_index=90,
    )
    architecture = map_architecture(*save(t.Gemma3ForConditionalGeneration, config, tmp_path))
    assert architecture.n_blocks == 2
    assert {block.module for block in architecture.blocks} == {f"model.language_model.layers.{i}" for i in range(2)}
    assert len(architecture.blocks[0].linears) == 7
    aside = {n for n, w in architecture.weights.items() if w.role == "other"}
    assert aside == {n for n in architecture.weights if n.startswith(("vision_tower.", "multi_modal_projector."))}
    assert {architecture.weights[n].stack for n in aside} == {"other"}
    assert architecture.tied == {"lm_head.weight": "language_model.model.embed_tokens.weight"}
