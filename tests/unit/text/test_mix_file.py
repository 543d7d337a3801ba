import json
import os
import re
import resource

import pytest

from fairbits.core.errors import InputError
from fairbits.text.mix import Mix, Sample, build_mix, manifest_path

ENG, FRA, HEB, ZHO = "eng_Latn", "fra_Latn", "heb_Hebr", "zho_Hans"


def test_same_input_same_bytes_and_another_seed_another_mix(corpus, tokenizer, tmp_path) -> None:
    mixes = [build_mix(corpus, tokenizer, sequence=64, seed=seed) for seed in (5, 5, 6)]
    for i, mix in enumerate(mixes):
        mix.save(tmp_path / f"{i}.jsonl")
    first, second, third = ((tmp_path / f"{i}.jsonl").read_bytes() for i in range(3))
    assert first == second != third
    manifests = [manifest_path(tmp_path / f"{i}.jsonl").read_bytes() for i in range(2)]
    assert manifests[0] == manifests[1]
    assert sorted(path.name for path in tmp_path.iterdir())[:2] == ["0.jsonl", "0.jsonl.manifest.json"]


def test_saved_and_loaded(corpus, tokenizer, tmp_path) -> None:
    mix = build_mix(corpus, tokenizer, sequence=64)
    mix.save(tmp_path / "calib.jsonl")
    assert Mix.load(tmp_path / "calib.jsonl") == mix
    rows = [json.loads(line) for line in (tmp_path / "calib.jsonl").read_text(encoding="ascii").splitlines()]
    assert [Sample(**row) for row in rows] == list(mix.samples)
    manifest = json.loads((tmp_path / "calib.jsonl.manifest.json").read_text())
    assert manifest["schema"] == "fairbits.mix/1"
    assert manifest["hashes"] == corpus.hashes["calibration"]
    assert manifest["short_samples"] == 0
    assert manifest["languages"][HEB]["tokens"] == 64 * manifest["languages"][HEB]["samples"]


def test_a_changed_mix_is_not_loaded(corpus, tokenizer, tmp_path) -> None:
    path = tmp_path / "calib.jsonl"
    build_mix(corpus, tokenizer, sequence=64).save(path)
    content, manifest = path.read_bytes(), json.loads(manifest_path(path).read_text())

    def refused() -> str:
        with pytest.raises(InputError) as caught:
            Mix.load(path)
        return str(caught.value)

    path.write_bytes(content.replace(b"human", b"woman"))
    assert "is not what calib.jsonl.manifest.json says" in refused()
    path.write_bytes(content)
    manifest_path(path).write_text(json.dumps(manifest | {"schema": "fairbits.mix/9"}))
    assert "has the schema 'fairbits.mix/9'; it must be fairbits.mix/1: update fairbits" in refused()
    manifest_path(path).write_text(json.dumps({key: value for key, value in manifest.items() if key != "seed"}))
    assert "is damaged: seed is missing; write it again with fairbits mix" in refused()
    manifest_path(path).write_text("{")
    assert "is not valid JSON" in refused()
    manifest_path(path).unlink()
    assert "cannot be read" in refused()


def test_a_mix_that_cannot_be_written(corpus, tokenizer, tmp_path) -> None:
    mix = build_mix(corpus, tokenizer, sequence=64)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "link")
    (tmp_path / "x.jsonl.manifest.json").mkdir()
    for name, reason in {
        "nowhere/calib.jsonl": "nowhere is not a directory",
        "": "is not a regular file",
        "pipe": "is not a regular file",
        "x.jsonl": "manifest.json is not a regular file",
        "link": "cannot be written",
        245 * "x": "cannot be written (File name too long)",
    }.items():
        with pytest.raises(InputError, match=re.escape(reason)):
            mix.save(tmp_path / name)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "x.jsonl.manifest.json"]


def test_a_full_disk_leaves_the_mix_that_was_there(corpus, tokenizer, tmp_path) -> None:
    path = tmp_path / "calib.jsonl"
    small, large = (build_mix(corpus, tokenizer, sequence=64, tokens=n * 4 * 64) for n in (1, 8))
    small.save(path)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(small.jsonl) + 100, hard))
    try:
        with pytest.raises(InputError, match=r"calib.jsonl cannot be written \(File too large\)"):
            large.save(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, hard))
    assert Mix.load(path) == small
    assert len(list(tmp_path.iterdir())) == 2


def test_a_link_is_followed(corpus, tokenizer, tmp_path) -> None:
    (tmp_path / "link.jsonl").symlink_to(tmp_path / "calib.jsonl")
    mix = build_mix(corpus, tokenizer, sequence=64)
    mix.save(tmp_path / "link.jsonl")
    assert (tmp_path / "link.jsonl").is_symlink()
    assert Mix.load(tmp_path / "link.jsonl") == Mix.load(tmp_path / "calib.jsonl") == mix


def test_the_model_and_what_is_to_be_known_of_it_are_recorded(corpus, tokenizer, tmp_path) -> None:
    mix = build_mix(corpus, tokenizer, sequence=64, model="m.gguf", notes=["the reference is itself quantized"])
    mix.save(tmp_path / "calib.jsonl")
    manifest = json.loads((tmp_path / "calib.jsonl.manifest.json").read_text())
    assert manifest["model"] == "m.gguf"
    assert manifest["notes"] == ["the reference is itself quantized", *corpus.notes, mix.notes[-1]]
    assert build_mix(corpus, tokenizer, sequence=64).model is None
