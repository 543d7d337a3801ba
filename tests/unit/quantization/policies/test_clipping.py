"""Policies of clipping: aciq, kappa and laaciq."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fairbits.core.errors import InputError
from fairbits.quantization.evidence import Evidence
from fairbits.quantization.plan import Plan


def test_kappa_is_on_the_symmetric_grid(llama: Evidence, make_plan: Any, schemes: Any) -> None:
    plan = make_plan("kappa", llama, bits=3, group="channel")
    assert {scheme.grid for scheme in schemes(plan)} == {"symmetric"}
    assert plan.settings["grid"] == "symmetric"
    assert any("4 bits only" in note for note in plan.notes)
    with pytest.raises(InputError, match="kappa does not take grid"):
        make_plan("kappa", llama, grid="twos")


def test_aciq_has_two_distributions(llama: Evidence, make_plan: Any, schemes: Any) -> None:
    assert {scheme.clip for scheme in schemes(make_plan("aciq", llama, distribution="laplace"))} == {"laplace"}
    with pytest.raises(InputError, match="one of gaussian, laplace"):
        make_plan("aciq", llama, distribution="cauchy")


def test_laaciq_of_one_language_saves_all_thresholds(llama: Evidence, make_plan: Any, schemes: Any) -> None:
    plan = make_plan("laaciq", llama, language="he")
    assert plan.languages == {"eng_Latn": 0.0, "heb_Hebr": 1.0, "hin_Deva": 0.0}
    assert {scheme.objective for scheme in schemes(plan)} == {"mean"}
    assert plan.thresholds
    assert make_plan("laaciq", llama, objective="regret").settings["objective"] == "regret"
    with pytest.raises(InputError, match="objective is 'best'"):
        make_plan("laaciq", llama, objective="best")
    with pytest.raises(InputError, match="laaciq was given objective worst and language he; give only one of them"):
        make_plan("laaciq", llama, language="he", objective="worst")
    with pytest.raises(InputError, match="fra_Latn is not one of the languages"):
        make_plan("laaciq", llama, language="fra")


@pytest.mark.parametrize(
    ("options", "warns"), [({}, True), ({"objective": "regret"}, True), ({"objective": "mean"}, False)]
)
def test_the_worst_of_layers_is_not_the_worst_of_the_model(
    llama: Evidence, options: Any, warns: int, make_plan: Any
) -> None:
    assert (
        any("may not be best for the worst language" in note for note in make_plan("laaciq", llama, **options).notes)
        == warns
    )
    assert not any("may not be best" in note for note in make_plan("laaciq", llama, language="he").notes)


def thresholds(form: str, bits: int) -> dict[str, dict[str, float]]:
    """Hebrew's thresholds are twice those of English, Hindi's six times; the product form has them for two roles."""
    roles = [f"self_attn.{letter}_proj" for letter in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
    chosen = [roles[0], roles[-1]] if form == "product" else roles
    alpha = {"eng_Latn": 0.1 * bits, "heb_Hebr": 0.2 * bits, "hin_Deva": 0.6 * bits}
    return {f"model.layers.{block}.{role}.weight": alpha for block in (0, 1) for role in chosen}


@pytest.mark.parametrize(("language", "alpha"), [(None, 1.2), ("he", 0.8), ("en", 0.4)])
def test_the_global_form_has_one_alpha_of_the_language_or_their_mean(
    llama: Evidence, make_plan: Any, schemes: Any, language: str | None, alpha: float
) -> None:
    options = {} if language is None else {"language": language}
    plan = make_plan("laaciq", replace(llama, alphas=thresholds), form="global", **options)
    assert [scheme.clip for scheme in schemes(plan)] == pytest.approx([alpha] * 14)
    assert {(scheme.grid, scheme.group, scheme.objective) for scheme in schemes(plan)} == {
        ("symmetric", "tensor", None)
    }
    assert plan.settings["form"] == "global"
    assert plan.settings.get("language") == {None: None, "he": "heb_Hebr", "en": "eng_Latn"}[language]
    assert not plan.thresholds
    assert any(f"α = {alpha:g} on the symmetric grid" in note for note in plan.notes)


def test_the_product_form_has_an_alpha_per_layer_and_keeps_what_has_none(
    llama: Evidence, make_plan: Any, rounded_layers: Any
) -> None:
    plan = make_plan("laaciq", replace(llama, alphas=thresholds), form="product", language="hin", bits=3)
    clips = {layer.name.split(".")[-2]: layer.scheme.clip for layer in rounded_layers(plan)}
    assert clips.pop("q_proj") == clips.pop("down_proj") == pytest.approx(1.8)
    assert set(clips.values()) == {"absmax"}
    assert any("10 layers have no threshold" in note for note in plan.notes)
    assert not any("4 bits only" in note for note in plan.notes), "f is not used"


def test_a_form_is_checked_before_evidence_and_excludes_an_objective(unmeasured: Evidence, make_plan: Any) -> None:
    with pytest.raises(InputError, match="form is 'local'; it must be one of global, product"):
        make_plan("laaciq", unmeasured, form="local")
    with pytest.raises(InputError, match="given objective mean and form global; give only one of them"):
        make_plan("laaciq", unmeasured, form="global", objective="mean")


def test_a_plan_file_keeps_the_stated_alpha(llama: Evidence, make_plan: Any, schemes: Any, tmp_path: Path) -> None:
    plan = make_plan("laaciq", replace(llama, alphas=thresholds), form="global")
    file = tmp_path / "plan.json"
    plan.save(file)
    file.write_text(file.read_text("utf-8").replace('"0"', f'"{"0" * 64}"'))  # hashes as long as a file must have them
    again = Plan.load(file)
    assert schemes(again) == schemes(plan)
    assert "stated α" in plan.tables()[0].text()
    file.write_text(file.read_text("utf-8").replace(f'"clip": {schemes(plan)[0].clip!r}', '"clip": -1.0'))
    with pytest.raises(InputError, match="clip is -1; it must be finite, above 0"):
        Plan.load(file)
