"""Thresholds of LA-ACIQ: counted weights, products with activations, and models of several kinds."""

import numpy as np
import pytest
import torch

from fairbits.api.audit import audit
from fairbits.api.laaciq import laaciq
from fairbits.kurtosis.language_clipping import ProductMoments, WeightCounts, channel_activation
from fairbits.models.scales.grid import Grid
from fairbits.models.scales.sample_clip import clip_sample
from fairbits.models.scales.scheme import Scheme
from fairbits.models.weight_moments import count_by_value, tensor_moments

LANGUAGES, SETTINGS = ("eng_Latn", "heb_Hebr"), {"tokens": 64, "sequence": 32, "device": "cpu"}


def test_counted_weights_give_the_error_and_the_best_alpha_of_the_sample() -> None:
    rng, grid = np.random.default_rng(0), Grid(4)
    parts = [torch.from_numpy(rng.standard_t(df, 30_000) * scale).half() for df, scale in ((30, 0.02), (4, 0.03))]
    counts = WeightCounts.of({torch.float16: np.array([count_by_value(part) for part in parts])})
    assert counts.share.sum(axis=1) == pytest.approx([1, 1])
    w = [part.double().numpy() for part in parts]
    expected = [np.mean((x - grid.quantize(x, grid.step(0.09))) ** 2) for x in w]
    assert counts.errors(0.09, grid) == pytest.approx(expected, rel=1e-12)
    mixture = clip_sample(np.concatenate(w), grid, importance=np.repeat([0.3, 0.7], 30_000))
    assert counts.best_alpha(np.array([0.3, 0.7]), grid) == pytest.approx(float(grid.alpha(mixture.step)), rel=1e-9)


def test_products_have_the_moments_of_the_sample() -> None:
    rng = np.random.default_rng(0)
    W, a = torch.from_numpy(rng.standard_t(5, (600, 24)) + 0.3).float(), rng.random((3, 24))
    moments = ProductMoments.of(W, a)
    samples = [tensor_moments(W.double() * torch.from_numpy(row)) for row in a]
    assert moments.sigma == pytest.approx([sample.sigma for sample in samples], rel=1e-9)
    assert moments.kappa == pytest.approx([sample.kappa for sample in samples], rel=1e-7)


def test_activation_is_scaled_by_its_largest_channel_and_may_be_silent() -> None:
    activation = channel_activation(np.array([[4.0, 1.0, 0.0], [0.0, 0.0, 0.0]]))
    assert activation.tolist() == [[1.0, 0.5, 0.0], [0.0, 0.0, 0.0]]


@pytest.mark.parametrize("family", ["llama", "gpt2", "mt5", "xlmr", "mixtral"])
def test_every_kind_of_model_has_thresholds_for_every_language(reading_model, family) -> None:
    checkpoint = reading_model(family)
    clipping = laaciq(checkpoint, languages=LANGUAGES, **SETTINGS)
    assert tuple(clipping.languages) == LANGUAGES
    audited = audit(checkpoint, languages=LANGUAGES, **SETTINGS, scheme=Scheme(4, "channel"))
    for code, language in clipping.languages.items():
        assert language.kappa_weighted == audited.kappa_weighted[code], "one κ_eff in all of fairbits"
        assert language.kappa_mixture == audited.kappa_mixture[code]
        assert 0 <= language.error_exact <= min(language.error_shared, language.error_written)
        assert language.alpha_exact > 0
    assert {layer.name for layer in clipping.layers} == set(audited.measured.linears)
    assert all(0 < alpha <= 1.2 * layer.alpha for layer in clipping.layers for alpha in layer.product_alpha.values())
    assert clipping.law.verdict == "cannot be tested"  # two languages


def test_other_bits_are_noted_and_checked(reading_model) -> None:
    three = laaciq(reading_model("llama"), languages=LANGUAGES, bits=3, **SETTINGS)
    assert any("4 bits only; its constants are used at 3 bits too" in note for note in three.notes)
    with pytest.raises(ValueError, match="bits is 9; it must be 2 to 8"):
        laaciq(reading_model("llama"), languages=LANGUAGES, bits=9, **SETTINGS)
