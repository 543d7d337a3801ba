"""Models and texts that leave nothing to measure are named before the pass."""

import pytest
import transformers as t

from fairbits.core.errors import InputError
from fairbits.forward.batches import batches
from fairbits.forward.body_and_head import split_head
from fairbits.forward.statistics import collect_statistics
from fairbits.forward.tokenize import longest_input, prediction_task, tokenize_corpus
from fairbits.text.corpus import Corpus

TOKENS = {"vocab_size": 16384, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, **TOKENS}
MT5_SIZE = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, **TOKENS}
WORDS = {"eng": [f"The wind came from the north on day {i}." for i in range(6)]}


def test_encoder_and_decoder_without_a_head_are_refused(saved):
    with pytest.raises(InputError, match="no head that predicts tokens"):
        prediction_task(saved(t.MT5Model(t.MT5Config(**MT5_SIZE, decoder_start_token_id=3))))


def test_a_masked_model_without_a_table_of_positions_has_all_its_positions(saved):
    config = t.ModernBertConfig(**SIZE | {"pad_token_id": 16000}, max_position_embeddings=64)
    checkpoint = saved(t.ModernBertForMaskedLM(config), mask_token="<unk>")
    assert prediction_task(checkpoint) == "masked"
    assert longest_input(checkpoint) == 64


def test_a_padding_token_that_the_model_lacks_is_not_used(saved):
    checkpoint = saved(t.LlamaForCausalLM(t.LlamaConfig(**SIZE)), pad_token="<added>")
    assert checkpoint.tokenizer().pad_token_id == 16384
    assert tokenize_corpus(checkpoint, Corpus("words", WORDS, {})).padding == 2


@pytest.mark.parametrize("family", ["qwen2", "mt5"])
def test_documents_that_leave_nothing_to_predict_do_not_count(family, reading_model):
    corpus = Corpus("letters", {"eng": ["a", "b", "c", "d", "e", "f"]}, {})
    with pytest.raises(InputError, match="eng_Latn has 0 documents"):
        collect_statistics(reading_model(family), corpus)


def test_a_model_without_room_for_text_is_refused(saved):
    config = t.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_positions=3, **TOKENS)
    with pytest.raises(InputError, match="allows 3 positions"):
        tokenize_corpus(saved(t.GPT2LMHeadModel(config)), Corpus("words", WORDS, {}))


@pytest.mark.parametrize(("family", "apart"), [("llama", True), ("gpt2", True), ("mt5", False), ("xlmr", False)])
def test_the_head_is_parted_only_where_it_alone_makes_the_logits(family, apart, reading_model):
    checkpoint = reading_model(family)
    text = tokenize_corpus(checkpoint, Corpus("words", WORDS, {}))
    assert split_head(checkpoint.load(), next(batches(text, positions=1))).apart == apart
