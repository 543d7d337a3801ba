"""What does not fit is named."""

from typing import Any

import pytest
import transformers as t

from fairbits.core.errors import InputError
from fairbits.models.architecture.assemble import map_architecture

VOCAB = {"vocab_size": 96, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, **VOCAB}

Shapes = dict[str, tuple[int, ...]]


@pytest.fixture
def llama(described: Any) -> Any:
    """Returns the function that describes a file of Llama."""
    return lambda **changes: described(t.LlamaForCausalLM, t.LlamaConfig(**{**SIZE, **changes}))


@pytest.fixture
def gpt2(described: Any) -> tuple[Any, Shapes]:
    return described(t.GPT2LMHeadModel, t.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=32, **VOCAB))


@pytest.fixture
def mixtral(described: Any) -> tuple[Any, Shapes]:
    return described(t.MixtralForCausalLM, t.MixtralConfig(**SIZE, num_key_value_heads=2, num_local_experts=3))


def test_without_architectures_the_family_decides(llama: Any) -> None:
    config, shapes = llama()
    config.architectures = None
    assert map_architecture(config, shapes).class_name == "LlamaForCausalLM"


def test_the_configuration_stays_as_it_was(llama: Any) -> None:
    config, shapes = llama(dtype="bfloat16")
    before = config.to_dict()
    map_architecture(config, shapes)
    assert config.to_dict() == before
    assert config._attn_implementation != "eager"


def test_nothing_is_printed_or_warned_of(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, llama: Any, gpt2: Any, mixtral: Any
) -> None:
    once = t.utils.logging.warning_once
    for config, shapes in (llama(), gpt2, mixtral):
        once.cache_clear()  # what an earlier test has been told is told again
        caplog.clear()
        capfd.readouterr()
        map_architecture(config, shapes)
        assert capfd.readouterr() == ("", "")
        assert [record.message for record in caplog.records] == []


def with_shape(shapes: Shapes, name: str, shape: tuple[int, ...]) -> Shapes:
    assert name in shapes
    return shapes | {name: shape}


def without(shapes: Shapes, *names: str) -> Shapes:
    assert set(names) <= set(shapes)
    return {name: shape for name, shape in shapes.items() if name not in names}


def test_a_wrong_shape_is_named(llama: Any) -> None:
    config, shapes = llama()
    with pytest.raises(
        InputError, match=r"'model.layers.1.mlp.up_proj.weight' has shape \(48, 31\).* needs \(48, 32\)"
    ):
        map_architecture(config, with_shape(shapes, "model.layers.1.mlp.up_proj.weight", (48, 31)))


def test_a_missing_tensor_is_named(llama: Any) -> None:
    config, shapes = llama()
    with pytest.raises(InputError, match=r"lacks 'model.layers.1.mlp.up_proj.weight' of LlamaForCausalLM"):
        map_architecture(config, without(shapes, "model.layers.1.mlp.up_proj.weight"))


def test_a_missing_layer_is_summed_up(llama: Any) -> None:
    config, shapes = llama()
    config.num_hidden_layers = 3
    with pytest.raises(InputError, match=r"lacks 'model.layers.2.self_attn.q_proj.weight', .* and 6 more"):
        map_architecture(config, shapes)


def test_both_tied_tensors_missing(llama: Any) -> None:
    config, shapes = llama(tie_word_embeddings=True)
    with pytest.raises(InputError, match=r"lacks 'model.embed_tokens.weight'"):
        map_architecture(config, without(shapes, "model.embed_tokens.weight"))


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("model.layers.2.mlp.up_proj.weight", (48, 32)),
        ("model.layers.0.mlp.up_proj.weight_scale", (48, 1)),
        ("model.layers.0.attn.bias", (32,)),
        ("model.layers.0.self_attn.q_proj.lora_A.weight", (4, 32)),
        ("lm_head.bias", (96,)),
        ("score.weight", (200, 32)),
    ],
)
def test_an_unexpected_tensor_is_named(name: str, shape: tuple[int, ...], llama: Any) -> None:
    config, shapes = llama()
    with pytest.raises(InputError, match=rf"holds '{name}'.*which LlamaForCausalLM does not have"):
        map_architecture(config, {**shapes, name: shape})


def test_one_parameter_twice(gpt2: Any) -> None:
    config, shapes = gpt2
    with pytest.raises(InputError, match=r"'transformer.ln_f.bias' and 'ln_f.bias' are both 'transformer.ln_f.bias'"):
        map_architecture(config, {**shapes, "ln_f.bias": (32,)})


def test_a_missing_expert(mixtral: Any) -> None:
    config, shapes = mixtral
    with pytest.raises(InputError, match=r"model.layers.1.block_sparse_moe.experts.0.w2.weight.*every expert"):
        map_architecture(config, without(shapes, "model.layers.1.block_sparse_moe.experts.1.w2.weight"))


def test_an_expert_of_another_shape(mixtral: Any) -> None:
    config, shapes = mixtral
    name = "model.layers.1.block_sparse_moe.experts.0.w2.weight"
    with pytest.raises(InputError, match=rf"'{name}' has shape \(32, 47\), but its siblings have \(32, 48\)"):
        map_architecture(config, with_shape(shapes, name, (32, 47)))


def test_experts_all_of_another_shape(mixtral: Any) -> None:
    config, shapes = mixtral
    wrong = {name: (32, 47) if name.endswith("w2.weight") else shape for name, shape in shapes.items()}
    with pytest.raises(InputError, match=r"experts.0.w2.weight'.*\(3, 32, 47\).*needs.*\(3, 32, 48\)"):
        map_architecture(config, wrong)


def test_a_class_that_transformers_does_not_have(llama: Any) -> None:
    config, shapes = llama()
    config.architectures = ["FutureForCausalLM"]
    with pytest.raises(InputError, match=r"'FutureForCausalLM' .*not in transformers"):
        map_architecture(config, shapes)


def test_code_in_the_checkpoint_needs_trust(llama: Any) -> None:
    config, shapes = llama()
    config.architectures, config.auto_map = ["OwnModel"], {"AutoModelForCausalLM": "modeling_own.OwnModel"}
    with pytest.raises(InputError, match="only with trust_remote_code"):
        map_architecture(config, shapes)


def test_a_configuration_of_nothing() -> None:
    with pytest.raises(InputError, match="names no architecture"):
        map_architecture(t.PretrainedConfig(), {})


def test_a_configuration_that_builds_no_model(llama: Any) -> None:
    config, shapes = llama()
    config.hidden_act = "no_such_activation"
    with pytest.raises(
        InputError, match=r"LlamaForCausalLM cannot be built from its configuration: .*no_such_activation"
    ):
        map_architecture(config, shapes)


def test_a_quantized_checkpoint_is_refused(llama: Any) -> None:
    config, shapes = llama()
    config.quantization_config = {"quant_method": "gptq", "bits": 4}
    with pytest.raises(InputError, match="already quantized"):
        map_architecture(config, shapes)


def test_layers_that_are_used_again_are_described(described: Any) -> None:
    size = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48}
    config, shapes = described(t.AlbertForMaskedLM, t.AlbertConfig(**size, embedding_size=32, **VOCAB))
    with pytest.raises(InputError, match="query' is used 2 times in one forward pass") as caught:
        map_architecture(config, shapes)
    message = str(caught.value)
    assert "class AlbertForMaskedLM" in message
    assert "albert_layer_groups (1 x AlbertLayerGroup)" in message
    assert "albert.embeddings" in message


def test_a_vision_model_is_described(described: Any) -> None:
    size = {name: value for name, value in SIZE.items() if name not in VOCAB}
    config, shapes = described(t.ViTForImageClassification, t.ViTConfig(image_size=28, patch_size=14, **size))
    with pytest.raises(
        InputError, match=r"no token ids pass through it.*class ViTForImageClassification; modules .*Conv2d"
    ):
        map_architecture(config, shapes)


def test_more_layers_than_tensors_are_refused_before_they_are_built(llama: Any) -> None:
    config, shapes = llama()
    config.num_hidden_layers = 10**9
    with pytest.raises(InputError, match=r"num_hidden_layers = 1,000,000,000 and the file \d+ tensors"):
        map_architecture(config, shapes)


@pytest.mark.parametrize("name", ["decoder_layers", "encoder_layers"])
def test_a_depth_of_any_name_is_checked(described: Any, name: str) -> None:
    size = {"d_model": 32, "encoder_attention_heads": 2, "decoder_attention_heads": 2, "vocab_size": 96}
    feed = {"encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "encoder_layers": 2, "decoder_layers": 2}
    config, shapes = described(t.MBartForConditionalGeneration, t.MBartConfig(**size, **feed))
    setattr(config, name, 10**8)
    with pytest.raises(InputError, match=f"{name} = 100,000,000"):
        map_architecture(config, shapes)


@pytest.mark.parametrize("names", [[5], {"a": 1}, "LlamaForCausalLM"])
def test_architectures_must_be_a_list_of_names(llama: Any, names: Any) -> None:
    config, shapes = llama()
    config.architectures = names
    with pytest.raises(InputError, match="must be a list of class names"):
        map_architecture(config, shapes)


def test_a_width_that_the_file_does_not_have_is_refused_before_memory_is_taken(llama: Any) -> None:
    config, shapes = llama()
    config.hidden_size = config.intermediate_size = 2**28
    config.head_dim = 2**27
    with pytest.raises(InputError):
        map_architecture(config, shapes)
