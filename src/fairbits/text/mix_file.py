"""Mix: a calibration mix and its two files, the samples as JSONL and a manifest that describes them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from fairbits.core.errors import InputError
from fairbits.core.files import check_writable, write_files
from fairbits.core.records import (
    Code,
    Count,
    Digest,
    Kind,
    Matching,
    Name,
    Number,
    Positive,
    Weight,
    check_record,
    check_same_keys,
    check_sum,
    check_within,
    parse_object,
    to_json,
)

Weighting = Annotated[str, Matching("equal|proportional|given", "equal, proportional or given")]


@dataclass(frozen=True)
class Sample:
    """A text of one language and its number of tokens, including those that the tokenizer adds."""

    text: Name
    lang: Code
    tokens: Positive


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
    hashes: Mapping[Code, Digest]
    tokenizer: Digest
    sequence: Positive
    budget: Positive | None
    weights: Weighting
    shares: Mapping[Code, Weight]
    seed: Count
    rounds: Mapping[Code, Annotated[Positive, Ge(2)]]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class ManifestPart:
    """The part of one language, as the manifest has it."""

    samples: Positive
    tokens: Positive
    bytes: Positive
    bytes_per_token: Number


@dataclass(frozen=True, kw_only=True)
class MixManifest(Origin):
    """The content of the manifest: the origin of the samples, their SHA-256, and how many there are."""

    sha256: Digest
    languages: Mapping[Code, ManifestPart]
    short_samples: Count

    def __post_init__(self) -> None:
        """Checks that all parts have the same languages, and that their shares are shares."""
        for name, found in (("languages", self.languages), ("hashes", self.hashes)):
            check_same_keys("shares", self.shares, name, found)
        check_within("rounds", self.rounds, "shares", self.shares)
        check_sum("shares", self.shares)
        for code, part in self.languages.items():
            if part.bytes_per_token != round(part.bytes / part.tokens, 4):
                raise InputError(
                    f"languages.{code}.bytes_per_token is {part.bytes_per_token:g}; it must be bytes over tokens"
                )


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
        mix = Mix(samples=samples, **{name: getattr(manifest, name) for name in RECORDED})
        mix._check_counts(path, manifest)
        return mix

    def _check_counts(self, path: Path, manifest: MixManifest) -> None:
        """Raises unless the samples are as many, of the languages, as the manifest says."""
        try:
            check_within("a sample", (each.lang for each in self.samples), "shares", self.shares)
            for code, part in self.languages.items():
                said = manifest.languages[code]
                for name in ("samples", "tokens", "bytes"):
                    if getattr(part, name) != getattr(said, name):
                        raise InputError(
                            f"the samples of {code} have {getattr(part, name):,} {name}; languages.{code}.{name} is "
                            f"{getattr(said, name):,}, and both must agree"
                        )
            short = sum(each.tokens < self.sequence for each in self.samples)
            if short != manifest.short_samples:
                raise InputError(f"{short:,} samples are short; short_samples is {manifest.short_samples:,}")
        except InputError as problem:
            raise InputError(f"{path} and its manifest differ: {problem}; build the mix again") from None


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
