"""Addresses, keys and options of running servers."""

from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.evaluation.servers.address import KEY_VARIABLE, ServerAddress, ServerOptions, key_from, remove_answers


@pytest.mark.parametrize(
    ("text", "api", "local"),
    [
        ("http://localhost:8000/v1", "http://localhost:8000/v1", True),
        ("HTTP://LocalHost:8000", "http://localhost:8000/v1", True),
        ("http://[::1]:80/v1/", "http://[::1]:80/v1", True),
        ("https://example.org/team/v1", "https://example.org/team/v1", False),
    ],
)
def test_addresses(text: str, api: str, local: bool) -> None:
    address = ServerAddress.parse(text)
    assert (address.api, address.is_local) == (api, local)


@pytest.mark.parametrize("text", ["http://", "http:///v1", "http://a:99999/v1", "http://a/v1?key=1", "http://a/v1#b"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InputError, match="is not the address of a server"):
        ServerAddress.parse(text)


def test_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(InputError, match=KEY_VARIABLE) as refused:
        ServerAddress.parse("http://me:hunter2@example.org/v1")
    assert "hunter2" not in str(refused.value)


def test_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert key_from(KEY_VARIABLE) is None
    with pytest.raises(InputError, match="OTHER is not set"):
        key_from("OTHER")
    monkeypatch.setenv("OTHER", " abc\n")
    assert key_from("OTHER") == "abc"
    for wrong in ("a b", "clé"):
        monkeypatch.setenv("OTHER", wrong)
        with pytest.raises(InputError, match="it must be the key alone") as refused:
            key_from("OTHER")
        assert wrong not in str(refused.value)


@pytest.mark.parametrize(
    "wrong",
    [
        {"top": 0},
        {"concurrency": 0},
        {"timeout": -1.0},
        {"patience": float("nan")},
        {"checkpoint": "a"},
        {"hidden_states": Path("a"), "own_text": True},
        {"hidden_states": Path("a"), "answers": Path("b")},
    ],
)
def test_options_that_do_not_go_together(wrong) -> None:
    with pytest.raises(InputError):
        ServerOptions(**wrong)


def test_files_of_answers_are_deleted(tmp_path: Path) -> None:
    for name in ("a", "a-wal", "a-shm", "another"):
        (tmp_path / name).touch()
    remove_answers(tmp_path / "a")
    remove_answers(tmp_path / "a")
    remove_answers(None)
    assert [path.name for path in tmp_path.iterdir()] == ["another"]
