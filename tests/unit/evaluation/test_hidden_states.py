"""The evaluation with one block in memory gives what the evaluation of the whole model gives."""

import numpy as np
import pytest
import torch
import transformers as t
from small_models import small_model

import fairbits
from fairbits.core.errors import InputError
from fairbits.evaluation import hidden_states as module
from fairbits.evaluation.hidden_states import StreamedModel, WholeModel, evaluated_model
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.streaming import NotStreamableError, StreamedBody
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.streaming_model import StreamingModel
from fairbits.text.corpus import Corpus, TextRequest

ENG = [f"On day {i} the wind came from the north{' and brought rain' * (i % 3)}." for i in range(6)]
HEB = [f"ביום {i} באה הרוח מצפון{' והביאה גשם' * (i % 3)}." for i in range(6)]
CORPUS = Corpus("weather", {}, {"eng": ENG, "heb": HEB}, parallel=True)
SIZE = {"hidden_size": 32, "num_attention_heads": 4, "num_hidden_layers": 3, "intermediate_size": 48}
TOKENS = {"vocab_size": 1024, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3}
CLIPPING = {"num_key_value_heads": 2, "head_dim": 16, "sliding_window": 8, "final_logit_softcapping": 0.5}


def text_of(checkpoint):
    return tokenize_corpus(checkpoint, CORPUS, request=TextRequest("evaluation", sequence=24))


@pytest.fixture
def too_large(monkeypatch):
    """Makes every model too large for this machine."""
    monkeypatch.setattr(module, "fits_whole", lambda _bytes, _device: False)


def logits_of(model):
    """Returns labels, documents and logits of all predicting positions."""
    outputs = []
    for batch in model.features("stage", None):
        with torch.no_grad():
            outputs.append((batch.labels, batch.documents, model.head(batch.features)))
    return [torch.cat(parts) for parts in zip(*outputs, strict=True)]


def check_equal(checkpoint) -> None:
    text = text_of(checkpoint)
    streamed, whole = StreamedModel(checkpoint, text, device="cpu"), WholeModel(checkpoint.load(), text, device="cpu")
    for actual, expected in zip(logits_of(streamed), logits_of(whole), strict=True):
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["llama", "gpt2", "xlmr", "mixtral", "m2m100"])
def test_logits_are_those_of_the_whole_model(reading_model, family) -> None:
    check_equal(reading_model(family))


def test_so_are_logits_that_are_clipped(saved) -> None:
    torch.manual_seed(0)
    check_equal(saved(t.Gemma2ForCausalLM(t.Gemma2Config(**SIZE, **TOKENS, **CLIPPING))))


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")  # of its class
def test_so_are_those_of_a_head_that_reads_weights_of_other_modules(saved) -> None:
    check_equal(saved(small_model("mobilebert", "MobileBertForMaskedLM", vocabulary=1024), mask_token="<unk>"))


def test_the_text_may_pass_in_parts(reading_model, monkeypatch) -> None:
    checkpoint = reading_model("llama")
    text, loads = text_of(checkpoint), []
    expected = logits_of(StreamedModel(checkpoint, text, device="cpu"))
    load = StreamingModel.load_block
    monkeypatch.setattr(StreamingModel, "load_block", lambda *args: (loads.append(args[1].index), load(*args)))
    monkeypatch.setattr(module, "EVALUATION_POSITIONS", 100)
    monkeypatch.setattr(module, "MOST_BATCHES", 2)
    logits = logits_of(StreamedModel(checkpoint, text, device="cpu"))
    for ours, theirs in zip(logits, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    blocks = len(checkpoint.architecture.blocks)
    assert len(loads) > blocks
    assert loads == list(range(blocks)) * (len(loads) // blocks)
    loads.clear()
    monkeypatch.setattr(module, "STATES_BYTES", 1)  # one batch at a time
    logits_of(StreamedModel(checkpoint, text, device="cpu"))
    assert len(loads) > 2 * blocks


def test_scores_are_those_of_whole_models(reading_model, tmp_path, monkeypatch) -> None:
    checkpoint = reading_model("llama")
    plan = fairbits.plan(checkpoint, policy="rtn", bits=3, group=16)
    fairbits.quantize(checkpoint, plan, out=tmp_path / "q", device="cpu")
    setting = {"reference": checkpoint, "text": CORPUS, "tokens": 512, "sequence": 24}
    whole = fairbits.evaluate(tmp_path / "q", **setting)
    monkeypatch.setattr(module, "fits_whole", lambda _bytes, _device: False)
    monkeypatch.setattr(Checkpoint, "load", lambda *_args, **_options: pytest.fail("the whole model was loaded"))
    seen = []
    scores = fairbits.evaluate(tmp_path / "q", **setting, progress=lambda *call: seen.append(call))
    for name in ("lang", "document", "tokens", "bytes"):
        assert np.array_equal(getattr(scores.documents, name), getattr(whole.documents, name))
    for name in ("nll_reference", "nll_quantized", "kl"):
        np.testing.assert_allclose(getattr(scores.documents, name), getattr(whole.documents, name), rtol=1e-4)
    assert scores.notes == whole.notes
    for stage in ("stage 1 of 2: evaluating the reference model", "stage 2 of 2: evaluating the quantized model"):
        done = [call[1:] for call in seen if call[0] == stage]
        assert done == sorted(done)
        assert done[-1][0] == done[-1][1]


def test_a_model_that_fits_is_loaded(reading_model) -> None:
    checkpoint = reading_model("llama")
    assert isinstance(evaluated_model(checkpoint, text_of(checkpoint), device="cpu"), WholeModel)


@pytest.mark.usefixtures("too_large")
def test_a_model_whose_base_is_itself_is_loaded_as_a_whole(reading_model) -> None:
    checkpoint = reading_model("mt5")
    model = evaluated_model(checkpoint, text_of(checkpoint), device="cpu")
    assert isinstance(model, WholeModel)
    assert model.notes[0].endswith("although it is large: its head cannot be separated from its blocks")
    with ReferenceModel.on_text(checkpoint, text_of(checkpoint)) as reference:
        assert reference.notes[0] == model.notes[0]
        assert reference.compare(checkpoint).notes == model.notes


@pytest.mark.usefixtures("too_large")
def test_what_only_another_package_reads_is_loaded_as_a_whole(reading_model) -> None:
    model = reading_model("llama")
    packed = Checkpoint(model.directory)
    vars(packed)["quantization"] = ({"quant_method": "torchao"}, "a file that says so")
    evaluated = evaluated_model(packed, text_of(model), device="cpu")
    assert isinstance(evaluated, WholeModel)
    assert "although it is large: only another package reads its weights (torchao)" in evaluated.notes[0]


@pytest.mark.usefixtures("too_large")
def test_a_model_without_a_head_of_its_own_is_refused(reading_model, monkeypatch) -> None:
    def refuse(*_given):
        raise NotStreamableError("its logits come from elsewhere")

    checkpoint = reading_model("llama")
    monkeypatch.setattr(StreamedBody, "split", refuse)
    with pytest.raises(InputError, match="its logits come from elsewhere; evaluate it where twice its size"):
        ReferenceModel.on_text(checkpoint, text_of(checkpoint))


@pytest.mark.usefixtures("too_large")
def test_the_same_model_diverges_nowhere(reading_model) -> None:
    checkpoint = reading_model("llama")
    with ReferenceModel.on_text(checkpoint, text_of(checkpoint)) as reference:
        sums = reference.compare(checkpoint)
    assert not sums.kl.any()
    assert not sums.flips.any()
