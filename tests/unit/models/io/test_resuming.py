"""Drafts of a quantized checkpoint: interruptions leave nothing half made, and what is finished is kept."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.formats import DEFAULT_FORMAT, planned_bytes
from fairbits.models.io.writer import QuantizedWriter
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme

IDENTITY = {"plan": "0" * 64, "model": "1" * 64, "tokenizer": "3" * 64, "fairbits": "0.2.0", "device": "cpu"}
Make = Callable[..., Checkpoint]


def test_resumed_run_gives_the_same_bytes_wherever_it_was_interrupted(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write: Any, digests: Any, mixed: Any
) -> None:
    checkpoint = make("llama")
    stored = mixed(checkpoint) | {"lm_head.weight": Scheme(4, "channel")}
    write(checkpoint, stored, tmp_path / "whole")
    expected = digests(tmp_path / "whole")
    out = tmp_path / "out"
    synced = 0

    class Killed(BaseException):
        pass

    def fsync(_: int) -> None:
        nonlocal synced
        synced += 1
        if synced == deadline:
            raise Killed

    monkeypatch.setattr("os.fsync", fsync)
    stops = 0
    for deadline in range(1, 200):
        synced = 0
        try:
            write(checkpoint, stored, out, resume=out.with_name(".out.partial").exists())
        except Killed:
            stops += 1
            assert not out.exists() or digests(out) == expected
            shutil.rmtree(out, ignore_errors=True)  # killed after the last rename
            if deadline % 3:  # now and then two interruptions in a row
                shutil.rmtree(out.with_name(".out.partial"), ignore_errors=True)
                continue
            synced = -1000
            write(checkpoint, stored, out, resume=True)
        assert digests(out) == expected
        shutil.rmtree(out)
        if synced >= 0:
            break
    assert stops > 20


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {here!r})
import conftest as w

checkpoint, out = w.Checkpoint({source!r}), Path({out!r})
# and loads what each child would load for itself
w.write_model(checkpoint, w.mixed_schemes(checkpoint), out.with_name("whole"))
for moment in {moments!r}:
    child = os.fork()
    if child == 0:
        left, sync = iter(range(moment)), os.fsync
        os.fsync = lambda file: sync(file) if next(left, None) is not None else os.kill(os.getpid(), signal.SIGKILL)
        w.write_model(checkpoint, w.mixed_schemes(checkpoint), out, resume=True)
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    print(killed, out.exists(), len(list(out.with_name(".out.partial").glob("done/*.json"))))
"""


@pytest.mark.long
def test_killed_process_leaves_a_draft_that_can_be_continued(
    make: Make, tmp_path: Path, write: Any, digests: Any, mixed: Any
) -> None:
    checkpoint = make("llama")
    out, here = tmp_path / "out", str(Path(__file__).parent)
    # each run ends at its n-th fsync and the next one goes on: the state, the shards of both blocks, the files beside;
    # while no block is finished a run starts anew
    moments = [0, 1, 3, 8, 9, 3, 7, 11]
    code = KILLED.format(here=here, source=str(checkpoint.directory), out=str(out), moments=moments)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}  # a process with threads must not be forked
    said = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    lines = [line.split() for line in said.stdout.splitlines()]
    assert [line[:2] for line in lines] == [["True", "False"]] * len(moments)
    assert [int(line[2]) for line in lines] == [0, 0, 0, 1, 2, 2, 2, 2]
    write(checkpoint, mixed(checkpoint), out, resume=True)
    assert digests(out) == digests(tmp_path / "whole")


@pytest.fixture
def begun(mixed: Any, rounded: Any, by_block: Any) -> Any:
    """Returns the function that starts a run, leaves it after its first block, and gives what the run was for."""

    def begun(checkpoint: Checkpoint, out: Path) -> tuple[dict[str, Scheme], dict[int | None, dict[str, Codes]]]:
        stored = mixed(checkpoint)
        blocks = by_block(checkpoint, rounded(checkpoint, stored))
        writer = QuantizedWriter(checkpoint, out, schemes=stored, identity=IDENTITY)
        writer.add(0, blocks[0], extra={"t": torch.arange(3.0)}, record="κ".encode())
        return stored, blocks

    return begun


def test_finished_block_comes_back(make: Make, tmp_path: Path, begun: Any) -> None:
    checkpoint = make("llama")
    stored, blocks = begun(checkpoint, tmp_path / "out")
    writer = QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY, resume=True)
    found = writer.finished(0)
    assert found is not None
    assert found.record.decode() == "κ"
    assert found.extra["t"].tolist() == [0, 1, 2]
    assert found.layers.keys() == blocks[0].keys()
    for name, codes in found.layers.items():
        assert torch.equal(codes.codes, blocks[0][name].codes)
        assert torch.equal(codes.scales, blocks[0][name].scales)
        assert codes.bits == 8
    assert writer.finished(1) is None
    with pytest.raises(InputError, match="block 1 was not added"):
        writer.finish()


@pytest.mark.parametrize("damage", ["truncated", "changed", "missing", "extra", "note"])
def test_damaged_block_is_done_again(
    make: Make, tmp_path: Path, damage: str, write: Any, digests: Any, begun: Any
) -> None:
    checkpoint = make("llama")
    stored, _ = begun(checkpoint, tmp_path / "out")
    draft = tmp_path / ".out.partial"
    (shard,) = draft.glob("model/*.safetensors")
    if damage == "truncated":
        shard.write_bytes(shard.read_bytes()[:-1])
    elif damage == "changed":
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
    elif damage == "missing":
        shard.unlink()
    elif damage == "extra":
        next(draft.glob("done/*.safetensors")).unlink()
    else:
        next(draft.glob("done/*.json")).write_text('{"record": "x')
    writer = QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY, resume=True)
    assert writer.finished(0) is None
    with pytest.raises(InputError, match="block 0 was not added"):
        writer.finish()
    write(checkpoint, stored, tmp_path / "whole")
    write(checkpoint, stored, tmp_path / "out", resume=True)
    assert digests(tmp_path / "out") == digests(tmp_path / "whole")


def test_draft_of_another_plan_is_not_continued(make: Make, tmp_path: Path, begun: Any) -> None:
    checkpoint = make("llama")
    stored, _ = begun(checkpoint, tmp_path / "out")
    with pytest.raises(InputError, match="begun for another plan;"):
        QuantizedWriter(
            checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY | {"plan": "2" * 64}, resume=True
        )
    other = dict.fromkeys(stored, Scheme(4, "channel"))
    with pytest.raises(InputError, match="begun for another stored;"):
        QuantizedWriter(checkpoint, tmp_path / "out", schemes=other, identity=IDENTITY, resume=True)
    with pytest.raises(InputError, match="--resume, or delete it"):
        QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"plan": 3}, "plan is 3; it must be"),
        ({"model": "m"}, "model is 'm'; it must be a SHA-256"),
        ({"device": None}, "device is None"),
        ({"stored": {"a": [99, 8]}}, r"stored\.a\.0 is 99"),
        ({"other": 1}, "the key other is unknown"),
    ],
)
def test_a_state_that_is_damaged_is_refused(
    make: Make, tmp_path: Path, begun: Any, changed: dict[str, Any], said: str
) -> None:
    checkpoint = make("llama")
    stored, _ = begun(checkpoint, tmp_path / "out")
    note = tmp_path / ".out.partial" / "state.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | changed))
    with pytest.raises(InputError, match=rf"state\.json is damaged: {said}.* after you have deleted the draft"):
        QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY, resume=True)


@pytest.mark.parametrize("damage", ["shape", "missing", "scale", "type"])
def test_a_block_that_is_not_as_planned_is_done_again_although_its_hash_is_right(
    make: Make, tmp_path: Path, begun: Any, damage: str
) -> None:
    checkpoint = make("llama")
    stored, _ = begun(checkpoint, tmp_path / "out")
    draft = tmp_path / ".out.partial"
    (shard,) = draft.glob("model/*.safetensors")
    tensors = load_file(shard)
    name = next(each for each in tensors if each.endswith("_packed")).removesuffix("_packed")
    if damage == "missing":
        del tensors[f"{name}_scale"]
    elif damage == "shape":
        tensors[f"{name}_shape"] = torch.tensor([1, 2**40])
    elif damage == "scale":
        tensors[f"{name}_scale"][0] = float("inf")
    else:
        tensors[f"{name}_packed"] = tensors[f"{name}_packed"].to(torch.int64)
    save_file(tensors, shard)
    note = next(draft.glob("done/*.json"))
    said = json.loads(note.read_text())
    said["sha256"][shard.name] = hashlib.sha256(shard.read_bytes()).hexdigest()
    note.write_text(json.dumps(said))
    writer = QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY, resume=True)
    assert writer.finished(0) is None
    with pytest.raises(InputError, match="block 0 was not added"):
        writer.finish()


def test_directories_of_others_are_left_alone(make: Make, tmp_path: Path, mixed: Any) -> None:
    checkpoint = make("llama")
    options: dict[str, Any] = {"schemes": mixed(checkpoint), "identity": IDENTITY}
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").touch()
    with pytest.raises(InputError, match="exists and is not empty"):
        QuantizedWriter(checkpoint, tmp_path / "full", **options)
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "diary.txt").touch()
    with pytest.raises(InputError, match=r"holds diary\.txt"):
        QuantizedWriter(checkpoint, tmp_path / "out", **options)
    assert (tmp_path / ".out.partial" / "diary.txt").exists()


def test_full_disk_leaves_the_draft(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: Any) -> None:
    checkpoint = make("llama")
    stored, blocks = begun(checkpoint, tmp_path / "out")

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    writer = QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY, resume=True)
    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(InputError, match=r"No space left .* continue with --resume"):
            writer.add(1, blocks[1])
    assert writer.finished(0) is not None
    assert writer.finished(1) is None
    assert not list((tmp_path / ".out.partial").rglob("*.part"))
    writer.add(1, blocks[1])
    writer.finish()


def test_blocks_must_come_as_they_were_planned(make: Make, tmp_path: Path, begun: Any) -> None:
    checkpoint = make("llama")
    stored, blocks = begun(checkpoint, tmp_path / "out")
    writer = QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY, resume=True)
    with pytest.raises(InputError, match="must bring exactly"):
        writer.add(1, blocks[0])
    name, codes = next(iter(blocks[1].items()))
    with pytest.raises(InputError, match="has shape, scales, bits and types"):
        writer.add(1, blocks[1] | {name: Codes(codes.codes, codes.scales.float(), codes.bits)})
    writer.add(1, blocks[1])
    with pytest.raises(InputError, match="cannot be added"):
        writer.finish({"../a.json": b""})


def test_blocks_without_a_quantized_tensor_have_a_record_too(make: Make, tmp_path: Path, rounded: Any) -> None:
    checkpoint = make("llama")
    name = "model.layers.0.mlp.down_proj.weight"
    stored = {name: Scheme(8, "channel")}
    writer = QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY)
    writer.add(1, {}, record=b"nothing")
    writer.add(0, rounded(checkpoint, stored))
    found = writer.finished(1)
    assert found is not None
    assert (found.layers, found.record) == ({}, b"nothing")
    seen: list[tuple[int, int]] = []
    writer.finish(progress=lambda _, done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == planned_bytes(DEFAULT_FORMAT, checkpoint, {}) - checkpoint.tensors[name].nbytes
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert shards == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
