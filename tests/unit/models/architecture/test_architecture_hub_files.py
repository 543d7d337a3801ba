"""Files as they lie on the Hub: prefixes left out, old buffers, heads of other tasks, tied tensors saved twice."""

from typing import Any

import pytest
import transformers as t

from fairbits.core.errors import InputError
from fairbits.models.architecture.assemble import map_architecture

VOCAB = {"vocab_size": 8000, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}  # as in life: most of the weights
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, **VOCAB}
ENCODER = {**SIZE, "max_position_embeddings": 40}
GPT2 = {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32, **VOCAB}
OPT = {k: v for k, v in SIZE.items() if k != "intermediate_size"} | {"ffn_dim": 48, "word_embed_proj_dim": 32}
BART = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in (("layers", 2), ("ffn_dim", 48))}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "d_model": 32, "max_position_embeddings": 32}
T5 = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0, **VOCAB}

COMPUTED = "transformers computes it"
PASSED = "transformers ignores it"

# class, configuration, prefix that the file leaves out, what it holds besides and why that may be left aside
FILES = {
    "gpt2": (
        *(t.GPT2LMHeadModel, t.GPT2Config(**GPT2), "transformer."),
        {"h.0.attn.bias": ((1, 1, 32, 32), COMPUTED), "h.1.attn.masked_bias": ((), COMPUTED)},
    ),
    "bloom": (t.BloomForCausalLM, t.BloomConfig(hidden_size=32, n_layer=2, n_head=4, **VOCAB), "transformer.", {}),
    "xglm": (
        *(t.XGLMForCausalLM, t.XGLMConfig(d_model=32, ffn_dim=48, num_layers=2, attention_heads=4, **VOCAB), ""),
        {"model.embed_positions.weights": ((2050, 32), COMPUTED)},
    ),
    "opt": (t.OPTForCausalLM, t.OPTConfig(**OPT, max_position_embeddings=32), "model.", {}),
    "pythia": (
        *(t.GPTNeoXForCausalLM, t.GPTNeoXConfig(**SIZE), ""),
        {
            "gpt_neox.layers.0.attention.bias": ((1, 1, 32, 32), COMPUTED),
            "gpt_neox.layers.0.attention.masked_bias": ((), COMPUTED),
            "gpt_neox.layers.0.attention.rotary_emb.inv_freq": ((4,), COMPUTED),
        },
    ),
    "llama2": (
        *(t.LlamaForCausalLM, t.LlamaConfig(**SIZE), ""),
        {f"model.layers.{i}.self_attn.rotary_emb.inv_freq": ((4,), COMPUTED) for i in range(2)},
    ),
    "xlmr": (
        *(t.XLMRobertaForMaskedLM, t.XLMRobertaConfig(**ENCODER), ""),
        {
            "roberta.embeddings.position_ids": ((1, 40), COMPUTED),
            "roberta.pooler.dense.weight": ((32, 32), "XLMRobertaForMaskedLM has no such module"),
            "roberta.pooler.dense.bias": ((32,), "XLMRobertaForMaskedLM has no such module"),
        },
    ),
    "mbert": (
        *(t.BertForMaskedLM, t.BertConfig(**ENCODER), ""),
        {
            "bert.pooler.dense.weight": ((32, 32), "BertForMaskedLM has no such module"),
            "cls.seq_relationship.weight": ((2, 32), "BertForMaskedLM has no such module"),
        },
    ),
    "t5": (
        *(t.T5ForConditionalGeneration, t.T5Config(**T5), ""),
        {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": ((32, 4), PASSED)},
    ),
    "nllb": (
        *(t.M2M100ForConditionalGeneration, t.M2M100Config(**BART, **VOCAB), ""),
        {"model.encoder.embed_positions.weights": ((34, 32), COMPUTED)},
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_what_comes_with_the_weights_is_left_aside_and_said(name: str, described: Any) -> None:
    cls, config, prefix, extra = FILES[name]
    config, shapes = described(cls, config)
    old = {name.removeprefix(prefix): shape for name, shape in shapes.items()}
    architecture = map_architecture(config, {**{name: shape for name, (shape, _) in extra.items()}, **old})
    assert architecture.ignored == {name: reason for name, (_, reason) in extra.items()}
    assert list(architecture.weights) == list(old)
    assert all(weight.module.startswith(prefix) for weight in architecture.weights.values())
    assert {weight.role for weight in architecture.weights.values()}.isdisjoint({"other"})


def test_gains_of_old_norms_are_called_gamma(described: Any) -> None:
    config, shapes = described(t.BertForMaskedLM, t.BertConfig(**ENCODER))
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): shape
        for name, shape in shapes.items()
    }
    norms = {name for name, weight in map_architecture(config, old).weights.items() if weight.role == "norm"}
    assert norms == {name for name in old if name.endswith((".gamma", ".beta"))}
    assert len(norms) == 12


def test_a_layer_too_many_is_found_without_its_prefix(described: Any) -> None:
    config, shapes = described(t.GPT2LMHeadModel, t.GPT2Config(**GPT2))
    old = {name.removeprefix("transformer."): shape for name, shape in shapes.items()}
    with pytest.raises(InputError, match=r"'h.2.ln_1.bias' \(32,\) \(in a part that the model has\), which GPT2"):
        map_architecture(config, {**old, "h.2.ln_1.bias": (32,)})


def test_much_weight_without_a_place_is_no_small_matter(described: Any) -> None:
    config, shapes = described(t.XLMRobertaForMaskedLM, t.XLMRobertaConfig(**ENCODER))
    few, many = {"classifier.weight": (3, 32)}, {"classifier.weight": (90, 32), "classifier.bias": (90,)}
    assert list(map_architecture(config, shapes | few).ignored) == list(few)
    with pytest.raises(
        InputError, match=r"'classifier.weight' \(90, 32\) \(1\.\d% of the weights with others like it\)"
    ):
        map_architecture(config, shapes | many)


@pytest.mark.parametrize(
    ("cls", "config", "head", "embedding"),
    [
        (
            t.Qwen2ForCausalLM,
            t.Qwen2Config(**SIZE, num_key_value_heads=2, tie_word_embeddings=True),
            "lm_head",
            "model.embed_tokens",
        ),
        (t.OPTForCausalLM, t.OPTConfig(**OPT), "lm_head", "model.decoder.embed_tokens"),
        (t.MT5ForConditionalGeneration, t.MT5Config(**T5), "lm_head", "shared"),
        (
            t.XLMRobertaForMaskedLM,
            t.XLMRobertaConfig(**ENCODER),
            "lm_head.decoder",
            "roberta.embeddings.word_embeddings",
        ),
    ],
)
def test_the_head_is_the_one_in_the_file(cls: Any, config: Any, head: str, embedding: str, described: Any) -> None:
    head, embedding = f"{head}.weight", f"{embedding}.weight"
    config, shapes = described(cls, config)
    one, both = map_architecture(config, shapes), map_architecture(config, {**shapes, head: (8000, 32)})
    assert (one.tied[head], one.head) == (embedding, one.weights[embedding])
    assert head not in both.tied
    assert both.head is both.weights[head]
    assert (both.head.role, both.head.tied_to) == ("head", embedding)  # mT5 says so, but its two tensors differ
    assert both.weights[embedding].tied_to is None
    other = map_architecture(config, {head if name == embedding else name: shape for name, shape in shapes.items()})
    assert (other.tied[embedding], other.head) == (head, other.weights[head])


@pytest.mark.parametrize(
    ("cls", "config"), [(t.MT5EncoderModel, t.MT5Config(**T5)), (t.T5Model, t.T5Config(**T5)), (t.BertModel, None)]
)
def test_without_a_head_the_tied_embeddings_are_none(cls: Any, config: Any, described: Any) -> None:
    assert map_architecture(*described(cls, config or t.BertConfig(**ENCODER))).head is None


def test_buffers_that_the_model_needs_stay(described: Any) -> None:
    config = t.MarianConfig(**BART, **VOCAB, decoder_start_token_id=2, share_encoder_decoder_embeddings=False)
    config, shapes = described(t.MarianMTModel, config)
    computed = [f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")]
    architecture = map_architecture(config, {name: shape for name, shape in shapes.items() if name not in computed})
    assert architecture.weights["final_logits_bias"].role == "bias"
    assert {n for n, w in architecture.weights.items() if w.role == "embedding"} == {
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    }
    assert architecture.head is architecture.weights["model.decoder.embed_tokens.weight"]


def test_learned_positions_are_given_the_tokens_and_are_no_embedding(described: Any) -> None:
    architecture = map_architecture(*described(t.MBartForConditionalGeneration, t.MBartConfig(**BART, **VOCAB)))
    positions = {n for n, w in architecture.weights.items() if w.role == "position"}
    assert positions == {f"model.{side}.embed_positions.weight" for side in ("encoder", "decoder")}


def test_tensors_that_transformers_splits_are_refused(save: Any, tmp_path: Any) -> None:
    config = t.NomicBertConfig(**SIZE)
    with pytest.raises(InputError, match=r"splits .*Wqkv.* into .*save_original_format=False"):
        map_architecture(*save(t.NomicBertModel, config, tmp_path))
