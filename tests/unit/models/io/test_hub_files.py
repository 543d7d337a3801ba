"""Answers of the Hub that are incomplete, wrong or late: they are asked for again, or end in an error that says why."""

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairbits.api.screen import screen
from fairbits.core.errors import InputError
from fairbits.models import hub_checkpoint
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.hub_checkpoint import open_to_read
from fairbits.models.io import weight_files

ID = "someone/some-model"
Served = tuple[Any, Checkpoint]


@pytest.fixture(params=[True, False], ids=["store", "no store"])
def served(request, hub, saved, reading_model, monkeypatch) -> Served:
    """Returns the Hub and the model that it has, with and without a store; a copy, which may change."""
    hub.with_store = request.param
    model = saved(reading_model("llama").load().half())
    hub.add(ID, model.directory)
    monkeypatch.setattr(hub_checkpoint, "REQUEST_BYTES", 20_000)
    return hub, model


GOOD = {
    "unavailable": [503],
    "unavailable for a while": [500, 502, 503, 504],
    "too many requests": [429],
    "half of an answer": ["cut"],
    "half of several": ["cut"] * 3,
}


@pytest.mark.parametrize("faults", GOOD.values(), ids=GOOD)
@pytest.mark.parametrize("opened", [False, True])
def test_what_passes_is_asked_for_again(served: Served, faults: list[Any], opened: bool) -> None:
    hub, local = served
    hub.faults = [] if opened else list(faults)
    remote = open_to_read(ID)
    hub.faults += faults
    for info, tensor in remote.stream():
        assert torch.equal(tensor, local.read(info.name))
    assert hub.faults == []
    assert remote.fingerprint == local.fingerprint


BAD = {
    "no such file": ([404] * 12, r"cannot be read from the Hugging Face Hub \(.*404"),
    "never available": ([503] * 200, r"cannot be read from the Hugging Face Hub \(.*503"),
    "a server that knows no ranges": (["whole"] * 12, "status 200 instead of 206: it does not serve parts of files"),
}


@pytest.mark.parametrize(("faults", "message"), BAD.values(), ids=BAD)
def test_what_stays_is_an_error(served: Served, faults: list[Any], message: str) -> None:
    hub, _ = served
    remote = open_to_read(ID)
    for read in (lambda: list(remote.stream()), lambda: open_to_read(ID)):
        hub.faults = list(faults)
        with pytest.raises(InputError, match=message) as caught:
            read()
        assert ID in str(caught.value)
        hub.faults = []
    hub.faults = list(faults) * 4
    assert screen([ID]).rows[0].problem is not None


def test_answers_that_are_always_cut(served: Served, monkeypatch) -> None:
    hub, _ = served
    monkeypatch.setattr(weight_files, "TRIES", 2)
    remote = open_to_read(ID)
    hub.faults = ["cut"] * 100
    with pytest.raises(InputError, match=r"sent only in part: [\d,]+ of [\d,]+ bytes .* after 2 requests"):
        list(remote.stream())


def change(directory: Path) -> None:
    """Changes weights and leaves the size of the file."""
    file, new = directory / "model.safetensors", directory / "new"
    save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, new, metadata={"format": "pt"})
    assert new.stat().st_size == file.stat().st_size
    new.replace(file)  # at once, as other answers read it meanwhile


def lengthen(directory: Path) -> None:
    with (directory / "model.safetensors").open("ab") as file:
        file.write(b"more")


@pytest.mark.parametrize("changed", [change, lengthen])
def test_a_file_that_changes_in_between(served: Served, changed: Callable[[Path], None]) -> None:
    hub, local = served

    def fault() -> None:
        changed(local.directory)
        hub.store_tag = "another"

    remote = open_to_read(ID)
    hub.faults = [None, None, fault]
    with pytest.raises(InputError, match=r"changed while it was read \(ETag \w+, now \w+; .* start again"):
        list(remote.stream())


def test_another_etag_of_the_store_alone_is_no_change(hub, reading_model) -> None:
    local = reading_model("llama")
    hub.add(ID, local.directory)
    remote = open_to_read(ID)
    hub.store_tag = "of another store"
    assert sum(1 for _ in remote.stream()) == len(local.tensors)
    assert remote.fingerprint == local.fingerprint


def test_an_address_of_the_store_that_has_expired(hub, reading_model) -> None:
    local = reading_model("llama")
    hub.add(ID, local.directory)
    remote = open_to_read(ID)
    hub.signature += 1
    hub.asked.clear()
    list(remote.stream())
    assert remote.fingerprint == local.fingerprint
    assert any("/resolve/" in request for request in hub.asked)
    assert not hub.leaked


def test_a_damaged_header_is_named_by_its_id(hub, saved, reading_model) -> None:
    model = saved(reading_model("llama").load())
    file = model.directory / "model.safetensors"
    file.write_bytes((10**9).to_bytes(8, "little") + file.read_bytes()[8:])
    hub.add(ID, model.directory)
    with pytest.raises(InputError, match=rf"{ID}/model\.safetensors says that its header is 1,000,000,000 bytes long"):
        open_to_read(ID)


def test_no_such_model_no_permission_and_no_server(hub, reading_model, monkeypatch) -> None:
    with pytest.raises(InputError, match=r"someone/absent is not a local directory, and it cannot be read .*404"):
        open_to_read("someone/absent")
    hub.add(ID, reading_model("llama").directory)
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    with pytest.raises(InputError, match=r"cannot be read from the Hugging Face Hub .* --local-dir DIR` makes one"):
        open_to_read(ID)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{unused.getsockname()[1]}")
        with pytest.raises(InputError, match="cannot be read from the Hugging Face Hub"):
            open_to_read(ID)
