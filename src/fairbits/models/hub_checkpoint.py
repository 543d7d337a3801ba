"""HubCheckpoint: a model on the Hugging Face Hub whose tensors are read there, one after the other; none is kept."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NoReturn

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError

from fairbits.core.checks import sequence
from fairbits.core.errors import InputError
from fairbits.core.memory import REQUEST_BYTES
from fairbits.core.records import read_object
from fairbits.models.checkpoint import Checkpoint, hash_name
from fairbits.models.io.file_names import CONFIG, INDEX, INDEX_SUFFIX, SINGLE, find_pickle, pickle_advice
from fairbits.models.io.safetensors_files import EXPLICIT, StoredTensor, TensorInfo, read_bytes
from fairbits.models.io.weight_files import HubFiles
from fairbits.models.source import is_hub_id

REQUESTS_AHEAD = 8  # of parts of weights, while the ones before are used: one connection does not fill a fast line


def open_to_read(target: str | Path, *, trust_remote_code: bool = False, revision: str | None = None) -> Checkpoint:
    """Returns a model whose weights will be read once: on the Hub, unless its cache or a directory has them all."""
    if not isinstance(target, str | Path) or not str(target) or not is_hub_id(target):
        return Checkpoint(target, trust_remote_code=trust_remote_code, revision=revision)
    cached = _find_cached(str(target), revision)
    if cached is None:
        return HubCheckpoint(str(target), trust_remote_code=trust_remote_code, revision=revision)
    if trust_remote_code:  # its Python files may be missing
        return Checkpoint(target, trust_remote_code=True, revision=revision)
    checkpoint = Checkpoint(cached)
    checkpoint.target, checkpoint.revision, checkpoint.kind = str(target), revision, "hub"
    return checkpoint


def split_revision(target: str | Path) -> tuple[str | Path, str | None]:
    """Returns a target and its revision, if it reads ID@REVISION."""
    name, at, revision = str(target).partition("@")
    return (name, revision) if at and revision and not os.path.exists(target) and is_hub_id(name) else (target, None)


class HubCheckpoint(Checkpoint):
    """A model on the Hub of which only small files are fetched; weights can be read, but the model cannot be run."""

    def __init__(self, target: str, *, trust_remote_code: bool = False, revision: str | None = None) -> None:
        self.target, self.revision, self.kind = target, revision, "hub"
        self.trust_remote_code = trust_remote_code
        self._hub = HubFiles(target, revision)
        if not self._hub.has(CONFIG):
            raise InputError(f"{target} has no {CONFIG}; it must be a model of transformers with safetensors")
        self.directory = self._hub.fetch(CONFIG).parent
        self._raw_config = read_object(self.directory / CONFIG, finite=False)
        if EXPLICIT not in self._raw_config:
            self._check_format()
        for name in self._hub.names:
            if name == "outliers.json" or (trust_remote_code and name.endswith(".py") and "/" not in name):
                self._hub.fetch(name)
        self._read_headers(self._hub)

    def _check_format(self) -> None:
        if self._hub.has(SINGLE) or self._hub.has(INDEX):
            return
        names = [name for name in self._hub.names if "/" not in name]
        pickled = find_pickle(names)
        if pickled is None:
            listed = ", ".join(names[:8]) + (" …" if len(names) > 8 else "")
            raise InputError(f"{self.target} on the Hub holds neither {SINGLE} nor {INDEX}; found: {listed}")
        raise InputError(
            f"{pickle_advice(self._hub.path, pickled)}. Or name a revision with safetensors, if there is one: "
            f"conversions are offered as pull requests, and {self.target}@refs/pr/NUMBER (for `inspect`, --revision "
            "refs/pr/NUMBER) reads one"
        )

    def read(self, name: str) -> torch.Tensor:
        name = self._info(name).name
        [(_, whole)] = self._read_whole([self._location(name)])
        return self.slices[name].cut(whole).contiguous() if name in self.slices else whole

    def read_pinned(self, name: str) -> torch.Tensor:
        return self.read(name)

    def announce(self, name: str) -> None:
        pass  # `stream` reads ahead

    def stream(self, names: Iterable[str] | None = None) -> Iterator[tuple[TensorInfo, torch.Tensor]]:
        """Yields tensors by their names in the files; all of them read to the end make the fingerprint known too."""
        wanted = set(self.tensors) if names is None else {self._info(name).name for name in sequence("names", names)}
        places: dict[tuple[str, int], tuple[StoredTensor, list[str]]] = {}
        for name in wanted:
            place = self._location(name)  # several layers of an expert may share it
            places.setdefault((place.name, place.start), (place, []))[1].append(name)
        digest = self._hash_config() if names is None else None
        for place, whole in self._read_whole(places[key][0] for key in sorted(places)):
            stored = self.files[place.name]
            if digest is not None:
                if place.start == stored.start:
                    hash_name(digest, stored)
                digest.update(whole.reshape(-1).view(torch.uint8).numpy().data)
            for name in sorted(places[place.name, place.start][1]):
                part = self.slices.get(name)
                yield self.tensors[name], whole if part is None else part.cut(whole).contiguous()
            del whole  # before the next one is read
        if digest is not None:
            self.__dict__["fingerprint"] = digest.hexdigest()

    def _read_whole(self, places: Iterable[StoredTensor]) -> Iterator[tuple[StoredTensor, torch.Tensor]]:
        for place, at, part in self._parts(places):
            if at == 0:
                data = torch.empty(place.nbytes, dtype=torch.uint8)
            data.numpy().data[at : at + len(part)] = part
            if at + len(part) == place.nbytes:
                whole = data.view(place.dtype).reshape(place.shape)
                del data
                yield place, whole
                del whole

    def _parts(self, places: Iterable[StoredTensor]) -> Iterator[tuple[StoredTensor, int, bytearray]]:
        return read_bytes(places, self._hub.read_into, size=REQUEST_BYTES, ahead=REQUESTS_AHEAD)

    def _bytes(self) -> Iterator[tuple[TensorInfo, int, bytearray | memoryview]]:
        yield from self._parts(info for _, info in sorted(self.files.items()))

    def tokenizer(self) -> NoReturn:
        self.load()

    def load(self, *_: object, **__: object) -> NoReturn:
        raise InputError(
            f"{self.target} was opened to read its weights on the Hub, one after the other; to run it, open it with "
            f"fairbits.Checkpoint({self.target!r}), which downloads it"
        )


def _find_cached(repo_id: str, revision: str | None) -> Path | None:
    try:
        directory = Path(os.fspath(snapshot_download(repo_id, revision=revision, local_files_only=True)))
    except LocalEntryNotFoundError:
        return None
    if not (directory / CONFIG).is_file():
        return None
    explicit = read_object(directory / CONFIG, finite=False).get(EXPLICIT)
    names = [explicit] if isinstance(explicit, str) else [SINGLE, INDEX]
    paths = [directory / name for name in names if (directory / name).is_file()]
    maps = [read_object(path).get("weight_map") for path in paths if path.name.endswith(INDEX_SUFFIX)]
    shards = {str(shard) for weight_map in maps if isinstance(weight_map, dict) for shard in weight_map.values()}
    return directory if paths and all((directory / name).is_file() for name in shards) else None
