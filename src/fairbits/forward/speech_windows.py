"""Clips of speech as windows: sound for the encoder, and for the decoder a prompt and the transcript.

The prompt is Whisper's: the start of a transcript, its language, the task (transcribe), no times. Only tokens of
transcripts are predicted. A clip that the model cannot read whole is left out: the transcript of its beginning is not
known.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fairbits.core.errors import InputError, count_of
from fairbits.core.records import read_object
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.forward.windows import (
    NO_LABEL,
    EncodedDocument,
    Encoder,
    Ids,
    Sound,
    TokenizedText,
    Window,
    WindowPart,
    check_document_counts,
    document_encoder,
)
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.feature_extractor import load_feature_extractor
from fairbits.text.corpus import Corpus, TextRequest
from fairbits.text.documents import seeded_hash
from fairbits.text.language_codes import language_from_code
from fairbits.text.sound import Clip, Samples

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase, WhisperFeatureExtractor

TRANSCRIBE, WITHOUT_TIMES = "<|transcribe|>", "<|notimestamps|>"
OTHER_NAMES = {"jv": "jw", "nb": "no"}  # languages for which Whisper and BCP-47 have different codes
NAMED = 3  # the largest number of languages that a note names


@dataclass(frozen=True, eq=False)
class SpeechEncoder:
    """Makes features of clips; the encoder of the model has `positions` for them, whatever the length of a clip."""

    extractor: "WhisperFeatureExtractor"
    positions: int

    @property
    def seconds(self) -> float:
        return float(self.extractor.n_samples / self.extractor.sampling_rate)

    def sound(self, clip: Clip) -> Sound | None:
        """Returns a clip as the input of the encoder; None if it is too long."""
        samples, room = len(self._samples(clip)), self.extractor.n_samples
        sounding = -(-samples * self.positions // room)
        return None if samples > room else Sound(self.positions, sounding, partial(self.features, clip))

    def features(self, clip: Clip) -> "Tensor":
        """Returns the features of a clip, (bins, frames), with silence after its end."""
        rate = int(self.extractor.sampling_rate)
        batch = self.extractor(self._samples(clip), sampling_rate=rate, return_tensors="pt")
        features: Tensor = batch.input_features[0]
        return features

    def _samples(self, clip: Clip) -> Samples:
        return clip.samples(int(self.extractor.sampling_rate))


def tokenize_speech(
    checkpoint: Checkpoint,
    corpus: Corpus,
    tokenizer: "PreTrainedTokenizerBase",
    *,
    request: TextRequest,
    padding: int,
    least: int,
) -> TokenizedText:
    """Returns clips with about the requested number of tokens of transcripts per language, in a seeded random order."""
    encoder = SpeechEncoder(load_feature_extractor(checkpoint), int(checkpoint.config.max_source_positions))
    room = min(request.sequence, int(checkpoint.config.max_target_positions))
    prompts = Prompts.of(checkpoint, tokenizer)
    chooser = _Chooser(encoder, document_encoder(tokenizer), room, request)
    chosen: dict[str, dict[int, tuple[EncodedDocument, Sound]]] = {}
    for code in corpus.split(request.split):
        chosen[code] = chooser.clips(corpus, code, prompt=len(prompts.ids(code)))
    check_document_counts({code: list(clips) for code, clips in chosen.items()}, least=least)
    lang = [code for code, clips in chosen.items() for _ in clips]
    texts = [corpus.split(request.split)[code][i] for code, clips in chosen.items() for i in clips]
    pairs = [pair for clips in chosen.values() for pair in clips.values()]
    return TokenizedText(
        tuple(chosen),
        np.array(lang),
        np.arange(len(lang)),
        np.array([float(len(text.encode())) for text in texts]),
        tuple(
            Window(number, _decoder(prompts.ids(code), words.ids), sound=sound)
            for number, (code, (words, sound)) in enumerate(zip(lang, pairs, strict=True))
        ),
        padding,
        notes=(*chooser.notes, *prompts.notes(chosen)),
    )


def _decoder(prompt: Ids, transcript: Ids) -> WindowPart:
    ids = [*prompt, *transcript[:-1]]
    text = [False] * len(prompt) + [True] * (len(transcript) - 1)
    return WindowPart(ids, text, [NO_LABEL] * (len(prompt) - 1) + transcript)


class _Chooser:
    """Chooses clips up to the budget; `room` is the most positions of the decoder."""

    def __init__(self, encoder: SpeechEncoder, encode: Encoder, room: int, request: TextRequest) -> None:
        self._encoder, self._encode, self._room, self._request = encoder, encode, room, request
        self._too_long: dict[str, int] = {}

    def clips(self, corpus: Corpus, code: str, *, prompt: int) -> dict[int, tuple[EncodedDocument, Sound]]:
        texts, clips = corpus.split(self._request.split)[code], corpus.language_clips(code, self._request.split)
        chosen: dict[int, tuple[EncodedDocument, Sound]] = {}
        total = 0
        for index in sorted(range(len(texts)), key=lambda i: seeded_hash(self._request.seed, i)):
            if total >= self._request.tokens and len(chosen) >= LEAST_DOCUMENTS:
                break
            (words,) = self._encode([texts[index]])
            sound = self._encoder.sound(clips[index]) if prompt + len(words.ids) - 1 <= self._room else None
            if sound is None:
                self._too_long[code] = self._too_long.get(code, 0) + 1
            elif words.ids:
                chosen[index] = words, sound
                total += len(words.ids)
        return chosen

    @property
    def notes(self) -> tuple[str, ...]:
        if not self._too_long:
            return ()
        named = ", ".join(f"{code} {count}" for code, count in list(self._too_long.items())[:NAMED])
        more = f" and {len(self._too_long) - NAMED} more languages" if len(self._too_long) > NAMED else ""
        return (
            f"clips left out ({named}{more}): longer than {self._encoder.seconds:g} seconds, or than "
            f"{count_of(self._room, 'token')} with their prompt",
        )


@dataclass(frozen=True)
class Prompts:
    """The tokens before a transcript: `start`, then those that the tokenizer has."""

    start: int
    vocabulary: dict[str, int]
    multilingual: bool

    @classmethod
    def of(cls, checkpoint: Checkpoint, tokenizer: "PreTrainedTokenizerBase") -> "Prompts":
        """Returns the prompts of a model; generation_config.json says whether it knows one language alone."""
        start = getattr(checkpoint.config, "decoder_start_token_id", None)
        if start is None:
            raise InputError("config.json has no decoder_start_token_id, which an encoder-decoder model needs")
        file = checkpoint.directory / "generation_config.json"
        config = read_object(file, finite=False) if file.is_file() else {}
        vocabulary = {name: number for name, number in tokenizer.get_vocab().items() if name.startswith("<|")}
        return cls(int(start), vocabulary, config.get("is_multilingual") is not False and TRANSCRIBE in vocabulary)

    def ids(self, code: str) -> Ids:
        """Returns the prompt of a language; one that the tokenizer does not know is not named in it."""
        names = [self._token(code), TRANSCRIBE] if self.multilingual else []
        return [self.start, *(self.vocabulary[name] for name in (*names, WITHOUT_TIMES) if name in self.vocabulary)]

    def notes(self, codes: Iterable[str]) -> tuple[str, ...]:
        unknown = [code for code in codes if self._token(code) not in self.vocabulary]
        if not self.multilingual or not unknown:
            return ()
        more = ", …" if len(unknown) > NAMED else ""
        return (
            f"the tokenizer has no token for {', '.join(unknown[:NAMED])}{more}: the model is told to transcribe, but "
            "not the language",
        )

    @staticmethod
    def _token(code: str) -> str:
        language = language_from_code(code)
        subtag = language.bcp47.partition("-")[0] or language.code
        return f"<|{OTHER_NAMES.get(subtag, subtag)}|>"
