"""The lock of a run's directory: held by one process at a time, and by none that is dead."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fairbits.errors import InputError
from fairbits.locks import LOCK, UNLOCKED, lock_directory

HOLD = """
import sys, time
from pathlib import Path
from fairbits.locks import lock_directory
with lock_directory(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> subprocess.Popen[str]:
    """Returns another process that holds the directory."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.long
def test_the_other_process_is_named_and_does_not_block_once_it_is_dead(
    holder: subprocess.Popen[str], tmp_path: Path
) -> None:
    for _ in range(2):  # and a run that is refused changes nothing
        with (
            pytest.raises(InputError, match=rf"another run \(process {holder.pid} on .*\) is using .*; wait until"),
            lock_directory(tmp_path),
        ):
            pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lock_directory(tmp_path) as note:
        assert note is None
        assert (tmp_path / LOCK).read_text().startswith(f"process {os.getpid()} on ")


def test_a_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_directory(tmp_path) as note:
            assert note is None
        assert (tmp_path / LOCK).read_text() == ""


@pytest.mark.parametrize("content", ["", "\x1b[2J", "a" * 5000])
def test_a_file_that_names_no_process_is_not_quoted(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK).write_text(content)
    with (tmp_path / LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # as fairbits 0.1.0 did
        with pytest.raises(InputError, match=r"^another run is using"), lock_directory(tmp_path):
            pass


def test_where_the_system_has_no_locks_a_note_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with lock_directory(tmp_path) as note:
        assert note == UNLOCKED


def test_a_directory_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), lock_directory(tmp_path / "none"):
        pass
