"""Positions per expert and language, against the router's own logits."""

import numpy as np
import pytest
import torch
import transformers as t

from fairbits.forward import statistics
from fairbits.forward.batches import batches
from fairbits.forward.experts import ExpertCall, ExpertPoint, expert_points
from fairbits.forward.statistics import collect_statistics
from fairbits.text.corpus import TextRequest

from .conftest import WEATHER

SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
TOKENS = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
EXPERTS = {"num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
OTHERS = {
    "qwen3_moe": lambda: t.Qwen3MoeForCausalLM(
        t.Qwen3MoeConfig(**SIZE, **TOKENS, **EXPERTS, num_hidden_layers=3, head_dim=8, mlp_only_layers=[1])
    ),
    "deepseek_v3": lambda: t.DeepseekV3ForCausalLM(
        t.DeepseekV3Config(
            **SIZE | {"num_key_value_heads": 4},
            **TOKENS,
            **LATENT,
            num_hidden_layers=2,
            first_k_dense_replace=1,
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_group=2,
            topk_group=1,
            moe_intermediate_size=24,
        )
    ),
}


def direct_counts(checkpoint, text):
    """Returns (blocks, languages, experts): the experts of the largest router logits of every position of text."""
    model, top = checkpoint.load(), checkpoint.config.num_experts_per_tok
    languages, total = torch.from_numpy(text.language_of), None
    for batch in batches(text, positions=256):
        with torch.no_grad():
            logits = torch.stack(model(**batch.inputs, output_router_logits=True).router_logits)
        total = torch.zeros(len(logits), 2, logits.shape[-1], dtype=torch.int64) if total is None else total
        length = batch.main.text.shape[1]
        for at in batch.main.text.flatten().nonzero()[:, 0].tolist():
            lang = languages[batch.document[at // length]]
            for block, row in enumerate(logits[:, at]):
                total[block, lang, row.topk(top).indices] += 1
    return total.numpy()


@pytest.mark.parametrize("limit", [2**60, 0], ids=["whole model", "one block in memory"])
def test_counts_are_those_of_the_router_logits(reading_model, weather, monkeypatch, limit):
    monkeypatch.setattr(statistics, "WHOLE_MODEL_BYTES", limit)
    mixtral = reading_model("mixtral")
    measured = collect_statistics(mixtral, WEATHER, request=TextRequest(tokens=64))
    expected = direct_counts(mixtral, weather(mixtral))
    assert [(layer.block, layer.per_position) for layer in measured.experts] == [(0, 2), (1, 2)]
    np.testing.assert_array_equal([layer.counts for layer in measured.experts], expected)
    positions = [[measured.positions[measured.lang == code, 0].sum()] for code in measured.languages]
    np.testing.assert_array_equal(expected.sum(2), np.tile(positions, (2, 1, 1))[..., 0] * 2)
    assert measured.notes == ()


def test_blocks_without_experts_are_left_out(saved, weather):
    checkpoint = saved(OTHERS["qwen3_moe"]())
    measured = collect_statistics(checkpoint, WEATHER, request=TextRequest(tokens=64))
    assert [layer.block for layer in measured.experts] == [0, 2]
    np.testing.assert_array_equal(
        [layer.counts for layer in measured.experts], direct_counts(checkpoint, weather(checkpoint))
    )


def test_routers_that_choose_among_groups(saved):
    """Deepseek chooses a group of experts first: both experts of a position are of one half."""
    checkpoint = saved(OTHERS["deepseek_v3"]())
    measured = collect_statistics(checkpoint, WEATHER, request=TextRequest(tokens=64))
    (layer,) = measured.experts
    positions = [measured.positions[measured.lang == code, 0].sum() for code in measured.languages]
    assert (layer.block, layer.counts.shape) == (1, (2, 4))
    np.testing.assert_array_equal(layer.counts.sum(1), 2 * np.array(positions))
    np.testing.assert_array_equal(layer.counts[:, 0], layer.counts[:, 1])
    np.testing.assert_array_equal(layer.counts[:, 2], layer.counts[:, 3])


def test_a_model_without_experts_has_none(reading_model):
    llama = reading_model("llama")
    assert expert_points(llama.architecture) == ()
    assert collect_statistics(llama, WEATHER, request=TextRequest(tokens=64)).experts == ()


def test_points_are_the_modules_of_experts(reading_model):
    points = expert_points(reading_model("mixtral").architecture)
    assert points == tuple(ExpertPoint(i, "decoder", f"model.layers.{i}.mlp.experts", 3) for i in range(2))


def test_the_choice_of_llama_4_is_seen_in_what_its_experts_get(reading_model, weather):
    """Llama 4 gives every expert all positions, weighted: by zero if it is not chosen."""
    llama4 = reading_model("llama4")
    measured = collect_statistics(llama4, WEATHER, request=TextRequest(tokens=64))
    assert [(layer.block, layer.per_position) for layer in measured.experts] == [(0, 2), (1, 2)]
    expected = direct_counts(llama4, weather(llama4))
    np.testing.assert_array_equal([layer.counts for layer in measured.experts], expected)


def test_experts_whose_modules_do_not_get_the_choice_are_told(reading_model, monkeypatch):
    monkeypatch.setattr(ExpertCall, "of", lambda _module, _arguments: None)
    measured = collect_statistics(reading_model("mixtral"), WEATHER, request=TextRequest(tokens=64))
    assert measured.experts == ()
    assert "expert usage is not counted in blocks 0, 1" in " ".join(measured.notes)
