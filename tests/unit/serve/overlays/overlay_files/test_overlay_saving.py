"""Writing overlays: over older ones, on a full disk, under names that no file should have."""

import json
import resource
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fairbits.core.errors import InputError
from fairbits.core.locks import LOCK
from fairbits.models.checkpoint import Checkpoint
from fairbits.serve.overlays.overlay_files import BASE, MANIFEST, Overlay, Overlays, check_directory, open_for_writing

Same = Callable[[Overlays, Overlays], None]


def test_saving_over_older_ones_leaves_only_the_newer(
    assert_same: Same, made: Overlays, place: Path, llama_base: Checkpoint
) -> None:
    newer = replace(made, overlays=made.overlays[2:3], languages={"jpn_Jpan": "jpn_Jpan"}, activations=None)
    (place / "notes.txt").write_text("mine")
    check_directory(place)
    for given in (newer, made, newer):
        given.save(place)
        assert_same(Overlays.load(place, llama_base), given)
    assert len(list(place.iterdir())) == 3
    assert (place / "notes.txt").read_text() == "mine"


def test_an_older_manifest_cannot_have_other_files_removed(made: Overlays, tmp_path: Path) -> None:
    place = tmp_path / "overlays"
    place.mkdir()
    for name in ("other.safetensors", "overlays/notes.txt"):
        (tmp_path / name).write_text("mine")
    made.save(place)
    said = json.loads((place / MANIFEST).read_text())
    for entry, name in zip(said["overlays"], ("notes.txt", "old.safetensors"), strict=False):
        entry["file"] = name
    (place / MANIFEST).write_text(json.dumps(said))
    (place / "old.safetensors").touch()
    made.save(place)
    assert (place / "notes.txt").exists()
    assert not (place / "old.safetensors").exists()
    assert len(list(place.glob("*.safetensors"))) == 4
    said["overlays"][0]["file"] = "../other.safetensors"  # such a manifest is refused as a whole
    (place / MANIFEST).write_text(json.dumps(said))
    made.save(place)
    assert (tmp_path / "other.safetensors").exists()


def test_what_a_killed_process_left_is_cleared(made: Overlays, place: Path) -> None:
    whole = {each.name: each.read_bytes() for each in place.iterdir()}
    (place / MANIFEST).unlink()  # killed before the manifest was written
    left = ["jpn_Jpan.0123456789abcdef.safetensors", f".{'0' * 12}.00000000-1-1-0.part", LOCK]
    for name in left:
        (place / name).touch()
    made.save(check_directory(place))
    assert {each.name: each.read_bytes() for each in place.iterdir()} == whole
    (place / left[0]).touch()
    (place / MANIFEST).write_text("{")  # of which nobody knows what it names
    with open_for_writing(place):
        assert (place / left[0]).exists()
    with open_for_writing(place), pytest.raises(InputError, match=r"another run \(process .*\) is using"):
        made.save(place)


def test_a_full_disk_leaves_what_was_there(
    assert_same: Same, made: Overlays, tmp_path: Path, llama_base: Checkpoint
) -> None:
    older = replace(made, overlays=made.overlays[2:3], languages={"jpn_Jpan": "jpn_Jpan"}, activations=None)
    older.save(tmp_path / "old")
    before = {each.name: each.read_bytes() for each in (tmp_path / "old").iterdir()}
    made.save(tmp_path / "whole")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    for room in {0, *(each.stat().st_size - 1 for each in (tmp_path / "whole").iterdir())}:
        for place in ("old", "new"):
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, hard))  # no file may become larger
            try:
                with pytest.raises(InputError, match="cannot be written"):
                    made.save(tmp_path / place)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert {each.name: each.read_bytes() for each in (tmp_path / "old").iterdir()} == before
        assert not (tmp_path / "new").exists()
    assert_same(Overlays.load(tmp_path / "old", llama_base), older)


def test_a_record_that_is_no_json_leaves_nothing(made: Overlays, tmp_path: Path) -> None:
    with pytest.raises(TypeError):
        replace(made, record={"what": object()}).save(tmp_path)
    assert not list(tmp_path.iterdir())


def test_directories_that_cannot_take_overlays_are_refused(made: Overlays, place: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_text("x")
    other.mkdir()
    assert check_directory(other) == other
    (other / "config.json").write_text("{}")
    for wrong, told in (
        (file, "is not a directory"),
        (file / "overlays", "is not writable"),
        (other, r"holds other files \(config.json"),
        (tmp_path / ("x" * 300), "cannot be used"),
    ):
        with pytest.raises(InputError, match=told):
            check_directory(wrong)
        if wrong != other:
            with pytest.raises(InputError, match="cannot be written"):
                made.save(wrong)
    for right in (place, tmp_path / "a" / "b", Path("not-there")):
        assert check_directory(right) == right


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", BASE, "a b", "a.b", "x\0", "C:x"])
def test_names_that_no_file_should_have_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="an overlay has the name"):
        Overlays("0" * 64, (Overlay(name, (), ()),), {})


def test_an_overlay_may_be_called_as_the_thresholds_are(
    assert_same: Same, llama_base: Checkpoint, made: Overlays, tmp_path: Path
) -> None:
    same_name = replace(made, overlays=(Overlay("activations", (), made.overlays[2].patches),), languages={})
    same_name.save(tmp_path)
    assert_same(Overlays.load(tmp_path, llama_base), same_name)


def test_rows_take_what_their_patch_says(made: Overlays) -> None:
    residual = made.overlays[0].patches[0]
    stored = sum(each.nbytes for each in residual.tensors().values())
    words = 32 * 2 // 32
    assert stored == 3 * (4 * words + 2 * residual.scales.itemsize + 4)
