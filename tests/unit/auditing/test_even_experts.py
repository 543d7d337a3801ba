"""Samples chosen by the experts that they reach, on a small real mixture of experts."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
import transformers as t

from fairbits.auditing.expert_use import choose_rows, even_experts
from fairbits.core.errors import InputError
from fairbits.forward import expert_pass
from fairbits.forward.expert_pass import count_by_document
from fairbits.forward.tokenize import text_of_samples
from fairbits.text.included_texts import help_text
from fairbits.text.mix import build_mix

SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
TOKENS = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}


@pytest.fixture(scope="module")
def mixture(reading_model):
    return reading_model("mixtral")


@pytest.fixture(scope="module")
def mix(mixture):
    return build_mix(help_text(["eng", "jpn"]), mixture.tokenizer(), tokens=1536, sequence=48)


def value(rows):
    return np.log1p(rows.sum(0) / 32).sum()


def all_counts(checkpoint, samples):
    """Returns (samples, experts of all blocks)."""
    found = count_by_document(checkpoint, text_of_samples(checkpoint, samples))
    return np.concatenate([each.counts for each in found], axis=1)


def test_samples_are_counted_one_by_one(mixture, mix):
    text = text_of_samples(mixture, mix.samples)
    found = count_by_document(mixture, text)
    model = mixture.load()
    for row in (0, 5, len(mix.samples) - 1):
        ids = mixture.tokenizer()(mix.samples[row].text, add_special_tokens=False)["input_ids"]
        with torch.no_grad():
            logits = model(torch.tensor([[1, *ids]]), output_router_logits=True).router_logits
        for each, own in zip(found, logits, strict=True):
            chosen = own[1:].topk(2).indices.flatten()  # the first position is the start, no text
            assert each.counts[row].tolist() == torch.bincount(chosen, minlength=3).tolist()


def test_text_in_parts_is_counted_the_same(mixture, mix, monkeypatch):
    text = text_of_samples(mixture, mix.samples)
    whole = count_by_document(mixture, text)
    monkeypatch.setattr(expert_pass, "STATES_BYTES", 5 * 48 * 32 * 4)
    for one, other in zip(count_by_document(mixture, text), whole, strict=True):
        np.testing.assert_array_equal(one.counts, other.counts)


def test_the_choice_evens_out_the_experts_of_every_language(saved):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        config = t.MixtralConfig(**SIZE, **TOKENS, num_hidden_layers=2, num_local_experts=16)
        checkpoint = saved(t.MixtralForCausalLM(config))
    candidates = build_mix(help_text(["eng", "jpn"]), checkpoint.tokenizer(), tokens=3072, sequence=48)
    chosen = even_experts(checkpoint, candidates, one_in=4)
    assert set(chosen.samples) <= set(candidates.samples)
    assert chosen.budget == 768
    assert {code: each.samples for code, each in chosen.languages.items()} == {"eng_Latn": 8, "jpn_Jpan": 8}
    for code in chosen.shares:
        first = [each for each in candidates.samples if each.lang == code][:8]
        own = [each for each in chosen.samples if each.lang == code]
        tables = [all_counts(checkpoint, each) for each in (first, own)]
        assert value(tables[1]) > value(tables[0])
        assert tables[1].sum() == pytest.approx(tables[0].sum(), rel=0.05)  # as much text
    assert "one in 4 samples chosen by the experts that they reach" in chosen.notes[-1]
    assert even_experts(checkpoint, candidates, one_in=4) == chosen


def test_each_choice_adds_most_and_the_bound_holds():
    rng = np.random.default_rng(0)
    for _ in range(20):
        counts = rng.poisson(rng.gamma(0.3, 40, (7, 5)))
        chosen, kept = choose_rows(counts, 3), []
        for row in chosen:
            gains = [value(counts[[*kept, each]]) if each not in kept else -1 for each in range(7)]
            assert value(counts[[*kept, row]]) == pytest.approx(max(gains))
            kept.append(row)
        best = max(value(counts[list(each)]) for each in combinations(range(7), 3))
        assert (1 - 1 / np.e) * best <= value(counts[chosen]) <= best + 1e-9


def test_what_is_refused(mixture, mix, reading_model):
    few = replace(mix, samples=tuple(each for each in mix.samples if each.lang == "eng_Latn")[:3])
    with pytest.raises(InputError, match=r"eng_Latn has 3 samples, of which one in 4 is to be chosen"):
        even_experts(mixture, few)
    with pytest.raises(InputError, match="one_in"):
        even_experts(mixture, mix, one_in=1)
    with pytest.raises(InputError, match="has no experts whose router can be observed"):
        even_experts(reading_model("llama"), mix)
    with pytest.raises(InputError, match="does not predict the next token"):
        even_experts(reading_model("xlmr"), mix)
