"""Overlays on disk."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.core.files import file_sha256
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.io.safetensors_files import in_memory, map_tensor, read_header, write_tensors
from fairbits.serve.overlays.overlay_files import MANIFEST, Overlays
from fairbits.serve.overlays.overlay_rows import BASE

Same = Callable[[Overlays, Overlays], None]


Q, K, V = (f"model.layers.0.self_attn.{each}_proj" for each in "qkv")


def files_of(place: Path) -> list[dict[str, Any]]:
    said = manifest_of(place)
    return [*said["overlays"], said["activations"]]


def manifest_of(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((place / MANIFEST).read_text())
    return found


def test_what_is_saved_is_loaded_bit_for_bit(
    assert_same: Same, made: Overlays, place: Path, llama_base: Checkpoint
) -> None:
    found = Overlays.load(place, llama_base)
    assert_same(made, found)
    assert found.overlays[0].patches is found.overlays[1].patches
    replace(made, activations=None).save(place)
    assert Overlays.load(place, llama_base).activations is None


def test_patches_that_are_shared_are_stored_once(made: Overlays, place: Path) -> None:
    files = sorted(re.sub(r"\.[0-9a-f]{16}\.", ".", each.name) for each in place.iterdir())
    names = ["activations", "eng_Latn", "jpn_Jpan", "none"]
    assert files == [*(f"{name}.safetensors" for name in names), MANIFEST]
    stored = [info.nbytes for each in place.glob("*.safetensors") for info in read_header(each).values()]
    assert made.size_bytes == sum(stored)


def rewritten(place: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    said = manifest_of(place)
    change(said)
    (place / MANIFEST).write_text(json.dumps(said))


def stored_anew(place: Path, name: str, value: torch.Tensor) -> None:
    """Gives the first overlay another tensor, with a checksum that fits."""
    (file,) = place.glob("eng_Latn.*.safetensors")
    tensors = {info.name: map_tensor(info).clone() for info in read_header(file).values()}
    write_tensors(file, in_memory({**tensors, name: value}))
    rewritten(place, lambda said: [each.update(sha256=file_sha256(file)) for each in said["overlays"][:2]])


def without(*path: Any) -> Callable[[dict[str, Any]], Any]:
    def change(said: Any) -> None:
        for step in path[:-1]:
            said = said[step]
        del said[path[-1]]

    return change


def with_value(value: Any, *path: Any) -> Callable[[dict[str, Any]], Any]:
    def change(said: Any) -> None:
        for step in path[:-1]:
            said = said[step]
        said[path[-1]] = value

    return change


FIRST = ("overlays", 0, "patches", 0)


@pytest.mark.parametrize(
    ("change", "told"),
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
        (with_value(4, *FIRST, "bits"), "does not fit the base"),
        (with_value(4, *FIRST, "rows"), "does not fit the base"),
        (without(*FIRST, "transposed"), "damaged"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(
    assert_same: Same, made: Overlays, tmp_path: Path, llama_base: Checkpoint, change: Any, told: str
) -> None:
    served = {code: name for code, name in made.languages.items() if code != "heb_Hebr"}
    alone = replace(made, overlays=made.overlays[:1] + made.overlays[2:], languages=served)
    alone.save(tmp_path)
    assert_same(Overlays.load(tmp_path, llama_base), alone)
    rewritten(tmp_path, change)
    with pytest.raises(InputError, match=told) as caught:
        Overlays.load(tmp_path, llama_base)
    assert str(tmp_path) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        (f"{Q}.weight_rows", torch.tensor([0, 5, 32], dtype=torch.int32), "rows that it does not have"),
        (f"{Q}.weight_rows", torch.tensor([0, -1, 2], dtype=torch.int32), "rows that it does not have"),
        (f"{Q}.weight_rows", torch.tensor([0, 5, 5], dtype=torch.int32), "of one twice"),
        (f"{Q}.weight_rows", torch.zeros(0, dtype=torch.int32), "rows that it does not have"),
        (f"{Q}.weight_rows", torch.tensor([0, 5], dtype=torch.int32), "does not fit the base"),
        (f"{Q}.weight_scale", torch.ones(3, 3), "does not fit the base"),
        (f"{Q}.weight_scale", torch.ones(3), "does not fit the base"),
        (f"{Q}.weight_scale", torch.ones(3, 0), "does not fit the base"),
        (f"{Q}.weight_scale", torch.ones(2, 2), "does not fit the base"),
        (f"{Q}.weight_scale", torch.ones(3, 2, dtype=torch.int32), "does not fit the base"),
        (f"{Q}.weight_packed", torch.zeros(3, 3, dtype=torch.int32), "does not fit the base"),
        (f"{Q}.weight_packed", torch.zeros(3, 2, dtype=torch.int64), "does not fit the base"),
        (f"{V}.weight_scale", torch.ones(16, 1), "does not fit the base"),
    ],
)
def test_tensors_that_do_not_fit_the_base_are_refused(
    place: Path, llama_base: Checkpoint, name: str, value: torch.Tensor, told: str
) -> None:
    stored_anew(place, name, value)
    with pytest.raises(InputError, match=told):
        Overlays.load(place, llama_base)


def test_files_that_were_damaged_on_the_way_are_refused(made: Overlays, tmp_path: Path, llama_base: Checkpoint) -> None:
    def told() -> str:
        with pytest.raises(InputError) as caught:
            Overlays.load(tmp_path, llama_base)
        return str(caught.value)

    assert f"has no {MANIFEST}" in told()
    for file in ("eng_Latn.safetensors", "jpn_Jpan.safetensors", "activations.safetensors"):
        made.save(tmp_path)
        path = tmp_path / {each["file"].split(".")[0]: each["file"] for each in files_of(tmp_path)}[file.split(".")[0]]
        whole = path.read_bytes()
        path.write_bytes(whole[:-1])
        assert "checksum differs" in told()
        path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        assert "checksum differs" in told()
        path.unlink()
        assert "lacks" in told()
        path.mkdir()
        assert "lacks" in told()
        path.rmdir()
        path.write_bytes(whole[: len(whole) // 2])
        for each in (said := manifest_of(tmp_path))["overlays"] + [said["activations"]]:
            if each["file"] == path.name:
                each["sha256"] = file_sha256(path)
        (tmp_path / MANIFEST).write_text(json.dumps(said))
        assert "truncated" in told()
    (tmp_path / MANIFEST).write_text((tmp_path / MANIFEST).read_text()[:-20])
    assert "not valid JSON" in told()
