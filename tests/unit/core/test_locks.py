"""The lock of a run's directory: held by one process at a time, and by none that is dead."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from fairbits.core.errors import InputError
from fairbits.core.locks import LOCK, UNLOCKED, Owner, lock_directory

HOLD = """
import sys, time
from dataclasses import replace
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
        assert (tmp_path / LOCK).read_text().startswith(f"process {os.getpid()} on ")


def test_a_lock_can_be_taken_again(tmp_path: Path) -> None:
    for _ in range(2):
        with lock_directory(tmp_path) as note:
            assert note is None
        assert not (tmp_path / LOCK).exists()


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


def test_without_locks_the_file_names_who_holds_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    parent = psutil.Process(os.getppid())
    other = Owner(parent.pid, parent.create_time(), Owner.here().machine)
    (tmp_path / LOCK).write_text(f"{other}\n")
    with pytest.raises(InputError, match=rf"another run \(process {other.process} "), lock_directory(tmp_path):
        pass
    assert (tmp_path / LOCK).exists()
    # a process that was given the number of one that is dead is not taken for it
    for dead in (replace(other, started=other.started - 60), replace(other, process=2**22 + 1)):
        (tmp_path / LOCK).write_text(f"{dead}\n")
        with lock_directory(tmp_path) as note:
            assert note == UNLOCKED
        assert not (tmp_path / LOCK).exists()
    (tmp_path / LOCK).write_text(f"{replace(other, started=1.0, machine='elsewhere')}\n")  # nothing is known of it
    with pytest.raises(InputError, match="on elsewhere"), lock_directory(tmp_path):
        pass


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
