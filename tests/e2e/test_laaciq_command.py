"""`fairbits laaciq` and `--policy laaciq --form` as a user runs them."""

import json
import re

import pytest

from fairbits.quantization.plan import Plan

SHORT = ("--tokens", "64", "--sequence", "32", "--device", "cpu")


def test_laaciq_prints_thresholds_and_a_verdict_and_writes_them(command, outer_blocks, tmp_path) -> None:
    model, file = outer_blocks(2).directory, tmp_path / "laaciq.json"
    code, printed, errors = command(
        "laaciq", model, "--languages", "eng_Latn,heb_Hebr", *SHORT, "--out", file, "--details"
    )
    assert (code, errors) == (0, "")
    words = " ".join(printed.split())
    assert re.search(r"One α for all languages, σ·f\(κ\): [23]\.\d{4} σ\.", words)
    assert "The languages' α differ by" in words
    assert "cannot be tested: it takes 4 languages" in words
    assert "1.mlp.dense_4h_to_h" in words.replace(" ", "")
    saved = json.loads(file.read_text("utf-8"))
    assert saved["schema"] == "fairbits.laaciq/1"
    assert list(saved["languages"]) == ["eng_Latn", "heb_Hebr"]
    assert len(saved["layers"]) == 8


@pytest.mark.long
def test_a_plan_takes_the_alpha_that_laaciq_shows(command, outer_blocks, tmp_path) -> None:
    model = outer_blocks(2).directory
    text = ("--languages", "eng_Latn,heb_Hebr", *SHORT)
    _, printed, _ = command("laaciq", model, *text, "--json")
    shown = json.loads(printed)
    for form, language in (("global", ("--language", "heb")), ("product", ())):
        file = tmp_path / f"{form}.json"
        code, _, _ = command("plan", model, "--policy", "laaciq", "--form", form, *language, *text, "--out", file)
        assert code == 0
        alphas = {name: scheme.clip for name, scheme in Plan.load(file).schemes.items()}
        if form == "global":
            expected = dict.fromkeys(alphas, shown["languages"]["heb_Hebr"]["alpha_written"]["value"])
        else:
            expected = {layer["name"]: sum(layer["product_alpha"].values()) / 2 for layer in shown["layers"]}
        assert alphas == pytest.approx(expected, rel=1e-9)


def test_a_quantized_model_has_the_stated_alpha_in_every_layer(command, outer_blocks, tmp_path) -> None:
    out = tmp_path / "model"
    form = ("--policy", "laaciq", "--form", "global", "--languages", "eng_Latn,heb_Hebr")
    code, _, errors = command("quantize", outer_blocks(2).directory, *form, *SHORT, "--out", out)
    assert code == 0, errors
    plan = Plan.load(out / "plan.json")
    (alpha,) = {scheme.clip for scheme in plan.schemes.values()}
    for result in plan.results:
        assert result.alpha == pytest.approx((alpha,) * 3, rel=1e-3), "as float16 holds its scale"
