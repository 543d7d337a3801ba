"""Where models come from, and what is said when they cannot come from there."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from fairbits.core.errors import InputError
from fairbits.core.files import cache_directory, kept_directory
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.embedded import find_embedded
from fairbits_research.outliers.outlier_writer import write_with_outliers

ID = "someone/some-model"


def small_model(directory: Path) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    save_file({"x": torch.arange(3.0)}, directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({"model_type": "bloom"}))
    return directory


OFFLINE = """
import sys
from pathlib import Path
from fairbits.models.checkpoint import Checkpoint

def say(target, **options):
    try:
        found = Checkpoint(target, **options)
        print(found.kind, *found.tensors)
    except Exception as problem:
        print(f"{type(problem).__name__}: {problem}")

kept, shard = sys.argv[1:]
say(kept)
Path(shard).unlink()
say(kept, revision="main")
say("someone/other-model")
"""


def test_offline_the_cache_of_the_hub_is_opened_and_else_the_local_alternative_is_named(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--someone--some-model"
    blobs = small_model(repository / "blobs")
    snapshot = repository / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    for file in blobs.iterdir():
        (snapshot / file.name).symlink_to(Path("../../blobs") / file.name)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    # a fresh Python, which may not go online: the library of the Hub looks at this when it is imported
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    command = [sys.executable, "-c", OFFLINE, ID, str(snapshot / "model.safetensors")]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=tmp_path, check=True)
    opened, broken, absent = done.stdout.splitlines()
    assert opened == "hub x"
    assert f"the snapshot of {ID}, holds no model.safetensors" in broken
    other = "someone/other-model"
    assert (
        f"InputError: {other} is not a local directory, and it cannot be downloaded from the Hugging Face Hub" in absent
    )
    assert f"hf download {other} --local-dir DIR" in absent


def test_a_directory_of_that_name_comes_before_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_model(tmp_path / ID)
    monkeypatch.chdir(tmp_path)
    assert Checkpoint(ID).kind == "directory"


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "consolidated.00.pth", "last.ckpt"])
def test_pickles_are_refused_with_the_way_to_convert_them(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_bytes(b"\x80\x04")
    for target in (tmp_path, tmp_path / name):
        with pytest.raises(InputError, match="is a pickle") as caught:
            Checkpoint(target)
        assert f"from_pretrained('{tmp_path}').save_pretrained('converted')" in str(caught.value)


def test_pickles_beside_safetensors_do_not_matter(tmp_path: Path) -> None:
    (small_model(tmp_path) / "training_args.bin").write_bytes(b"\x80\x04")
    assert list(Checkpoint(tmp_path).tensors) == ["x"]
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(InputError, match="neither model"):
        Checkpoint(tmp_path)


BAD_TARGETS: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing": (lambda _: "", "it must be a directory"),
    "a number": (lambda _: 3, "the model is 3"),
    "no such path": (lambda at: at / "absent", "there is no .*absent"),
    "no such user": (lambda _: "~nobody-of-that-name/model", "there is no ~nobody"),
    "NUL": (lambda _: "a\0b", "there is no a"),
    "a very long name": (lambda _: "x/" * 5000, "there is no x/x"),
    "no such GGUF file": (lambda _: "folder/model.gguf", r"there is no folder/model\.gguf"),
    "a safetensors file": (lambda at: small_model(at) / "model.safetensors", "pass the directory"),
    "an empty directory": (lambda at: at, "found: nothing"),
    "a directory of GGUF": (lambda at: (at / "m.gguf").write_bytes(b"") or at, r"pass the file itself: .*m\.gguf"),
}


@pytest.mark.parametrize(("target", "message"), BAD_TARGETS.values(), ids=BAD_TARGETS)
def test_a_target_that_is_none(target: Callable[[Path], object], message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        Checkpoint(target(tmp_path))  # type: ignore[arg-type]


def test_only_the_hub_has_revisions(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="only a model on the Hub has revisions"):
        Checkpoint(small_model(tmp_path), revision="main")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "fairbits"


def test_the_cache_lies_where_xdg_says(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_directory() == cache
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/paths/are/not/allowed")
    assert cache_directory() == Path.home() / ".cache" / "fairbits"


def test_a_kept_directory_is_made_once_and_whole(cache: Path) -> None:
    def fail(draft: Path) -> None:
        (draft / "half").touch()
        raise InputError("stopped")

    with pytest.raises(InputError, match="stopped"):
        kept_directory("a", fail)
    assert list(cache.iterdir()) == []
    assert kept_directory("a", lambda draft: (draft / "whole").touch()) == cache / "a"
    assert [path.name for path in kept_directory("a", fail).iterdir()] == ["whole"]
    assert list(cache.iterdir()) == [cache / "a"]


def test_of_two_that_make_the_same_directory_the_first_one_stays(cache: Path) -> None:
    def slow(draft: Path) -> None:
        (draft / "slow").touch()
        kept_directory("a", lambda other: (other / "fast").touch())

    assert [path.name for path in kept_directory("a", slow).iterdir()] == ["fast"]
    assert list(cache.iterdir()) == [cache / "a"]


def test_a_cache_that_cannot_be_written(cache: Path) -> None:
    cache.parent.mkdir()
    cache.touch()
    with pytest.raises(InputError, match="set XDG_CACHE_HOME to another place"):
        kept_directory("a", lambda draft: (draft / "x").touch())


@pytest.fixture
def assets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("fairbits.models.embedded.ASSETS", tmp_path / "assets")
    return small_model(tmp_path / "assets" / "tiny")


def test_an_embedded_model_opens(assets: Path) -> None:
    checkpoint = Checkpoint("embedded:tiny")
    assert (checkpoint.kind, checkpoint.directory, checkpoint.notes) == ("embedded", assets, ())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("large", "available: embedded:tiny"),
        ("", "available: embedded:tiny"),
        ("../assets/tiny", "available: embedded:tiny"),
        ("tiny?", "must read"),
        ("tiny?outlier=1:2", "must read"),
        ("tiny?outliers=", "must read"),
        ("tiny?outliers=1", "must read"),
        ("tiny?outliers=-1:2", "must read"),
        ("tiny?outliers=1:2,", "must read"),
        ("tiny?outliers=1:2,01:3", "block 1 twice"),
        ("tiny?outliers=1:many", "'many' in block 1"),
        ("tiny?outliers=1:nan", "κ of block 1 is nan"),
        ("tiny?outliers=1:1e999", "κ of block 1 is inf"),
        ("tiny?outliers=1:-5", "κ of block 1 is -5"),
    ],
)
@pytest.mark.usefixtures("assets")
def test_a_specification_that_is_none(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_embedded(f"embedded:{text}")


def test_outliers_are_made_once(cache: Path) -> None:
    first, again = (Checkpoint(f"embedded:tiny?outliers={blocks}") for blocks in ("1:60,2:80", "2:80.0,1:6e1"))
    assert first.directory == again.directory == next(cache.iterdir())
    assert first.notes == ("outliers were given to blocks (1: κ 60, 2: κ 80); the function is the same",)
    plain = Checkpoint("embedded:tiny")
    assert first.tensors.keys() == plain.tensors.keys()
    assert first.fingerprint != plain.fingerprint


def test_notes_travel_with_a_model_that_was_given_outliers(tmp_path: Path) -> None:
    source = Checkpoint("embedded:tiny")
    source.notes = ("the reference is itself quantized (Q4_1)",)
    write_with_outliers(source, tmp_path / "new", {4: 60.0})
    assert Checkpoint(tmp_path / "new").notes == (
        "the reference is itself quantized (Q4_1)",
        "outliers were given to blocks (4: κ 60); the function is the same",
    )
    (tmp_path / "new" / "outliers.json").write_text('{"source": {"notes": []}, "requested": {"4": "much"}}')
    with pytest.raises(InputError, match="does not say what the model was made from"):
        Checkpoint(tmp_path / "new")
