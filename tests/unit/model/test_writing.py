"""Quantized checkpoints: what transformers loads is what was written; interruptions leave nothing half made."""

import errno
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as t
from safetensors.torch import load_file, save_file

from fairbits.errors import InputError
from fairbits.model import Checkpoint
from fairbits.model.files.formats import DEFAULT_FORMAT, planned_bytes
from fairbits.model.files.stored_weights import scale_dtype
from fairbits.model.files.writing import QuantizedWriter
from fairbits.model.groups import Codes, round_to_nearest
from fairbits.model.scheme import Scheme
from fairbits.theory.grid import Grid

SIZE: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 80}
WIDE = {**SIZE, "intermediate_size": 96}
GROUPED = {**WIDE, "num_key_value_heads": 2}
FAMILIES: dict[str, tuple[Any, Callable[[], Any]]] = {
    "bloom": (t.BloomForCausalLM, lambda: t.BloomConfig(**SIZE)),
    "llama": (t.LlamaForCausalLM, lambda: t.LlamaConfig(**GROUPED)),
    "qwen2": (t.Qwen2ForCausalLM, lambda: t.Qwen2Config(**GROUPED)),
    "gemma3": (t.Gemma3ForCausalLM, lambda: t.Gemma3TextConfig(**GROUPED, head_dim=16, sliding_window=8)),
    "opt": (t.OPTForCausalLM, lambda: t.OPTConfig(**SIZE, ffn_dim=96, word_embed_proj_dim=64)),
    "gpt_neox": (t.GPTNeoXForCausalLM, lambda: t.GPTNeoXConfig(**WIDE)),
    "mixtral": (t.MixtralForCausalLM, lambda: t.MixtralConfig(**GROUPED, num_local_experts=3)),
    "xlmr": (t.XLMRobertaForMaskedLM, lambda: t.XLMRobertaConfig(**WIDE, max_position_embeddings=68)),
}
IDENTITY = {"plan": "p", "model": "m"}
Make = Callable[..., Checkpoint]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Make:
    """Returns the function that gives a small random model of a family."""
    made: dict[tuple[str, torch.dtype], Checkpoint] = {}

    def make(family: str, dtype: torch.dtype = torch.float16) -> Checkpoint:
        if (family, dtype) not in made:
            cls, config = FAMILIES[family]
            torch.manual_seed(0)
            model = cls(config()).to(dtype)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.add_(0.1 * torch.randn_like(parameter))
            directory = tmp_path_factory.mktemp(family)
            model.save_pretrained(directory)
            made[family, dtype] = Checkpoint(directory)
        return made[family, dtype]

    t.logging.disable_progress_bar()
    return make


def inside(checkpoint: Checkpoint) -> list[str]:
    maps = checkpoint.architecture.linears.items()
    return [name for name, weight in maps if weight.block is not None and weight.role != "router"]


def rounded(checkpoint: Checkpoint, stored: dict[str, Scheme]) -> dict[str, Codes]:
    made = {}
    for name, how in stored.items():
        W = checkpoint.read(name)
        blocks = W.float().reshape(W.shape[0], how.groups(W.shape[1]), -1)
        scales = (blocks.abs().amax(2) / (2 ** (how.bits - 1) - 0.5)).to(scale_dtype(checkpoint))
        made[name] = round_to_nearest(W, scales, grid=Grid(how.bits, "twos"))
    return made


def by_block(checkpoint: Checkpoint, codes: dict[str, Codes]) -> dict[int | None, dict[str, Codes]]:
    blocks: dict[int | None, dict[str, Codes]] = {}
    for name, each in codes.items():
        blocks.setdefault(checkpoint.architecture.weights[name].block, {})[name] = each
    return blocks


def write(checkpoint: Checkpoint, stored: dict[str, Scheme], out: Path, **options: Any) -> dict[str, Codes]:
    codes = rounded(checkpoint, stored)
    writer = QuantizedWriter(checkpoint, out, schemes=stored, identity=IDENTITY, **options)
    for index, layers in by_block(checkpoint, codes).items():
        if writer.finished(index) is None:
            writer.add(index, layers, extra={f"t{index}": torch.ones(3)}, record=b'{"\xce\xba": 1}')
    writer.finish({"plan.json": b"{}\n"})
    return codes


@pytest.fixture(autouse=True)
def no_word_of_the_libraries(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A name that a loader cannot find, and the like, is said in the log."""
    yield
    assert [
        each.getMessage() for each in caplog.get_records("call") if each.name.startswith("compressed_tensors")
    ] == []


def check_loads(checkpoint: Checkpoint, codes: dict[str, Codes], out: Path, cls: Any) -> None:
    """Weights are those of the codes, and logits those of the model with these weights put in its place."""
    weights = checkpoint.architecture.weights
    fake = cls.from_pretrained(checkpoint.directory)
    with torch.no_grad():
        for name, each in codes.items():
            fake.get_submodule(weights[name].module).weight.copy_(each.dequantized)
    loaded = cls.from_pretrained(out)
    assert loaded.dtype == fake.dtype == scale_dtype(checkpoint)
    tokens = torch.arange(3, 35)[None]
    with torch.no_grad():
        got, expected = loaded(tokens).logits.float(), fake(tokens).logits.float()
    for name, each in codes.items():
        assert torch.equal(loaded.get_submodule(weights[name].module).weight, each.dequantized), name
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-3 * float(expected.abs().max()))


def check_size(checkpoint: Checkpoint, stored: dict[str, Scheme], out: Path) -> None:
    planned = planned_bytes(DEFAULT_FORMAT, checkpoint, stored)
    assert sum(info.nbytes for info in Checkpoint(out).tensors.values()) == planned
    assert json.loads((out / "model.safetensors.index.json").read_text())["metadata"]["total_size"] == planned
    assert planned < sum(info.nbytes for info in checkpoint.tensors.values())


def digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(directory.iterdir())}


def mixed(checkpoint: Checkpoint) -> dict[str, Scheme]:
    weights = checkpoint.architecture.weights
    return {name: Scheme(8, "channel") if weights[name].block == 0 else Scheme(4, 32) for name in inside(checkpoint)}


SCHEMES: dict[str, Callable[[Checkpoint], dict[str, Scheme]]] = {
    "int4 group": lambda c: dict.fromkeys(inside(c), Scheme(4, 32)),
    "int4 channel": lambda c: dict.fromkeys(inside(c), Scheme(4, "channel")),
    "int8": lambda c: dict.fromkeys(inside(c), Scheme(8, 32)),
    "int3": lambda c: dict.fromkeys(inside(c), Scheme(3, 32)),
    "mixed": mixed,
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("family", ["bloom", "llama", "qwen2", "gemma3", "opt", "gpt_neox"])
def test_round_trip(make: Make, tmp_path: Path, family: str, scheme: str) -> None:
    checkpoint = make(family)
    stored = SCHEMES[scheme](checkpoint)
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)
    check_size(checkpoint, stored, tmp_path / "out")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("family", ["bloom", "llama", "gemma3"])
def test_round_trip_in_other_types(make: Make, tmp_path: Path, family: str, dtype: torch.dtype) -> None:
    checkpoint = make(family, dtype)
    codes = write(checkpoint, mixed(checkpoint), tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)


@pytest.mark.parametrize("family", ["bloom", "gemma3", "opt", "llama", "gpt_neox"])
@pytest.mark.parametrize("group", [None, 32])
def test_embedding_in_8_bits_with_a_tied_head_and_without(
    make: Make, tmp_path: Path, family: str, group: int | None
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


def test_masked_language_model(make: Make, tmp_path: Path) -> None:
    checkpoint = make("xlmr")
    stored = dict.fromkeys([*inside(checkpoint), "lm_head.dense.weight"], Scheme(4, 32))
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForMaskedLM)


@pytest.mark.parametrize("head", [{}, {"lm_head.weight": Scheme(8, "channel")}])
def test_experts_with_a_tensor_each(make: Make, tmp_path: Path, head: dict[str, Scheme]) -> None:
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


def test_files_of_the_bare_model_keep_their_names(make: Make, tmp_path: Path) -> None:
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


def test_embedded_model_with_what_lies_beside_it(tmp_path: Path) -> None:
    checkpoint = Checkpoint("embedded:tiny?outliers=3:60")
    stored = dict.fromkeys(inside(checkpoint), Scheme(4, 64))
    codes = write(checkpoint, stored, tmp_path / "out")
    check_loads(checkpoint, codes, tmp_path / "out", t.AutoModelForCausalLM)
    check_size(checkpoint, stored, tmp_path / "out")
    made = Checkpoint(tmp_path / "out")
    assert made.tokenizer()("a")["input_ids"] == checkpoint.tokenizer()("a")["input_ids"]
    assert any("outliers were given" in note for note in made.notes)
    assert (tmp_path / "out" / "plan.json").read_bytes() == b"{}\n"
    assert set(load_file(tmp_path / "out" / "thresholds.safetensors")) == {f"t{i}" for i in range(12)}
    assert not any(name.startswith("t") and name[1:].isdigit() for name in made.tensors)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_resumed_run_gives_the_same_bytes_wherever_it_was_interrupted(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
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
import test_writing as w

checkpoint, out = w.Checkpoint({source!r}), Path({out!r})
w.write(checkpoint, w.mixed(checkpoint), out.with_name("whole"))  # and loads what each child would load for itself
for moment in {moments!r}:
    child = os.fork()
    if child == 0:
        left, sync = iter(range(moment)), os.fsync
        os.fsync = lambda file: sync(file) if next(left, None) is not None else os.kill(os.getpid(), signal.SIGKILL)
        w.write(checkpoint, w.mixed(checkpoint), out, resume=True)
        os._exit(0)
    killed = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    print(killed, out.exists(), len(list(out.with_name(".out.partial").glob("done/*.json"))))
"""


def test_killed_process_leaves_a_draft_that_can_be_continued(make: Make, tmp_path: Path) -> None:
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


def begun(checkpoint: Checkpoint, out: Path) -> tuple[dict[str, Scheme], dict[int | None, dict[str, Codes]]]:
    """Returns what a run that was interrupted after its first block was for."""
    stored = mixed(checkpoint)
    blocks = by_block(checkpoint, rounded(checkpoint, stored))
    writer = QuantizedWriter(checkpoint, out, schemes=stored, identity=IDENTITY)
    writer.add(0, blocks[0], extra={"t": torch.arange(3.0)}, record="κ".encode())
    return stored, blocks


def test_finished_block_comes_back(make: Make, tmp_path: Path) -> None:
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
def test_damaged_block_is_done_again(make: Make, tmp_path: Path, damage: str) -> None:
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


def test_draft_of_another_plan_is_not_continued(make: Make, tmp_path: Path) -> None:
    checkpoint = make("llama")
    stored, _ = begun(checkpoint, tmp_path / "out")
    with pytest.raises(InputError, match="begun for another plan;"):
        QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY | {"plan": "q"}, resume=True)
    other = dict.fromkeys(stored, Scheme(4, "channel"))
    with pytest.raises(InputError, match="begun for another stored;"):
        QuantizedWriter(checkpoint, tmp_path / "out", schemes=other, identity=IDENTITY, resume=True)
    with pytest.raises(InputError, match="--resume, or delete it"):
        QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY)


def test_directories_of_others_are_left_alone(make: Make, tmp_path: Path) -> None:
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


def test_full_disk_leaves_the_draft(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_blocks_must_come_as_they_were_planned(make: Make, tmp_path: Path) -> None:
    checkpoint = make("llama")
    stored, blocks = begun(checkpoint, tmp_path / "out")
    writer = QuantizedWriter(checkpoint, tmp_path / "out", schemes=stored, identity=IDENTITY, resume=True)
    with pytest.raises(InputError, match="must bring exactly"):
        writer.add(1, blocks[0])
    name, codes = next(iter(blocks[1].items()))
    with pytest.raises(InputError, match="came with shape"):
        writer.add(1, blocks[1] | {name: Codes(codes.codes, codes.scales.float(), codes.bits)})
    writer.add(1, blocks[1])
    with pytest.raises(InputError, match="cannot be added"):
        writer.finish({"../a.json": b""})


def test_blocks_without_a_quantized_tensor_have_a_record_too(make: Make, tmp_path: Path) -> None:
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
