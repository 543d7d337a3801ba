"""The lock of a run's directory: held by one process at a time, and by none that is dead."""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.core.locks import LOCK, UNLOCKED, lock_directory

HOLD = """
import sys, time
from pathlib import Path
from fairbits.core.locks import lock_directory
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
        assert (tmp_path / LOCK).read_text().startswith(f"{os.getpid()}\n")


def test_a_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_directory(tmp_path) as note:
            assert note is None
        assert not (tmp_path / LOCK).exists()


@pytest.mark.parametrize("content", ["", "\x1b[2J", "a" * 5000])
def test_a_file_that_names_no_process_is_not_quoted(tmp_path: Path, content: str) -> None:
    (tmp_path / LOCK).write_text(content)
    with (tmp_path / LOCK).open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(InputError, match=r"^another run is using"), lock_directory(tmp_path):
            pass


FORKED = """
import os, sys, time
from pathlib import Path
from fairbits.core.locks import lock_directory
with lock_directory(Path(sys.argv[1])):
    os.fork()
    os.write(1, b"x")
    time.sleep(600)
"""


def test_a_fork_does_not_hold_the_lock_of_a_process_that_was_killed(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", FORKED, str(tmp_path)], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        with process.stdout:
            assert process.stdout.read(2) == "xx"  # both are there
        process.kill()
        process.wait()
        with lock_directory(tmp_path) as note:
            assert note is None
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # the fork
    assert list(tmp_path.iterdir()) == []


def test_without_locks_the_file_itself_keeps_living_processes_of_the_machine_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with lock_directory(tmp_path) as note:
        assert note == UNLOCKED
    assert not (tmp_path / LOCK).exists()
    for process, machine in ((os.getppid(), socket.gethostname()), (1, "elsewhere")):  # nothing is known of the latter
        (tmp_path / LOCK).write_text(f"{process}\n{machine}\n")
        with (
            pytest.raises(InputError, match=rf"another run \(process {process} on {machine}\)"),
            lock_directory(tmp_path),
        ):
            pass
        assert (tmp_path / LOCK).exists()
    (tmp_path / LOCK).write_text(f"{2**22 + 1}\n{socket.gethostname()}\n")  # no process has this number
    with lock_directory(tmp_path) as note:
        assert note == UNLOCKED
    assert not (tmp_path / LOCK).exists()


def test_a_lock_whose_file_was_removed_is_taken_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = fcntl.flock, []

    def flock(descriptor: int, how: int) -> None:
        if not calls:
            (tmp_path / LOCK).unlink()  # the holder ends between opening and locking
        calls.append(descriptor)
        real(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with lock_directory(tmp_path):
        assert len(calls) == 2
        monkeypatch.undo()
        with pytest.raises(InputError, match=rf"process {os.getpid()} "), lock_directory(tmp_path):
            pass
