"""A plan on disk: all of it comes back, and a file that is damaged or of another kind is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbits.core.errors import InputError
from fairbits.models.scales.scheme import Scheme
from fairbits.quantization.plan import PLAN as KIND
from fairbits.quantization.plan import Calibration, LayerPlan, LayerResult, Plan

PLAN = Plan(
    policy="gptq",
    settings={"bits": 4, "mix": "equal", "blocks": [1, 2]},
    model="a model",
    fingerprint="01234567" * 8,
    family="llama",
    layers=(
        LayerPlan("embed", None, "embedding"),
        LayerPlan("q", 0, "q", Scheme(4, 128, "exact", "twos", objective="mean", rounding="gptq")),
        LayerPlan("k", 0, "k", Scheme(8, "tensor")),
    ),
    size_bytes=1234,
    languages={"eng_Latn": 0.25, "heb_Hebr": 0.75},
    calibration=Calibration("text", {"eng_Latn": "a" * 64, "heb_Hebr": "b" * 64}, 512, 64, 0),
    thresholds=True,
    notes=("a note",),
    results=(LayerResult("q", 4, 99, (0.1, 0.2, 0.3), 0.01, {"eng_Latn": 0.5}, ("a fall-back",)),),
)


def test_a_saved_plan_comes_back_whole(tmp_path: Path) -> None:
    PLAN.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == PLAN
    Plan.load(tmp_path / "plan.json").save(tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


def test_a_plan_without_text_comes_back(tmp_path: Path) -> None:
    plain = replace(PLAN, layers=PLAN.layers[2:], languages={}, calibration=None, thresholds=False, results=())
    plain.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plain
    assert not plain.reads_text
    assert PLAN.reads_text


def test_the_digest_is_that_of_the_decisions() -> None:
    assert replace(PLAN, results=()).digest == PLAN.digest
    assert replace(PLAN, size_bytes=1).digest != PLAN.digest
    elsewhere = replace(PLAN, calibration=replace(PLAN.calibration, source="elsewhere/texts"))
    assert (elsewhere, elsewhere.digest) == (PLAN, PLAN.digest)  # the same text, read from elsewhere
    assert replace(PLAN, languages={"eng_Latn": 1.0}).digest != PLAN.digest


def test_control_characters_do_not_reach_the_file() -> None:
    odd = replace(PLAN, model="a\x1b[2Jmodel", notes=("a\x9bnote",))
    assert not {"\x1b", "\x9b"} & set(odd.as_bytes().decode())


ENTRY = {"name": "q", "block": 0, "role": "q", "bits": 4}


def changed(**changes: Any) -> str:
    return json.dumps(PLAN.as_data() | changes)


def without(key: str) -> str:
    return json.dumps({name: value for name, value in PLAN.as_data().items() if name != key})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not valid JSON .*; it must be a plan: write one with fairbits plan"),
        ("[]", "holds a JSON list, not an object .*fairbits plan"),
        (changed(schema="fairbits.audit/1"), "has the schema 'fairbits.audit/1'"),
        (changed(speed=1), "is damaged: the key speed is unknown; write it again with fairbits plan"),
        (without("policy"), "is damaged: policy is missing"),
        (without("layers"), "is damaged: layers is missing"),
        (without("fairbits"), "is damaged: fairbits is missing"),
        (changed(layers=[{"name": "q"}]), r"is damaged: layers\.0\.block is missing"),
        (
            changed(layers=[ENTRY | {"speed": 1}]),
            r"layers\.0\.speed is unknown",
        ),
        (
            changed(layers=[ENTRY | {"bits": 99}]),
            r"is damaged: layers\.0\.bits is 99",
        ),
        (changed(layers=[ENTRY | {"bits": "4"}]), r"0\.bits is '4'; it must be"),
        (changed(layers=[ENTRY | {"bits": None, "speed": 1}]), r"layers\.0\.speed is unknown"),
        (changed(layers=[ENTRY | {"bits": None, "group": "row"}]), r"layers\.0\.group is 'row'"),
        (changed(layers=[ENTRY | {"group": 1}]), r"layers\.0: group is 1"),
        (changed(layers=[ENTRY | {"clip": "absmax", "objective": "mean"}]), "only the exact clip can weigh"),
        (changed(results=[{"name": "q"}]), "is damaged"),
        (changed(languages={"eng_Latn": True}), "is damaged"),
        (changed(calibration={"corpus": "text"}), "is damaged"),
    ],
)
def test_a_damaged_file_is_refused(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "plan.json"
    file.write_text(content)
    with pytest.raises(InputError, match=message):
        Plan.load(file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot be read .*; it must be a plan: write one with fairbits plan"):
        Plan.load(tmp_path / "none.json")


def test_layers_in_a_file_are_flat_and_the_digest_is_stable() -> None:
    plain = {"group": "channel", "grid": "twos", "clip": "exact", "objective": None, "rounding": "nearest"}
    expected = [
        {"name": "embed", "block": None, "role": "embedding", "bits": None, **plain},
        {
            "name": "q",
            "block": 0,
            "role": "q",
            "bits": 4,
            **plain,
            "group": 128,
            "objective": "mean",
            "rounding": "gptq",
        },
        {
            "name": "k",
            "block": 0,
            "role": "k",
            "bits": 8,
            "group": "tensor",
            "grid": "symmetric",
            "clip": "absmax",
            "objective": None,
            "rounding": "nearest",
        },
    ]
    data = json.loads(PLAN.as_bytes())
    assert json.dumps(data["layers"]) == json.dumps(expected)  # in this order
    assert list(data)[:8] == [
        "schema",
        "fairbits",
        "policy",
        "settings",
        "model",
        "fingerprint",
        "family",
        "layers",
    ]
    then = Calibration("text", {"eng_Latn": "a", "heb_Hebr": "b"}, 512, 64, 0)
    assert replace(PLAN, fingerprint="0123", calibration=then).digest == (
        "21c4dce6b37b945cf46dfd608b716259d1acb9cd1f31ac16fb4267b64d290a16"
    )


def test_what_is_quantized_has_a_scheme() -> None:
    assert [layer.name for layer in PLAN.quantized] == ["q", "k"]
    assert PLAN.schemes == {"q": PLAN.layers[1].scheme, "k": Scheme(8, "tensor")}
    assert [layer.bits for layer in PLAN.layers] == [None, 4, 8]


def test_the_schema_is_named() -> None:
    assert json.loads(PLAN.as_bytes())["schema"] == KIND.schema == "fairbits.plan/1"


def test_layers_are_counted_by_their_scheme() -> None:
    plan = PLAN
    lines = repr(plan).splitlines()
    assert lines[0] == f"{plan.model}  {plan.policy}"
    assert len(repr(plan)) < 2000
    assert "<table" in plan._repr_html_()


def test_a_plan_becomes_a_frame_and_a_figure() -> None:
    frame = PLAN.to_pandas()
    assert frame.index.tolist() == ["embed", "q", "k"]
    assert frame.bits.fillna(0).tolist() == [0, 4, 8]
    assert frame.group.isna().tolist() == [True, False, False]
    assert frame.eng_Latn.dropna().to_dict() == {"q": 0.5}
    assert frame.weight_error.dropna().to_dict() == {"q": 0.01}
    (trace,) = PLAN.plot().data
    assert (trace["y"], trace["x"], trace["z"]) == (["q", "k"], ["0"], [[4], [8]])
