"""Mix: a calibration mix and its two files, the samples as JSONL and a manifest that describes them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from fairbits.artifacts import check_writable, write_files
from fairbits.errors import InputError
from fairbits.records import Count, Kind, Number, check_record, parse_object, to_json


@dataclass(frozen=True)
class Sample:
    """A text of one language and its number of tokens, including those that the tokenizer adds."""

    text: str
    lang: str
    tokens: int


@dataclass(frozen=True)
class LanguagePart:
    """The part that one language has in a mix."""

    samples: int
    tokens: int
    bytes: int

    @property
    def bytes_per_token(self) -> float:
        """The text that a token holds: where it is low, a budget of tokens buys little text."""
        return self.bytes / self.tokens


@dataclass(frozen=True, kw_only=True)
class Origin:
    """Where the samples of a mix come from.

    `model`      the owner of the tokenizer that counts, as it was named
    `hashes`     of the calibration documents of each language
    `tokenizer`  the fingerprint of the tokenizer
    `budget`     the requested tokens; None: as many as the text allowed
    `shares`     the requested share of each language
    `rounds`     how often a text was used, where that is more than once
    `notes`      such as that the model is itself quantized
    """

    model: str | None
    corpus: str
    hashes: Mapping[str, str]
    tokenizer: str
    sequence: int
    budget: int | None
    weights: str
    shares: Mapping[str, Number]
    seed: int
    rounds: Mapping[str, int]
    notes: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ManifestPart(LanguagePart):
    """The part of one language, as the manifest has it."""

    bytes_per_token: Number


@dataclass(frozen=True, kw_only=True)
class MixManifest(Origin):
    """The content of the manifest: the origin of the samples, their SHA-256, and how many there are."""

    sha256: str
    languages: Mapping[str, ManifestPart]
    short_samples: Count


MIX = Kind("fairbits.mix/1", "the manifest of a mix", "fairbits mix", MixManifest)


@dataclass(frozen=True, kw_only=True)
class Mix(Origin):
    """Samples for calibration, and where they come from."""

    samples: tuple[Sample, ...]

    @cached_property
    def languages(self) -> Mapping[str, LanguagePart]:
        """Samples, tokens and bytes of UTF-8 per language."""
        own = {code: [each for each in self.samples if each.lang == code] for code in self.shares}
        return {
            code: LanguagePart(
                samples=len(texts),
                tokens=sum(each.tokens for each in texts),
                bytes=sum(len(each.text.encode()) for each in texts),
            )
            for code, texts in own.items()
        }

    @cached_property
    def jsonl(self) -> bytes:
        """One JSON object per line with `text`, `lang` and `tokens`; in ASCII, so that no locale can misread it."""
        return b"".join(json.dumps(asdict(sample)).encode() + b"\n" for sample in self.samples)

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The description of the mix, for JSON: the same input gives the same manifest."""
        content = {
            "sha256": hashlib.sha256(self.jsonl).hexdigest(),
            "languages": {
                code: asdict(part) | {"bytes_per_token": round(part.bytes_per_token, 4)}
                for code, part in self.languages.items()
            },
            "short_samples": sum(sample.tokens < self.sequence for sample in self.samples),
        }
        return MIX.stamp(content | {name: getattr(self, name) for name in RECORDED})

    def save(self, path: str | Path) -> None:
        """Writes the samples to `path` and the manifest next to it; older files are replaced by both or by none."""
        path = check_target(path)
        write_files({path: self.jsonl, manifest_path(path): to_json(self.manifest)})

    @staticmethod
    def load(path: str | Path) -> "Mix":
        """Returns the mix saved at `path`, if its samples are those of its manifest."""
        path = Path(path).resolve()
        data, manifest = _read(path), MIX.read(manifest_path(path))
        if hashlib.sha256(data).hexdigest() != manifest.sha256:
            raise InputError(
                f"{path} is not what {manifest_path(path).name} says; a mix must be as it was saved: build it again"
            )
        rows = [parse_object(line, f"{path}:{i}") for i, line in enumerate(data.splitlines(), start=1)]
        samples = check_record(tuple[Sample, ...], rows, source=str(path))
        return Mix(samples=samples, **{name: getattr(manifest, name) for name in RECORDED})


RECORDED = tuple(field.name for field in fields(Origin))
"""The fields that the manifest holds as they are."""


def manifest_path(path: Path) -> Path:
    """Returns the path of the manifest of a mix: calib.jsonl.manifest.json next to calib.jsonl."""
    return path.with_name(path.name + ".manifest.json")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"{path} cannot be read ({error.strerror}); a mix is two files, as `fairbits mix` writes them"
        ) from None


def check_target(path: str | Path) -> Path:
    """Returns the path that a mix saved at `path` will have, with links followed, if it can be written there."""
    target = check_writable(path, example="calib.jsonl")
    check_writable(manifest_path(target), example="calib.jsonl")
    return target
