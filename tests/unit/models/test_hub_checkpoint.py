"""A model on the Hub is read there: the bytes that are needed, once each, and with the results of its directory."""

import json
import re
import shutil
import weakref
from collections import Counter
from pathlib import Path

import pytest
import torch

from fairbits.api.inspect import inspect
from fairbits.api.screen import screen
from fairbits.core.errors import InputError
from fairbits.models import hub_checkpoint
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.hub_checkpoint import HubCheckpoint, open_to_read, split_revision

ID = "someone/some-model"


@pytest.fixture
def sharded(reading_model, tmp_path: Path) -> Path:
    """Returns the small Llama in several files, beside its tokenizer."""
    source, place = reading_model("llama"), tmp_path / "sharded"
    source.load().save_pretrained(place, max_shard_size="40KB")
    for file in source.directory.glob("tokenizer*"):
        shutil.copy(file, place)
    return place


def needed(directory: Path) -> dict[str, int]:
    """Returns the bytes of every file that must be read."""
    wanted = [directory / "config.json", *directory.glob("*.safetensors*")]
    return {path.name: path.stat().st_size for path in wanted}


def test_only_what_is_needed_is_read_once_and_results_are_those_of_the_directory(hub, sharded, cache) -> None:
    hub.add(ID, sharded)
    seen: list[tuple[str, float, float]] = []
    remote = screen([ID], progress=lambda *call: seen.append(call)).rows[0]
    local = screen([sharded]).rows[0]
    assert remote.problem is None
    assert remote.as_data() == local.as_data() | {"target": ID}
    sums: Counter[str] = Counter()
    for sent in hub.sent:
        sums[sent.name] += sent.count
    assert dict(sums) == needed(sharded)
    assert len(list(sharded.glob("*.safetensors"))) > 3
    parts = [(part.name, part.start) for part in hub.sent]
    assert len(parts) == len(set(parts))
    assert not hub.leaked
    # the Hub itself is asked once for every file of weights
    resolved = [request for request in hub.asked if "/resolve/" in request and request.endswith(".safetensors")]
    assert len(resolved) == len(set(resolved)) == len(list(sharded.glob("*.safetensors")))
    assert set(cache()) == {"config.json", "model.safetensors.index.json"}
    total = sum(info.nbytes for info in Checkpoint(sharded).tensors.values())
    assert [stage for stage, *_ in seen] == [f"{ID}: reading weights"] * (1 + len(Checkpoint(sharded).tensors))
    assert seen[-1][1:] == (total, total)


@pytest.mark.parametrize("family", ["gpt2", "llama4"])  # one file; experts in one tensor
@pytest.mark.parametrize("with_store", [True, False])
def test_tensors_in_pieces_are_those_of_the_directory(hub, reading_model, family, with_store, monkeypatch) -> None:
    monkeypatch.setattr(hub_checkpoint, "REQUEST_BYTES", 4000)
    local, hub.with_store = reading_model(family), with_store
    hub.add(ID, local.directory)
    remote = open_to_read(ID)
    assert isinstance(remote, HubCheckpoint)
    assert list(remote.tensors) == list(local.tensors)
    tensors = dict(remote.stream())
    assert {info.name for info in tensors} == set(local.tensors)
    for info, tensor in tensors.items():
        assert tensor.dtype == info.dtype
        assert torch.equal(tensor, local.read(info.name))
    file = local.directory / "model.safetensors"
    sent = [part for part in hub.sent if part.name == file.name]
    assert sum(part.count for part in sent) == file.stat().st_size
    header = int.from_bytes(file.read_bytes()[:8], "little")
    assert max(part.count for part in sent) == max(header, 4000)
    before = len(hub.sent)
    assert remote.fingerprint == local.fingerprint
    assert len(hub.sent) == before  # it was computed in the same pass
    last = list(local.tensors)[-1]
    assert torch.equal(remote.read(last), local.read(last))
    assert sum(part.count for part in hub.sent[before:]) >= local.tensors[last].nbytes


def test_an_inspection_and_a_fingerprint_alone_are_those_of_the_directory(hub, reading_model) -> None:
    local = reading_model("llama")
    hub.add(ID, local.directory)
    remote = inspect(ID).as_data()
    assert json.dumps(remote) == json.dumps(inspect(local).as_data() | {"target": ID})
    assert HubCheckpoint(ID).fingerprint == local.fingerprint


def test_some_tensors_are_read_without_the_others(hub, reading_model) -> None:
    local = reading_model("llama")
    hub.add(ID, local.directory)
    remote = open_to_read(ID)
    name = list(local.tensors)[3]
    before = len(hub.sent)
    [(info, tensor)] = remote.stream([name])
    assert torch.equal(tensor, local.read(info.name))
    assert [part.count for part in hub.sent[before:]] == [local.tensors[name].nbytes]
    assert "fingerprint" not in vars(remote)
    with pytest.raises(InputError, match="has no tensor"):
        remote.read("absent")


def test_a_tensor_is_dropped_before_the_next_is_put_together(hub, reading_model, monkeypatch) -> None:
    hub.add(ID, reading_model("llama").directory)
    alive: list[weakref.ref[torch.Tensor]] = []
    allocate = torch.empty

    def watched(*arguments, **options):
        assert [reference for reference in alive if reference() is not None] == []
        return allocate(*arguments, **options)

    monkeypatch.setattr(torch, "empty", watched)
    for _, tensor in open_to_read(ID).stream():
        alive.append(weakref.ref(tensor))
        del tensor
    assert len(alive) == len(reading_model("llama").tensors)


def test_what_runs_the_model_is_refused(hub, reading_model) -> None:
    hub.add(ID, reading_model("llama").directory)
    remote = open_to_read(ID)
    for run in (remote.load, remote.tokenizer, remote.copy_model):
        with pytest.raises(InputError, match=re.escape(f"fairbits.Checkpoint('{ID}'), which downloads it")):
            run()


def test_a_model_in_the_cache_is_read_there_without_the_network(hub, sharded, tmp_path) -> None:
    hub.add(ID, sharded)
    Checkpoint(ID)  # downloads it
    hub.asked.clear()
    row = screen([ID]).rows[0]
    assert hub.asked == []
    assert row.as_data() == screen([sharded]).rows[0].as_data() | {"target": ID}
    next((tmp_path / "hub-cache").rglob("snapshots/*/*-00002-*.safetensors")).unlink()
    assert isinstance(open_to_read(ID), HubCheckpoint)  # the cache is not complete


def test_pickles_are_refused_and_a_revision_with_safetensors_is_read(hub, reading_model, tmp_path, command) -> None:
    local, pickled = reading_model("llama"), tmp_path / "pickled"
    shutil.copytree(local.directory, pickled, ignore=shutil.ignore_patterns("*.safetensors"))
    (pickled / "pytorch_model.bin").write_bytes(b"\x80\x04")
    hub.add(ID, pickled)
    hub.add(ID, local.directory, "refs/pr/7")
    code, printed, _ = command("screen", ID, f"{ID}@refs/pr/7", "--json")
    refused, read = json.loads(printed)["models"]
    assert code == 2
    assert refused["fingerprint"] is None
    assert f"{ID}/pytorch_model.bin is a pickle" in refused["problem"]
    assert f"from_pretrained('{ID}').save_pretrained('converted')" in refused["problem"]
    assert f"{ID}@refs/pr/NUMBER" in refused["problem"]
    assert (read["problem"], read["fingerprint"]) == (None, local.fingerprint)
    assert "pytorch_model.bin" not in {part.name for part in hub.sent}


def test_a_repository_without_weights(hub, tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    hub.add(ID, tmp_path / "empty")
    with pytest.raises(InputError, match=r"has no config\.json"):
        open_to_read(ID)
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds neither model\.safetensors .*; found: config\.json"):
        open_to_read(ID)


def test_progress_is_shown(hub, reading_model, capsys) -> None:
    from fairbits.cli.inspect_command import inspect as inspect_command

    hub.add(ID, reading_model("llama").directory)
    inspect_command(ID)
    assert "reading weights …" in capsys.readouterr().err


def test_a_revision_is_split_off_an_id_only(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a@b").mkdir()
    assert split_revision("a@b") == ("a@b", None)
    assert split_revision("x/a@refs/pr/1") == ("x/a", "refs/pr/1")
    assert split_revision("./a@c") == ("./a@c", None)
    assert split_revision("x/a@") == ("x/a@", None)
