"""LA-ACIQ on a model against plain NumPy: own moments, hooks for the activations, brute force for the thresholds."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fairbits.api.laaciq import laaciq
from fairbits.forward.tokenize import tokenize_corpus
from fairbits.kurtosis.clipping_record import LanguageClipping
from fairbits.models.checkpoint import Checkpoint
from fairbits.text.corpus import TextRequest
from fairbits.text.included_texts import udhr

CODES = ("eng_Latn", "heb_Hebr", "hin_Deva", "swh_Latn")
REQUEST = TextRequest("calibration", 128, 64, 0)
LEVELS = 7  # n of the symmetric grid at 4 bits
LAYER = "model.layers.1.mlp.down_proj.weight"


@pytest.fixture(scope="module")
def directory(reading_model, tmp_path_factory) -> Path:
    """Returns a small Llama whose second block has heavy tails."""
    place = shutil.copytree(reading_model("wide_llama").directory, tmp_path_factory.mktemp("tails") / "model")
    rng, tensors = np.random.default_rng(1), load_file(place / "model.safetensors")
    for name, W in tensors.items():
        if ".layers.1." in name and W.ndim == 2:
            tensors[name] = (W.float() * torch.from_numpy(rng.standard_t(5, W.shape)).float()).bfloat16()
    save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
    return place


@pytest.fixture(scope="module")
def clipping(directory) -> LanguageClipping:
    return laaciq(Checkpoint(directory), languages=CODES, device="cpu", **REQUEST.settings)


@pytest.fixture(scope="module")
def blocks(directory) -> list[np.ndarray]:
    """Returns all weights of the linear layers of every block."""
    tensors = load_file(directory / "model.safetensors")
    return [
        np.concatenate([W.double().numpy().ravel() for n, W in tensors.items() if f".{block}." in n and W.ndim == 2])
        for block in range(2)
    ]


def excess_kurtosis(w: np.ndarray) -> float:
    d = w - w.mean()
    return float((d**4).mean() / (d**2).mean() ** 2 - 3)


def mean_square_error(w: np.ndarray, alpha: float) -> float:
    """E(w − Q w)² with Q written as in the research notes."""
    rounded = alpha * np.round(np.clip(w, -alpha, alpha) * LEVELS / alpha) / LEVELS
    return float(np.mean((w - rounded) ** 2))


@pytest.fixture(scope="module")
def measured(directory) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns ā (blocks) and E[x²] of the input of LAYER by language, from own hooks on the windows that are read."""
    checkpoint = Checkpoint(directory)
    text = tokenize_corpus(checkpoint, udhr(CODES), request=REQUEST, least=1)
    model = checkpoint.load(torch.float32)
    norms, squares = ({code: [] for code in CODES} for _ in range(2))
    hidden: list[torch.Tensor] = []
    for block in model.model.layers:
        block.register_forward_hook(lambda _m, _a, out: hidden.append(out[0] if isinstance(out, tuple) else out))
    model.get_submodule(LAYER.removesuffix(".weight")).register_forward_pre_hook(
        lambda _m, args: hidden.append(args[0])
    )
    with torch.no_grad():
        for window in text.windows:
            hidden.clear()
            model(torch.tensor([list(window.main.ids)]))
            first, inner, second = (h.reshape(-1, h.shape[-1])[window.main.text].double().numpy() for h in hidden)
            code = str(text.lang[window.document])
            norms[code].append(np.linalg.norm([first, second], axis=2))
            squares[code].append(inner**2)
    activation = {code: np.concatenate(parts, axis=1).mean(axis=1) for code, parts in norms.items()}
    return (
        {code: a / a.sum() for code, a in activation.items()},
        {code: np.concatenate(parts).mean(axis=0) for code, parts in squares.items()},
    )


def test_sigma_kappa_and_the_shared_alpha_are_of_all_weights(clipping, blocks) -> None:
    w = np.concatenate(blocks)
    assert clipping.weights == len(w)
    assert clipping.sigma == pytest.approx(w.std(), rel=1e-10)
    assert clipping.kappa == pytest.approx(excess_kurtosis(w), rel=1e-9)
    assert clipping.alpha_shared == pytest.approx(w.std() * (2.5 + 0.3 * np.log(1 + excess_kurtosis(w))), rel=1e-9)


def test_kappa_eff_and_prop_1_follow_from_block_norms(clipping, blocks, measured) -> None:
    kappa = np.array([excess_kurtosis(w) for w in blocks])
    for code in CODES:
        expected = float(measured[0][code] @ kappa)
        language = clipping.languages[code]
        assert language.kappa_weighted.value == pytest.approx(expected, rel=1e-4)
        written = clipping.sigma * (2.5 + 0.3 * np.log(1 + expected))
        assert language.alpha_written.value == pytest.approx(written, rel=1e-5)
        assert language.kappa_weighted.low <= expected <= language.kappa_weighted.high


def test_the_exact_alpha_and_its_excess_match_brute_force(clipping, blocks, measured) -> None:
    code = "heb_Hebr"
    share, language = measured[0][code], clipping.languages[code]

    def error(alpha: float) -> float:
        return float(sum(a * mean_square_error(w, alpha) for a, w in zip(share, blocks, strict=True)))

    alphas = clipping.sigma * np.arange(2.0, 9.0, 0.02)
    best = alphas[int(np.argmin([error(alpha) for alpha in alphas]))]
    assert language.alpha_exact == pytest.approx(best, abs=0.1 * clipping.sigma)
    assert error(language.alpha_exact) <= error(best) * (1 + 1e-6)
    least, shared = (error(alpha) for alpha in (language.alpha_exact, clipping.alpha_shared))
    assert language.error_exact == pytest.approx(least, rel=1e-4)
    assert language.error_shared == pytest.approx(shared, rel=1e-4)
    assert language.excess.value == pytest.approx(shared - least, rel=1e-2)
    assert language.excess_relative.value == pytest.approx((shared - least) / least, rel=1e-2)


def test_products_have_the_moments_and_thresholds_of_their_sample(clipping, measured, directory) -> None:
    layer = next(layer for layer in clipping.layers if layer.name == LAYER)
    W = load_file(directory / "model.safetensors")[LAYER].double().numpy()
    assert layer.kappa == pytest.approx(excess_kurtosis(W), rel=1e-9)
    for code in CODES[:2]:
        a = np.sqrt(measured[1][code])
        product = (W * (a / a.max())).ravel()
        assert layer.product_sigma[code] == pytest.approx(product.std(), rel=1e-4)
        assert layer.product_kappa[code] == pytest.approx(excess_kurtosis(product), rel=1e-3)
        alphas = product.std() * np.arange(1.5, 9.0, 0.05)
        errors = [mean_square_error(product, alpha) for alpha in alphas]
        assert mean_square_error(product, layer.product_alpha[code]) <= min(errors) * (1 + 1e-3)
        assert layer.product_alpha[code] == pytest.approx(alphas[int(np.argmin(errors))], rel=0.06)


def test_the_slope_of_the_square_law_is_least_squares(clipping) -> None:
    x = np.log([abs(one.kappa_weighted.value - clipping.kappa) for one in clipping.languages.values()])
    y = np.log([one.excess.value for one in clipping.languages.values()])
    slope = float(((x - x.mean()) * (y - y.mean())).sum() / ((x - x.mean()) ** 2).sum())
    left = y - y.mean() - slope * (x - x.mean())
    spread = np.sqrt((left**2).sum() / 2 / ((x - x.mean()) ** 2).sum())
    assert clipping.law.slope.value == pytest.approx(slope)
    assert clipping.law.slope.high - slope == pytest.approx(4.302652729911275 * spread)  # t of 2 degrees of freedom
