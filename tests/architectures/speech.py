"""Speech for tests and benchmarks: clips of espeak-ng or sound shaped like speech, and a small tokenizer of Whisper."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.io import wavfile
from scipy.signal import lfilter

from fairbits import Checkpoint
from fairbits.text.language_codes import find_language
from random_models import smaller_tokenizer

RATE = 16000
TIMES = ("<|transcribe|>", "<|translate|>", "<|notimestamps|>")


def write_speech(
    directory: Path,
    transcripts: Mapping[str, Sequence[str]],
    *,
    seconds: tuple[float, float],
    seed: int = 0,
    spoken: bool = False,
) -> Path:
    """Returns a directory of speech in the convention of audiofolder, one clip per transcript.

    If they are `spoken`, espeak-ng reads the transcripts; otherwise the sound is shaped like speech, and of a random
    length between `seconds`.
    """
    rng = np.random.default_rng(seed)
    for number, (lang, texts) in enumerate(transcripts.items()):
        folder = directory / lang
        folder.mkdir(parents=True)
        rows = []
        for i, text in enumerate(texts):
            name = f"{i}.wav"
            if spoken:
                _speak(text, find_language(lang).bcp47.partition("-")[0], folder / name)
            else:
                sound = speech_like(rng, rng.uniform(*seconds), pitch=90.0 + 30 * number)
                wavfile.write(folder / name, RATE, np.round(sound * 20_000).astype(np.int16))
            rows.append(json.dumps({"file_name": name, "text": text}, ensure_ascii=False))
        (folder / "metadata.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return directory


def can_speak() -> bool:
    """Returns whether espeak-ng is installed."""
    return shutil.which("espeak-ng") is not None


def _speak(text: str, voice: str, file: Path) -> None:
    voice = {"zh": "cmn"}.get(voice, voice)
    subprocess.run(["espeak-ng", "-v", voice, "-w", str(file), "--stdin"], input=text.encode(), check=True)


def speech_like(rng: np.random.Generator, seconds: float, *, pitch: float) -> NDArray[np.float64]:
    """Returns pulses and noise through resonances that change four times a second, with pauses, within ±1."""
    parts = []
    for _ in range(max(round(4 * seconds), 1)):
        n = RATE // 4
        source = 0.05 * rng.standard_normal(n)
        if rng.random() < 0.7:  # a vowel: pulses
            source[:: max(round(RATE / (pitch * rng.uniform(0.8, 1.25))), 1)] += 1.0
        for centre, width in ((rng.uniform(250, 800), 80.0), (rng.uniform(900, 2400), 120.0), (2700.0, 200.0)):
            r = np.exp(-np.pi * width / RATE)
            source = lfilter([1 - r], [1, -2 * r * np.cos(2 * np.pi * centre / RATE), r * r], source)
        parts.append(source * np.hanning(n) * (rng.random() < 0.9))
    sound = np.concatenate(parts)[: max(round(seconds * RATE), 1)]
    return sound / max(float(np.abs(sound).max()), 1e-9)


def whisper_tokenizer(size: int) -> Any:
    """Returns a WhisperTokenizer with `size` tokens of the embedded model and Whisper's special ones after these."""
    from transformers import WhisperTokenizer
    from transformers.models.whisper.tokenization_whisper import LANGUAGES

    source = Checkpoint("embedded:tiny").directory / "tokenizer.json"
    bpe = json.loads(smaller_tokenizer(source, size))["model"]
    tokenizer = WhisperTokenizer(vocab=bpe["vocab"], merges=[tuple(pair) for pair in bpe["merges"]])
    names = ["<|startoftranscript|>", *(f"<|{language}|>" for language in LANGUAGES), *TIMES]
    tokenizer.add_special_tokens({"additional_special_tokens": names})
    return tokenizer
