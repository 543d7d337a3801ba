"""Files that lie: every one gives an error that says so, before anything is allocated for it."""

import json
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.safetensors_files import DTYPES, read_header
from fairbits.models.io.weight_files import Directory, read_weights

INDEX = "model.safetensors.index.json"


def write(path: Path, header: object, data: bytes = b"") -> Path:
    """Writes a safetensors file with whatever header; bytes are taken as they are."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def entry(dtype: str = "F32", shape: object = (2,), offsets: object = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def sharded(directory: Path, weight_map: Mapping[str, str] | None = None, **metadata: int) -> Path:
    """Writes two shards, a.safetensors with x and y, b.safetensors with z, and an index."""
    save_file({"x": torch.zeros(2), "y": torch.ones(3)}, directory / "a.safetensors")
    save_file({"z": torch.arange(4)}, directory / "b.safetensors")
    right = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    index = {"metadata": metadata, "weight_map": right if weight_map is None else weight_map}
    (directory / INDEX).write_text(json.dumps(index))
    (directory / "config.json").write_text("{}")
    return directory


BAD_HEADERS: dict[str, tuple[object, bytes, str]] = {
    "no JSON": (b"{", b"", "not valid JSON"),
    "no UTF-8": (b'{"\xff": 1}', b"", "not valid JSON"),
    "a list": (b"[]", b"", "JSON list"),
    "deep": (b"[" * 100_000, b"", "not valid JSON"),
    "a number of 5000 digits": (b'{"a": ' + b"9" * 5000 + b"}", b"", "not valid JSON"),
    "a name twice": (b'{"a": {}, "a": {}}', b"", "'a' is there twice"),
    "no description": ({"a": 1}, b"", "dtype, shape and data_offsets"),
    "a key too many": ({"a": entry() | {"more": 1}}, b"12345678", "dtype, shape and data_offsets"),
    "unknown dtype": ({"a": entry("F4")}, b"12345678", "'F4'"),
    "dtype a list": ({"a": entry() | {"dtype": []}}, b"12345678", r"dtype \[\]"),
    "negative size": ({"a": entry(shape=[-2])}, b"12345678", r"shape \[-2\]"),
    "a size that is no number": ({"a": entry(shape=[True, 2])}, b"12345678", "shape"),
    "a size beyond memory": ({"a": entry(shape=[0, 2**40, 2**40], offsets=[0, 0])}, b"", "shape"),
    "65 dimensions": ({"a": entry(shape=[1] * 65, offsets=[0, 4])}, b"1234", "shape"),
    "negative offset": ({"a": entry(offsets=[-8, 0])}, b"12345678", r"offsets \[-8, 0\]"),
    "offsets turned round": ({"a": entry(offsets=[8, 0])}, b"12345678", r"offsets \[8, 0\]"),
    "one offset": ({"a": entry(offsets=[0])}, b"12345678", "offsets"),
    "length and shape differ": ({"a": entry(offsets=[0, 7])}, b"1234567", "takes 7 bytes; F32 of shape .* take 8"),
    "beyond the end": ({"a": entry()}, b"1234567", "is truncated"),
    "far beyond the end": ({"a": entry(shape=[2**60], offsets=[0, 2**62])}, b"", "is truncated"),
    "unused bytes": ({"a": entry()}, b"123456789", "longer than it must be"),
    "overlap": ({"a": entry(), "b": entry(offsets=[4, 12])}, b"0" * 12, "'b' .* overlaps"),
    "gap": ({"a": entry(), "b": entry(offsets=[12, 20])}, b"0" * 20, "'b' .* leaves a gap"),
}


@pytest.mark.parametrize(("header", "data", "message"), BAD_HEADERS.values(), ids=BAD_HEADERS)
def test_a_header_that_lies(header: object, data: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_header(write(tmp_path / "model.safetensors", header, data))


@pytest.mark.parametrize("size", [0, 7, 8, 100])
def test_a_file_cut_short(size: int, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(save({"a": torch.zeros(1000)})[:size])
    with pytest.raises(InputError, match="truncated"):
        read_header(path)


@given(st.data())
def test_any_damage_to_a_header_is_an_input_error_or_harmless(tmp_path_factory: Any, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("damage") / "model.safetensors"
    content = bytearray(save({"a": torch.zeros(3), "b": torch.ones(2, 2, dtype=torch.int8)}))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] = data.draw(st.integers(0, 255))
    path.write_bytes(content)
    try:
        infos = read_header(path)
    except InputError:
        return
    assert sum(info.nbytes for info in infos.values()) == 16


def test_a_header_length_of_ten_gigabytes_allocates_nothing(tmp_path: Path) -> None:
    lengths = {"beyond.safetensors": 10**10, "inside.safetensors": 10**10, "signed.safetensors": 2**63}
    for name, length in lengths.items():
        with (tmp_path / name).open("wb") as file:
            file.write(length.to_bytes(8, "little"))
            file.truncate(11 * 10**9 if name.startswith("inside") else 1000)  # sparse: no disk is used
    paths = [tmp_path / name for name in lengths]
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**26, before[1]))
    try:
        for path in paths:
            with pytest.raises(InputError) as refused:
                read_header(path)
            assert f"{path} says that its header is {lengths[path.name]:,} bytes long" in str(refused.value)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def test_every_type_and_shape_is_read_as_the_library_wrote_it(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {"scalar": torch.tensor(3.5), "empty": torch.empty(0, 7), "odd": torch.ones(3, dtype=torch.int8)}
    for name, dtype in DTYPES.items():
        raw = torch.randint(0, 2, (5 * dtype.itemsize,), dtype=torch.uint8, generator=generator)
        tensors[name] = raw.view(dtype)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text("{}")
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.tensors.keys() == tensors.keys()
    for name, expected in tensors.items():
        info, tensor = checkpoint.tensors[name], checkpoint.read(name)
        assert (info.shape, info.dtype, info.numel) == (tuple(expected.shape), expected.dtype, expected.numel())
        assert (tensor.shape, tensor.dtype) == (expected.shape, expected.dtype)
        assert tensor.reshape(-1).view(torch.uint8).equal(expected.reshape(-1).view(torch.uint8))


def test_tensors_need_not_be_aligned(tmp_path: Path) -> None:
    header = {"a": entry("U8", [1], [0, 1]), "b": entry("F64", [2], [1, 17])}
    data = b"\x07" + torch.tensor([1.5, -2.0], dtype=torch.float64).numpy().tobytes()
    write(tmp_path / "model.safetensors", header, data)
    (tmp_path / "config.json").write_text("{}")
    tensor = Checkpoint(tmp_path).read("b")
    assert tensor.tolist() == [1.5, -2.0]
    assert tensor.data_ptr() % 8 == 0


def test_an_empty_tensor_may_start_where_another_does(tmp_path: Path) -> None:
    header = {"a": entry(), "empty": entry(shape=[0], offsets=[0, 0])}
    assert list(read_header(write(tmp_path / "model.safetensors", header, bytes(8)))) == ["empty", "a"]


def test_shards_are_read_in_order(tmp_path: Path) -> None:
    tensors, notes = read_weights(Directory(sharded(tmp_path, total_size=52)))
    assert list(tensors) == ["x", "y", "z"]
    assert tensors["z"].file == tmp_path / "b.safetensors"
    assert notes == ()


def test_a_wrong_total_size_is_noted(tmp_path: Path) -> None:
    assert read_weights(Directory(sharded(tmp_path, total_size=51)))[1] == (
        "the index states 51 bytes, the shards hold 52",
    )


BAD_MAPS = {
    "missing shard": ({"x": "c.safetensors"}, "c.safetensors, which is missing"),
    "tensor in no file": (
        {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors", "w": "b.safetensors"},
        "b.safetensors, which lacks 'w'",
    ),
    "tensor not in the index": ({"x": "a.safetensors", "z": "b.safetensors"}, "which also holds 'y'"),
    "tensors exchanged": ({"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}, "lacks 'z' and also"),
    "parent directory": ({"x": "../a.safetensors"}, "next to the index"),
    "absolute": ({"x": "/etc/a.safetensors"}, "next to the index"),
    "other separator": ({"x": "..\\a.safetensors"}, "next to the index"),
    "drive": ({"x": "C:a.safetensors"}, "next to the index"),
    "NUL": ({"x": "a\0.safetensors"}, "next to the index"),
    "line feed": ({"x": "a.safetensors\n"}, "next to the index"),
    "the parent itself": ({"x": ".."}, "next to the index"),
    "a pickle": ({"x": "a.bin"}, "next to the index"),
    "a directory": ({"x": "folder.safetensors"}, "is missing"),
    "a number": ({"x": 1}, "no weight_map"),
    "a list": (["a.safetensors"], "no weight_map"),
}


@pytest.mark.parametrize(("weight_map", "message"), BAD_MAPS.values(), ids=BAD_MAPS)
def test_an_index_that_lies(weight_map: dict[str, str], message: str, tmp_path: Path) -> None:
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(InputError, match=message):
        Checkpoint(sharded(tmp_path, weight_map))


def test_shards_may_be_links_as_in_the_cache_of_the_hub(tmp_path: Path) -> None:
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots"
    blobs.mkdir()
    snapshot.mkdir()
    for file in list(sharded(blobs).iterdir()):
        (snapshot / file.name).symlink_to(Path("..") / "blobs" / file.name)
    assert list(Checkpoint(snapshot).tensors) == ["x", "y", "z"]
    (blobs / "b.safetensors").unlink()
    with pytest.raises(InputError, match=r"b\.safetensors, which is missing"):
        Checkpoint(snapshot)


def no_config(directory: Path) -> None:
    (directory / "config.json").unlink()


def bad_config(directory: Path) -> None:
    (directory / "config.json").write_text("{'single': quotes}")


def two_models(directory: Path) -> None:
    save_file({"x": torch.zeros(2)}, directory / "model.safetensors")


def no_index(directory: Path) -> None:
    (directory / INDEX).unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (no_config, "config.json cannot be read"),
        (bad_config, "config.json is not valid JSON"),
        (two_models, "both model.safetensors and"),
        (no_index, "found: a.safetensors, b.safetensors, config.json"),
    ],
)
def test_a_directory_that_lacks_something(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    damage(sharded(tmp_path))
    with pytest.raises(InputError, match=message):
        Checkpoint(tmp_path)


def test_a_file_that_shrinks_after_opening(tmp_path: Path) -> None:
    checkpoint = Checkpoint(sharded(tmp_path))
    (tmp_path / "b.safetensors").write_bytes(b"")
    with pytest.raises(InputError, match="shorter than when it was opened"):
        checkpoint.read("z")
    (tmp_path / "a.safetensors").unlink()
    with pytest.raises(InputError, match="can no longer be read"):
        checkpoint.read("x")
