"""Quantized checkpoints are written block by block, resumed after an interruption, and load in transformers."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from fairbits.core.errors import InputError
from fairbits.core.memory import WAITING_BLOCKS
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.checkpoint_writer import QuantizedWriter, WriteBehind
from fairbits.models.io.compressed_tensors import planned_bytes
from fairbits.models.scales.groups import Codes
from fairbits.models.scales.scheme import Scheme

Make = Callable[..., Checkpoint]


def check_loads(checkpoint: Checkpoint, codes: dict[str, Codes], out: Path, cls: Any) -> None:
    """Weights are those of the codes, and logits those of the model with these weights put in its place."""
    weights = checkpoint.architecture.weights
    fake = cls.from_pretrained(checkpoint.directory)
    with torch.no_grad():
        for name, layer_codes in codes.items():
            fake.get_submodule(weights[name].module).weight.copy_(layer_codes.dequantized)
    loaded = cls.from_pretrained(out)
    assert loaded.dtype == fake.dtype == checkpoint.scale_dtype
    tokens = torch.arange(3, 35)[None]
    with torch.no_grad():
        got, expected = loaded(tokens).logits.float(), fake(tokens).logits.float()
    for name, layer_codes in codes.items():
        assert torch.equal(loaded.get_submodule(weights[name].module).weight, layer_codes.dequantized), name
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))


def check_size(checkpoint: Checkpoint, stored: dict[str, Scheme], out: Path) -> None:
    planned = planned_bytes(checkpoint, stored)
    assert sum(info.nbytes for info in Checkpoint(out).tensors.values()) == planned
    index = json.loads((out / "config.json").read_text()).get("transformers_weights", "model.safetensors.index.json")
    assert json.loads((out / index).read_text())["metadata"]["total_size"] == planned
    assert planned < sum(info.nbytes for info in checkpoint.tensors.values())


SCHEMES: dict[str, Scheme | None] = {
    "int4 group": Scheme(4, 32),
    "int4 channel": Scheme(4, "channel"),
    "int8": Scheme(8, 32),
    "int3": Scheme(3, 32),
    "int3 signed": Scheme(3, 32, "exact", "signed"),
    "mixed": None,
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", ["bloom", "llama", "qwen2", "gemma3", "opt", "gpt_neox"])
def test_round_trip(make: Make, tmp_path: Path, family: str, scheme: str, inside: Any, mixed: Any, write: Any) -> None:
    checkpoint = make(family)
    how = SCHEMES[scheme]
    stored = mixed(checkpoint) if how is None else dict.fromkeys(inside(checkpoint), how)
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)
    check_size(checkpoint, stored, tmp_path / "out")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", ["bloom", "llama", "gemma3"])
def test_round_trip_in_other_types(
    make: Make, tmp_path: Path, family: str, dtype: torch.dtype, write: Any, mixed: Any
) -> None:
    checkpoint = make(family, dtype)
    codes = write(checkpoint, mixed(checkpoint), tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)


@pytest.mark.parametrize("family", ["bloom", "gemma3", "opt", "llama", "gpt_neox"])
@pytest.mark.parametrize("group", ["channel", 32])
def test_embedding_in_8_bits_with_a_tied_head_and_without(
    make: Make, tmp_path: Path, family: str, group: int | None, inside: Any, write: Any
) -> None:
    checkpoint = make(family)
    architecture = checkpoint.architecture
    table = next(name for name, weight in architecture.weights.items() if weight.role == "embedding")
    heads = {name: Scheme(4, 32) for name, weight in architecture.linears.items() if weight.role == "head"}
    assert bool(heads) == (family in ("llama", "gpt_neox"))
    stored = dict.fromkeys(inside(checkpoint), Scheme(4, 32)) | {table: Scheme(8, group)} | heads
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)
    check_size(checkpoint, stored, tmp_path / "out")


def test_masked_language_model(make: Make, tmp_path: Path, inside: Any, write: Any) -> None:
    checkpoint = make("xlmr")
    stored = dict.fromkeys([*inside(checkpoint), "lm_head.dense.weight"], Scheme(4, 32))
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForMaskedLM)


@pytest.mark.parametrize("head", [{}, {"lm_head.weight": Scheme(8, "channel")}])
def test_experts_with_a_tensor_each(
    make: Make, tmp_path: Path, head: dict[str, Scheme], inside: Any, write: Any
) -> None:
    checkpoint = make("mixtral")
    stored = dict.fromkeys(inside(checkpoint), Scheme(4, 32)) | head
    codes = write(checkpoint, stored, tmp_path / "out")
    loaded = t.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    layer = "model.layers.1.block_sparse_moe.experts.2"
    experts = loaded.model.layers[1].mlp.experts
    assert torch.equal(experts.down_proj[2], codes[f"{layer}.w2.weight"].dequantized)
    gate_up = torch.cat([codes[f"{layer}.w1.weight"].dequantized, codes[f"{layer}.w3.weight"].dequantized])
    assert torch.equal(experts.gate_up_proj[2], gate_up)
    loaded(torch.arange(3, 35)[None])
    query = loaded.model.layers[1].self_attn.q_proj.weight
    assert torch.equal(query, codes["model.layers.1.self_attn.q_proj.weight"].dequantized)


def test_files_of_the_bare_model_keep_their_names(make: Make, tmp_path: Path, write: Any, mixed: Any) -> None:
    source = make("bloom").directory
    bare = tmp_path / "bare"
    bare.mkdir()
    tensors = load_file(source / "model.safetensors")
    named = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(named, bare / "model.safetensors", metadata={"format": "pt"})
    shutil.copy(source / "config.json", bare)
    checkpoint = Checkpoint(bare)
    codes = write(checkpoint, mixed(checkpoint), tmp_path / "out")
    assert "h.0.mlp.dense_h_to_4h.weight_packed" in Checkpoint(tmp_path / "out").tensors
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)


def test_embedded_model_with_what_lies_beside_it(tmp_path: Path, inside: Any, write: Any) -> None:
    checkpoint = Checkpoint("embedded:tiny?outliers=3:60")
    stored = dict.fromkeys(inside(checkpoint), Scheme(4, 64))
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)
    check_size(checkpoint, stored, tmp_path / "out")
    quantized = Checkpoint(tmp_path / "out")
    assert quantized.tokenizer()("a")["input_ids"] == checkpoint.tokenizer()("a")["input_ids"]
    assert any("outliers were given" in note for note in quantized.notes)
    assert (tmp_path / "out" / "plan.json").read_bytes() == b"{}\n"
    assert set(load_file(tmp_path / "out" / "thresholds.safetensors")) == {f"t{i}" for i in range(12)}
    assert not any(name.startswith("t") and name[1:].isdigit() for name in quantized.tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


IDENTITY = {"plan": "0" * 64, "model": "1" * 64, "tokenizer": "3" * 64, "fairbits": "0.2.0", "device": "cpu"}


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
    completed = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    lines = [line.split() for line in completed.stdout.splitlines()]
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
    finished_block = writer.finished(0)
    assert finished_block is not None
    assert finished_block.record.decode() == "κ"
    assert finished_block.extra["t"].tolist() == [0, 1, 2]
    assert finished_block.layers.keys() == blocks[0].keys()
    for name, codes in finished_block.layers.items():
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
    ("changed", "message"),
    [
        ({"plan": 3}, "plan is 3; it must be"),
        ({"model": "m"}, "model is 'm'; it must be a SHA-256"),
        ({"device": None}, "device is None"),
        ({"stored": {"a": [99, 8]}}, r"stored\.a\.0 is 99"),
        ({"other": 1}, "the key other is unknown"),
    ],
)
def test_a_state_that_is_damaged_is_refused(
    make: Make, tmp_path: Path, begun: Any, changed: dict[str, Any], message: str
) -> None:
    checkpoint = make("llama")
    stored, _ = begun(checkpoint, tmp_path / "out")
    note = tmp_path / ".out.partial" / "state.json"
    note.write_text(json.dumps(json.loads(note.read_text()) | changed))
    with pytest.raises(InputError, match=rf"state\.json is damaged: {message}.* after you have deleted the draft"):
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
    name = next(key for key in tensors if key.endswith("_packed")).removesuffix("_packed")
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
    note_data = json.loads(note.read_text())
    note_data["sha256"][shard.name] = hashlib.sha256(shard.read_bytes()).hexdigest()
    note.write_text(json.dumps(note_data))
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
    finished_block = writer.finished(1)
    assert finished_block is not None
    assert (finished_block.layers, finished_block.record) == ({}, b"nothing")
    seen: list[tuple[int, int]] = []
    writer.finish(progress=lambda _, done, total: seen.append((done, total)))
    assert seen[-1][0] == seen[-1][1] == planned_bytes(checkpoint, {}) - checkpoint.tensors[name].nbytes
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert shards == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def test_all_is_written_when_the_statement_ends():
    done = []
    with WriteBehind() as behind:
        for i in range(20):
            behind.add(lambda i=i: (time.sleep(0.001), done.append(i))[0])
    assert sorted(done) == list(range(20))


def test_only_a_few_wait():
    gate, waiting, most = threading.Event(), [], []

    def write():
        gate.wait()
        waiting.pop()

    def fill(behind):
        for _ in range(2 * WAITING_BLOCKS):
            behind.add(write)
            waiting.append(None)
            most.append(len(waiting))

    with WriteBehind() as behind:
        filling = threading.Thread(target=fill, args=(behind,))
        filling.start()
        time.sleep(0.1)
        assert len(waiting) == WAITING_BLOCKS
        gate.set()
        filling.join()
    assert max(most) <= WAITING_BLOCKS
    assert not waiting


def full(*_):
    raise InputError("no room")


def test_a_problem_is_raised_in_the_caller_and_what_has_not_begun_is_not_written():
    done = []

    def write_all():
        with WriteBehind() as behind:
            behind.add(full)
            for i in range(50):
                time.sleep(0.01)
                behind.add(lambda i=i: done.append(i))

    with pytest.raises(InputError, match="no room"):
        write_all()
    assert len(done) < 5


def test_a_problem_of_the_last_one_is_raised_too():
    with pytest.raises(InputError, match="no room"), WriteBehind() as behind:
        behind.add(full)


def test_what_is_complete_is_written_though_the_caller_is_interrupted():
    done, gate = [], threading.Event()

    def write_all():
        with WriteBehind() as behind:
            for i in range(WAITING_BLOCKS):
                behind.add(lambda i=i: (gate.wait(), done.append(i))[0])
            gate.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_all()
    assert sorted(done) == list(range(WAITING_BLOCKS))
