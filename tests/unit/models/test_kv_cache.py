"""A cache that rounds: what attention reads, whole and block by block, and which models have such a cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from other_tools import write_preset
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from fairbits.core.errors import InputError
from fairbits.evaluation import hidden_states as features
from fairbits.evaluation.reference import ReferenceModel
from fairbits.evaluation.writer import LocalWriter
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models import checkpoint as checkpoint_module
from fairbits.models.architecture.meta_model import meta_model
from fairbits.models.cache_types import CACHE_TYPES, cache_type
from fairbits.models.cached_checkpoint import with_kv_cache
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.kv_cache import RoundedCache, cached_layers, check_channels, round_states, store_rounded
from fairbits.text.corpus import Corpus, TextRequest

CORPUS = Corpus("weather", {}, {"eng": [f"On day {i} the wind came from the north." * 3 for i in range(5)]})
TINY = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 96}
GROUPED = {**TINY, "num_key_value_heads": 2}


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma3", "mixtral", "opt"])
def test_attention_reads_keys_after_their_rotation_and_values_rounded(
    reading_model: Callable[[str], Checkpoint], family: str
) -> None:
    ids = torch.randint(4, 1000, (2, 20), generator=torch.Generator().manual_seed(0))
    rounded = round_states("fp8_e5m2")

    def attention(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        return sdpa_attention_forward(module, query, rounded(key, 0, "k"), rounded(value, 0, "v"), *args, **kwargs)

    t.AttentionInterface.register("rounding_here", attention)
    t.AttentionMaskInterface.register("rounding_here", t.masking_utils.sdpa_mask)
    here, plain, cached = (reading_model(family).load() for _ in range(3))
    here.set_attn_implementation("rounding_here")
    store_rounded(cached, rounded)
    expected, before, after = (model(ids).logits for model in (here, plain, cached))
    torch.testing.assert_close(after, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(before, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["int8_per_token_head", "fp8_e4m3"])
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "mixtral", "opt", "embedded"])
def test_whole_is_block_by_block(
    reading_model: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch, family: str, name: str
) -> None:
    model = Checkpoint("embedded:tiny") if family == "embedded" else reading_model(family)
    text = tokenize_corpus(model, CORPUS, request=TextRequest("evaluation", 64), least=1)
    cached, results = with_kv_cache(model, name), {}
    with ReferenceModel.on_text(model, text) as reference:
        for whole in (True, False):
            monkeypatch.setattr(features, "fits_whole", lambda *_, whole=whole: whole)
            results[whole] = reference.compare(cached)
            assert not any("in memory as a whole" in note for note in results[whole].notes)
    assert results[True].kl == pytest.approx(results[False].kl, rel=1e-3)
    assert results[True].kl.min() > 0


@torch.no_grad()
@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt2", "opt", "embedded"])
def test_text_is_written_as_if_all_before_a_token_were_read_again(
    reading_model: Callable[[str], Checkpoint], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """A cache that keeps rounded states gives the same tokens as one that keeps nothing."""
    monkeypatch.setattr(checkpoint_module, "round_states", lambda _: lambda x, *_: (50 * x).round())  # not to miss it
    model = Checkpoint("embedded:tiny") if family == "embedded" else reading_model(family)
    cached, prompts, count = with_kv_cache(model, "fp8_e5m2"), [range(300, 312), range(40, 49)], 12
    loaded = cached.load()
    expected = []
    for prompt in prompts:
        ids = list(prompt)
        while len(ids) < len(prompt) + count:
            ids.append(int(loaded(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        expected.append(ids[len(prompt) :])
    written = [LocalWriter(m, ends=()).tokens(prompts, new_tokens=count) for m in (cached, model)]
    assert written[0] == expected
    assert written[1] != expected


def test_the_reference_itself_is_not_rounded(reading_model: Callable[[str], Checkpoint]) -> None:
    model = reading_model("llama")
    cached = with_kv_cache(model, "int8")
    assert (model.kv_cache, cached.kv_cache) == (None, "int8_per_token_head")
    assert cached.fingerprint == model.fingerprint
    assert model.plain is model
    assert cached.plain is cached
    assert not model.load().base_model._forward_pre_hooks
    assert cached.load().base_model._forward_pre_hooks
    with pytest.raises(InputError, match="needs a multiple of 32 channels"):
        with_kv_cache(model, "q8_0")


def test_a_cache_keeps_nothing() -> None:
    cache = RoundedCache(t.LlamaConfig(**GROUPED), lambda x, layer, side: x + layer + (side == "v"))
    states = torch.zeros(1, 2, 3, 8)
    keys, values = cache.update(states, states, 1)
    assert (float(keys[0, 0, 0, 0]), float(values[0, 0, 0, 0])) == (1, 2)
    assert cache.get_seq_length() == 0


LAYERS: dict[str, tuple[Any, Any, dict[int, tuple[int, int]]]] = {
    "llama": (t.LlamaForCausalLM, t.LlamaConfig(**GROUPED), {0: (8, 8), 1: (8, 8)}),
    "gemma3": (t.Gemma3ForCausalLM, t.Gemma3TextConfig(**GROUPED, head_dim=16), {0: (16, 16), 1: (16, 16)}),
    "qwen3 next": (
        t.Qwen3NextForCausalLM,
        t.Qwen3NextConfig(
            **GROUPED,
            head_dim=16,
            layer_types=["linear_attention", "full_attention"],
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=16,
            shared_expert_intermediate_size=16,
            linear_num_value_heads=2,
            linear_num_key_heads=2,
            linear_key_head_dim=8,
            linear_value_head_dim=8,
        ),
        {1: (16, 16)},
    ),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_cache_are_known(name: str) -> None:
    cls, config, expected = LAYERS[name]
    assert cached_layers(meta_model(config, cls)) == expected


REFUSED: dict[str, tuple[Any, Any, str]] = {
    "t5": (t.T5ForConditionalGeneration, t.T5Config(d_model=32, d_kv=8, d_ff=48, num_layers=2), "has an encoder"),
    "mla": (
        t.DeepseekV3ForCausalLM,
        t.DeepseekV3Config(**TINY, kv_lora_rank=8, q_lora_rank=8, n_routed_experts=8, num_experts_per_tok=2),
        "MLA",
    ),
    "no attention": (
        t.MambaForCausalLM,
        t.MambaConfig(hidden_size=32, num_hidden_layers=2, state_size=8, vocab_size=96),
        "does not cache|takes no cache",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_models_without_such_a_cache_are_refused(name: str) -> None:
    cls, config, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        cached_layers(meta_model(config, cls))


def test_models_that_predict_masks_are_refused(reading_model: Callable[[str], Checkpoint]) -> None:
    with pytest.raises(InputError, match="no decoder that predicts the next token; leave --kv-cache out"):
        with_kv_cache(reading_model("xlmr"), "fp8")


@pytest.mark.parametrize(("name", "channels"), [("q4_0", 48), ("nvfp4", 24), ("fp4_mx_block16", 8), ("int4", 7)])
def test_heads_that_do_not_divide_into_groups_are_refused(name: str, channels: int) -> None:
    with pytest.raises(InputError, match=f"{channels}$"):
        check_channels(cache_type(name), channels)
    check_channels("fp8_e4m3", channels)


def test_the_guide_lists_all_types() -> None:
    guide = (Path(__file__).parents[3] / "docs/guides/evaluate.md").read_text("utf-8")
    assert "\n".join(f"| `{name}` | {scales} |" for name, scales in CACHE_TYPES.items()) in guide


@pytest.mark.parametrize("name", ["mxfp4", "", "FP8"])
def test_other_names_are_refused_with_all_there_are(name: str) -> None:
    with pytest.raises(InputError, match=r"fp8_e4m3, .*q4_0, or fp8 \(for fp8_e4m3\)"):
        cache_type(name)
    assert all(cache_type(known) == known for known in CACHE_TYPES)


def test_a_type_takes_the_place_of_what_files_state(reading_model: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    """FP8 has the scales of the files, as in vLLM; types with scales of their own leave them; others are refused."""
    model, directory = reading_model("wide_llama"), tmp_path / "kv"
    write_preset(model.directory, "FP8_DYNAMIC", directory, kv="tensor")
    text = tokenize_corpus(model, CORPUS, request=TextRequest("evaluation", 64), least=1)
    stated = Checkpoint(directory)
    types = {name: with_kv_cache(stated, name) for name in ("fp8_e4m3", "int8")}
    with ReferenceModel.on_text(model, text) as reference:
        kl = {name: reference.compare(checkpoint).kl.sum() for name, checkpoint in types.items()}
        assert kl["fp8_e4m3"] == reference.compare(stated).kl.sum()
    assert abs(kl["int8"] / kl["fp8_e4m3"] - 1) > 0.01
    notes = {name: " ".join(checkpoint.plain.activation_notes) for name, checkpoint in types.items()}
    assert "keys and values FP8 per tensor, rounded here" in notes["fp8_e4m3"]
    assert "in a cache of type int8_per_token_head (vLLM" in notes["int8"]
    assert "FP8 per tensor, rounded here" not in notes["int8"]
    for name in ("fp8_e5m2", "nvfp4"):
        with pytest.raises(InputError, match=f"its scales of keys and values are for FP8.*, and not for {name}"):
            with_kv_cache(stated, name)
