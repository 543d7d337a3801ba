"""What a run refuses, before anything is written."""

import json

import pytest

from fairbits.api.run import run
from fairbits.core.errors import InputError


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "seed 0 there, 1 now. Give the same"),
        ({"policy": "mse"}, "policy gptq there, mse now"),
        ({"more_bits": ()}, "more_bits 3 there, none now"),
        ({"baselines": ["rtn"]}, "baselines rtn,gptq:mix=english there, rtn now"),
        ({"languages": ["heb", "eng"]}, "languages eng_Latn,heb_Hebr there, heb_Hebr,eng_Latn now"),
    ],
)
def test_another_run_needs_another_directory(whole, model, changes, message, small) -> None:
    before = (whole.directory / "run.json").read_bytes()
    with pytest.raises(InputError, match=message):
        run(model, out=whole.directory, **small | changes)
    assert (whole.directory / "run.json").read_bytes() == before


def test_another_model_and_other_text_need_another_directory(whole, model, reading_model, tmp_path, small) -> None:
    with pytest.raises(InputError, match=r"model .*five.* there, .*qwen2"):
        run(reading_model("qwen2"), out=whole.directory, **small)
    record = json.loads((whole.directory / "run.json").read_text())
    record["hashes"]["evaluation"]["heb_Hebr"] = "0" * 64
    (tmp_path / "run.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match="has a run with other settings: other text"):
        run(model, out=tmp_path, **small)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(InputError, match=r"run\.json is not valid JSON .*fairbits run in a new directory"):
        run(model, out=tmp_path, **small)


def test_a_directory_of_others_is_left_alone(model, tmp_path, small) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(InputError, match=r"is not empty and has no run\.json"):
        run(model, out=tmp_path, **small)
    with pytest.raises(InputError, match="is not a directory"):
        run(model, out=tmp_path / "mine", **small)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"policy": "best"}, "policy"),
        ({"policy": "rtn:mix=english"}, "must have the form name:option=value"),
        ({"policy": "rtn", "baselines": ["mse", "rtn"]}, "rtn is the policy"),
        ({"baselines": ["gateway"], "bits": 8, "more_bits": ()}, "gateway at 8 bits"),
        ({"bits": 9}, "bits"),
        ({"more_bits": (1,)}, "more_bits"),
        ({"group": 100}, "groups of 100 do not divide"),
        ({"embeddings": 5}, "embeddings"),
        ({"device": "foo"}, "device is 'foo'"),
        ({"languages": ["eng"]}, "name two or more"),
        ({"languages": ["eng", "nowhere"]}, "nowhere"),
        ({"tokens": 3}, "tokens"),
        ({"evaluation_tokens": 3}, "tokens"),
        ({"sequence": 1}, "sequence"),
        ({"seed": -1}, "seed"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(model, tmp_path, changes, message, small) -> None:
    def nothing(what: str, *_: int) -> None:
        raise AssertionError(f"{what}: nothing may be done")

    with pytest.raises(InputError, match=message):
        run(model, out=tmp_path / "run", **small | changes, progress=nothing)
    assert not list(tmp_path.iterdir())
