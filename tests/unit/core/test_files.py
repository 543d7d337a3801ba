"""Files and directories that are written whole or not at all, and what dead processes leave of them."""

import errno
import os
import signal
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.core.files import (
    TEMPORARY,
    clear_temporary,
    remove_tree,
    temporary_name,
    uninterrupted,
    whole_directory,
    write_files,
    write_whole,
)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_files_get_their_names_in_order_after_all_are_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    replace = Path.replace

    def renamed(draft: Path, target: Path) -> Path:
        assert len([name for name in names(tmp_path) if TEMPORARY.fullmatch(name)]) == 3 - len(seen)
        seen.append(target.name)
        return replace(draft, target)

    monkeypatch.setattr(Path, "replace", renamed)
    contents = {tmp_path / name: [name.encode(), memoryview(b"!")] for name in ("z", "a", "manifest")}
    assert write_whole(contents)[tmp_path / "z"] == sha256(b"z!").hexdigest()
    assert seen == ["z", "a", "manifest"]
    assert (names(tmp_path), (tmp_path / "a").read_bytes()) == (["a", "manifest", "z"], b"a!")


@pytest.mark.parametrize("failing", ["fsync", "replace", "unlink"])
def test_a_fault_of_the_disk_is_an_error_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    (tmp_path / "a").write_bytes(b"old")

    def broken(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(Path if failing != "fsync" else os, failing, broken)
        if failing == "unlink":  # of a temporary file, which is no reason to fail
            write_files({tmp_path / "a": b"new"})
        else:
            with pytest.raises(InputError, match=r"a cannot be written \(Input/output error\)"):
                write_files({tmp_path / "a": b"new"})
    assert (names(tmp_path), (tmp_path / "a").read_bytes()) == (["a"], b"new" if failing == "unlink" else b"old")


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from fairbits.core.files import temporary_name\n"
        "for name in sys.argv[2:]: print(temporary_name(Path(sys.argv[1]) / name).name)"
    )
    process = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), "a", "b"], capture_output=True, text=True, check=True
    )
    left, other = process.stdout.split()
    living = temporary_name(tmp_path / "a")
    for name in (left, other, living.name, "a.part"):
        (tmp_path / name).touch()
    write_files({tmp_path / "a": b"a"})
    assert set(names(tmp_path)) == {"a", "a.part", other, living.name}
    (tmp_path / other).unlink()
    (tmp_path / other).mkdir()
    with whole_directory(tmp_path / "b") as draft:
        (draft / "file").touch()
    assert set(names(tmp_path)) == {"a", "a.part", "b", living.name}
    clear_temporary(tmp_path)
    assert names(tmp_path) == ["a", "a.part", "b"]


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), whole_directory(tmp_path / "new" / "place") as draft:
        (draft / "file").rename(draft / "other")
    assert names(tmp_path / "new") == []
    (tmp_path / "new" / "place").mkdir()
    with whole_directory(tmp_path / "new" / "place") as draft:
        (draft / "file").touch()
        assert names(tmp_path / "new" / "place") == []
    assert (names(tmp_path / "new"), names(tmp_path / "new" / "place")) == (["place"], ["file"])


def test_an_interruption_waits(tmp_path: Path) -> None:
    done = []

    def interrupted() -> None:
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append(True)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert done
    (tmp_path / "tree" / "branch").mkdir(parents=True)
    remove_tree(tmp_path / "tree")
    assert names(tmp_path) == []


def test_names_say_whose_they_are(tmp_path: Path) -> None:
    match = TEMPORARY.fullmatch(temporary_name(tmp_path / ("x" * 250)).name)
    assert match is not None
    assert match[2] == str(os.getpid())
