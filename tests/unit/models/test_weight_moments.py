"""Moments of tensors and blocks; the oracle tests compare them with SciPy."""

import json
import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from fairbits.core.errors import InputError
from fairbits.models import weight_moments as module
from fairbits.models.checkpoint import Checkpoint
from fairbits.models.weight_moments import WeightMoments, count_by_value, merge_moments, tensor_moments, weight_moments

FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]
LINEARS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


def gaussian(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape)).to(dtype)


def merged(*parts: torch.Tensor) -> WeightMoments:
    counts: dict[torch.dtype, np.ndarray] = {}
    for part in parts:
        counts[part.dtype] = counts.get(part.dtype, 0) + count_by_value(part)
    return merge_moments([tensor_moments(part) for part in parts], counts)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("at", [3, 4999])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_weight_that_is_not_finite_is_named(dtype, at, value) -> None:
    W = gaussian(50, 100, dtype=dtype)
    W.view(-1)[at] = W.view(-1)[-1] = value
    count = 1 if at == 4999 else 2
    expected = rf"h\.0\.weight holds {count} NaN or infinite .* \({value}\) at \({at // 100}, {at % 100}\)"
    with pytest.raises(InputError, match=expected):
        tensor_moments(W, name="h.0.weight")


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("n", [1, 2, 5000])
def test_equal_weights_have_no_spread(dtype, n) -> None:
    W = torch.full((n,), 0.1, dtype=dtype)
    value = float(W[0])
    for moments in (tensor_moments(W), merged(W, W[:1])):
        assert moments.as_data() | {"n": 0} == {
            "n": 0,
            "mean": value,
            "sigma": 0.0,
            "skewness": 0.0,
            "kappa": 0.0,
            "largest": value,
            "beyond_3": 0.0,
            "beyond_6": 0.0,
            "exact": True,
        }


def test_weights_far_from_the_first_cost_no_accuracy() -> None:
    W = gaussian(16, 256, dtype=torch.float64)
    W[0] += 1e6
    d = W.numpy() - W.numpy().mean()
    assert tensor_moments(W).kappa == pytest.approx(np.mean(d**4) / np.mean(d**2) ** 2 - 3, rel=1e-11)


@pytest.mark.parametrize("scale", [1e-200, 1e-140, 1e150, 1e200])
def test_float64_of_any_size_is_exact_or_refused(scale) -> None:
    W = gaussian(1000, dtype=torch.float64)
    if 1e-150 < scale < 1e152:
        assert tensor_moments(W * scale).kappa == pytest.approx(tensor_moments(W).kappa, rel=1e-11)
    else:
        with pytest.raises(InputError, match=r"the variance is b.* the range of float64"):
            tensor_moments(W * scale)


@pytest.mark.parametrize("dtype", FLOATS)
def test_views_gradients_and_scalars_are_read_as_they_are(dtype, monkeypatch) -> None:
    W = gaussian(60, 100, dtype=dtype)
    assert tensor_moments(W.T).kappa == pytest.approx(tensor_moments(W).kappa, rel=1e-12)
    assert tensor_moments(W[:, ::2]) == tensor_moments(W[:, ::2].clone())
    assert tensor_moments(torch.nn.Parameter(W)) == tensor_moments(W)
    assert tensor_moments(W[0, 0]).mean == float(W[0, 0])
    whole = tensor_moments(W)
    monkeypatch.setattr(module, "SUMMED_WEIGHTS", 999)
    monkeypatch.setattr(module, "COUNTED_WEIGHTS", 999)
    assert tensor_moments(W).kappa == pytest.approx(whole.kappa, rel=1e-12)
    assert tensor_moments(W).beyond_3 == whole.beyond_3


@pytest.mark.parametrize("dtype", FLOATS)
def test_merged_shares_are_exact_for_16_bits_and_close_for_more(dtype) -> None:
    narrow, broad = gaussian(200_000, dtype=dtype), gaussian(100_000, seed=1, dtype=dtype) * 4
    both, whole = merged(narrow, broad), tensor_moments(torch.cat([narrow, broad]))
    assert whole.exact
    assert both.exact == (dtype.itemsize == 2)
    assert (both.n, both.largest) == (whole.n, whole.largest)
    for name in ("mean", "sigma", "skewness", "kappa"):
        assert getattr(both, name) == pytest.approx(getattr(whole, name), rel=1e-10, abs=1e-12)
    for name in ("beyond_3", "beyond_6"):
        assert getattr(both, name) == pytest.approx(getattr(whole, name), rel=0, abs=0.0 if both.exact else 1e-5)


def test_dtypes_merge_with_each_other() -> None:
    parts = [gaussian(5000, seed=i, dtype=dtype) for i, dtype in enumerate(FLOATS)]
    both, whole = merged(*parts), tensor_moments(torch.cat([part.double() for part in parts]))
    assert both.kappa == pytest.approx(whole.kappa, rel=1e-10)
    assert both.beyond_3 == pytest.approx(whole.beyond_3, abs=1e-4)


@pytest.fixture(scope="module", params=[torch.float16, torch.bfloat16, torch.float32], ids=str)
def directory(request, tmp_path_factory):
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=48, n_head=4, vocab_size=100, n_positions=32, bos_token_id=0, eos_token_id=0)
    path = tmp_path_factory.mktemp("model")
    GPT2LMHeadModel(config).to(request.param).save_pretrained(path)
    weights = load_file(path / "model.safetensors")
    weights["transformer.h.1.mlp.c_fc.weight"] *= 7  # blocks in which the tensors differ in σ
    weights["transformer.h.0.attn.bias"] = torch.ones(1, 1, 4, 4, dtype=torch.uint8)  # as old GPT-2 files hold it
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    return path


def test_blocks_are_their_linear_layers_in_one_pass(directory) -> None:
    weights = load_file(directory / "model.safetensors")
    model = weight_moments(Checkpoint(directory))
    assert len(model.blocks) == 2
    for i, block in enumerate(model.blocks):
        together = torch.cat([weights[f"transformer.h.{i}.{name}.weight"].flatten() for name in LINEARS])
        whole = tensor_moments(together)
        assert (block.n, block.largest) == (whole.n, whole.largest)
        assert block.sigma == pytest.approx(whole.sigma, rel=1e-12)
        assert block.kappa == pytest.approx(whole.kappa, rel=1e-10)
        tolerance = 0 if together.dtype.itemsize == 2 else 0.02
        assert (block.beyond_3, block.beyond_6) == pytest.approx((whole.beyond_3, whole.beyond_6), rel=tolerance)


def test_every_tensor_has_moments_or_a_reason(directory) -> None:
    checkpoint = Checkpoint(directory)
    seen: list[tuple[int, int]] = []
    model = weight_moments(checkpoint, progress=lambda _, done, total: seen.append((done, total)))
    assert set(model.tensors) | set(model.skipped) == set(checkpoint.tensors)
    assert dict(model.skipped) == {"transformer.h.0.attn.bias": "it holds 16 element(s) of torch.uint8"}
    assert len(seen) == 1 + len(checkpoint.tensors)
    assert seen[-1] == (seen[1][1], seen[1][1])
    assert seen == sorted(seen)
    for name, moments in model.tensors.items():
        assert moments == tensor_moments(checkpoint.read(name)), name
    data = json.loads(json.dumps(model.as_data(), allow_nan=False))
    assert len(data["blocks"]) == 2
    assert math.isfinite(data["tensors"]["transformer.wte.weight"]["kappa"])


def test_a_linear_layer_without_moments_says_why(directory, monkeypatch) -> None:
    formats = {torch.float64: module.FORMATS[torch.float64]}
    monkeypatch.setattr(module, "FORMATS", formats)
    with pytest.raises(InputError, match=r"c_attn.weight has no moments: it holds 6912 element\(s\) of torch"):
        weight_moments(Checkpoint(directory))
