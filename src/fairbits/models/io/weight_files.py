"""The weights of a model: one safetensors file, or shards with an index, in a directory or on the Hub.

Of files on the Hub only the bytes that are asked for are read. The revision is resolved to a commit once. For a large
file the Hub answers with the signed address of a store, which holds for about an hour: it is kept, and the Hub is asked
again where it is refused. Size and ETags show that the bytes still belong to the same file.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import sleep
from typing import Any
from urllib.parse import urlsplit

from huggingface_hub import HfApi, constants, hf_hub_download, hf_hub_url
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status, http_stream_backoff  # type: ignore[attr-defined]

from fairbits.core.errors import InputError
from fairbits.core.records import read_object
from fairbits.models.io.file_names import INDEX, INDEX_SUFFIX, SINGLE, no_weights
from fairbits.models.io.safetensors_files import EXPLICIT, StoredTensor, parse_header, read_header
from fairbits.models.loading import no_progress_bars

TRIES = 5  # of an answer that ends early; each goes on where the one before ended
FIRST_WAIT_S = 1.0  # before something is tried again, doubled every time
LONGEST_WAIT_S = 8.0


@dataclass(frozen=True)
class FileVersion:
    """What is known of a file since the first answer, which later ones must agree with."""

    size: int
    hub_etag: str | None
    store_etag: str | None  # of the answer that had the bytes; the same as the Hub's if it had them itself
    store: str | None  # the address that the Hub sent the reader to, if any


class HubFiles:
    """The files of a repository at one commit; errors name them by `path`, such as `bigscience/bloom-560m`."""

    def __init__(self, repo_id: str, revision: str | None = None) -> None:
        self.repo_id, self.path = repo_id, Path(repo_id)
        api = HfApi()
        self._hub = urlsplit(api.endpoint)[:2]
        with self._reaching():
            model = api.model_info(repo_id, revision=revision)
        self.commit = str(model.sha)
        self.names = tuple(sorted(file.rfilename for file in model.siblings or ()))
        self._versions: dict[str, FileVersion] = {}

    def has(self, name: str) -> bool:
        return name in self.names

    def fetch(self, name: str) -> Path:
        with self._reaching(), no_progress_bars():
            return Path(hf_hub_download(self.repo_id, name, revision=self.commit))

    def read_object(self, name: str) -> dict[str, Any]:
        return read_object(self.fetch(name))

    def read_header(self, name: str) -> dict[str, StoredTensor]:
        """Returns the tensors of a safetensors file, by two requests: one for the length of its header."""

        def read(start: int, count: int) -> bytes:
            data = bytearray(count)
            self._fill(memoryview(data), name, start)
            return bytes(data)

        length = read(0, 8)  # this answer says how large the file is
        size = self._versions[name].size
        return parse_header(self.path / name, size, lambda start, count: read(start, count) if start else length)

    def read_into(self, view: memoryview, info: StoredTensor, at: int) -> None:
        self._fill(view, info.file.name, info.start + at)

    def _fill(self, view: memoryview, name: str, start: int) -> None:
        done, wait = 0, FIRST_WAIT_S
        for left in reversed(range(TRIES)):
            received, problem = self._receive(view[done:], name, start + done)
            done += received
            if done == len(view):
                return
            if left:
                sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT_S)
        raise InputError(
            f"{self.path / name} was sent only in part: {done:,} of {len(view):,} bytes from byte {start:,}, after "
            f"{TRIES} requests ({problem}); every answer must be complete: try again later"
        )

    def _receive(self, view: memoryview, name: str, start: int) -> tuple[int, str]:
        if not len(view):
            return 0, ""
        version = self._versions.get(name)  # once: other threads change it
        with self._answer(version, name, start, start + len(view) - 1) as response:
            if version is not None and version.store is not None and not _is_same(response, version):
                self._versions[name] = replace(version, store=None)  # next time the Hub is asked
                return 0, f"status {response.status_code}, or another ETag than before"
            self._check(response, name, start)
            if version is None or version.store is None:
                self._versions[name] = self._version(response, version, name)
            done = 0
            try:
                for chunk in response.iter_raw():
                    if len(chunk) > len(view) - done:
                        raise InputError(f"{self.path / name} was sent with more bytes than were asked for; try again")
                    view[done : done + len(chunk)] = chunk
                    done += len(chunk)
            except InputError:
                raise
            except Exception as problem:  # of the HTTP library, which the library of the Hub has changed before
                return done, f"{type(problem).__name__}: {problem}"
            return done, "the connection was closed"

    @contextmanager
    def _answer(self, version: FileVersion | None, name: str, first: int, last: int) -> Iterator[Any]:
        if version is not None and version.store is not None:
            url, headers = version.store, {}  # the store gets no token
        else:
            url, headers = hf_hub_url(self.repo_id, name, revision=self.commit), build_hf_headers()
        asked = {**headers, "Range": f"bytes={first}-{last}", "Accept-Encoding": "identity"}
        waits: dict[str, Any] = {"base_wait_time": FIRST_WAIT_S, "max_wait_time": LONGEST_WAIT_S}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with (
            self._reaching(name),
            http_stream_backoff("GET", url, headers=asked, timeout=timeout, follow_redirects=True, **waits) as response,
        ):
            yield response

    def _check(self, response: Any, name: str, start: int) -> None:
        hf_raise_for_status(response)
        file, part = self.path / name, _part(response)
        if response.status_code != 206:
            raise InputError(
                f"{file} was to be read in parts, and the server answered with status {response.status_code} instead "
                f"of 206: it does not serve parts of files. Fetch the model: hf download {self.repo_id} --local-dir DIR"
            )
        if part is None or part[0] != start:
            stated = response.headers.get("Content-Range")
            raise InputError(f"{file} was asked for from byte {start:,}, and the answer has {stated!r:.80}; try again")

    def _version(self, response: Any, version: FileVersion | None, name: str) -> FileVersion:
        size = (_part(response) or (0, 0))[1]
        store_etag = _tag(response, "ETag")
        linked = (_tag(answer, "X-Linked-ETag") for answer in (*response.history, response))
        hub_etag = next(filter(None, linked), store_etag)
        if version is not None and (version.size, version.hub_etag) != (size, hub_etag):
            raise InputError(
                f"{self.path / name} changed while it was read (ETag {version.hub_etag}, now {hub_etag}; "
                f"{version.size:,} bytes, now {size:,}); all parts must be of one file: start again"
            )
        url = str(response.url)
        return FileVersion(size, hub_etag, store_etag, None if urlsplit(url)[:2] == self._hub else url)

    @contextmanager
    def _reaching(self, name: str = "") -> Iterator[None]:
        try:
            yield
        except InputError:
            raise
        except Exception as problem:  # no connection, no such model, no permission: each with its own class
            raise unreachable(self.repo_id, problem, name=name) from problem


def unreachable(repo_id: str, problem: Exception, *, name: str = "", done: str = "read") -> InputError:
    """Returns the error for a model, or a file of one, that the Hub does not give."""
    file = f" ({name})" if name else ""
    reason = " ".join(str(problem).split()) or type(problem).__name__
    return InputError(
        f"{repo_id}{file} is not a local directory, and it cannot be {done} from the Hugging Face Hub ({reason:.400}). "
        f"Pass a local directory; where there is a connection, `hf download {repo_id} --local-dir DIR` makes one"
    )


def _is_same(response: Any, version: FileVersion) -> bool:
    part = _part(response)
    same = part is None or (part[1], _tag(response, "ETag")) == (version.size, version.store_etag)
    return response.status_code < 400 and same


def _part(response: Any) -> tuple[int, int] | None:
    match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
    return None if match is None else (int(match[1]), int(match[2]))


def _tag(response: Any, header: str) -> str | None:
    """Returns an ETag without its quotes; that it may be a weak one does not matter, as nothing is compressed."""
    tag: str | None = response.headers.get(header)
    return None if tag is None else tag.removeprefix("W/").strip('"')


FILE_NAME = r"[^/\\:\0]+"  # leads nowhere else


@dataclass(frozen=True)
class Directory:
    """The files of a model in a local directory."""

    path: Path

    def has(self, name: str) -> bool:
        """Returns whether there is a file, or a link to one, as in the cache of the Hub."""
        return (self.path / name).is_file()

    def read_object(self, name: str) -> dict[str, Any]:
        return read_object(self.path / name)

    def read_header(self, name: str) -> dict[str, StoredTensor]:
        return read_header(self.path / name)


Folder = Directory | HubFiles


def read_weights(folder: Folder, explicit: object = None) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    """Returns every tensor in file order, and notes on odd files; `explicit` is the entry EXPLICIT of config.json."""
    if explicit is not None:
        return _read_explicit(folder, explicit)
    if folder.has(SINGLE) and folder.has(INDEX):
        raise InputError(f"{folder.path} holds both {SINGLE} and {INDEX}; keep the one that belongs to the model")
    if folder.has(INDEX):
        return _read_shards(folder, INDEX)
    if folder.has(SINGLE):
        return folder.read_header(SINGLE), ()
    raise no_weights(folder.path)


def _read_explicit(folder: Folder, name: object) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    if not isinstance(name, str) or not re.fullmatch(rf"{FILE_NAME}({re.escape(INDEX_SUFFIX)}|\.safetensors)", name):
        raise InputError(
            f"{folder.path / 'config.json'} names the weights {name!r:.80} ({EXPLICIT}); it must be a .safetensors "
            "file or its index next to it"
        )
    if not folder.has(name):
        raise InputError(f"{folder.path / 'config.json'} names the weights {name}, which are missing; fetch them")
    return _read_shards(folder, name) if name.endswith(INDEX_SUFFIX) else (folder.read_header(name), ())


def _read_shards(folder: Folder, name: str) -> tuple[dict[str, StoredTensor], tuple[str, ...]]:
    index, path = folder.read_object(name), folder.path / name
    weight_map = index.get("weight_map")
    named = isinstance(weight_map, dict) and all(isinstance(shard, str) for shard in weight_map.values())
    if not weight_map or not named:
        raise InputError(f"{path} has no weight_map from tensor names to file names; fetch it again")
    expected: dict[str, set[str]] = defaultdict(set)
    for tensor, shard in weight_map.items():
        expected[shard].add(tensor)
    tensors: dict[str, StoredTensor] = {}
    for shard in sorted(expected):
        _check_shard(folder, path, shard)
        stored = folder.read_header(shard)
        _check_agreement(path, shard, expected=expected[shard], stored=stored.keys())
        tensors |= stored
    size, metadata = sum(info.nbytes for info in tensors.values()), index.get("metadata")
    stated = metadata.get("total_size", size) if isinstance(metadata, dict) else size
    # not an error: conversions that drop tied copies leave the old total behind, and every shard has been checked
    return tensors, () if stated == size else (f"the index states {stated!r:.40} bytes, the shards hold {size}",)


def _check_shard(folder: Folder, index: Path, shard: str) -> None:
    """Raises unless the shard is a file next to its index: the name must not lead elsewhere."""
    if not re.fullmatch(rf"{FILE_NAME}\.safetensors", shard):
        raise InputError(f"{index} names the shard {shard!r:.80}; it must be a .safetensors file next to the index")
    if not folder.has(shard):
        raise InputError(f"{index} names the shard {shard}, which is missing; fetch it into {index.parent}")


def _check_agreement(index: Path, shard: str, *, expected: set[str], stored: Iterable[str]) -> None:
    missing, extra = sorted(expected - set(stored)), sorted(set(stored) - expected)
    if missing or extra:
        troubles = [f"lacks {_some(missing)}"] * bool(missing) + [f"also holds {_some(extra)}"] * bool(extra)
        raise InputError(
            f"{index} does not fit {shard}, which {' and '.join(troubles)}; "
            "index and shards must come from the same model: fetch them again"
        )


def _some(names: list[str]) -> str:
    return ", ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
