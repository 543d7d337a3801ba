"""Where a server is, and how it is asked. Nothing here imports torch."""

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from fairbits.core.checks import in_range, whole
from fairbits.core.errors import InputError

KEY_VARIABLE = "FAIRBITS_API_KEY"
EXAMPLE = "http://localhost:8000/v1"
RECORD_FILE = "reference.json"  # of a saved reference
LOCAL = ("localhost", "127.0.0.1", "::1")


def is_address(model: object) -> bool:
    """Returns whether a model is named by the address of a server."""
    return isinstance(model, str) and model.lower().startswith(("http://", "https://"))


def is_saved_reference(path: object) -> bool:
    """Returns whether a path is a directory that --save-reference wrote."""
    return isinstance(path, str | Path) and (Path(path).expanduser() / RECORD_FILE).is_file()


@dataclass(frozen=True)
class ServerAddress:
    """The address of an OpenAI-compatible server: `api` ends in /v1, and `root` has no path."""

    root: str

    @property
    def api(self) -> str:
        return f"{self.root}/v1"

    @property
    def is_local(self) -> bool:
        """Whether the server is on this machine."""
        return urlsplit(self.root).hostname in LOCAL

    @classmethod
    def parse(cls, text: str) -> "ServerAddress":
        """Returns the address in a URL, with or without /v1; it must not hold a password or a query."""
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as problem:
            raise InputError(
                f"{text!r:.80} is not the address of a server ({problem}); it must be like {EXAMPLE}"
            ) from None
        if parts.username or parts.password:  # which the error does not repeat
            raise InputError(
                f"the address of {parts.hostname} has a user name or a password; put the key into the environment "
                f"variable {KEY_VARIABLE} instead, so that it is in no file and no log"
            )
        if not parts.hostname or parts.query or parts.fragment:
            raise InputError(f"{text!r:.80} is not the address of a server; it must be like {EXAMPLE}")
        path = parts.path.rstrip("/").removesuffix("/v1")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(f"{parts.scheme.lower()}://{host}{f':{port}' if port else ''}{path}")


@dataclass(frozen=True)
class ServerOptions:
    """How a running server is asked.

    `model` is one of several that it serves, `top` how many of the most probable tokens it returns. A request may take
    `timeout` seconds, and is sent again for up to `patience` seconds if it fails. The key is in the environment
    variable `key_variable`. With `own_text`, the reference model writes the text: KL is then an unbiased estimate. With
    `hidden_states`, vLLM writes its last hidden states into that directory on this machine, and what follows is
    computed with the head of the served `checkpoint` (KL is then exact). What was answered is kept in `answers` until
    the scores are there, so that the same call continues; with `keep_answers`, whoever calls deletes that file.
    """

    model: str | None = None
    top: int = 20
    concurrency: int = 32
    timeout: float = 300.0
    patience: float = 300.0
    key_variable: str = KEY_VARIABLE
    own_text: bool = False
    hidden_states: Path | None = None
    checkpoint: str | None = None
    answers: Path | None = None
    keep_answers: bool = False

    def __post_init__(self) -> None:
        whole("top_k", self.top, least=1, most=1_000_000)
        whole("concurrency", self.concurrency, least=1, most=10_000)
        for name in ("timeout", "patience"):
            in_range(name, getattr(self, name), least=0.0)
        if self.hidden_states is not None and (self.own_text or self.answers is not None):
            raise InputError("hidden states give the exact KL on any text; leave own_text and answers out")
        if self.hidden_states is None and self.checkpoint is not None:
            raise InputError("the served checkpoint is needed for its head only; give --hidden-states too")


def key_from(variable: str) -> str | None:
    """Returns the key in an environment variable; None if it is not set."""
    key = os.environ.get(variable, "").strip()
    if not key and variable != KEY_VARIABLE:
        raise InputError(f"the environment variable {variable} is not set; put the key of the server into it")
    if not key.isascii() or any(character.isspace() for character in key):
        raise InputError(f"the key in {variable} has spaces or characters outside ASCII; it must be the key alone")
    return key or None


def remove_answers(path: Path | None) -> None:
    """Deletes a file of answers, after they have become scores."""
    if path is not None:
        for end in ("", "-wal", "-shm"):
            with suppress(FileNotFoundError):
                path.with_name(path.name + end).unlink()
