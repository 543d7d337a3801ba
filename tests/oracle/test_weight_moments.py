"""Weight moments against SciPy, NumPy and brute force, on several distributions and in every dtype."""

import numpy as np
import pytest
import torch
from scipy import stats

from fairbits.models.weight_moments import count_by_value, merge_moments, tensor_moments

DISTRIBUTIONS = {
    "normal": stats.norm(0, 0.02),
    "laplace": stats.laplace(0, 0.02),
    "t3": stats.t(3, scale=0.02),
    "skewed": stats.lognorm(0.8, scale=0.02),
    "uniform": stats.uniform(-0.02, 0.04),
    "far from zero": stats.norm(20.0, 0.02),  # mean = 1000 σ
    "tiny": stats.norm(0, 1e-30),
    "subnormal": stats.norm(0, 1e-43),
    "huge": stats.norm(0, 1e30),
}
DTYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def draw(distribution: str, dtype: torch.dtype, n: int = 30_011) -> torch.Tensor:
    seed = sorted(DISTRIBUTIONS).index(distribution)
    W = torch.from_numpy(DISTRIBUTIONS[distribution].rvs(n, random_state=seed)).to(dtype)
    if not torch.isfinite(W).all() or W.unique().numel() < 2:
        pytest.skip(f"{dtype} does not reach so far")
    return W


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_moments_and_shares_are_those_of_scipy_and_brute_force(distribution, dtype) -> None:
    W = draw(distribution, dtype)
    x = W.double().numpy()
    scaled = x / np.abs(x).max()  # SciPy takes powers of the numbers as they are
    moments = tensor_moments(W)
    assert moments.mean == pytest.approx(x.mean(), rel=1e-12, abs=1e-14 * x.std())
    assert moments.sigma == pytest.approx(scaled.std() * np.abs(x).max(), rel=1e-11)
    assert moments.skewness == pytest.approx(stats.skew(scaled), rel=1e-9, abs=1e-9)
    assert moments.kappa == pytest.approx(stats.kurtosis(scaled), rel=1e-10, abs=1e-9)
    assert moments.largest == np.abs(x).max()
    distance = np.abs(x - moments.mean)
    assert moments.beyond_3 == np.mean(distance > 3 * moments.sigma)
    assert moments.beyond_6 == np.mean(distance > 6 * moments.sigma)


def test_merged_float32_shares_of_many_scales_match_brute_force() -> None:
    rng = np.random.default_rng(3)
    parts = [torch.from_numpy((rng.standard_t(5, 40_000) * scale).astype(np.float32)) for scale in (0.3, 1.0, 1.7, 4.0)]
    counts = {torch.float32: np.sum([count_by_value(part) for part in parts], axis=0)}
    merged = merge_moments([tensor_moments(part) for part in parts], counts)
    x = torch.cat(parts).double().numpy()
    for k, share in ((3, merged.beyond_3), (6, merged.beyond_6)):
        assert share == pytest.approx(np.mean(np.abs(x - x.mean()) > k * x.std()), rel=0.01)
