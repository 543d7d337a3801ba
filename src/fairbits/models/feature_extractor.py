"""The feature extractor of a model that reads sound: what it makes of samples, and how much of them."""

from pathlib import Path
from typing import Any

from transformers import WhisperFeatureExtractor

from fairbits.core.errors import InputError
from fairbits.core.records import read_object
from fairbits.models.architecture.meta_model import FRAMES_PER_POSITION
from fairbits.models.checkpoint import Checkpoint

ALONE, TOGETHER, WITHIN = "preprocessor_config.json", "processor_config.json", "feature_extractor"
KIND = "WhisperFeatureExtractor"
USUAL = {"feature_size": 80, "sampling_rate": 16000, "hop_length": 160, "chunk_length": 30, "n_fft": 400}
"""What transformers assumes where the file says nothing."""
LIMITS = {"sampling_rate": (4_000, 48_000), "hop_length": (1, 48_000), "chunk_length": (1, 600), "n_fft": (16, 16_384)}


def load_feature_extractor(checkpoint: Checkpoint) -> WhisperFeatureExtractor:
    """Returns the feature extractor of the files, if the sizes that they state are possible; without dither."""
    file, content = _content(checkpoint)
    if content.get("feature_extractor_type", KIND) != KIND:
        raise InputError(
            f"{file} names the feature extractor {content['feature_extractor_type']!r:.80}; fairbits reads sound with "
            f"{KIND} alone"
        )
    numbers = {name: content.get(name, usual) for name, usual in USUAL.items()}
    for name, (least, most) in LIMITS.items():
        value = numbers[name]
        if type(value) is not int or not least <= value <= most:
            raise InputError(f"{file} has {name} {value!r:.40}; it must be a whole number from {least:,} to {most:,}")
    config = checkpoint.config
    bins, frames = config.num_mel_bins, FRAMES_PER_POSITION * config.max_source_positions
    stated = numbers["feature_size"], numbers["chunk_length"] * numbers["sampling_rate"] // numbers["hop_length"]
    if stated != (bins, frames):
        raise InputError(
            f"{file} makes {stated[0]!r:.40} x {stated[1]:,} features of a clip, and by its config.json "
            f"the model reads {bins} x {frames:,}; they must belong together"
        )
    if content.get("padding_value", 0.0) != 0.0:
        raise InputError(f"{file} has padding_value {content['padding_value']!r:.40}; it must be 0, which is silence")
    return WhisperFeatureExtractor(**numbers)  # type: ignore[no-untyped-call]


def _content(checkpoint: Checkpoint) -> tuple[Path, dict[str, Any]]:
    together, alone = checkpoint.directory / TOGETHER, checkpoint.directory / ALONE
    if together.is_file():
        content = read_object(together).get(WITHIN)
        if isinstance(content, dict):
            return together, content
    if alone.is_file():
        return alone, read_object(alone)
    advice = "pass the processor of the model as tokenizer=…" if checkpoint.kind == "memory" else "add the file"
    raise InputError(
        f"{checkpoint.target} reads sound and has neither {ALONE} nor {TOGETHER} with a {WITHIN}, "
        f"which say how; {advice}"
    )
