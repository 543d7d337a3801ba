"""Where a model comes from: a directory, the Hugging Face Hub, a GGUF file, or the package itself.

torch is imported only to download or to convert a model.
"""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fairbits.core.errors import InputError
from fairbits.core.files import did_you_mean
from fairbits.models.embedded import PREFIX, find_embedded
from fairbits.models.io.file_names import CONFIG, INDEX, PICKLES, SINGLE, find_pickle, no_weights, pickle_advice

SourceKind = Literal["directory", "hub", "gguf", "embedded", "memory"]
HUB_ID = r"(\w[\w.-]*/)?\w[\w.-]*"
WANTED = ["README.md", "*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"]
UNWANTED = ["*/*", "consolidated*"]  # other formats of the same weights


@dataclass(frozen=True)
class ModelSource:
    """A model in a local directory: where it came from, notes, and the kurtosis to give to its blocks (`outliers`)."""

    kind: SourceKind
    directory: Path
    notes: tuple[str, ...] = ()
    outliers: Mapping[int, float] = field(default_factory=dict)


def find_source(target: str | Path, *, revision: str | None = None, with_code: bool = False) -> ModelSource:
    """Returns the source of the model `target`, after downloading or converting it if needed."""
    kind, path = check_source(target, revision=revision), Path(os.path.expanduser(target))
    if kind == "embedded":
        directory, outliers = find_embedded(str(target))
        return ModelSource("embedded", directory, outliers=outliers)
    if kind == "gguf":
        from fairbits.models.io.gguf_file import dequantize_gguf

        return ModelSource("gguf", *dequantize_gguf(path))
    return ModelSource(kind, path if kind == "directory" else _download(str(target), revision, with_code=with_code))


def check_source(target: str | Path, *, revision: str | None = None) -> SourceKind:
    """Returns what `target` names; raises if it names no model. Nothing is downloaded, converted or read."""
    if not isinstance(target, str | Path) or not str(target):
        raise InputError(f"the model is {target!r}; it must be a directory, a .gguf file, a Hub id or {PREFIX}tiny")
    path = Path(os.path.expanduser(target))
    if revision is not None and not is_hub_id(target):
        raise InputError(f"the revision {revision!r} was given for {target}; only a model on the Hub has revisions")
    if str(target).startswith(PREFIX):
        find_embedded(str(target))
        return "embedded"
    if os.path.isdir(path):
        _check_format(path)
        return "directory"
    if path.suffix == ".gguf" and os.path.isfile(path):
        return "gguf"
    if os.path.isfile(path):
        if path.suffix in PICKLES:
            raise InputError(pickle_advice(path.parent, path.name))
        raise InputError(f"{path} is a single file; pass the directory that holds it, config.json and the tokenizer")
    if is_hub_id(target):
        return "hub"
    kinds = f"a directory, a .gguf file, a Hub id or {PREFIX}tiny"
    raise InputError(f"there is no {target}{did_you_mean(path)}; the model must be {kinds}")


def is_hub_id(target: str | Path) -> bool:
    """Returns whether `target` can only be the id of a model on the Hub."""
    path = Path(os.path.expanduser(target))
    named = re.fullmatch(HUB_ID, str(target)) is not None
    return named and not os.path.exists(path) and path.suffix not in PICKLES | {".gguf", ".safetensors"}


def _check_format(directory: Path) -> None:
    if (directory / SINGLE).exists() or (directory / INDEX).exists():
        return
    try:
        names = sorted(path.name for path in directory.iterdir())
    except OSError as problem:
        raise InputError(f"{directory} cannot be listed ({problem.strerror}); it must be readable") from None
    pickled = find_pickle(names)
    if pickled is not None:
        raise InputError(pickle_advice(directory, pickled))
    for name in names:
        if Path(name).suffix == ".gguf":
            raise InputError(f"{directory} holds GGUF files; pass the file itself: {directory / name}")
    if CONFIG not in names:  # which may name other files
        raise no_weights(directory)


def _download(repo_id: str, revision: str | None, *, with_code: bool) -> Path:
    from huggingface_hub import snapshot_download

    from fairbits.models.io.weight_files import unreachable

    wanted = [*WANTED, "*.py"] if with_code else WANTED
    try:
        snapshot = snapshot_download(repo_id, revision=revision, allow_patterns=wanted, ignore_patterns=UNWANTED)
    except Exception as problem:  # no connection, no such model, no permission, no space: each with its own class
        raise unreachable(repo_id, problem, done="downloaded") from problem
    directory = Path(os.fspath(snapshot))
    if not (directory / SINGLE).exists() and not (directory / INDEX).exists():
        raise InputError(
            f"{directory}, the snapshot of {repo_id}, holds no {SINGLE}: without a connection it may be incomplete; "
            "pickles are not read: pass a revision with safetensors (conversions are offered as refs/pr/NUMBER), or "
            "convert the model into a local directory"
        )
    return directory
