import json

import pytest
import torch

from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits_research.outliers.outlier_writer import plan_outliers, write_with_outliers


def test_only_the_planned_slices_change(checkpoints, tmp_path):
    source = checkpoints["bloom"]
    plan = write_with_outliers(source, tmp_path / "new", {1: 60.0})
    written = Checkpoint(tmp_path / "new")
    assert list(written.tensors) == list(source.tensors)
    touched = {name: {(p.axis, i): f for p, f in parts for i in p.indices} for name, parts in plan.factors.items()}
    assert len(touched) >= 3
    for name in written.tensors:
        expected = source.read(name).clone()
        for (axis, index), factor in touched.get(name, {}).items():
            expected.select(axis, index).mul_(factor)
        assert torch.equal(written.read(name), expected), name
    old_files = {path.name for path in source.directory.iterdir()}
    assert {path.name for path in (tmp_path / "new").iterdir()} == old_files | {"outliers.json"}
    assert (tmp_path / "new" / "config.json").read_bytes() == (source.directory / "config.json").read_bytes()


def test_the_seed_draws_the_channels(checkpoints, tmp_path):
    source = checkpoints["qwen2"]
    plan, other = (plan_outliers(source, {1: 60.0, 2: 60.0}, seed=seed, route="value") for seed in (0, 1))
    channels = [
        {r.coupling.channel for r in p.rescalings if r.block == b} for p, b in ((plan, 1), (plan, 2), (other, 1))
    ]
    assert channels[0] <= channels[1] or channels[1] <= channels[0]  # one order for all blocks
    assert not channels[0] <= channels[2]
    assert not channels[2] <= channels[0]
    for name in ("a", "b"):
        assert write_with_outliers(source, tmp_path / name, {1: 60.0, 2: 60.0}, route="value") == plan
    assert Checkpoint(tmp_path / "a").fingerprint == Checkpoint(tmp_path / "b").fingerprint


def test_the_plan_is_saved_beside_the_weights(checkpoints, tmp_path):
    plan = write_with_outliers(checkpoints["bloom"], tmp_path / "new", {2: 40.0}, seed=3)
    saved = json.loads((tmp_path / "new" / "outliers.json").read_text())
    assert saved["requested"] == {"2": 40.0}
    assert saved["achieved"] == {"2": plan.achieved[2]}
    assert saved["seed"] == 3
    assert saved["source"]["sha256"] == checkpoints["bloom"].fingerprint
    assert len(saved["rescalings"]) == len(plan.rescalings) > 0


def test_a_directory_in_use_is_left_alone(checkpoints, tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InputError, match=r"not empty"):
        write_with_outliers(checkpoints["bloom"], tmp_path, {1: 60.0})
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


def test_a_failed_write_leaves_nothing(tmp_path, random_checkpoint):
    source = random_checkpoint("bloom", tmp_path / "old")
    directory = tmp_path / "new"
    source.__dict__["fingerprint"] = object()  # cannot be saved as JSON
    with pytest.raises(TypeError):
        write_with_outliers(source, directory, {1: 60.0})
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_place_that_cannot_be_written_is_named(checkpoints, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot write .*file/new"):
        write_with_outliers(checkpoints["bloom"], tmp_path / "file" / "new", {1: 60.0})


def test_an_empty_directory_may_be_given(checkpoints, tmp_path, kappa):
    (tmp_path / "new").mkdir()
    write_with_outliers(checkpoints["bloom"], tmp_path / "new", {1: 60.0})
    assert kappa(Checkpoint(tmp_path / "new"), 1) == pytest.approx(60.0, rel=0.02)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
