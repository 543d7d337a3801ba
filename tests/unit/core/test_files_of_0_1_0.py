"""Files that fairbits 0.1.0 wrote, of a small random Llama and two languages, are read and keep their content."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fairbits.api.make_plan import plan
from fairbits.api.quantize import quantize
from fairbits.auditing.audit_file import AUDIT
from fairbits.core.records import Kind, to_json
from fairbits.evaluation.scores import Scores
from fairbits.models.checkpoint import Checkpoint
from fairbits.quantization.plan import Plan
from fairbits.reports.sources import RUN, SWEEP
from fairbits.serve.overlays.overlay_files import MANIFEST, Overlays
from fairbits.text.mix_file import Mix

SAVED = Path(__file__).parents[2] / "data" / "0.1.0"
LANGUAGES = {"eng_Latn", "heb_Hebr"}


def then(content: bytes) -> bytes:
    """Returns what is written now with the version of then."""
    data = json.loads(content)
    data["fairbits"] = "0.1.0"
    return to_json(data)


def test_a_mix() -> None:
    found = Mix.load(SAVED / "calib.jsonl")
    assert then(to_json(found.manifest)) == (SAVED / "calib.jsonl.manifest.json").read_bytes()
    assert found.jsonl == (SAVED / "calib.jsonl").read_bytes()
    assert set(found.languages) == LANGUAGES


def test_overlays(reading_model: Callable[[str], Checkpoint], tmp_path: Path) -> None:
    llama, place = reading_model("llama"), tmp_path / "overlays"
    quantize(llama, plan(llama, policy="rtn", bits=3, group=16), out=tmp_path / "base")
    base = Checkpoint(tmp_path / "base")
    shutil.copytree(SAVED / "overlays", place)
    content = json.loads((place / MANIFEST).read_bytes()) | {"base": base.fingerprint}  # whatever config.json is now
    (place / MANIFEST).write_text(json.dumps(content))
    found = Overlays.load(place, base)
    assert set(found.languages) == set(found.activations.languages) == LANGUAGES
    found.save(tmp_path / "again")
    again = (tmp_path / "again" / MANIFEST).read_text()
    assert json.loads(re.sub(r"\.[0-9a-f]{16}\.safetensors", ".safetensors", again)) == content
    for each in place.glob("*.safetensors"):
        (written,) = (tmp_path / "again").glob(f"{each.stem}.*")  # whose name has the checksum
        assert written.read_bytes() == each.read_bytes()


@pytest.mark.parametrize("name", ["plan.json", "plan-learned.json"])
def test_plans(name: str) -> None:
    found = Plan.load(SAVED / name)
    assert then(found.as_bytes()) == (SAVED / name).read_bytes()
    assert set(found.languages) == LANGUAGES
    assert len(found.outcomes) == len(found.quantized) == 14
    assert (found.learned is not None) == (found.learning is not None) == ("learned" in name)


def test_scores() -> None:
    saved, found = json.loads((SAVED / "scores.json").read_bytes()), Scores.load(SAVED / "scores.json")
    now = json.loads(found.as_bytes())
    assert (saved.pop("schema"), now.pop("schema")) == ("fairbits.scores/1", "fairbits.scores/2")
    percentiles = now.pop("percentiles")
    assert saved.pop("kl_p99") == {code: own.pop("kl_p99") for code, own in percentiles.items()}
    assert {value for own in percentiles.values() for value in own.values()} == {None}
    assert now.pop("versions") == {"fairbits": "0.1.0"}
    assert now | {"fairbits": "0.1.0"} == saved
    assert set(found.languages) == set(found.kl) == LANGUAGES


@pytest.mark.parametrize(
    ("name", "kind", "languages"),
    [
        ("audit.json", AUDIT, lambda found: found.languages),
        ("run.json", RUN, lambda found: found.settings["languages"]),
    ],
)
def test_what_reports_read(name: str, kind: Kind[Any], languages: Callable[[Any], Any]) -> None:
    found = kind.read(SAVED / name)
    content = asdict(found)
    if kind is AUDIT:
        assert {each.pop("trusted") for each in content["languages"].values()} == {None}  # 0.1.0 did not say
        assert content.pop("experts") is None  # nor this
        assert found.trusted <= LANGUAGES
    assert then(to_json(kind.stamp(content))) == (SAVED / name).read_bytes()
    assert set(languages(found)) == LANGUAGES


@pytest.mark.parametrize(
    ("name", "kind", "languages"),
    [
        ("sweep.json", SWEEP, lambda found: found.damage),
    ],
)
def test_damage_of_0_1_0_is_the_added_loss(name: str, kind: Kind[Any], languages: Callable[[Any], Any]) -> None:
    saved, found = json.loads((SAVED / name).read_bytes()), kind.read(SAVED / name)
    now = json.loads(to_json(kind.stamp(asdict(found))))
    assert saved.pop("schema").endswith("/1")
    assert now.pop("schema") == kind.schema
    assert now.pop("measure") == found.measure == "loss"
    assert now | {"fairbits": "0.1.0"} == saved
    assert set(languages(found)) == LANGUAGES
