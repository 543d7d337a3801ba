"""Writes a quantized checkpoint block by block: what is finished survives an interruption, and OUT appears whole.

Until then everything is in a draft next to it, `.OUT.partial`:

    state.json  what the draft is for; plan.json is the plan
    done/       of each block: checksums and record (JSON), and its extra tensors
    model/      what becomes OUT; the indices and config.json, without which no loader reads it, come last

Threads pack, hash and write blocks while the next ones are computed (`WriteBehind`).
"""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType

from torch import Tensor

from fairbits.core.errors import InputError
from fairbits.core.files import (
    TEMPORARY,
    check_directory,
    clear_temporary,
    file_sha256,
    remove_tree,
    sync_directory,
    uninterrupted,
    write_whole,
)
from fairbits.core.memory import WAITING_BLOCKS
from fairbits.core.progress import Progress
from fairbits.core.records import Digest, FileName, Kind, Name, Positive, StoredBits, check_record, read_object
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.compressed_tensors import check_storable, planned_bytes, quantization_config, split_index
from fairbits.models.io.file_names import CONFIG, INDEX_SUFFIX
from fairbits.models.io.layer_files import layer_tensors, read_layer
from fairbits.models.io.safetensors_files import EXPLICIT, Piece, in_memory, map_tensor, read_header, write_tensors
from fairbits.models.scales.groups import Codes, check_planned
from fairbits.models.scales.scheme import Scheme

STATE = "state.json"
PLAN = "plan.json"
LEARNING = "learning"
FILES = {"model", "done", STATE, PLAN, LEARNING}  # all that a draft can hold, except for temporary files


@dataclass(frozen=True)
class DraftState:
    """What a draft is for: a draft is continued only if all of this is the same."""

    plan: Digest
    model: Digest  # its fingerprint
    tokenizer: Digest
    fairbits: Name  # the version
    device: Name  # what computes
    stored: Mapping[str, tuple[StoredBits, Positive | None]]  # bits and group size; null: a row has one scale


DRAFT = Kind(
    "fairbits.draft/2", "the state of a draft", "fairbits quantize, after you have deleted the draft", DraftState
)


@dataclass(frozen=True)
class BlockNote:
    """The note on a finished block: its record, and the SHA-256 of its files."""

    record: str
    sha256: Mapping[FileName, Digest]


def draft_directory(directory: str | Path) -> Path:
    """Returns where the checkpoint `directory` is drafted, next to it."""
    target = Path(os.path.abspath(directory))
    if not target.name:
        raise InputError(f"{target} is the root of all files; give a new directory in it")
    return target.with_name(f".{target.name}.partial")


def draft_lock(directory: str | Path) -> Path:
    """Returns the file that locks the draft of the checkpoint `directory`, such as `.tiny-w4.lock`."""
    return draft_directory(directory).with_suffix(".lock")


def is_draft_file(path: Path) -> bool:
    """Returns whether a path in a draft is one that a draft can hold."""
    return path.name in FILES or bool(TEMPORARY.fullmatch(path.name))


def clear_remains(directory: str | Path) -> None:
    """Removes what a process that was killed right after finishing the checkpoint `directory` left of its draft."""
    draft = draft_directory(directory)
    if not _is_there(directory) or not draft.is_dir() or (draft / "model").exists():
        return
    if all(map(is_draft_file, draft.iterdir())):
        remove_tree(draft)


def check_draft(directory: str | Path, *, resume: bool) -> bool:
    """Returns whether a draft of the checkpoint has finished blocks, which only `resume` may go on from."""
    draft = draft_directory(directory)
    done = draft / "done"
    # not so where a draft was killed at birth or after its end
    begun = (draft / STATE).is_file() and (draft / "model").is_dir() and done.is_dir()
    begun = begun and (any(done.iterdir()) or (draft / LEARNING).is_dir())
    if begun and not resume:
        raise InputError(f"{draft} holds what an interrupted run has finished; continue it with --resume, or delete it")
    return begun


def _is_there(directory: str | Path) -> bool:
    target = Path(os.path.abspath(directory))
    return target.exists() and (not target.is_dir() or any(target.iterdir()))


THRESHOLDS = "thresholds.safetensors"
NO_TENSORS: Mapping[str, Tensor] = MappingProxyType({})
NO_FILES: Mapping[str, bytes] = MappingProxyType({})

COMPANIONS = (".json", ".txt", ".model", ".tiktoken", ".jinja", ".py", ".md")  # what is next to the weights


@dataclass(frozen=True, eq=False)
class Finished:
    """What was added for a block: its quantized tensors, tensors that are not of the model, and its record."""

    layers: Mapping[str, Codes]
    extra: Mapping[str, Tensor]
    record: bytes


class QuantizedWriter:
    """The quantized checkpoint `directory`: blocks are added in any order, then it is finished.

    `schemes`   how every tensor that is quantized is rounded, by its name in `checkpoint`
    `identity`  the other fields of `DraftState`, all that decides the bytes: a draft is continued (`resume`) only if it
                was begun with the same
    A block is named by its index, and what is outside the blocks by None.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        directory: str | Path,
        *,
        schemes: Mapping[str, Scheme],
        identity: Mapping[str, str],
        resume: bool = False,
    ) -> None:
        check_storable(checkpoint, schemes)  # before anything is written
        self.checkpoint = checkpoint
        self._quantization_config = quantization_config(checkpoint, schemes)
        self._apart = split_index(checkpoint, schemes)
        self.schemes = dict(schemes)
        self.draft = draft_directory(directory)
        self.directory = self.draft.with_name(Path(directory).absolute().name)
        self._model, self._done = self.draft / "model", self.draft / "done"
        self._seen: set[int | None] = set()  # blocks whose files were written or checked in this run
        stored = {name: (scheme.bits, scheme.group_size) for name, scheme in self.schemes.items()}
        with self._writing():
            check_directory(self.directory, holding=())
            self._open(DraftState(**identity, stored=stored), resume=resume)

    @cached_property
    def size_bytes(self) -> int:
        return planned_bytes(self.checkpoint, self.schemes)

    def finished(self, index: int | None) -> Finished | None:
        """Returns what was added for a block, now or before an interruption; None if it is missing or damaged."""
        note = self._intact(index)
        if note is None:
            return None
        try:
            shard, extra = map(_mapped, self._files(index))
            shard |= self._apart.shapes
            names = self._blocks.get(index, [])
            weights = self.checkpoint.architecture.weights
            layers = {name: read_layer(shard, weights[name], self.schemes[name]) for name in names}
            for name, codes in layers.items():
                self._check_planned(name, codes)
        except InputError:
            return None  # nothing that is damaged is trusted: the block is done again
        self._seen.add(index)
        return Finished(layers, extra, note.record.encode())

    def add(
        self,
        index: int | None,
        layers: Mapping[str, Codes],
        *,
        extra: Mapping[str, Tensor] = NO_TENSORS,
        record: bytes = b"",
    ) -> None:
        """Writes a block: what is quantized in it, tensors that are not of the model, and a record in UTF-8."""
        differing = sorted(layers.keys() ^ set(self._blocks.get(index, [])))
        if differing:
            raise InputError(f"{_called(index)} must bring exactly the tensors that are planned, unlike {differing[0]}")
        tensors: dict[str, Tensor] = {}
        for name, codes in layers.items():
            tensors |= self._tensors(name, codes)
        sums: dict[str, str] = {}
        with self._writing():
            self._note(index).unlink(missing_ok=True)  # of a block that was damaged
            for path, content in zip(self._files(index), (tensors, extra), strict=True):
                path.unlink(missing_ok=True)
                if content:
                    sums[path.name] = write_tensors(path, in_memory(content))
            # only now does the block count as finished
            write_whole({self._note(index): [json.dumps({"record": record.decode(), "sha256": sums}).encode()]})
        self._seen.add(index)

    def finish(self, files: Mapping[str, bytes] = NO_FILES, *, progress: Progress | None = None) -> Path:
        missing = [index for index in self._indices if index not in self._seen and self.finished(index) is None]
        if missing:
            raise InputError(f"{_called(missing[0])} was not added; a checkpoint is finished with all of its blocks")
        with self._writing():
            if self._kept:
                write_tensors(self._model / self._shards[-1], self._kept, progress=progress)
            blocks = (*(block.index for block in self.checkpoint.architecture.blocks), None)
            extra = {name: tensor for index in blocks for name, tensor in _mapped(self._files(index)[1]).items()}
            if extra:  # joined in a file that is not part of the model
                write_tensors(self._model / THRESHOLDS, in_memory(extra))
            self._write_companions(files)
            self._apart.write(self._model)
            self._apart.write_indices(self._model, self._shards, size_bytes=self.size_bytes)
            self._write_config()
            check_directory(self.directory, holding=())
            with uninterrupted():
                self._model.replace(self.directory)
                try:
                    sync_directory(self.directory.parent)
                finally:
                    remove_tree(self.draft)  # what cannot be removed now, `clear_remains` removes later
        return self.directory

    def _open(self, state: DraftState, *, resume: bool) -> None:
        note = self.draft / STATE
        if check_draft(self.directory, resume=resume):
            begun = DRAFT.read(note)
            names = [field.name for field in fields(state)]
            differing = sorted(name for name in names if getattr(state, name) != getattr(begun, name))
            if differing:
                raise InputError(
                    f"{self.draft} was begun for another {' and '.join(differing)}; --resume continues only what is "
                    "the same: give the same plan and model, or delete it"
                )
            clear_temporary(self.draft)
            return
        if self.draft.exists():
            strange = sorted(path.name for path in self.draft.iterdir() if not is_draft_file(path))
            if strange:
                raise InputError(f"{self.draft} holds {strange[0]}, which is not part of a draft; move it away first")
            remove_tree(self.draft)
        self._model.mkdir(parents=True)
        self._done.mkdir()
        write_whole({note: [_json(DRAFT.stamp(asdict(state)))]})

    def _intact(self, index: int | None) -> BlockNote | None:
        if not self._note(index).is_file():
            return None
        try:
            note = check_record(BlockNote, read_object(self._note(index)))
        except InputError:
            return None  # nothing that is damaged is trusted: the block is done again
        sums = {path.name: file_sha256(path) for path in self._files(index) if path.is_file()}
        return note if note.sha256 == sums else None

    @cached_property
    def _blocks(self) -> dict[int | None, list[str]]:
        weights = self.checkpoint.architecture.weights
        blocks: dict[int | None, list[str]] = {}
        for name in self.schemes:
            blocks.setdefault(weights[name].block, []).append(name)
        return blocks

    @cached_property
    def _indices(self) -> list[int | None]:
        return sorted(self._blocks, key=lambda index: (index is None, index))

    @cached_property
    def _kept(self) -> list[Piece]:
        read = self.checkpoint.read_kept
        left_out = self.checkpoint.tied_copies | self.schemes.keys() | self._apart.parts.keys()
        kept = [self.checkpoint.kept_info(name) for name in self.checkpoint.tensors if name not in left_out]
        return [Piece(info.name, info.dtype, info.shape, partial(read, info.name)) for info in kept]

    @cached_property
    def _shards(self) -> list[str]:
        count = len(self._indices) + bool(self._kept)
        return [f"model-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]

    def _note(self, index: int | None) -> Path:
        return self._done / f"{_label(index)}.json"

    def _files(self, index: int | None) -> tuple[Path, Path]:
        extra = self._done / f"{_label(index)}.safetensors"
        if index not in self._blocks:
            return self._done / f"{_label(index)}-nothing.safetensors", extra
        return self._model / self._shards[self._indices.index(index)], extra

    def _tensors(self, name: str, codes: Codes) -> dict[str, Tensor]:
        self._check_planned(name, codes)
        weight = self.checkpoint.architecture.weights[name]
        tied = self.checkpoint.architecture.tied_parameters(name)
        tensors = layer_tensors(weight, codes, self.schemes[name], tied=tied)
        return {name: tensor for name, tensor in tensors.items() if name not in self._apart.shapes}

    def _check_planned(self, name: str, codes: Codes) -> None:
        shape, dtype = self.checkpoint.architecture.weights[name].shape, self.checkpoint.scale_dtype
        check_planned(name, codes, shape=shape, scheme=self.schemes[name], dtype=dtype)

    def _write_companions(self, files: Mapping[str, bytes]) -> None:
        for path in sorted(self.checkpoint.directory.iterdir()):
            skipped = path.name == CONFIG or path.name.endswith(INDEX_SUFFIX) or path.name in files
            if path.is_file() and path.suffix in COMPANIONS and not skipped:
                write_whole({self._model / path.name: [path.read_bytes()]})
        for name, content in files.items():
            if Path(name).name != name or name == CONFIG or name.endswith((".safetensors", INDEX_SUFFIX)):
                raise InputError(f"{name!r} cannot be added to a checkpoint; give the plain name of another file")
            write_whole({self._model / name: [content]})

    def _write_config(self) -> None:
        config = read_object(self.checkpoint.directory / CONFIG, finite=False)
        config.pop(EXPLICIT, None)  # the index of the model before
        written = self.checkpoint.scale_dtype
        if written != self.checkpoint.stated_dtype or not config.keys() & {"dtype", "torch_dtype"}:
            # if none is named, loaders guess it from the first tensor
            config["dtype"] = str(written).removeprefix("torch.")
        config |= self._apart.config_entries | {"quantization_config": self._quantization_config}
        write_whole({self._model / CONFIG: [_json(config)]})

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            raise InputError(
                f"{self.directory} cannot be written ({problem.strerror or problem}); make room there, then continue "
                "with --resume, or give another directory"
            ) from None


def _mapped(path: Path) -> dict[str, Tensor]:
    return {name: map_tensor(info) for name, info in read_header(path).items()} if path.is_file() else {}


def _label(index: int | None) -> str:
    return "outside" if index is None else f"block-{index:05}"


def _called(index: int | None) -> str:
    return "what is outside the blocks" if index is None else f"block {index}"


def _json(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n"


WRITERS = 2  # threads that write: one hashes while the other waits for the disk


class WriteBehind:
    """Calls functions in threads, in their order; to be used in a `with` statement.

    At most a few wait. A problem in a thread, such as a full disk, is raised in the caller at the next block or at the
    end. If the caller is interrupted, complete blocks are still written, so that a resumed run can use them.
    """

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(WRITERS, "fairbits-write")
        self._futures: deque[Future[None]] = deque()

    def __enter__(self) -> "WriteBehind":
        return self

    def __exit__(self, kind: object, problem: object, trace: object) -> None:
        try:
            if problem is None:
                self._wait(0)
        finally:
            self._threads.shutdown()

    def add(self, write: Callable[[], None]) -> None:
        """Has `write` called soon; waits while too many others are not done yet, and raises what one of them raised."""
        self._wait(WAITING_BLOCKS - 1)
        self._futures.append(self._threads.submit(write))

    def _wait(self, most: int) -> None:
        """Waits until at most so many are not done; if one failed, none that has not begun is begun."""
        while self._futures and (len(self._futures) > most or self._futures[0].done()):
            try:
                self._futures.popleft().result()
            except BaseException:
                for future in self._futures:
                    future.cancel()
                raise
