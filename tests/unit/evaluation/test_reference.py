"""A quantized model compared with its reference: the same as both in memory, evaluated window by window."""

import gc
import resource
import tempfile
import weakref

import numpy as np
import pytest
import torch
import transformers as t

from fairbits.core.errors import InputError
from fairbits.evaluation import hidden_states as features_module
from fairbits.evaluation.reference import WHOLE, ReferenceModel
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import NO_LABEL, TokenizedText
from fairbits.text.corpus import Corpus, TextRequest

ENG = [f"On day {i} the wind came from the north{' and brought rain' * (i % 3)}." for i in range(6)]
HEB = [f"ביום {i} באה הרוח מצפון{' והביאה גשם' * (i % 3)}." for i in range(6)]
CORPUS = Corpus("weather", {}, {"eng": ENG, "heb": HEB}, parallel=True)


def text_of(checkpoint, **settings) -> TokenizedText:
    return tokenize_corpus(checkpoint, CORPUS, request=TextRequest("evaluation", **settings))


def disturbed(checkpoint, scale: float = 0.05):
    """Returns the model with noise on all its weights."""
    model, rng = checkpoint.load(), torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=rng))
    return model


@torch.no_grad()
def in_memory(reference, quantized, text: TokenizedText) -> np.ndarray:
    """Returns tokens, both losses, divergence, flips and changes of margins by document, from both models at once."""
    sums = np.zeros((6, len(text.lang)))
    reference, quantized = reference.double(), quantized.double()
    for window in text.windows:
        ids = torch.tensor([window.main.ids])
        inputs = {"input_ids": ids}
        if window.encoder is not None:
            inputs = {"input_ids": torch.tensor([window.encoder.ids]), "decoder_input_ids": ids}
        labels = torch.tensor(window.main.labels)
        asked = labels != NO_LABEL
        p, q = (model(**inputs).logits[0][asked].log_softmax(-1) for model in (reference, quantized))
        rows = torch.arange(len(p))
        kl = torch.nn.functional.kl_div(q, p, log_target=True, reduction="none").sum(1)
        flips = p.argmax(1) != q.argmax(1)
        choice = p.argmax(1)
        others = [logs.scatter(1, choice[:, None], -torch.inf).amax(1) for logs in (p, q)]
        margin = (q[rows, choice] - others[1]) - (p[rows, choice] - others[0])
        values = [torch.ones(len(p)), -p[rows, labels[asked]], -q[rows, labels[asked]], kl, flips, margin]
        sums[:, window.document] += [float(value.sum()) for value in values]
    return sums


@pytest.mark.parametrize("family", ["llama", "gpt2", "mt5", "xlmr"])
def test_answers_are_those_of_two_models_in_memory(reading_model, family) -> None:
    checkpoint = reading_model(family)
    text = text_of(checkpoint, sequence=24)
    model = disturbed(checkpoint)
    with ReferenceModel.on_text(checkpoint, text) as reference:
        sums = reference.compare(model)
        assert reference.notes == ((WHOLE,) if family in ("mt5", "xlmr") else ())
    tokens, nll_reference, nll_quantized, kl, flips, margin = in_memory(checkpoint.load(), model, text)
    assert sums.predicted == pytest.approx(tokens)
    assert sums.nll_reference == pytest.approx(nll_reference, rel=1e-5)
    assert sums.nll_quantized == pytest.approx(nll_quantized, rel=1e-5)
    assert sums.kl == pytest.approx(kl, rel=1e-4)
    assert sums.flips == pytest.approx(flips)
    assert flips.sum() > 0
    assert np.bincount(sums.token_document, sums.token_kl) == pytest.approx(kl, rel=1e-4)
    assert np.bincount(sums.token_document, sums.token_margin) == pytest.approx(margin, rel=1e-3, abs=1e-3)


@pytest.mark.parametrize("family", ["llama", "mt5"])
def test_the_logits_of_the_reference_belong_to_the_caller(reading_model, family) -> None:
    checkpoint = reading_model(family)
    with ReferenceModel.on_text(checkpoint, text_of(checkpoint)) as reference:
        first = reference.logits(slice(0, 9))
        expected = first.clone()
        first.zero_()
        assert torch.equal(reference.logits(slice(0, 9)), expected)
        assert torch.equal(reference.logits(torch.arange(9)), expected)
        assert not reference.features.flags.writeable


def test_the_same_model_diverges_nowhere(reading_model) -> None:
    checkpoint = reading_model("llama")
    with ReferenceModel.on_text(checkpoint, text_of(checkpoint)) as reference:
        sums = reference.compare(checkpoint.load())
    assert not sums.kl.any()
    assert not sums.flips.any()
    assert not sums.token_margin.any()
    assert np.array_equal(sums.nll_reference, sums.nll_quantized)


def test_batches_do_not_matter_and_progress_ends(reading_model, monkeypatch) -> None:
    checkpoint = reading_model("llama")
    text, model = text_of(checkpoint), disturbed(checkpoint)
    seen = []
    with ReferenceModel.on_text(checkpoint, text, progress=lambda *call: seen.append(call)) as reference:
        large = reference.compare(model)
        monkeypatch.setattr(features_module, "EVALUATION_POSITIONS", 8)
        monkeypatch.setattr(features_module, "positions_per_batch", lambda *_: 8)
        small = reference.compare(model, progress=lambda *call: seen.append(call))
    assert small.kl == pytest.approx(large.kl, rel=1e-4)
    assert np.array_equal(small.token_document, large.token_document)
    assert seen[0] == ("evaluating the reference model", 0, 0)  # the moment it begins
    assert ("evaluating the reference model", len(text.windows), len(text.windows)) in seen
    assert seen[-1] == ("evaluating the quantized model", len(text.windows), len(text.windows))
    assert len([done for _, done, total in seen if done == total > 0]) == 2


def test_half_precision_is_kept_as_it_is(reading_model) -> None:
    checkpoint = reading_model("llama")
    text = text_of(checkpoint)
    with ReferenceModel.on_text(checkpoint.load(torch.bfloat16), text) as reference:
        assert reference.logits(slice(1)).dtype == torch.bfloat16
        sums = reference.compare(checkpoint.load(torch.bfloat16))
        exact = reference.compare(checkpoint.load())
    assert not sums.kl.any()
    assert exact.kl.any()


def test_the_reference_lets_go_of_model_and_disk(reading_model, monkeypatch, tmp_path) -> None:
    checkpoint = reading_model("llama")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = checkpoint.load()
    gone = weakref.ref(model)
    reference = ReferenceModel.on_text(model, text_of(checkpoint))
    del model
    gc.collect()
    assert gone() is None
    reference.logits(slice(1))
    reference.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="is closed; use it before"):
        reference.logits(slice(1))


def test_a_full_disk_is_said(reading_model) -> None:
    checkpoint = reading_model("llama")
    text = text_of(checkpoint)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(InputError, match=r"room for the predictions .*File too large.*TMPDIR"):
            ReferenceModel.on_text(checkpoint, text)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_too_little_room_is_said_before_the_pass_ends(reading_model, monkeypatch) -> None:
    checkpoint = reading_model("llama")
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("fairbits.evaluation.reference.shutil.disk_usage", lambda _: usage)
    with pytest.raises(InputError, match=r"bytes are needed and 10 are free"):
        ReferenceModel.on_text(checkpoint, text_of(checkpoint))


@pytest.mark.parametrize("broken", ["reference", "quantized"])
def test_nan_names_the_model(reading_model, broken) -> None:
    checkpoint = reading_model("llama")
    models = {"reference": checkpoint.load(), "quantized": checkpoint.load()}
    for name, model in models.items():
        model.name_or_path = name
    with torch.no_grad():
        models[broken].get_output_embeddings().weight[5] = torch.nan
    with (
        ReferenceModel.on_text(models["reference"], text_of(checkpoint)) as reference,
        pytest.raises(InputError, match=f"^the logits of {broken} contain NaN"),
    ):
        reference.compare(models["quantized"])


def test_another_vocabulary_is_refused(reading_model) -> None:
    checkpoint = reading_model("llama")
    config = t.LlamaConfig(**{**checkpoint.config.to_dict(), "vocab_size": 16400})
    with (
        ReferenceModel.on_text(checkpoint, text_of(checkpoint)) as reference,
        pytest.raises(
            InputError, match=r"16,400 tokens in its vocabulary and .* 1,024; both must have the same vocabulary"
        ),
    ):
        reference.compare(t.LlamaForCausalLM(config).eval())
