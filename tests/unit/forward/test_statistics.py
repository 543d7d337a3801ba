"""Models and texts that leave nothing to measure are named before the pass."""

import numpy as np
import pytest
import torch
import transformers as t

from fairbits.core.errors import InputError
from fairbits.forward import statistics
from fairbits.forward.batches import batches
from fairbits.forward.body_and_head import split_head
from fairbits.forward.statistics import collect_statistics, document_losses, largest_group
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import unigrams
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.included_texts import udhr

CORPUS = Corpus(
    "weather",
    {
        "eng": [f"On day {i} the wind came from the north and brought rain to the hills." for i in range(6)],
        "heb": [f"ביום {i} באה הרוח מצפון והביאה גשם." for i in range(5)],
    },
    {},
)
SCHEME, FINER = Scheme(3, "channel"), Scheme(4, 16, "exact")


@pytest.fixture(scope="module")
def llama(reading_model):
    return reading_model("llama")


@pytest.fixture(scope="module")
def measured(llama):
    return collect_statistics(llama, CORPUS, schemes=(SCHEME, FINER), second_moments=True)


def test_shapes_and_order(measured):
    documents, linears, points = 11, 2 * 7, 2 * 7
    assert measured.languages == ("eng_Latn", "heb_Hebr")
    assert measured.task == "causal"
    assert measured.positions.shape == measured.norm.shape == (documents, points)
    assert len(measured.linears) == linears
    assert measured.damage[SCHEME]["token"].shape == (documents, linears)
    assert measured.channels["blocks.0"].shape == (2, 32)
    assert measured.gradients["model.layers.0.mlp.up_proj.weight"].shape == (2, 48)
    assert measured.inputs["blocks.1.mlp_down.input"].shape == (2, 48, 48)
    assert measured.blocks("mlp") == [0, 1]
    column = [point.name for point in measured.points].index("blocks.1")
    np.testing.assert_array_equal(measured.sums("block", "square")[:, 1], measured.square[:, column])
    assert list(measured.seen_by) == list(measured.linears)
    assert measured.left_out == {}


def test_measures_agree_with_each_other(measured):
    """‖x‖² adds up the channels, and Cauchy and Schwarz hold."""
    assert (measured.norm**2 <= measured.positions * measured.square * (1 + 1e-6)).all()
    for column, point in enumerate(measured.points):
        for i, code in enumerate(measured.languages):
            rows = measured.lang == code
            mean = measured.square[rows, column].sum() / measured.positions[rows, column].sum()
            assert measured.channels[point.name][i].sum() == pytest.approx(mean, rel=1e-5)
    for name, matrices in measured.inputs.items():
        np.testing.assert_allclose(np.diagonal(matrices, 0, 1, 2), measured.channels[name], rtol=1e-4, atol=1e-7)


def test_unigrams_and_losses_are_those_of_the_text(measured, llama):
    text = tokenize_corpus(llama, CORPUS)
    np.testing.assert_array_equal(measured.unigrams, unigrams(text))
    per_language = [measured.predicted[measured.lang == code].sum() for code in measured.languages]
    assert measured.unigrams.sum(1).tolist() == per_language
    nll, predicted = document_losses(llama.load(), text)
    np.testing.assert_array_equal(predicted, measured.predicted)
    np.testing.assert_allclose(nll, measured.nll, rtol=1e-5)
    assert (measured.entropy > 0).all()
    assert (measured.entropy <= measured.predicted * np.log(1024) * (1 + 1e-6)).all()


@pytest.mark.parametrize("family", ["xlmr", "mt5", "qwen2"])
def test_losses_of_other_tasks(family, reading_model):
    checkpoint = reading_model(family)
    collected = collect_statistics(checkpoint, CORPUS)
    nll, predicted = document_losses(checkpoint.load(), tokenize_corpus(checkpoint, CORPUS))
    np.testing.assert_allclose(nll, collected.nll, rtol=1e-5)
    np.testing.assert_array_equal(predicted, collected.predicted)
    assert collected.unigrams.sum() == predicted.sum()


def test_the_same_bytes_twice_and_other_draws_from_another_seed(measured, llama):
    again = collect_statistics(llama, CORPUS, schemes=(SCHEME,))
    other = collect_statistics(llama, CORPUS, request=TextRequest(seed=1), schemes=(SCHEME,))
    assert again.damage[SCHEME]["token"].tobytes() == measured.damage[SCHEME]["token"].tobytes()
    assert again.norm.tobytes() == measured.norm.tobytes()
    by_seed = [collected.damage[SCHEME]["token"].sum() for collected in (again, other)]
    assert by_seed[0] != by_seed[1]
    assert by_seed[0] == pytest.approx(by_seed[1], rel=0.5)


def test_fewer_bits_are_predicted_to_hurt_more(measured):
    coarse, fine = (measured.damage[scheme]["token"].sum() for scheme in (SCHEME, FINER))
    assert coarse > 3 * fine > 0


def test_batches_of_any_size_give_the_same_sums(llama, measured, monkeypatch):
    monkeypatch.setattr(statistics, "positions_per_batch", lambda _model, _split: 1)  # every window alone
    alone = collect_statistics(llama, CORPUS, second_moments=True)
    for name in ("norm", "square", "nll", "entropy"):
        np.testing.assert_allclose(getattr(alone, name), getattr(measured, name), rtol=1e-5, err_msg=name)
    for name, moments in measured.inputs.items():
        np.testing.assert_allclose(
            alone.inputs[name], moments, rtol=1e-3, atol=1e-5 * np.abs(moments).max(), err_msg=name
        )


def test_progress_reaches_the_end(reading_model):
    seen = []
    for family in ("llama", "mt5"):
        collect_statistics(reading_model(family), CORPUS, progress=lambda _, done, total: seen.append((done, total)))
        done, total = seen[-1]
        assert done == total
        assert seen == sorted(seen)
        seen.clear()
    losses = []
    text = tokenize_corpus(reading_model("llama"), CORPUS)
    document_losses(reading_model("llama").load(), text, progress=lambda _, done, total: losses.append((done, total)))
    assert losses[-1] == (len(text.windows), len(text.windows))


def test_nothing_of_the_pass_stays_on_the_model(reading_model, monkeypatch):
    checkpoint = reading_model("llama")
    model = checkpoint.load()
    monkeypatch.setattr(checkpoint, "load", lambda _dtype, **_where: model)
    collect_statistics(checkpoint, CORPUS)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_groups_that_do_not_divide_the_inputs_are_refused(llama):
    with pytest.raises(InputError, match=f"groups of 96 do not divide.*give --group {largest_group(llama)}$"):
        collect_statistics(llama, CORPUS, schemes=(Scheme(4, 96),))


def test_the_largest_group_that_divides_all_inputs(llama, monkeypatch):
    for inputs, expected in (((256, 384), 128), ((256, 320), 64), ((96, 128), 32), ((48, 128), "channel")):
        monkeypatch.setattr(statistics, "_inputs", lambda _, inputs=inputs: dict(enumerate(inputs)))
        assert largest_group(llama) == expected


@pytest.mark.parametrize("scheme", [Scheme(4, 16, "exact", objective="mean"), Scheme(4, 16, rounding="gptq")])
def test_schemes_that_read_text_are_refused(llama, scheme):
    with pytest.raises(InputError, match=r"the scheme \(W4 group 16 .*\) reads text"):
        collect_statistics(llama, CORPUS, schemes=(scheme,))


def test_a_model_that_answers_with_nan_is_refused(reading_model, monkeypatch):
    checkpoint = reading_model("llama")
    model = checkpoint.load()
    with torch.no_grad():
        model.model.norm.weight[0] = torch.nan
    monkeypatch.setattr(checkpoint, "load", lambda _dtype, **_where: model)
    with pytest.raises(InputError, match="NaN or infinity"):
        collect_statistics(checkpoint, CORPUS)


def test_parallel_text_keeps_its_numbers(llama):
    collected = collect_statistics(llama, udhr(["eng", "heb", "hin"]), request=TextRequest(tokens=100))
    numbers = [collected.document[collected.lang == code].tolist() for code in collected.languages]
    assert numbers[0] == numbers[1] == numbers[2]
    assert len(numbers[0]) >= 5


TOKENS = {"vocab_size": 16384, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 48, **TOKENS}
MT5_SIZE = {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4, **TOKENS}
WORDS = {"eng": [f"The wind came from the north on day {i}." for i in range(6)]}


def test_encoder_and_decoder_without_a_head_are_refused(saved):
    with pytest.raises(InputError, match="no head that predicts tokens"):
        _ = saved(t.MT5Model(t.MT5Config(**MT5_SIZE, decoder_start_token_id=3))).task


def test_a_masked_model_without_a_table_of_positions_has_all_its_positions(saved):
    config = t.ModernBertConfig(**SIZE | {"pad_token_id": 16000}, max_position_embeddings=64)
    checkpoint = saved(t.ModernBertForMaskedLM(config), mask_token="<unk>")
    assert checkpoint.task == "masked"
    assert checkpoint.longest_input == 64


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


@pytest.mark.parametrize(("family", "separate"), [("llama", True), ("gpt2", True), ("mt5", False), ("xlmr", False)])
def test_the_head_is_separated_only_where_it_alone_makes_the_logits(family, separate, reading_model):
    checkpoint = reading_model(family)
    text = tokenize_corpus(checkpoint, Corpus("words", WORDS, {}))
    assert split_head(checkpoint.load(), next(batches(text, positions=1))).separate == separate
