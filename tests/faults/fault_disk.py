"""The layer that fails at the n-th change of the disk, and the directories that are compared before and after."""

import ctypes
import json
import os
import re
import subprocess
from pathlib import Path

SOURCE = Path(__file__).with_name("fault_layer.c")
NOTHING = 0
KINDS = {
    "SIGKILL": 1,
    "SIGINT": 2,
    "SIGTERM": 3,
    "beside": 4,
    "EIO once": 5,
    "ENOSPC from then on": 6,
    "read-only from then on": 7,
}
"""What happens at a point, as fault_layer.c numbers it; "beside": the process waits while another one does the same."""
SECONDS = re.compile(rb'"seconds": ?(?:\[[^]]*\]|[^,}\s]+)')


def built_layer(directory: Path) -> Path:
    """Returns the compiled layer."""
    library = directory / "layer.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl", "-lpthread"], check=True)
    return library


def arm(directory: Path, kind: int = NOTHING, point: int = 0) -> None:
    """Counts the changes below a directory from now on; at one of them something happens."""
    ctypes.CDLL(None).faults_arm(os.fsencode(directory), kind, ctypes.c_long(point))


def disarm() -> str:
    """Returns the changes since `arm`, a letter each: created, written, fsync, renamed, unlinked, made, truncated."""
    end = ctypes.CDLL(None).faults_disarm
    end.restype = ctypes.c_char_p
    letters: bytes = end()
    return letters.decode()


def content(directory: Path) -> dict[str, bytes]:
    """Returns what a directory has: all files, without the times in them, and empty directories."""
    files: dict[str, bytes] = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_file():
            files[name] = SECONDS.sub(b'"seconds": 0', path.read_bytes())
        elif path.is_dir() and not any(path.iterdir()):
            files[f"{name}/"] = b""
    return files


def visible(files: dict[str, bytes]) -> dict[str, bytes]:
    """Returns what a user sees: nothing whose name, or whose directory's name, begins with a dot."""
    return {name: data for name, data in files.items() if not any(part.startswith(".") for part in name.split("/"))}


def is_json(data: bytes) -> bool:
    """Returns whether a file is complete JSON."""
    try:
        json.loads(data)
    except ValueError:
        return False
    return True
