"""Whisper reads sound: it is audited, quantized and evaluated on clips of speech."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.io import wavfile
from transformers import AutoFeatureExtractor, WhisperForConditionalGeneration, WhisperProcessor

import fairbits as fb
from fairbits.core.errors import InputError
from fairbits.evaluation.hidden_states import StreamedModel, WholeModel
from fairbits.forward.batches import batches
from fairbits.forward.lockstep import lockstep
from fairbits.forward.speech_windows import Prompts
from fairbits.forward.statistics import collect_statistics, document_losses
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.scales.scheme import Scheme
from fairbits.models.streaming_model import StreamingModel
from fairbits.text.corpus import TextRequest
from fairbits.text.language_codes import find_language
from fairbits.text.reading import read_corpus

GROUP, TOKENS = 16, 96
SCHEME = Scheme(4, GROUP)
ON = {"languages": ["eng", "fra"], "tokens": TOKENS}


@pytest.fixture(scope="module")
def text(whisper: Path, speech: Path) -> TokenizedText:
    """All languages of the calibration split."""
    return tokenize_corpus(fb.Checkpoint(whisper), read_corpus(speech), request=TextRequest(tokens=TOKENS))


@pytest.fixture(scope="module")
def quantized(whisper: Path, speech: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model after GPTQ on speech."""
    out = tmp_path_factory.mktemp("quantized") / "out"
    plan = fb.plan(whisper, policy="gptq", bits=4, group=GROUP, text=speech, **ON)
    fb.quantize(whisper, plan, text=speech, out=out)
    return out


def test_both_stacks_are_mapped(whisper: Path) -> None:
    architecture = fb.Checkpoint(whisper).architecture
    assert architecture.reads == "input_features"
    assert [block.stack for block in architecture.blocks] == ["encoder", "encoder", "decoder", "decoder"]
    assert architecture.weights["model.decoder.layers.1.encoder_attn.k_proj.weight"].sees == "encoder_output"
    assert not architecture.weights["model.encoder.conv1.weight"].linear
    assert architecture.head is not None
    assert architecture.head.name == "model.decoder.embed_tokens.weight"


def test_windows_hold_a_prompt_a_transcript_and_sound(whisper: Path, speech: Path, text: TokenizedText) -> None:
    tokenizer = fb.Checkpoint(whisper).tokenizer()
    corpus = read_corpus(speech)
    start, english, transcribe, plain = tokenizer.convert_tokens_to_ids(
        ["<|startoftranscript|>", "<|en|>", "<|transcribe|>", "<|notimestamps|>"]
    )
    prompts = {"eng_Latn": [start, english, transcribe, plain], "quy_Latn": [start, transcribe, plain]}
    for code, prompt in prompts.items():
        window = next(window for window in text.windows if text.lang[window.document] == code)
        part, sound = window.main, window.sound
        assert part.ids[: len(prompt)] == prompt
        transcript = [label for label in part.labels if label >= 0]
        assert part.ids[len(prompt) :] == transcript[:-1]
        assert tokenizer.decode(transcript) in corpus.calibration[code]
        assert sum(part.text) == len(transcript) - 1
        rate, samples = wavfile.read(sound.features.args[0].path)
        assert sound.sounding == -(-len(samples) * 50 // (10 * rate))
        assert window.length == 50
    assert any("no token for quy_Latn" in note for note in text.notes)
    assert text.size_bytes[0] == len(tokenizer.decode([x for x in text.windows[0].main.labels if x >= 0]).encode())


@pytest.mark.parametrize(
    ("code", "name"),
    [("eng", "english"), ("cmn_Hans", "chinese"), ("nob", "norwegian"), ("jav", "javanese"), ("quy", None)],
)
def test_prompts_are_those_of_transformers(whisper: Path, code: str, name: str | None) -> None:
    checkpoint = fb.Checkpoint(whisper)
    tokenizer = checkpoint.tokenizer()
    tokenizer.set_prefix_tokens(language=name, task="transcribe")
    assert Prompts.of(checkpoint, tokenizer).ids(find_language(code).code) == tokenizer.prefix_tokens


def test_a_model_of_one_language_is_not_told_it(whisper: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(whisper, tmp_path / "english"))
    (copy / "generation_config.json").write_text('{"is_multilingual": false}')
    checkpoint = fb.Checkpoint(copy)
    tokenizer = checkpoint.tokenizer()
    prompts = Prompts.of(checkpoint, tokenizer)
    assert prompts.ids("eng_Latn") == tokenizer.convert_tokens_to_ids(["<|startoftranscript|>", "<|notimestamps|>"])
    assert prompts.notes(["eng_Latn", "quy_Latn"]) == ()


def test_losses_are_those_of_transformers(whisper: Path, text: TokenizedText) -> None:
    model = WhisperForConditionalGeneration.from_pretrained(whisper).eval()
    extractor = AutoFeatureExtractor.from_pretrained(whisper)
    nll, predicted = document_losses(model, text)
    for window in text.windows:
        rate, samples = wavfile.read(window.sound.features.args[0].path)
        heard = extractor(samples / 32768, sampling_rate=rate, return_tensors="pt").input_features
        torch.testing.assert_close(window.sound.features(), heard[0], rtol=0, atol=1e-5)
        targets = [label for label in window.main.labels if label >= 0]
        with torch.no_grad():
            logits = model(heard, decoder_input_ids=torch.tensor([window.main.ids])).logits[0, -len(targets) :]
        loss = torch.nn.functional.cross_entropy(logits, torch.tensor(targets), reduction="sum")
        assert nll[window.document] == pytest.approx(float(loss), rel=1e-5)
        assert predicted[window.document] == len(targets)
        labels = torch.tensor([window.main.labels])
        with torch.no_grad():
            mean = model(heard, decoder_input_ids=torch.tensor([window.main.ids]), labels=labels).loss
        assert nll[window.document] == pytest.approx(float(mean) * len(targets), rel=1e-5)


def test_silence_after_a_clip_is_seen_but_is_no_text(text: TokenizedText) -> None:
    batch = next(batches(text, positions=200))
    assert batch.inputs["input_features"].shape == (4, 8, 100)
    assert batch.encoder.real.all()
    heard = torch.tensor([text.windows[i].sound.sounding for i in range(4)])
    assert batch.encoder.text.sum(1).tolist() == heard.tolist()
    assert batch.positions("decoder") is batch.main


def test_the_audit_measures_both_stacks(whisper: Path, speech: Path, tmp_path: Path) -> None:
    audit = fb.audit(whisper, text=speech, scheme=SCHEME, **ON)
    assert audit.measured.task == "transcription"
    assert len(audit.measured.linears) == 2 * 6 + 2 * 10
    stacks = {point.stack for point in audit.measured.points}
    assert stacks == {"encoder", "decoder"}
    column = next(i for i, point in enumerate(audit.measured.points) if point.name == "blocks.0")
    corpus = read_corpus(speech, languages=ON["languages"])
    words = tokenize_corpus(fb.Checkpoint(whisper), corpus, request=TextRequest(tokens=TOKENS))
    heard = np.zeros(len(words.lang))
    for window in words.windows:
        heard[window.document] += window.sound.sounding
    np.testing.assert_array_equal(audit.measured.positions[:, column], heard)
    assert (audit.damage["kronecker"].by_linear > 0).all()
    audit.save(tmp_path / "audit.json")
    fb.plan(whisper, policy="mixed", bits=4, group=GROUP, text=speech, audit=tmp_path / "audit.json", **ON)


def test_sound_is_given_in_the_type_that_the_model_computes_in(whisper: Path, speech: Path) -> None:
    checkpoint, corpus = fb.Checkpoint(whisper), read_corpus(speech)
    request = TextRequest(tokens=TOKENS)
    exact, rough = (
        collect_statistics(checkpoint, corpus, request=request, dtype=dtype)
        for dtype in (torch.float32, torch.bfloat16)
    )
    np.testing.assert_allclose(rough.nll, exact.nll, rtol=1e-2)
    assert not np.array_equal(rough.nll, exact.nll)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_batches_walk_through_its_blocks_as_through_the_model(
    whisper: Path, text: TokenizedText, dtype: torch.dtype
) -> None:
    checkpoint = fb.Checkpoint(whisper)
    chosen = list(batches(text, positions=300))
    streaming = StreamingModel(checkpoint, "cpu", dtype=dtype)
    streaming.load_outside(torch.unique(torch.cat([batch.ids for batch in chosen])), {})
    blocks, outputs = checkpoint.architecture.blocks, []
    with lockstep(streaming.model, [block.module for block in blocks], chosen) as walk:
        for block in blocks:
            streaming.load_block(block, {})
            outputs.append([batch.output().detach().clone() for batch in walk.paused()])
            walk.advance(lambda _batch: None)
            streaming.release_block(block)
    model = checkpoint.load(dtype)
    for number, batch in enumerate(chosen):
        with torch.no_grad():
            whole = model(**batch.inputs_for(model), output_hidden_states=True)
        tolerance = 1e-5 if dtype == torch.float32 else 0.05
        torch.testing.assert_close(outputs[0][number], whole.encoder_hidden_states[1], rtol=0, atol=tolerance)
        torch.testing.assert_close(outputs[2][number], whole.decoder_hidden_states[1], rtol=0, atol=tolerance)


def test_a_model_that_is_too_large_is_evaluated_block_by_block(whisper: Path, text: TokenizedText) -> None:
    checkpoint = fb.Checkpoint(whisper)
    streamed, whole = StreamedModel(checkpoint, text, device="cpu"), WholeModel(checkpoint.load(), text, device="cpu")
    features, expected = (
        torch.cat([part.features for part in model.features("", None)]) for model in (streamed, whole)
    )
    torch.testing.assert_close(features, expected, rtol=0, atol=1e-5)


def test_gptq_on_speech_is_written_and_loads_in_transformers(whisper: Path, quantized: Path) -> None:
    inputs = {"input_features": torch.randn(1, 8, 100), "decoder_input_ids": torch.arange(5)[None]}
    ours = fb.Checkpoint(quantized).load()
    theirs = WhisperForConditionalGeneration.from_pretrained(quantized, dtype=torch.float32).eval()
    with torch.no_grad():
        original, our_logits, loaded = (
            model(**inputs).logits for model in (fb.Checkpoint(whisper).load(), ours, theirs)
        )
    assert torch.equal(our_logits, loaded)
    assert (original - our_logits).abs().max() > 1e-3
    assert (quantized / "preprocessor_config.json").is_file()
    plan = json.loads((quantized / "plan.json").read_text())
    errors = [layer["error"] for layer in plan["results"] if layer["error"]]
    assert len(errors) == 2 * 6 + 2 * 10
    assert all(set(error) == {"eng_Latn", "fra_Latn"} for error in errors)


def test_gptq_hears_the_clips(whisper: Path, quantized: Path, tmp_path: Path) -> None:
    plan = fb.plan(whisper, policy="rtn", bits=4, group=GROUP)
    fb.quantize(whisper, plan, out=tmp_path / "rtn")
    name = "model.encoder.layers.1.fc1.weight"
    rtn, gptq = (fb.Checkpoint(path).load().state_dict()[name] for path in (tmp_path / "rtn", quantized))
    assert not torch.equal(rtn, gptq)


def test_it_is_evaluated_on_speech(whisper: Path, speech: Path, quantized: Path) -> None:
    scores = fb.evaluate(quantized, reference=whisper, text=speech, languages=["eng", "fra", "quy"], tokens=TOKENS)
    assert scores.setting.task == "transcription"
    assert "given its sound" in scores.summary()["question"]["asked"]
    assert (scores.documents.kl > 0).all()
    request = TextRequest("evaluation", tokens=TOKENS)
    words = tokenize_corpus(fb.Checkpoint(whisper), read_corpus(speech), request=request, least=1)
    nll, _ = document_losses(fb.Checkpoint(quantized).load(), words)
    np.testing.assert_allclose(scores.documents.nll_quantized, nll, rtol=1e-5)
    assert any("no token for quy_Latn" in note for note in scores.notes)
    again = fb.evaluate(quantized, reference=whisper, text=speech, repeat=scores.signature())
    np.testing.assert_array_equal(again.documents.kl, scores.documents.kl)


def test_other_policies_hear(whisper: Path, speech: Path, tmp_path: Path) -> None:
    for policy, options in {"fair": {"block_steps": 1, "model_steps": 1}, "laaciq": {}}.items():
        plan = fb.plan(whisper, policy=policy, bits=4, group=GROUP, text=speech, **ON, **options)
        done = fb.quantize(whisper, plan, text=speech, out=tmp_path / policy)
        assert sum(layer.bits == 4 for layer in done.layers) == 2 * 6 + 2 * 10


def test_a_model_in_memory_comes_with_its_processor(whisper: Path, speech: Path) -> None:
    model, processor = (
        WhisperForConditionalGeneration.from_pretrained(whisper),
        WhisperProcessor.from_pretrained(whisper),
    )
    in_memory, files = (
        fb.audit(source, tokenizer, text=speech, scheme=SCHEME, **ON)
        for source, tokenizer in ((model, processor), (whisper, None))
    )
    np.testing.assert_allclose(in_memory.measured.nll, files.measured.nll, rtol=1e-6)
    with pytest.raises(InputError, match="pass the processor"):
        fb.audit(model, processor.tokenizer, text=speech, scheme=SCHEME, **ON)


def test_its_weights_are_screened_and_quantized_without_sound(whisper: Path, tmp_path: Path) -> None:
    (row,) = fb.screen([whisper]).rows
    assert row.problem is None
    done = fb.quantize(whisper, fb.plan(whisper, policy="rtn", bits=4, group=GROUP), out=tmp_path / "out")
    assert sum(layer.bits == 4 for layer in done.layers) == 2 * 6 + 2 * 10


def test_the_file_of_a_processor_is_read_too(whisper: Path, speech: Path, tmp_path: Path, text: TokenizedText) -> None:
    copy = Path(shutil.copytree(whisper, tmp_path / "copy"))
    settings = json.loads((copy / "preprocessor_config.json").read_text())
    (copy / "preprocessor_config.json").unlink()
    (copy / "processor_config.json").write_text(json.dumps({"feature_extractor": settings}))
    tokenized = tokenize_corpus(fb.Checkpoint(copy), read_corpus(speech), request=TextRequest(tokens=TOKENS))
    torch.testing.assert_close(tokenized.windows[0].sound.features(), text.windows[0].sound.features(), rtol=0, atol=0)
