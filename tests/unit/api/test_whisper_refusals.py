"""What Whisper cannot read is refused or left out, and the command line says so."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from scipy.io import wavfile
from speech import write_speech

import fairbits as fb
from fairbits.core.errors import InputError
from fairbits.forward.tokenize import short_text_notes, tokenize_corpus
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import TextRequest
from fairbits.text.reading import read_corpus

GROUP, TOKENS = 16, 96
SCHEME = Scheme(4, GROUP)
ON = {"languages": ["eng", "fra"], "tokens": TOKENS}


@pytest.mark.parametrize("options", [{}, {"languages": ["eng"]}, {"languages": ["eng"], "text": "help"}])
@pytest.mark.parametrize(
    "measure",
    [
        lambda model, options: fb.audit(model, scheme=SCHEME, **options),
        lambda model, options: fb.plan(model, policy="gptq", bits=4, group=GROUP, **options),
        lambda model, options: fb.evaluate(model, reference=model, **options),
    ],
    ids=["audit", "plan", "evaluate"],
)
def test_without_speech_it_is_refused(whisper: Path, measure, options) -> None:
    with pytest.raises(
        InputError, match=r"reads sound, and the text that comes with fairbits has none; give .*--text DIR"
    ):
        measure(whisper, options)


def test_text_of_the_user_is_refused(whisper: Path, tmp_path: Path) -> None:
    (tmp_path / "eng.txt").write_text("One.\nTwo.\n")
    with pytest.raises(InputError, match=r"reads sound, and .* has none"):
        fb.audit(whisper, text=tmp_path, scheme=SCHEME)


def test_clips_that_do_not_fit_are_left_out(whisper: Path, tmp_path: Path) -> None:
    transcripts = {"eng": [f"Number {i}." for i in range(6)], "fra": ["mot " * 60, *(f"Nombre {i}." for i in range(5))]}
    write_speech(tmp_path / "clips", transcripts, seconds=(1.0, 2.0))
    wavfile.write(tmp_path / "clips" / "eng" / "3.wav", 16000, np.zeros(160_001, np.int16))
    corpus = read_corpus(tmp_path / "clips", evaluation_share=0.0)
    text = tokenize_corpus(fb.Checkpoint(whisper), corpus, request=TextRequest(tokens=1000))
    assert text.languages == ("eng_Latn", "fra_Latn")
    assert [(text.lang == code).sum() for code in text.languages] == [5, 5]
    assert text.notes == (
        "clips left out (eng_Latn 1, fra_Latn 1): longer than 10 seconds, or than 64 tokens with their prompt",
    )
    (short,) = short_text_notes(text, TextRequest(tokens=1000), parallel=False)[1:]
    tokens = sum(
        label >= 0
        for window in text.windows
        if text.lang[window.document] == "eng_Latn"
        for label in window.main.labels
    )
    assert f"eng_Latn {tokens}" in short


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (None, "has neither preprocessor_config.json nor processor_config.json with a feature_extractor"),
        ({"feature_size": 80}, "makes 80 x 100 features of a clip, and by its config.json the model reads 8 x 100"),
        ({"chunk_length": 30}, "makes 8 x 300 features"),
        ({"n_fft": 10**9}, "has n_fft 1000000000; it must be a whole number from 16 to 16,384"),
        ({"hop_length": 0}, "has hop_length 0"),
        ({"sampling_rate": "16000"}, "has sampling_rate '16000'"),
        ({"padding_value": 1.0}, "has padding_value 1.0"),
        (
            {"feature_extractor_type": "Wav2Vec2FeatureExtractor"},
            "names the feature extractor 'Wav2Vec2FeatureExtractor'",
        ),
    ],
)
def test_a_feature_extractor_must_belong_to_the_model(
    whisper: Path, speech: Path, tmp_path: Path, change, message
) -> None:
    copy = Path(shutil.copytree(whisper, tmp_path / "copy"))
    file = copy / "preprocessor_config.json"
    if change is None:
        file.unlink()
    else:
        file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=message):
        tokenize_corpus(fb.Checkpoint(copy), read_corpus(speech), request=TextRequest(tokens=TOKENS))


def test_the_command_line_says_what_is_wrong(whisper: Path, speech: Path, tmp_path: Path, command) -> None:
    code, _, errors = command("audit", whisper)
    assert code == 2
    assert "give a directory of text or of speech (--text DIR)" in " ".join(errors.split())
    bad = Path(shutil.copytree(speech, tmp_path / "bad"))
    for clip in (bad / "eng").glob("*.wav"):
        clip.write_bytes(clip.read_bytes()[:1000])
    code, _, errors = command("audit", whisper, "--text", bad, "--tokens", "96", "--group", str(GROUP))
    assert code == 2
    assert "is damaged, or not a WAV file of plain samples" in " ".join(errors.split())


def test_the_command_line_audits_and_shows_it(whisper: Path, speech: Path, command) -> None:
    code, shown, _ = command("audit", whisper, "--text", speech, "--tokens", "96", "--group", str(GROUP))
    assert code == 0
    assert "eng_Latn" in shown
