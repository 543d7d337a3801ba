"""The step that makes overlays, from a model and its base to what is served."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fairbits.api.make_plan import plan
from fairbits.api.overlay import overlay
from fairbits.api.quantize import quantize
from fairbits.core.errors import InputError
from fairbits.models.checkpoint import Checkpoint
from fairbits.serve.overlays.adaptive_model import AdaptiveModel
from fairbits.serve.overlays.overlay_files import BASE, MANIFEST, Overlays
from fairbits.text.corpus import Corpus
from fairbits.text.included_texts import udhr

CODES = ("eng_Latn", "heb_Hebr", "jpn_Jpan", "swh_Latn")
TEXT: dict[str, Any] = {"languages": CODES, "tokens": 150, "sequence": 64}


@pytest.fixture(scope="module")
def llama(reading_model: Callable[[str], Checkpoint]) -> Checkpoint:
    return reading_model("llama")


@pytest.fixture(scope="module")
def base(llama: Checkpoint, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns where a small random Llama lies in 3 bits, 16 weights to a step."""
    out = tmp_path_factory.mktemp("llama") / "base"
    quantize(llama, plan(llama, policy="rtn", bits=3, group=16), out=out)
    return out


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("form", ["residual", "codes", "steps"])
def test_what_is_made_can_be_served(llama: Checkpoint, base: Path, tmp_path: Path, form: Any) -> None:
    overlays = overlay(llama, base=base, out=tmp_path / "o", form=form, budget=0.2, **TEXT)
    size = sum(info.nbytes for info in Checkpoint(base).tensors.values())
    assert overlays.record["base_bytes"] == size
    assert all(entry.size_bytes <= 0.2 * size for entry in overlays.overlays)
    assert set(overlays.languages) == set(CODES)
    for code, name in overlays.languages.items():
        apart = overlays.record["apart"][code]
        assert (apart["overlay"] < apart["base"]) == (name != BASE)
    assert sorted(map(int, overlays.record["tried"])) == [1, 2, 4]
    served, plain = AdaptiveModel(base, tmp_path / "o"), weights(Checkpoint(base).load())
    assert served.names == (BASE, *(entry.name for entry in overlays.overlays))
    for name in served.names:
        with served.using(name) as model:
            assert equal(weights(model), plain) == (name == BASE)
    with served.using(BASE) as model:
        assert equal(weights(model), plain)
    if form == "residual":
        assert overlays.overlays
        assert set(overlays.languages.values()) != {BASE}


def test_overlays_lie_beside_the_base_unless_told(llama: Checkpoint, base: Path, tmp_path: Path) -> None:
    shutil.copytree(base, tmp_path / "base")
    seen: list[str] = []
    overlay(
        llama,
        base=tmp_path / "base",
        clusters=1,
        progress=lambda what, _done, _total: seen.append(what),
        **TEXT,
    )
    assert (tmp_path / "base" / "overlays" / MANIFEST).is_file()
    assert seen[0] == "evaluating the reference model"
    assert "computing sensitivities for heb_Hebr" in seen
    # the base is the same as before
    assert (
        Overlays.load(tmp_path / "base" / "overlays", Checkpoint(tmp_path / "base")).base
        == Checkpoint(base).fingerprint
    )


@pytest.mark.parametrize(("clusters", "chosen"), [(3, 3), (9, 4)])
def test_as_many_clusters_as_are_asked_for(
    llama: Checkpoint, base: Path, tmp_path: Path, clusters: int, chosen: int
) -> None:
    overlays = overlay(llama, base=base, out=tmp_path, clusters=clusters, budget=0.2, **TEXT)
    assert overlays.record["clusters"] == chosen
    assert len(overlays.overlays) <= chosen
    assert all(
        code in entry.languages
        for entry in overlays.overlays
        for code in CODES
        if overlays.languages[code] == entry.name
    )


def test_no_budget_leaves_all_languages_with_the_base(llama: Checkpoint, base: Path, tmp_path: Path) -> None:
    overlays = overlay(llama, base=base, out=tmp_path, clusters=2, budget=0.0, **TEXT)
    assert overlays.overlays == ()
    assert set(overlays.languages.values()) == {BASE}
    served = AdaptiveModel(base, tmp_path)
    assert served.choose("Hello", language="eng_Latn").overlay == BASE


@pytest.mark.parametrize("budget", [0.0, 0.2])
def test_thresholds_make_an_overlay_of_every_language(
    llama: Checkpoint, base: Path, tmp_path: Path, budget: float
) -> None:
    overlays = overlay(llama, base=base, out=tmp_path, clusters=1, budget=budget, activations=8, **TEXT)
    assert [entry.name for entry in overlays.overlays] == list(CODES)
    assert overlays.languages == {code: code for code in CODES}
    loaded = Overlays.load(tmp_path, Checkpoint(base))
    assert loaded.size_bytes == overlays.size_bytes
    if budget == 0:
        assert overlays.activations is not None
        assert loaded.size_bytes == 4 * overlays.activations.alpha.size + 4 * overlays.activations.blind.size
    manifest = json.loads((tmp_path / MANIFEST).read_text())
    assert len({entry["file"] for entry in manifest["overlays"]}) <= 2  # a cluster's rows, or none
    served = AdaptiveModel(base, tmp_path)
    assert served.choose("Hello", language="eng_Latn").overlay == "eng_Latn"
    with served.using("eng_Latn") as model, torch.no_grad():
        assert model(torch.tensor([[5, 6, 7]])).logits.isfinite().all()


def test_a_base_that_limits_positions_continues_a_text(base: Path) -> None:
    assert AdaptiveModel(base).generate("Hello", max_new_tokens=2)


def test_what_does_not_belong_together_is_refused(llama: Checkpoint, base: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="has other weights"):
        overlay("embedded:tiny", base=base, out=tmp_path / "o", **TEXT)
    with pytest.raises(InputError, match=r"has no plan\.json"):
        overlay(llama, base=llama, out=tmp_path / "o", **TEXT)
    assert not (tmp_path / "o").exists()


def test_text_that_is_too_little_is_told_before_the_model_is_asked(
    llama: Checkpoint, base: Path, tmp_path: Path
) -> None:
    whole = udhr(CODES[:2])
    few = Corpus("few", {code: texts[:2] for code, texts in whole.calibration.items()}, whole.evaluation)
    seen: list[str] = []
    with pytest.raises(InputError, match="eng_Latn has 21 documents in few: 2 for calibration"):
        overlay(llama, base=base, out=tmp_path / "o", text=few, progress=lambda what, _done, _total: seen.append(what))
    assert not seen
    with pytest.raises(InputError, match="has only one language"):
        overlay(llama, base=base, out=tmp_path / "o", languages=["eng"])
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"budget": -0.1}, "budget is -0.1"),
        ({"budget": 1.5}, "budget is 1.5"),
        ({"budget": float("nan")}, "budget is nan"),
        ({"clusters": 0}, "clusters is 0"),
        ({"form": "rows"}, "form is 'rows'"),
        ({"activations": 1}, "activations is 1"),
        ({"activations": 9}, "activations is 9"),
        ({"tokens": 3}, "tokens is 3"),
        ({"device": "abacus"}, "abacus"),
    ],
)
def test_settings_beyond_their_limits_are_refused(
    llama: Checkpoint, base: Path, tmp_path: Path, wrong: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        overlay(llama, base=base, out=tmp_path / "o", **{**TEXT, **wrong})
    assert not (tmp_path / "o").exists()


def test_a_directory_with_other_files_is_refused(llama: Checkpoint, base: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="holds other files"):
        overlay(llama, base=base, out=tmp_path, **TEXT)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]
