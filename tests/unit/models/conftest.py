"""Small random models, as files and as shapes only, and a server in the layout of the Hugging Face Hub."""

import hashlib
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch
import transformers as t
from safetensors import safe_open
from transformers.core_model_loading import revert_weight_conversion

from fairbits.models.io import weight_files

Shapes = dict[str, tuple[int, ...]]


@pytest.fixture(scope="session")
def save() -> Any:
    """Returns the function that saves a random model and reads its configuration and shapes back from the files."""

    def save(cls: Any, config: Any, directory: Path) -> tuple[Any, Shapes]:
        t.logging.disable_progress_bar()
        torch.manual_seed(0)
        model = cls(config)
        with torch.no_grad():
            for parameter in model.parameters():  # norms are all alike at first
                parameter.add_(0.1 * torch.randn_like(parameter))
        model.save_pretrained(directory)
        with safe_open(directory / "model.safetensors", "pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no mapping
        return t.AutoConfig.from_pretrained(directory), shapes

    return save


@pytest.fixture(scope="session")
def described() -> Any:
    """Returns the function that gives a configuration and the shapes in a file of a class, made without weights."""

    def described(cls: Any, config: Any) -> tuple[Any, Shapes]:
        config.architectures = [cls.__name__]
        with torch.device("meta"):
            model = cls(config)
        state = revert_weight_conversion(model, model.state_dict())
        return config, {name: tuple(x.shape) for name, x in state.items() if name not in model.all_tied_weights_keys}

    return described


@dataclass(frozen=True)
class Sent:
    """An answer that had bytes of a file: from `start`, `count` of them."""

    name: str
    status: int
    start: int
    count: int


@dataclass
class Hub:
    """Repositories by id and revision. Large files lie in a store, as on the Hub: another host, with signed addresses.

    `faults` are taken by the next answers with bytes of weights: a status, "cut" (half of the bytes), "whole" (all of
    the file, whatever was asked for), or a function that is called before a right answer.
    """

    port: int = 0
    repositories: dict[tuple[str, str], Path] = field(default_factory=dict)
    sent: list[Sent] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)  # every request, as "GET /path"
    faults: list[Any] = field(default_factory=list)
    signature: int = 0
    store_tag: str = "of the store"
    leaked: bool = False  # whether the store was sent a token
    with_store: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, repo_id: str, directory: Path, revision: str = "main") -> None:
        """Adds a model at a revision, and at the commit of that revision."""
        self.repositories[repo_id, revision] = directory
        self.repositories[repo_id, commit_of(repo_id, revision)] = directory

    def next_fault(self) -> Any:
        with self.lock:
            return self.faults.pop(0) if self.faults else None


def commit_of(repo_id: str, revision: str) -> str:
    return hashlib.sha1(f"{repo_id} {revision}".encode()).hexdigest()


class Server(ThreadingHTTPServer):
    request_queue_size = 64  # with fewer, some of the connections at the same time wait for a second


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def log_message(self, *_: Any) -> None:
        """Prints nothing."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        self.hub.asked.append(f"{self.command} {path}")
        kind, *rest = path.strip("/").split("/")
        if kind == "api":
            what, revision = rest[3:] or ("revision", "main")
            self.describe("/".join(rest[1:3]), unquote(revision), tree=what == "tree")
        elif kind == "store":
            self.hub.leaked |= "Authorization" in self.headers
            expired = urlsplit(self.path).query != str(self.hub.signature)
            self.answer(403) if expired else self.serve("/".join(rest[:2]), *map(unquote, rest[2:]))
        elif self.headers.get("Authorization") != "Bearer hf_test":
            self.answer(401)
        else:
            self.resolve(f"{kind}/{rest[0]}", unquote(rest[2]), rest[3])

    def describe(self, repo_id: str, revision: str, *, tree: bool) -> None:
        directory = self.hub.repositories.get((repo_id, revision))
        if directory is None:
            self.answer(404, {"X-Error-Code": "RepoNotFound"})
            return
        files = [path for path in directory.iterdir() if path.is_file()]
        described: Any = {
            "id": repo_id,
            "sha": commit_of(repo_id, revision),
            "siblings": [{"rfilename": path.name} for path in files],
        }
        if tree:
            listed = [(path.name, path.stat().st_size, tag_of(path)) for path in files]
            described = [{"type": "file", "path": name, "size": size, "oid": tag} for name, size, tag in listed]
        self.answer(200, {"Content-Type": "application/json"}, json.dumps(described).encode())

    def resolve(self, repo_id: str, revision: str, name: str) -> None:
        file = self.hub.repositories[repo_id, revision] / name
        if not file.is_file():
            self.answer(404, {"X-Error-Code": "EntryNotFound"})
        elif self.hub.with_store and name.endswith(".safetensors"):
            place = f"http://localhost:{self.hub.port}/store/{repo_id}/{revision}/{name}?{self.hub.signature}"
            linked = {"X-Linked-Size": str(file.stat().st_size), "X-Linked-ETag": f'"{tag_of(file)}"'}
            self.answer(302, {"Location": place, "X-Repo-Commit": revision, **linked})
        else:
            self.serve(repo_id, revision, name)

    def serve(self, repo_id: str, revision: str, name: str) -> None:
        file = self.hub.repositories[repo_id, revision] / name
        fault = self.hub.next_fault() if name.endswith(".safetensors") else None
        if isinstance(fault, int):
            self.answer(fault)
            return
        if callable(fault):
            fault()
        data = file.read_bytes()
        tag = self.hub.store_tag if urlsplit(self.path).path.startswith("/store") else tag_of(file)
        headers = {"ETag": f'"{tag}"', "X-Repo-Commit": revision, "Accept-Ranges": "bytes"}
        asked = self.headers.get("Range")
        if asked is None or fault == "whole":
            self.answer(200, headers, data, name=name)
            return
        first, last = map(int, asked.removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{len(data)}"
        self.answer(206, headers, part, name=name, start=first, cut=fault == "cut")

    def answer(
        self,
        status: int,
        headers: dict[str, str] | None = None,
        body: bytes = b"",
        *,
        name: str = "",
        start: int = 0,
        cut: bool = False,
    ) -> None:
        self.send_response(status)
        for key, value in {**(headers or {}), "Content-Length": str(len(body)), "Connection": "close"}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        sent = body[: len(body) // 2] if cut else body
        if name:
            self.hub.sent.append(Sent(name, status, start, len(sent)))
        self.wfile.write(sent)


def tag_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """Returns a Hub that huggingface_hub asks in place of the real one, with an empty cache."""
    fake_hub = Hub()
    server = Server(("127.0.0.1", 0), type("OfHub", (Handler,), {"hub": fake_hub}))
    fake_hub.port = server.server_port
    endpoint, template = f"http://127.0.0.1:{fake_hub.port}", "{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", endpoint)  # HF_ENDPOINT is read when it is imported
    monkeypatch.setattr("huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE", f"{endpoint}/{template}")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub-cache"))
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    monkeypatch.setattr(weight_files, "FIRST_WAIT_S", 0.001)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield fake_hub
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def cache(tmp_path: Path) -> Callable[[], dict[str, int]]:
    """Returns the function that says what lies in the cache of the Hub: names and sizes."""
    place = tmp_path / "hub-cache"
    return lambda: {path.name: path.stat().st_size for path in place.rglob("snapshots/*/*")}
