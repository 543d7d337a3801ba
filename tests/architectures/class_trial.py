"""What fairbits makes of a model class: opened, audited, quantized, loaded again, evaluated; or refused, and why."""

import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from small_models import small_model
from speech import write_speech
from transformers import WhisperFeatureExtractor

import fairbits as fb
from fairbits.core.errors import FairbitsError
from fairbits.core.units import LEAST_DOCUMENTS
from fairbits.evaluation import hidden_states as features
from fairbits.evaluation.reference import ReferenceModel
from fairbits.forward.tokenize import open_corpus_for, tokenize_corpus
from fairbits.forward.windows import TokenizedText
from fairbits.models.architecture.meta_model import SOUND, model_class
from fairbits.models.scales.scheme import Scheme
from fairbits.text.corpus import TextRequest

GROUP, TOKENS, LANGUAGES = 16, 96, ("eng", "heb")
LOGITS_TOLERANCE = 1e-3
ITSELF = 1e-6
"""The largest KL of a model from itself, in nats per token, whether it is in memory as a whole or in blocks."""


@dataclass(frozen=True)
class Outcome:
    """How far a class came: `stage` is "works", or where it was refused with `reason`."""

    kind: str
    family: str
    name: str
    stage: str
    reason: str = ""
    quantized: float = 0.0  # share of the weights in blocks
    bits: int = 0  # the width that was written

    def as_data(self) -> dict[str, str | float]:
        """Returns the fields."""
        return asdict(self)


def try_class(kind: str, family: str, name: str, *, tokenizer: Path, directory: Path) -> Outcome:
    """Returns what becomes of a small random model; whatever is not an error of fairbits is raised."""
    from transformers import AutoTokenizer

    original, packed = directory / "model", directory / "packed"
    vocabulary = len(AutoTokenizer.from_pretrained(tokenizer))
    try:
        model = small_model(family, name, vocabulary=vocabulary)
    except Exception as problem:  # the class's own code: it may need what is not installed, or another configuration
        return Outcome(kind, family, name, "not built", f"{type(problem).__name__}: {problem}".splitlines()[0])
    model.save_pretrained(original)
    for file in tokenizer.iterdir():
        shutil.copy(file, original)
    stage = "open"
    try:
        checkpoint = fb.Checkpoint(original)
        blocks = checkpoint.architecture.blocks
        bits = 8 if any(weight.needs_weight for weight in checkpoint.architecture.weights.values()) else 4
        stage = "audit"
        text = speech_for(checkpoint, directory / "speech") if checkpoint.architecture.reads == SOUND else None
        settings = {"languages": LANGUAGES, "tokens": TOKENS, "text": text}
        fb.audit(checkpoint, scheme=Scheme(4, GROUP), **settings)
        stage = "quantize"
        done = fb.quantize(
            checkpoint, fb.plan(checkpoint, policy="gptq", bits=bits, group=GROUP, **settings), text=text, out=packed
        )
        stage = "evaluate"
        fb.evaluate(packed, reference=checkpoint, **settings)
    except FairbitsError as problem:
        return Outcome(kind, family, name, stage, str(problem))
    rounded = {layer.name for layer in done.layers if layer.bits is not None}
    inside = {
        weight.name: torch.Size(checkpoint.tensors[weight.name].shape).numel()
        for b in blocks
        for weight in b.weights.values()
    }
    check_reload(checkpoint, packed)
    corpus = open_corpus_for(checkpoint, text, LANGUAGES)
    words = tokenize_corpus(checkpoint, corpus, request=TextRequest("evaluation", TOKENS, TOKENS), least=1)
    for candidate in (checkpoint, fb.Checkpoint(packed)):
        check_itself(candidate, words)
    share = sum(count for weight_name, count in inside.items() if weight_name in rounded) / sum(inside.values())
    return Outcome(kind, family, name, "works", quantized=share, bits=bits)


def speech_for(checkpoint: fb.Checkpoint, directory: Path) -> Path:
    """Returns clips for a model that reads sound, after writing its feature extractor beside it."""
    config = checkpoint.config
    seconds = config.max_source_positions // 50
    WhisperFeatureExtractor(feature_size=config.num_mel_bins, chunk_length=seconds).save_pretrained(
        checkpoint.directory
    )
    sentences = {lang: [f"{lang} {i} {i + 1} {i + 2}" for i in range(2 * LEAST_DOCUMENTS)] for lang in LANGUAGES}
    return write_speech(directory, sentences, seconds=(1.0, 2.5))


def check_itself(checkpoint: fb.Checkpoint, words: TokenizedText) -> None:
    """Raises unless a model diverges nowhere from itself, each time it is asked, whole and in blocks."""
    with ReferenceModel.on_text(checkpoint, words) as reference:
        comparisons: list[Any] = []
        for whole in (True, True, False):
            with patch.object(features, "fits_whole", lambda *_, whole=whole: whole):
                comparisons.append(reference.compare(checkpoint))
    first, second, in_blocks = comparisons
    assert np.array_equal(first.kl, second.kl)
    assert first.kl.sum() < ITSELF * first.predicted.sum(), f"{first.kl.sum() / first.predicted.sum()} as a whole"
    assert in_blocks.kl.sum() < ITSELF * first.predicted.sum(), (
        f"{in_blocks.kl.sum() / first.predicted.sum()} in blocks"
    )


def check_reload(checkpoint: fb.Checkpoint, packed: Path) -> None:
    """Raises unless transformers itself loads the file with the weights that fairbits evaluates."""
    ours = fb.Checkpoint(packed).load()
    cls = model_class(checkpoint.config)
    theirs = cls.from_pretrained(packed, dtype=torch.float32).eval()
    ids = torch.arange(5, 37)[None]
    inputs = {"input_ids": ids, **({"decoder_input_ids": ids} if ours.config.is_encoder_decoder else {})}
    if checkpoint.architecture.reads == SOUND:
        frames = 2 * ours.config.max_source_positions
        inputs = {SOUND: torch.randn(1, ours.config.num_mel_bins, frames), "decoder_input_ids": ids}
    with torch.no_grad():
        mine, yours = (model(**inputs, use_cache=False).logits for model in (ours, theirs))
    torch.testing.assert_close(mine, yours, rtol=0, atol=LOGITS_TOLERANCE)
