"""Overlays on disk: written over older ones, on a full disk, read again, and refused when damaged."""

import json
import re
import resource
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.core.files import file_sha256
from fairbits.core.locks import LOCK
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.safetensors_files import in_memory, map_tensor, read_header, write_tensors
from fairbits.serve.overlays.activations import ActivationTable
from fairbits.serve.overlays.overlay_files import (
    BASE,
    MANIFEST,
    Overlay,
    Overlays,
    Patch,
    check_directory,
    open_for_writing,
)

ROWS = torch.tensor([0, 5, 31])
Q, K, V = (f"model.layers.0.self_attn.{letter}_proj" for letter in "qkv")


def table() -> ActivationTable:
    alpha = np.array([[0.1, 2.5], [1e-30, 3e30], [7.0, 0.3]], dtype=np.float32)
    return ActivationTable(
        8, "exact", {"one": (Q, K), "other": (V,)}, ("eng_Latn", "heb_Hebr", "jpn_Jpan"), alpha, alpha[0]
    )


@pytest.fixture(scope="module")
def overlays(llama_base: Checkpoint) -> Overlays:
    """Returns overlays in all forms, with some rows and with all; two of them share theirs, one has none."""
    rng = torch.Generator().manual_seed(0)

    def scales(name: str) -> torch.Tensor:
        return llama_base.read(f"{name}.weight_scale").clone()

    def codes(rows: int, bits: int) -> torch.Tensor:
        return torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (rows, 32), generator=rng).to(torch.int8)

    def patch(form: Any, name: str, bits: int, **rest: Any) -> Patch:
        return Patch(form, f"{name}.weight", name, bits, **rest)

    shared = (
        patch("residual", Q, 2, rows=ROWS, scales=0.1 * scales(Q)[ROWS], codes=codes(3, 2)),
        patch("codes", K, 3, rows=None, scales=scales(K), codes=codes(len(scales(K)), 3)),
        patch("steps", V, 3, rows=None, scales=1.1 * scales(V), base_scales=scales(V)),
    )
    unshared = (patch("steps", Q, 3, rows=ROWS, scales=1.2 * scales(Q)[ROWS], base_scales=scales(Q)[ROWS]),)
    served = {"eng_Latn": "eng_Latn", "heb_Hebr": "heb_Hebr", "jpn_Jpan": "jpn_Jpan", "fra_Latn": BASE}
    overlays = (
        Overlay("eng_Latn", ("eng_Latn",), shared),
        Overlay("heb_Hebr", ("heb_Hebr",), shared),
        Overlay("jpn_Jpan", ("jpn_Jpan",), unshared),
        Overlay("none", (), ()),
    )
    return Overlays(llama_base.fingerprint, overlays, served, {"why": "שלום", "n": 3}, table())


@pytest.fixture
def place(overlays: Overlays, tmp_path: Path) -> Path:
    overlays.save(tmp_path / "overlays")
    return tmp_path / "overlays"


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    return bool(one == other)


def compare(one: Overlays, other: Overlays) -> None:
    assert (one.base, dict(one.languages), dict(one.record)) == (other.base, dict(other.languages), dict(other.record))
    for mine, its in zip(one.overlays, other.overlays, strict=True):
        assert (mine.name, mine.languages) == (its.name, its.languages)
        for patch, twin in zip(mine.patches, its.patches, strict=True):
            assert all(same(getattr(patch, field.name), getattr(twin, field.name)) for field in fields(Patch))
    assert (one.activations is None) == (other.activations is None)
    if one.activations is not None and other.activations is not None:
        for name in ("bits", "clip", "modules", "languages"):
            assert getattr(one.activations, name) == getattr(other.activations, name)
        for name, tensor in one.activations.tensors().items():
            assert torch.equal(tensor.view(torch.int32), other.activations.tensors()[name].view(torch.int32))


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Overlays, Overlays], None]:
    """Returns the function that compares overlays bit for bit."""
    return compare


Same = Callable[[Overlays, Overlays], None]


Q, K, V = (f"model.layers.0.self_attn.{letter}_proj" for letter in "qkv")


def files_of(place: Path) -> list[dict[str, Any]]:
    manifest = manifest_of(place)
    return [*manifest["overlays"], manifest["activations"]]


def manifest_of(place: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((place / MANIFEST).read_text())
    return manifest


def test_what_is_saved_is_loaded_bit_for_bit(
    assert_same: Same, overlays: Overlays, place: Path, llama_base: Checkpoint
) -> None:
    loaded = Overlays.load(place, llama_base)
    assert_same(overlays, loaded)
    assert loaded.overlays[0].patches is loaded.overlays[1].patches
    replace(overlays, activations=None).save(place)
    assert Overlays.load(place, llama_base).activations is None


def test_patches_that_are_shared_are_stored_once(overlays: Overlays, place: Path) -> None:
    files = sorted(re.sub(r"\.[0-9a-f]{16}\.", ".", file.name) for file in place.iterdir())
    names = ["activations", "eng_Latn", "jpn_Jpan", "none"]
    assert files == [*(f"{name}.safetensors" for name in names), MANIFEST]
    stored = [info.nbytes for file in place.glob("*.safetensors") for info in read_header(file).values()]
    assert overlays.size_bytes == sum(stored)


def rewritten(place: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = manifest_of(place)
    change(manifest)
    (place / MANIFEST).write_text(json.dumps(manifest))


def stored_anew(place: Path, name: str, value: torch.Tensor) -> None:
    """Gives the first overlay another tensor, with a checksum that fits."""
    (file,) = place.glob("eng_Latn.*.safetensors")
    tensors = {info.name: map_tensor(info).clone() for info in read_header(file).values()}
    write_tensors(file, in_memory({**tensors, name: value}))
    rewritten(place, lambda manifest: [entry.update(sha256=file_sha256(file)) for entry in manifest["overlays"][:2]])


def without(*path: Any) -> Callable[[dict[str, Any]], Any]:
    def change(node: Any) -> None:
        for step in path[:-1]:
            node = node[step]
        del node[path[-1]]

    return change


def with_value(value: Any, *path: Any) -> Callable[[dict[str, Any]], Any]:
    def change(node: Any) -> None:
        for step in path[:-1]:
            node = node[step]
        node[path[-1]] = value

    return change


FIRST = ("overlays", 0, "patches", 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (with_value("fairbits.overlays/2", "schema"), "has the schema 'fairbits.overlays/2'"),
        (without("schema"), "has the schema None"),
        (with_value("0" * 64, "base"), "was made for a base other than"),
        (without("base"), "is damaged: base is missing"),
        (without("overlays"), "damaged"),
        (with_value(None, "overlays"), "damaged"),
        (with_value(["eng_Latn"], "overlays"), "damaged"),
        (without("record"), "damaged"),
        (with_value(3, "record"), "damaged"),
        (with_value([], "languages"), "damaged"),
        (without("activations"), "damaged"),
        (without("activations", "points"), r"is damaged: activations\.points is missing"),
        (with_value(None, "activations", "points"), r"is damaged: activations\.points is None"),
        (with_value(12, "activations", "bits"), "bits is 12"),
        (with_value("x", "languages", "eng_Latn"), "overlay 'x' serves a language but is missing"),
        (without("overlays", 1), "overlay 'jpn_Jpan' serves a language but is missing"),
        (with_value("../eng_Latn", "overlays", 0, "name"), "has the name"),
        (with_value(BASE, "overlays", 2, "name"), "has the name 'base'"),
        (with_value("ENG_latn", "overlays", 2, "name"), "two overlays have the name"),
        (
            with_value("../overlays/jpn_Jpan.safetensors", "overlays", 1, "file"),
            "must be the name of a file in the same directory",
        ),
        (
            with_value("./sub/../jpn_Jpan.safetensors", "overlays", 1, "file"),
            "must be the name of a file in the same directory",
        ),
        (with_value("/etc/passwd", "overlays", 1, "file"), "the name of a file"),
        (with_value("", "overlays", 1, "file"), "the name of a file"),
        (with_value("..", "overlays", 1, "file"), "the name of a file"),
        (with_value("\0", "overlays", 1, "file"), "the name of a file"),
        (with_value(["x"], "overlays", 1, "file"), "damaged"),
        (with_value("0" * 64, "overlays", 1, "sha256"), "checksum differs"),
        (with_value("x", *FIRST, "tensor"), "x_shape"),
        (with_value("rows", *FIRST, "form"), "form is 'rows'; it must be 'residual', 'codes' or 'steps'"),
        (with_value(["steps"], *FIRST, "form"), "form is"),
        (with_value(9, *FIRST, "bits"), "bits is 9; it must be less than or equal to 8"),
        (with_value(True, *FIRST, "bits"), "bits is True"),
        (with_value("x", *FIRST, "bits"), "damaged"),
        (with_value(4, *FIRST, "bits"), "do not fit the base"),
        (with_value(4, *FIRST, "rows"), "do not fit the base"),
        (without(*FIRST, "transposed"), "damaged"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(
    assert_same: Same, overlays: Overlays, tmp_path: Path, llama_base: Checkpoint, change: Any, message: str
) -> None:
    served = {code: name for code, name in overlays.languages.items() if code != "heb_Hebr"}
    alone = replace(overlays, overlays=overlays.overlays[:1] + overlays.overlays[2:], languages=served)
    alone.save(tmp_path)
    assert_same(Overlays.load(tmp_path, llama_base), alone)
    rewritten(tmp_path, change)
    with pytest.raises(InputError, match=message) as caught:
        Overlays.load(tmp_path, llama_base)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (f"{Q}.weight_rows", torch.tensor([0, 5, 32], dtype=torch.int32), "stores rows that .* does not have"),
        (f"{Q}.weight_rows", torch.tensor([0, -1, 2], dtype=torch.int32), "stores rows that .* does not have"),
        (f"{Q}.weight_rows", torch.tensor([0, 5, 5], dtype=torch.int32), "one of them twice"),
        (f"{Q}.weight_rows", torch.zeros(0, dtype=torch.int32), "stores rows that .* does not have"),
        (f"{Q}.weight_rows", torch.tensor([0, 5], dtype=torch.int32), "do not fit the base"),
        (f"{Q}.weight_scale", torch.ones(3, 3), "do not fit the base"),
        (f"{Q}.weight_scale", torch.ones(3), "do not fit the base"),
        (f"{Q}.weight_scale", torch.ones(3, 0), "do not fit the base"),
        (f"{Q}.weight_scale", torch.ones(2, 2), "do not fit the base"),
        (f"{Q}.weight_scale", torch.ones(3, 2, dtype=torch.int32), "do not fit the base"),
        (f"{Q}.weight_packed", torch.zeros(3, 3, dtype=torch.int32), "do not fit the base"),
        (f"{Q}.weight_packed", torch.zeros(3, 2, dtype=torch.int64), "do not fit the base"),
        (f"{V}.weight_scale", torch.ones(16, 1), "do not fit the base"),
    ],
)
def test_tensors_that_do_not_fit_the_base_are_refused(
    place: Path, llama_base: Checkpoint, name: str, value: torch.Tensor, message: str
) -> None:
    stored_anew(place, name, value)
    with pytest.raises(InputError, match=message):
        Overlays.load(place, llama_base)


def test_files_that_were_damaged_on_the_way_are_refused(
    overlays: Overlays, tmp_path: Path, llama_base: Checkpoint
) -> None:
    def message() -> str:
        with pytest.raises(InputError) as caught:
            Overlays.load(tmp_path, llama_base)
        return str(caught.value)

    assert f"has no {MANIFEST}" in message()
    for file in ("eng_Latn.safetensors", "jpn_Jpan.safetensors", "activations.safetensors"):
        overlays.save(tmp_path)
        path = (
            tmp_path / {entry["file"].split(".")[0]: entry["file"] for entry in files_of(tmp_path)}[file.split(".")[0]]
        )
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        assert "checksum differs" in message()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert "checksum differs" in message()
        path.unlink()
        assert "lacks" in message()
        path.mkdir()
        assert "lacks" in message()
        path.rmdir()
        path.write_bytes(whole[: len(whole) // 2])
        for entry in (manifest := manifest_of(tmp_path))["overlays"] + [manifest["activations"]]:
            if entry["file"] == path.name:
                entry["sha256"] = file_sha256(path)
        (tmp_path / MANIFEST).write_text(json.dumps(manifest))
        assert "truncated" in message()
    (tmp_path / MANIFEST).write_text((tmp_path / MANIFEST).read_text()[:-20])
    assert "not valid JSON" in message()


def test_saving_over_older_ones_leaves_only_the_newer(
    assert_same: Same, overlays: Overlays, place: Path, llama_base: Checkpoint
) -> None:
    newer = replace(overlays, overlays=overlays.overlays[2:3], languages={"jpn_Jpan": "jpn_Jpan"}, activations=None)
    (place / "notes.txt").write_text("mine")
    check_directory(place)
    for version in (newer, overlays, newer):
        version.save(place)
        assert_same(Overlays.load(place, llama_base), version)
    assert len(list(place.iterdir())) == 3
    assert (place / "notes.txt").read_text() == "mine"


def test_an_older_manifest_cannot_have_other_files_removed(overlays: Overlays, tmp_path: Path) -> None:
    place = tmp_path / "overlays"
    place.mkdir()
    for name in ("other.safetensors", "overlays/notes.txt"):
        (tmp_path / name).write_text("mine")
    overlays.save(place)
    manifest = json.loads((place / MANIFEST).read_text())
    for entry, name in zip(manifest["overlays"], ("notes.txt", "old.safetensors"), strict=False):
        entry["file"] = name
    (place / MANIFEST).write_text(json.dumps(manifest))
    (place / "old.safetensors").touch()
    overlays.save(place)
    assert (place / "notes.txt").exists()
    assert not (place / "old.safetensors").exists()
    assert len(list(place.glob("*.safetensors"))) == 4
    manifest["overlays"][0]["file"] = "../other.safetensors"  # such a manifest is refused as a whole
    (place / MANIFEST).write_text(json.dumps(manifest))
    overlays.save(place)
    assert (tmp_path / "other.safetensors").exists()


def test_what_a_killed_process_left_is_cleared(overlays: Overlays, place: Path) -> None:
    whole = {file.name: file.read_bytes() for file in place.iterdir()}
    (place / MANIFEST).unlink()  # killed before the manifest was written
    left = ["jpn_Jpan.0123456789abcdef.safetensors", f".{'0' * 12}.00000000-1-1-0.part", LOCK]
    for name in left:
        (place / name).touch()
    overlays.save(check_directory(place))
    assert {file.name: file.read_bytes() for file in place.iterdir()} == whole
    (place / left[0]).touch()
    (place / MANIFEST).write_text("{")  # of which nobody knows what it names
    with open_for_writing(place):
        assert (place / left[0]).exists()
    with open_for_writing(place), pytest.raises(InputError, match=r"another run \(process .*\) is using"):
        overlays.save(place)


def test_a_full_disk_leaves_what_was_there(
    assert_same: Same, overlays: Overlays, tmp_path: Path, llama_base: Checkpoint
) -> None:
    older = replace(overlays, overlays=overlays.overlays[2:3], languages={"jpn_Jpan": "jpn_Jpan"}, activations=None)
    older.save(tmp_path / "old")
    before = {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir()}
    overlays.save(tmp_path / "whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in {0, *(file.stat().st_size - 1 for file in (tmp_path / "whole").iterdir())}:
        for place in ("old", "new"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))  # no file may become larger
            try:
                with pytest.raises(InputError, match="cannot be written"):
                    overlays.save(tmp_path / place)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert {file.name: file.read_bytes() for file in (tmp_path / "old").iterdir()} == before
        assert not (tmp_path / "new").exists()
    assert_same(Overlays.load(tmp_path / "old", llama_base), older)


def test_a_record_that_is_no_json_leaves_nothing(overlays: Overlays, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        replace(overlays, record={"what": object()}).save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_directories_that_cannot_take_overlays_are_refused(overlays: Overlays, place: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("x")
    other.mkdir()
    assert check_directory(other) == other
    (other / "config.json").write_text("{}")
    for wrong, message in (
        (file, "is not a directory"),
        (file / "overlays", "is not a directory where you may write"),
        (other, r"holds other files \(config.json"),
        (tmp_path / ("x" * 300), "cannot be written"),
    ):
        with pytest.raises(InputError, match=message):
            check_directory(wrong)
        if wrong != other:
            with pytest.raises(InputError, match="cannot be written"):
                overlays.save(wrong)
    for right in (place, tmp_path / "a" / "b", Path("not-there")):
        assert check_directory(right) == right


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", BASE, "a b", "a.b", "x\0", "C:x"])
def test_names_that_no_file_should_have_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="an overlay has the name"):
        Overlays("0" * 64, (Overlay(name, (), ()),), {})


def test_an_overlay_may_be_called_as_the_thresholds_are(
    assert_same: Same, llama_base: Checkpoint, overlays: Overlays, tmp_path: Path
) -> None:
    same_name = replace(overlays, overlays=(Overlay("activations", (), overlays.overlays[2].patches),), languages={})
    same_name.save(tmp_path)
    assert_same(Overlays.load(tmp_path, llama_base), same_name)


def test_rows_take_what_their_patch_says(overlays: Overlays) -> None:
    residual = overlays.overlays[0].patches[0]
    stored = sum(tensor.nbytes for tensor in residual.tensors().values())
    words = 32 * 2 // 32
    assert stored == 3 * (4 * words + 2 * residual.scales.itemsize + 4)
