"""The child process in which a tokenizer is parsed for the first time. It runs alone, and imports no fairbits.

Called as `python sandbox_child.py PATH MEMORY_BYTES CPU_SECONDS MOST_ID`, where PATH is a tokenizer.json or a directory
without one, which transformers opens. It ends with status 0 if the tokenizer can be used. Otherwise the last line of
its error output is the reason, or a limit has ended it.
"""

import os
import sys
from collections.abc import Callable
from typing import Any

PROBES = (  # short texts that every tokenizer is tried on
    *("a", "Hello, world!", "Все люди рождаются свободными", "すべての人間は", "सभी मनुष्यों"),
    *("1234567890", "a\n\n\tb \u200d\U0001f600"),
)
REPEATED = "a \n1.-_é中\U0001f600"  # tried in long runs, in which a slow regular expression is slow
RUN = 256
PART = 1 << 18  # bytes of a file that are looked at together: they fit into the cache of a processor
WRITTEN_BYTES = 1 << 20  # of a file: Python tries its directory for temporary files by writing one


def limit(memory: int, seconds: int) -> None:
    """Limits memory, processor time and files of this process, as far as the system can; the parent limits the time."""
    try:
        import resource
    except ImportError:  # Windows
        return
    memory += address_space()
    for kind, soft, hard in (
        ("RLIMIT_AS", memory, memory),
        ("RLIMIT_CPU", seconds, seconds + 1),  # the first ends the process by its own signal
        ("RLIMIT_CORE", 0, 0),
        ("RLIMIT_FSIZE", WRITTEN_BYTES, WRITTEN_BYTES),
    ):
        try:
            resource.setrlimit(getattr(resource, kind), (soft, hard))
        except (AttributeError, OSError, ValueError):
            continue


def address_space() -> int:
    """Returns the bytes that libraries take already; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def opener(path: str) -> Callable[[], Any]:
    """Returns the function that opens a tokenizer, whose library is imported by now."""
    if os.path.isdir(path):
        from transformers import AutoTokenizer

        return lambda: AutoTokenizer.from_pretrained(path, local_files_only=True)
    from tokenizers import Tokenizer

    return lambda: Tokenizer.from_file(path)


def attempt(path: str, opened: Callable[[], Any], most_id: int) -> str | None:
    """Returns why a tokenizer cannot be used; None if it can."""
    try:
        tokenizer = opened()
    except Exception:
        if os.path.isdir(path):
            return None  # what transformers says of missing files is reported when it opens them in the parent
        raise
    if os.path.isdir(path) or has_number(path, len(str(most_id))):
        largest = max(tokenizer.get_vocab().values(), default=0)
        if largest > most_id:
            return f"its vocabulary has the id {largest:,}; ids must be at most {most_id:,}"
    for text in (*PROBES, *(f"{char * RUN}!" for char in REPEATED)):
        encoded = tokenizer.encode(text)
        tokenizer.decode(encoded if isinstance(encoded, list) else encoded.ids)
    return None


def has_number(path: str, digits: int) -> bool:
    """Returns whether a JSON file may have a number of so many digits, ten times as fast as parsing it would be."""
    kinds = bytearray(b"x" * 256)
    for byte in b":,[":
        kinds[byte] = ord(":")
    for byte in b"0123456789":
        kinds[byte] = ord("0")
    sought, seen = b":" + b"0" * digits, b""
    with open(path, "rb") as file:
        while part := file.read(PART):
            seen = seen[-digits:] + part.translate(kinds, b" \t\r\n")
            if sought in seen:
                return True
    return False


def main() -> int:
    """Returns the status of the process."""
    path, memory, seconds, most_id = sys.argv[1], *map(int, sys.argv[2:])
    opened = opener(path)
    limit(memory, seconds)
    try:
        reason = attempt(path, opened, most_id)
    except MemoryError:
        reason = f"parsing it took more than {memory:,} bytes of memory"
    except BaseException as problem:  # a panic of Rust is not an Exception
        reason = f"{type(problem).__name__}: {problem}"
    if reason is not None:
        sys.stderr.write(f"\n{reason[:400]!a}\n")
    return int(reason is not None)


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # to free half a million strings one by one takes 0.2 s
