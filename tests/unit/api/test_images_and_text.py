"""Models that read images and text: the language model is quantized, the vision tower stays, loaders are told so."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t

import fairbits as fb

TOKENS = {"vocab_size": 96, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SIZES = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
TEXT = {**SIZES, **TOKENS, "num_key_value_heads": 2, "head_dim": 8}
VISION = {**SIZES, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}


def gemma() -> Any:
    marks = {"image_token_index": 95, "boi_token_index": 94, "eoi_token_index": 93}
    config = t.Gemma3Config(text_config=TEXT, vision_config=VISION, mm_tokens_per_image=4, **marks)
    return t.Gemma3ForConditionalGeneration(config)


def qwen() -> Any:
    ends = {"vision_start_token_id": 93, "vision_end_token_id": 92}
    rope = {"type": "default", "rope_type": "default", "mrope_section": [1, 1, 2]}
    sees = {"depth": 1, "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "out_hidden_size": 32}
    config = t.Qwen2_5_VLConfig(
        text_config={**TEXT, "rope_scaling": rope}, vision_config=sees, image_token_id=95, video_token_id=94, **ends
    )
    return t.Qwen2_5_VLForConditionalGeneration(config)


def mistral() -> Any:
    parts = {"text_config": t.MistralConfig(**TEXT), "vision_config": t.PixtralVisionConfig(**VISION)}
    return t.Mistral3ForConditionalGeneration(t.Mistral3Config(**parts, image_token_index=95))


def llama() -> Any:
    experts = {"num_local_experts": 2, "moe_layers": [1], "interleave_moe_layer_step": 2, "num_experts_per_tok": 1}
    widths = {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32}
    marks = {"image_token_index": 95, "boi_token_index": 94, "eoi_token_index": 93}
    config = t.Llama4Config(
        text_config={**TEXT, **experts, "intermediate_size_mlp": 48, "use_qk_norm": False},
        vision_config={**VISION, **widths, "pixel_shuffle_ratio": 0.5},
        **marks,
    )
    return t.Llama4ForConditionalGeneration(config)


# where the tower is in the file, and one of its linear layers as transformers names the module
CASES = {
    gemma: ("vision_tower.", "model.vision_tower.encoder.layers.0.mlp.fc1"),
    qwen: ("visual.", "model.visual.blocks.0.attn.qkv"),
    mistral: ("vision_tower.", "model.vision_tower.transformer.layers.0.attention.q_proj"),
    llama: ("vision_model.", "vision_model.model.layers.0.self_attn.q_proj"),
}


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
@torch.no_grad()
def test_the_language_model_is_quantized_and_the_tower_kept(make: Any, tmp_path: Path) -> None:
    tower, module = CASES[make]
    torch.manual_seed(0)
    make().save_pretrained(tmp_path / "model")
    checkpoint, out = fb.Checkpoint(tmp_path / "model"), tmp_path / "out"
    done = fb.quantize(checkpoint, fb.plan(checkpoint, policy="rtn", bits=4, group=16), out=out)
    rounded = {layer.name for layer in done.layers if layer.bits is not None}
    assert rounded
    assert rounded == {
        name for b in checkpoint.architecture.blocks for name, w in b.linears.items() if not w.is_control
    }
    written = fb.Checkpoint(out)
    kept = [name for name in checkpoint.tensors if name.startswith(tower)]
    assert kept
    assert all(torch.equal(checkpoint.read(name), written.read(name)) for name in kept)
    ignored = json.loads((out / "config.json").read_text())["quantization_config"]["ignore"]
    weights = checkpoint.architecture.weights
    (in_file,) = [
        name.removesuffix(".weight") for name, w in weights.items() if (w.module, name[-7:]) == (module, ".weight")
    ]
    assert {module, in_file} <= set(ignored)
    assert not rounded & {f"{name}.weight" for name in ignored}
    ids = torch.arange(3, 20)[None]
    cls = getattr(t, checkpoint.architecture.class_name)
    ours, theirs = written.load(), cls.from_pretrained(out, dtype=torch.float32).eval()
    our_logits, loaded = (model(input_ids=ids).logits for model in (ours, theirs))
    torch.testing.assert_close(our_logits, loaded, rtol=0, atol=1e-5)
    assert (checkpoint.load()(input_ids=ids).logits - our_logits).abs().max() > 1e-3
