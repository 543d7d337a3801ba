"""The first opening of a tokenizer, in a child process with limits; success is remembered by the content of the file.

The library that parses tokenizer.json is compiled. What a hostile file makes it do (allocate without end, run on,
panic) cannot be caught in this process, so a new file is first parsed in another one, which imports only that library.
A model without tokenizer.json is opened by transformers in the child. What failed is tried again the next time, as a
limit may have been reached because the machine was busy.
"""

import ast
import hashlib
import importlib.metadata
import os
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from fairbits.core.errors import InputError
from fairbits.core.files import cache_directory
from fairbits.core.memory import JSON_BYTES, TOKENIZER_BYTES

TOKENIZER = "tokenizer.json"
PARSED = (".json", ".jinja", ".model", ".tiktoken", ".txt")  # read by transformers for a tokenizer
VOCABULARY = ("vocab", "merges", "spiece", "sentencepiece")  # how other files with one begin
CHILD = Path(__file__).with_name("sandbox_child.py")
RULES = 1  # the version of the child's tests; another one tries every file again
CPU_SECONDS = 20  # seconds of processor time for the child; the largest published tokenizers take less than 2
WALL_SECONDS = 120  # seconds until the child is ended, whatever it waits for
MOST_ID = 2**24 - 1  # to write a tokenizer, the library counts up to it; published ones have up to a million
ADVICE = "fetch the model again from where you trust it; no other file of it was changed or run"


def check_tokenizer(directory: Path, *, trust_remote_code: bool = False) -> None:
    """Raises unless the tokenizer can be parsed within the limits; trusted code of a model is not tried."""
    files = [path for path in sorted(directory.iterdir()) if path.suffix in PARSED and not path.is_dir()]
    for path in files:
        _check_file(path)
    tokenizer = directory / TOKENIZER
    vocabulary = [path for path in files if path.name.startswith(VOCABULARY) or path.suffix in (".model", ".tiktoken")]
    tried = [tokenizer] if tokenizer in files else vocabulary
    if not tried or (trust_remote_code and tokenizer not in files):
        return
    digest = hashlib.sha256(f"{RULES}".encode())
    for name in ("tokenizers", "transformers"):
        digest.update(f"{name} {importlib.metadata.version(name)}\n".encode())
    for path in tried:
        try:
            with path.open("rb") as file:
                digest.update(f"{path.name}\n{hashlib.file_digest(file, 'blake2b').hexdigest()}\n".encode())
        except OSError as problem:
            raise InputError(f"{path} cannot be read ({problem.strerror}); {ADVICE}") from None
    mark = cache_directory() / "opened" / digest.hexdigest()
    if not mark.exists():
        _parse_in_child(tokenizer if tokenizer in files else directory)
        with suppress(OSError):  # where the cache cannot be written, the file is tried every time
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch()


def _check_file(path: Path) -> None:
    """Raises if a file is a pipe or a device, which could be read forever, or larger than any such file is."""
    try:
        state = path.stat()
    except OSError as problem:
        raise InputError(f"{path} cannot be read ({problem.strerror}); fetch it again") from None
    if not stat.S_ISREG(state.st_mode):
        raise InputError(f"{path} is not a plain file; the files of a model must be: {ADVICE}")
    if state.st_size > JSON_BYTES:
        raise InputError(f"{path} has {state.st_size:,} bytes; it must have at most {JSON_BYTES:,}: {ADVICE}")


def _parse_in_child(path: Path) -> None:
    try:
        code, output = run_child(path)
        reason = _reason(code, output) if code else None
    except subprocess.TimeoutExpired:
        reason = f"parsing it took more than {WALL_SECONDS} seconds"
    if reason is not None:
        raise InputError(f"{path} is not usable ({reason}); {ADVICE}")


def run_child(path: Path) -> tuple[int, bytes]:
    """Returns the status of the child process, and its error output."""
    command = [sys.executable, "-P", str(CHILD), *child_arguments(path)]
    quiet: Any = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    done = subprocess.run(command, env=child_environment(), timeout=WALL_SECONDS, check=False, **quiet)
    return done.returncode, done.stderr


def child_arguments(path: Path) -> list[str]:
    """Returns the arguments of the child."""
    return [str(path), *map(str, (TOKENIZER_BYTES, CPU_SECONDS, MOST_ID))]


def child_environment() -> dict[str, str]:
    """Returns the environment of the child."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),  # the same library as here
        "TOKENIZERS_PARALLELISM": "false",
        "RAYON_NUM_THREADS": "1",
        "RUST_BACKTRACE": "0",
        "MALLOC_ARENA_MAX": "1",  # each arena takes address space, which is what is limited
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # large pages: a large vocabulary takes four fifths of the time
    }


def _reason(code: int, output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    if code == 1 and lines:
        try:
            return str(ast.literal_eval(lines[-1]))
        except (SyntaxError, ValueError):
            return lines[-1][:400]
    if any("memory allocation of" in line for line in lines):
        return f"parsing it took more than {TOKENIZER_BYTES:,} bytes of memory"
    if code == -getattr(signal, "SIGXCPU", 0):
        return f"parsing it took more than {CPU_SECONDS} seconds"
    last = f": {lines[-1]:.200}" if lines else ""
    return f"the process that parsed it ended with status {code}{last}"
