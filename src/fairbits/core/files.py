"""Writing results: files and directories appear whole and on the disk, or not at all. READ FIRST before writing a file.

Everything is written under a temporary name that carries its process. What a killed process leaves is removed by the
next one that writes the same file, or by the one that holds the lock of the directory (`core.locks`).
"""

import difflib
import errno
import hashlib
import os
import re
import shutil
import signal
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count
from pathlib import Path
from types import FrameType

import psutil

from fairbits.core.errors import InputError

Chunk = bytes | memoryview
LOCK = ".lock"  # the file by which `core.locks` locks a directory
RUN_FILE = "run.json"  # the file that makes a directory one of a run
TEMPORARY = re.compile(r"\.[0-9a-f]{12}\.([0-9a-f]{8})-(\d+)-(\d+)-\d+\.part")  # digest, machine, process, start, count
CLOCK_S = 2.0  # seconds by which two readings of one start may differ, as the clock may have been set in between
NO_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES, errno.EBADF)  # a directory that cannot be synced
_numbers = count()


def did_you_mean(path: Path) -> str:
    """Returns a question that names the file or directory beside a missing one whose name is closest, or ""."""
    try:
        close = difflib.get_close_matches(path.name, os.listdir(path.parent), n=1)
    except OSError:
        return ""
    return f" (did you mean {path.parent / close[0]}?)" if close else ""


def check_writable(path: str | Path, *, example: str) -> Path:
    """Returns the path of the file to write, with links resolved; raises if it cannot be written."""
    try:
        target = Path(path).resolve()
        if target.exists() and not target.is_file():
            raise InputError(f"{target} is not a regular file; give the path of a file to write, such as {example}")
        if not target.parent.is_dir():
            raise InputError(f"{target.parent} is not a directory; give a path in a directory that exists")
    except (OSError, RuntimeError) as error:  # the name is too long, or links form a loop
        raise _unwritable(Path(path), error) from None
    if not os.access(target.parent, os.W_OK):
        raise InputError(f"{target.parent} is not writable; give a path in a directory where you may write")
    return target


def check_directory(path: str | Path, *, holding: Collection[str] | None = None) -> Path:
    """Returns the directory to write into, which may be there; raises if it cannot be written.

    `holding` names files of which the directory must have one unless it is empty, or holds only what a killed run left.
    """
    target = Path(os.path.abspath(path))
    try:
        if target.exists() and not target.is_dir():
            raise InputError(f"{target} is not a directory; give another path")
        names = [entry.name for entry in target.iterdir()] if target.is_dir() else []
        there = next(parent for parent in (target, *target.parents) if parent.exists())
        writable = there.is_dir() and os.access(there, os.W_OK)
    except OSError as error:  # the name is too long, or the directory is not accessible
        raise _unwritable(target, error) from None
    if not writable:
        raise InputError(f"{there} is not a directory where you may write; give another path")
    if holding:
        names = [name for name in names if name != LOCK and not TEMPORARY.fullmatch(name)]
    if holding is not None and names and not any(name in holding for name in names):
        without = f" and has no {' or '.join(holding)}" if holding else ""
        raise InputError(f"{target} exists and is not empty{without}; give a new directory")
    return target


def write_files(contents: Mapping[Path, bytes]) -> None:
    """Writes files as `write_whole` does; a refusal of the system becomes an InputError."""
    try:
        write_whole({path: [content] for path, content in contents.items()})
    except OSError as error:
        first = Path(error.filename) if error.filename else next(iter(contents))
        where = next((path for path in contents if path.parent == first.parent), first)
        raise _unwritable(where, error) from None


def write_whole(contents: Mapping[Path, Iterable[Chunk]]) -> dict[Path, str]:
    """Returns the SHA-256 of every file after writing them all.

    Each is complete and on the disk before the first gets its name, so that a full disk or an interruption leaves
    existing files unchanged. They get their names in the order given: one that marks the others as complete, such as
    a manifest, must be last.
    """
    drafts: dict[Path, Path] = {}
    sums: dict[Path, str] = {}
    try:
        for path, chunks in contents.items():
            clear_dead(path)
            drafts[path] = temporary_name(path)
            sums[path] = _write_draft(drafts[path], chunks)
        with uninterrupted():
            for path, draft in drafts.items():
                draft.replace(path)
        for parent in dict.fromkeys(path.parent for path in contents):
            sync_directory(parent)
    finally:
        with uninterrupted():
            for draft in drafts.values():
                with suppress(OSError):  # it does no harm, and the next process removes it
                    draft.unlink(missing_ok=True)
    return sums


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """Yields a directory to fill, which becomes `path`, new or empty, at the end of the `with` statement."""
    path.parent.mkdir(parents=True, exist_ok=True)
    clear_dead(path)
    draft = temporary_name(path)
    try:
        draft.mkdir()
        yield draft
        for file in draft.rglob("*"):
            if file.is_file():
                with file.open("rb") as opened:
                    os.fsync(opened.fileno())
        with uninterrupted():
            sync_directory(draft)
            draft.replace(path)
        sync_directory(path.parent)
    finally:
        remove_tree(draft)


def temporary_name(path: Path) -> Path:
    """Returns a name next to `path` that no other process and no other call uses."""
    process = os.getpid()
    return path.with_name(f".{_digest(path.name)}.{_machine()}-{process}-{_started(process)}-{next(_numbers)}.part")


def clear_dead(path: Path) -> None:
    """Removes what processes of this machine that have ended left of writing `path`."""
    start = f".{_digest(path.name)}."
    with suppress(OSError):
        for entry in os.scandir(path.parent):
            match = TEMPORARY.fullmatch(entry.name) if entry.name.startswith(start) else None
            if match is not None and match[1] == _machine() and _has_ended(int(match[2]), float(match[3])):
                _remove(path.with_name(entry.name))


def clear_temporary(directory: Path) -> None:
    """Removes all temporary files below a directory; call it where a lock keeps other processes out."""
    for path in list(directory.rglob(".*.part")):
        if TEMPORARY.fullmatch(path.name):
            _remove(path)


def remove_tree(directory: Path) -> None:
    """Removes a directory that is not needed; Ctrl-C waits, and a fault of the disk is tried again once."""
    with uninterrupted():
        for _ in range(2):
            if directory.exists():
                shutil.rmtree(directory, ignore_errors=True)


def sync_directory(directory: Path) -> None:
    """Makes the names in a directory last, where the system can do so (Windows and some networks cannot)."""
    if os.name != "posix":
        return
    try:
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as problem:
        if problem.errno not in NO_SYNC:
            raise


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Lets Ctrl-C and SIGTERM wait until the body of the `with` statement is done; it must be short."""
    if threading.current_thread() is not threading.main_thread():  # which no signal interrupts
        yield
        return
    received: list[int] = []

    def remember(number: int, _: FrameType | None) -> None:
        received.append(number)

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if callable(handler):  # else the system acts on it, or nobody
            before[number] = handler
    try:
        for number in before:
            signal.signal(number, remember)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if received:
            signal.raise_signal(received[0])


def file_sha256(path: Path) -> str:
    """Returns the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_draft(draft: Path, chunks: Iterable[Chunk]) -> str:
    digest = hashlib.sha256()
    with draft.open("xb") as file:
        for chunk in chunks:
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _digest(name: str, length: int = 12) -> str:
    """Returns a name in a few characters; a name itself may be too long."""
    return hashlib.sha256(os.fsencode(name)).hexdigest()[:length]


def _machine() -> str:
    return _digest(socket.gethostname(), 8)


@cache
def _started(process: int) -> int:
    """Returns the second in which this process started; a number alone is given again to other processes."""
    return int(psutil.Process(process).create_time())


def _has_ended(process: int, started: float) -> bool:
    try:
        return abs(float(psutil.Process(process).create_time()) - started) > CLOCK_S
    except psutil.NoSuchProcess:
        return True
    except psutil.AccessDenied:
        return False


def _remove(left: Path) -> None:
    if left.is_dir() and not left.is_symlink():
        remove_tree(left)
    else:
        with suppress(OSError):
            left.unlink()


def _unwritable(path: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else error
    return InputError(f"{path} cannot be written ({reason}); give another path, or free some space")


def cache_directory() -> Path:
    """Returns where derived models are kept: `$XDG_CACHE_HOME/fairbits`, else `~/.cache/fairbits`."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "fairbits"


def kept_directory(name: str, write: Callable[[Path], object]) -> Path:
    """Returns the directory `name` of the cache; if it is not there, `write` fills it, under another name at first."""
    final = cache_directory() / name
    if final.is_dir():
        return final
    try:
        with whole_directory(final) as draft:
            write(draft)
    except OSError as problem:
        if not final.is_dir():  # else another process was faster, and made the same
            raise InputError(
                f"cannot write to {final.parent} ({problem}); make room there, or set XDG_CACHE_HOME to another place"
            ) from problem
    return final
