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
from fairbits.version import __version__

SCHEMA = "fairbits.mix/1"


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
class Mix:
    """Samples for calibration, and where they come from.

    `model`      the owner of the tokenizer that counts, as it was named
    `hashes`     of the calibration documents of each language
    `tokenizer`  the fingerprint of the tokenizer
    `budget`     the requested tokens; None: as many as the text allowed
    `shares`     the requested share of each language
    `rounds`     how often a text was used, where that is more than once
    `notes`      such as that the model is itself quantized
    """

    samples: tuple[Sample, ...]
    model: str | None
    corpus: str
    hashes: Mapping[str, str]
    tokenizer: str
    sequence: int
    budget: int | None
    weights: str
    shares: Mapping[str, float]
    seed: int
    rounds: Mapping[str, int]
    notes: tuple[str, ...]

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
        return {
            "schema": SCHEMA,
            "fairbits": __version__,
            "sha256": hashlib.sha256(self.jsonl).hexdigest(),
            "languages": {
                code: asdict(part) | {"bytes_per_token": round(part.bytes_per_token, 4)}
                for code, part in self.languages.items()
            },
            "short_samples": sum(sample.tokens < self.sequence for sample in self.samples),
        } | {name: getattr(self, name) for name in RECORDED}

    def save(self, path: str | Path) -> None:
        """Writes the samples to `path` and the manifest next to it; older files are replaced by both or by none."""
        path = check_target(path)
        manifest = json.dumps(self.manifest, ensure_ascii=False, indent=1).encode() + b"\n"
        write_files({path: self.jsonl, manifest_path(path): manifest})

    @staticmethod
    def load(path: str | Path) -> "Mix":
        """Returns the mix saved at `path`, if its samples are those of its manifest."""
        path = Path(path).resolve()
        data, manifest = _read(path), _manifest(manifest_path(path))
        if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
            raise InputError(
                f"{path} is not what {manifest_path(path).name} says; a mix must be as it was saved: build it again"
            )
        samples = tuple(Sample(**json.loads(line)) for line in data.splitlines())
        recorded = {name: manifest[name] for name in RECORDED}
        return Mix(samples=samples, **(recorded | {"notes": tuple(recorded["notes"])}))


RECORDED = tuple(field.name for field in fields(Mix) if field.name != "samples")
"""The fields that the manifest holds as they are."""


def manifest_path(path: Path) -> Path:
    """Returns the path of the manifest of a mix: calib.jsonl.manifest.json next to calib.jsonl."""
    return path.with_name(path.name + ".manifest.json")


def _manifest(path: Path) -> dict[str, Any]:
    try:
        manifest = json.loads(_read(path))
    except ValueError as error:
        raise InputError(
            f"{path} is not JSON ({error}); it must be the manifest of a mix: build the mix again"
        ) from None
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        found = manifest.get("schema") if isinstance(manifest, dict) else type(manifest).__name__
        raise InputError(f"{path} has schema {found!r}; this version of fairbits reads {SCHEMA}: build the mix again")
    missing = [name for name in ("sha256", *RECORDED) if name not in manifest]
    if missing:
        raise InputError(f"{path} lacks {', '.join(missing)}; it must be a complete manifest: build the mix again")
    return manifest


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
